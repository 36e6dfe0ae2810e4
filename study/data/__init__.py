"""Labelled image sets: one module each; `load(config)` returns its RawSet (base.py)."""

HELPERS = ("loading", "batches")
"""Modules of this package that are not image sets."""
