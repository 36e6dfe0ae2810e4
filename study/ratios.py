"""Ratios of times, measured in turns: absolute times mean little on a shared machine."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

Clock = Callable[[Callable[[], Any]], float]
"""Runs an action and returns its seconds."""


class Ratio(NamedTuple):
    """Median of paired ratios and their 10th and 90th percentiles."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f}  ({self.low:.3f} to {self.high:.3f})"


def seconds(action: Callable[[], Any]) -> float:
    """Time one call by the wall clock, the GPU's work included."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    began = time.perf_counter()
    action()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def thread_seconds(action: Callable[[], Any]) -> float:
    """Time one call by the processor time of this thread: waiting for other programs does not count."""
    began = time.thread_time()
    action()
    return time.thread_time() - began


def paired(
    ours: Callable[[], Any], theirs: Callable[[], Any], repetitions: int, clock: Clock = seconds
) -> Ratio:
    """Time two actions in turns, swapping who goes first; return ours ÷ theirs. A first pair is warm-up."""
    ratios = []
    for i in range(repetitions + 1):
        first, second = (ours, theirs) if i % 2 else (theirs, ours)
        a, b = clock(first), clock(second)
        ratios.append(a / b if i % 2 else b / a)
    return spread(ratios[1:])


def spread(ratios: Sequence[float]) -> Ratio:
    """Summarise repeated measurements of one ratio."""
    ordered = sorted(ratios)
    last = len(ordered) - 1
    return Ratio(statistics.median(ordered), ordered[round(0.1 * last)], ordered[round(0.9 * last)])
