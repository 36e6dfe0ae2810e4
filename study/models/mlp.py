"""A multilayer perceptron: `depth` linear layers on the flattened image, the last of them the classifier.

`widths` gives one width for every hidden layer, or one for each. Ioffe & Szegedy's network for their Fig 1 is
depth 4, widths [100], activation sigmoid.

    x: C×H×W → flatten → [linear → act]·(depth − 1) → top → dropout → classifier → logits: classes

sites      kind   stands after
linear{l}  inner  hidden layer l = 1 … depth − 1 (layer l), before its activation; N×units
top        top    the last activation, the classifier's input; N×units
"""

import math

from torch import Tensor, nn

from study.config import ModelConfig
from study.errors import ConfigError
from study.models.base import Builder, Network

READS = frozenset({"depth", "widths"})


class MLP(Network):
    """The whole network; see the module's docstring."""

    def __init__(
        self, config: ModelConfig, builder: Builder, input_shape: tuple[int, int, int], n_classes: int
    ) -> None:
        super().__init__()
        self.activation = builder.activation
        hidden = config.depth - 1
        widths = config.widths * hidden if len(config.widths) == 1 else config.widths
        self.hidden = nn.ModuleList()
        f_in = math.prod(input_shape)
        for number, width in enumerate(widths, start=1):
            f_out = builder.width(width)
            self.hidden.append(builder.linear(f"linear{number}", number, "inner", f_in, f_out))
            f_in = f_out
        self.top = builder.top(f_in, ndim=2)
        self.classifier = builder.classifier(config.depth, f_in, n_classes)
        builder.finish(self)

    def forward(self, x: Tensor) -> Tensor:
        """Map images N×C×H×W to logits N×classes."""
        x = x.flatten(1)
        for linear in self.hidden:
            x = self.activation(linear(x))
        logits: Tensor = self.classifier(self.top(x))
        return logits


def build(config: ModelConfig, builder: Builder, input_shape: tuple[int, int, int], n_classes: int) -> MLP:
    """Return the network for images of exactly C×H×W."""
    if config.depth < 2:
        raise ConfigError(f"model.depth={config.depth} leaves no hidden layer: network 'mlp' needs depth ≥ 2")
    if len(config.widths) not in {1, config.depth - 1}:
        raise ConfigError(
            f"model.widths={list(config.widths)} must give one width, or one for each of the "
            f"{config.depth - 1} hidden layers of network 'mlp'"
        )
    return MLP(config, builder, input_shape, n_classes)
