"""Claims of the papers, judged by rules fixed beforehand: one module per explanation, each with CLAIMS."""

import importlib
import pkgutil

from analysis.claims.base import Case, Claim, Result, Verdict, judged

__all__ = ["Case", "Claim", "Result", "Verdict", "judge", "registered"]


def registered() -> list[Claim]:
    """Every claim of every module of this folder, in order of module and of CLAIMS; ids are unique."""
    names = sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name != "base")
    found = [claim for n in names for claim in importlib.import_module(f"{__name__}.{n}").CLAIMS]
    if len({claim.id for claim in found}) != len(found):
        raise ValueError("two claims share an id")
    return found


def judge(case: Case) -> list[Result]:
    """Judge all registered claims on the runs of one setting, corrected for the number of claims.

    The correction counts all registered claims, tested or not: it is fixed before any run is seen.
    """
    claims = registered()
    return [judged(claim, case, n_claims=len(claims)) for claim in claims]
