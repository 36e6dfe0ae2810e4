"""Bjorck et al. 2018 (1806.02375): BN's benefit is mostly that it permits larger learning rates.

One module per part of the argument; what they have in common is in `_paired`.
"""

import importlib
import pkgutil

from analysis.claims.base import Claim

_PARTS = sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))

CLAIMS: tuple[Claim, ...] = tuple(
    claim for part in _PARTS for claim in importlib.import_module(f"{__name__}.{part}").CLAIMS
)
