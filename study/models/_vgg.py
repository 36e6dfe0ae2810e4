"""What the VGG networks (Simonyan & Zisserman 2014, 1409.1556, Table 1) share.

Five groups of 3×3 convolutions, a 2×2 max pooling after each, then two hidden linear layers and a classifier:

    x: C×H×W → [[conv → act]·m → max pool]·5 → bring to s×s → flatten → [linear → act]·2 → top → dropout
      → classifier → logits: classes

sites      kind   stands after
stem       stem   the first convolution (layer 1), before its activation
conv{l}    inner  convolution l (layer l), before its activation
linear{l}  inner  hidden linear layer l (layer l), before its activation; N×units
top        top    the last activation, the classifier's input; N×units
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from study.config import ModelConfig
from study.models.base import Builder, Network, check_size

CHANNELS = (64, 128, 256, 512, 512)
GROUPS_A = (1, 1, 2, 2, 2)
"""Convolutions of each group, configuration A (11 layers)."""
GROUPS_D = (2, 2, 3, 3, 3)
"""The same, configuration D (16 layers)."""


class VGG(Network):
    """Five groups of convolutions and three linear layers; see the module's docstring."""

    def __init__(
        self,
        config: ModelConfig,
        builder: Builder,
        input_shape: tuple[int, int, int],
        n_classes: int,
        *,
        groups: Sequence[int],
        units: int,
        pooled: int,
    ) -> None:
        """Units of each hidden linear layer; the last feature map is averaged to pooled×pooled."""
        super().__init__()
        check_size(config, input_shape, 2 ** len(groups))
        self.activation = builder.activation
        self.pooled = pooled
        self.groups, self.hidden = nn.ModuleList(), nn.ModuleList()
        number, c_in = 1, input_shape[0]
        for convs, channels in zip(groups, CHANNELS, strict=True):
            group, c_out = nn.ModuleList(), builder.width(channels)
            for _ in range(convs):
                name, kind = ("stem", "stem") if number == 1 else (f"conv{number}", "inner")
                group.append(builder.conv(name, number, kind, c_in, c_out))
                number, c_in = number + 1, c_out
            self.groups.append(group)
        f_in = c_in * pooled**2
        for _ in range(2):
            f_out = builder.width(units)
            self.hidden.append(builder.linear(f"linear{number}", number, "inner", f_in, f_out))
            number, f_in = number + 1, f_out
        self.top = builder.top(f_in, ndim=2)
        self.classifier = builder.classifier(number, f_in, n_classes)
        builder.finish(self)

    def forward(self, x: Tensor) -> Tensor:
        """Map images N×C×H×W to logits N×classes."""
        for group in self.groups:
            assert isinstance(group, nn.ModuleList)
            for conv in group:
                x = self.activation(conv(x))
            x = F.max_pool2d(x, 2)
        x = F.adaptive_avg_pool2d(x, self.pooled).flatten(1)
        for linear in self.hidden:
            x = self.activation(linear(x))
        logits: Tensor = self.classifier(self.top(x))
        return logits
