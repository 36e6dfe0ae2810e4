"""All randomness is a function of (seed, purpose, indices): there is no generator state to save or lose."""

import hashlib

import torch


def derived_seed(seed: int, purpose: str, *indices: int | str) -> int:
    """Return a 63-bit seed that differs for every (seed, purpose, indices)."""
    text = "\0".join([str(seed), purpose, *map(str, indices)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, purpose: str, *indices: int | str) -> torch.Generator:
    """Return a CPU generator for one purpose; draws on the CPU are the same whatever the device."""
    return torch.Generator().manual_seed(derived_seed(seed, purpose, *indices))
