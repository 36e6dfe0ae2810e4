"""Initial weights: one module each; `initialise(weight, generator)` fills one weight tensor (base.py)."""
