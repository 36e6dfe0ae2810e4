"""A convolutional chain without skips: the post-activation ResNet with its shortcuts cut.

Depth counts the stem, the hidden 3×3 convolutions and the classifier. The hidden convolutions are shared out
over the stages as evenly as possible (early stages take the rest); the first one of every stage but the first
has stride 2 and changes the width. With a depth of 6n + 2 and three stages it is resnet's main path.

    x: C×H×W → stem → act → [conv → act]·(depth − 2) → top → mean over H, W → dropout → classifier
      → logits: classes

sites    kind   stands after
stem     stem   the first convolution (layer 1), before its activation
conv{l}  inner  convolution l = 2 … depth − 1 (layer l), before its activation
top      top    the last activation, before pooling
"""

from torch import Tensor, nn

from study.config import ModelConfig
from study.errors import ConfigError
from study.models.base import Builder, PooledNetwork, check_size

READS = frozenset({"depth", "widths"})


class Plain(PooledNetwork):
    """The whole network; see the module's docstring."""

    def __init__(
        self, config: ModelConfig, builder: Builder, input_shape: tuple[int, int, int], n_classes: int
    ) -> None:
        super().__init__()
        self.activation = builder.activation
        widths = [builder.width(w) for w in config.widths]
        self.stem = builder.conv("stem", 1, "stem", input_shape[0], widths[0])
        self.hidden = nn.ModuleList()
        each, rest = divmod(config.depth - 2, len(widths))
        number, c_in = 2, widths[0]
        for stage, c_out in enumerate(widths):
            for i in range(each + (stage < rest)):
                stride = 2 if stage > 0 and i == 0 else 1
                conv = builder.conv(f"conv{number}", number, "inner", c_in, c_out, stride=stride)
                self.hidden.append(conv)
                number, c_in = number + 1, c_out
        self.end(builder, config.depth, c_in, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images N×C×H×W to logits N×classes."""
        x = self.activation(self.stem(x))
        for conv in self.hidden:
            x = self.activation(conv(x))
        return self.logits(x)


def build(config: ModelConfig, builder: Builder, input_shape: tuple[int, int, int], n_classes: int) -> Plain:
    """Return the network for C×H×W images; a convolution for every stage besides the stem."""
    stages = len(config.widths)
    if stages == 0:
        raise ConfigError("model.widths=[] is empty; network 'plain' needs at least one stage")
    least = stages + 2 if stages > 1 else 2
    if config.depth < least:
        raise ConfigError(
            f"model.depth={config.depth} is too small for {stages} stages: it must be ≥ {least}"
        )
    check_size(config, input_shape, 2 ** (stages - 1))
    return Plain(config, builder, input_shape, n_classes)
