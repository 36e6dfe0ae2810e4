"""Measurements: one module each (base.py, capture.py)."""
