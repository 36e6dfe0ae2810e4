"""Normalisations: one module per family; `build(config)` returns a Norm (base.py)."""
