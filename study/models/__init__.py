"""Networks: one module each; `build(config, builder, input_shape, n_classes)` returns a Network (base.py)."""

FIXED_DEPTH = frozenset({"vgg11", "vgg16", "vgg_a"})
"""Networks that do not read model.depth; here too, since run ids are made without torch (a test compares)."""
