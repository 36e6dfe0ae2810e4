"""Labelled image sets: one module each; `load(config)` returns an ImageSet (base.py)."""
