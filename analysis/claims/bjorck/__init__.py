"""Bjorck et al. 2018 (1806.02375): BN's benefit is mostly that it permits larger learning rates.

One module per part of the argument, in its order. Only what a summary of the paper states (marked [P] in
analysis.expectations) is claimed; of the "0 or large" initialisation (§5) and of batch sizes (§2.1) there is
no such statement.
"""

from analysis.claims.base import Claim
from analysis.claims.bjorck import (
    activations,
    gradients,
    max_rates,
    noise,
    parts,
    random_matrices,
    rates,
    schemes,
    step_sizes,
)

PARTS = (rates, noise, step_sizes, activations, gradients, random_matrices, parts, schemes, max_rates)

CLAIMS: tuple[Claim, ...] = tuple(claim for part in PARTS for claim in part.CLAIMS)
