"""Networks: one module each; `build(config, builder, input_shape, n_classes)` returns a Network (base.py)."""
