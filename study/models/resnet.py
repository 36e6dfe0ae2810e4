"""ResNet for small images (He et al. 2015, 1512.03385, §4.2), post-activation.

Depth 2·S·n + 2 for S stages (6n + 2 for the usual three) of n blocks. Spatial size halves and width changes
at the first block of every stage but the first. Layer 1 is the stem, block k holds layers 2k and 2k + 1, the
classifier is the last; projections have no number.

    x: C×H×W → stem → act → [block: act(shortcut(x) + s·conv2(act(conv1(x))))]·(S·n) → top → mean over H, W
      → dropout → classifier → logits: classes

`s` is `branch_scale`: 1, a learned scalar from 0 (SkipInit, De & Smith 2020), or 1/√(S·n).

sites          kind      stands after
stem           stem      the stem's 3×3 convolution, before its activation
block{k}.conv1 inner     the first 3×3 convolution, before the activation
block{k}.conv2 outer     the second, before the addition
block{k}.shortcut shortcut  the 1×1 projection, before the addition (shortcut=projection, where shapes change)
top            top       the last block's activation, before pooling

Parameters with BN, three channels, ten classes, widths 16/32/64 (published: He et al., Table 6):

depth  padding    projection  published
   20    269,722     272,474  0.27M
   32    464,154     466,906  0.46M
   44    658,586     661,338  0.66M
   56    853,018     855,770  0.85M
  110  1,727,962   1,730,714  1.7M
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from study.config import ModelConfig
from study.errors import ConfigError
from study.models.base import Builder, PooledNetwork, check_size

READS = frozenset({"depth", "widths", "shortcut", "branch_scale"})


class Subsample(nn.Module):
    """Every `stride`-th pixel: what a strided 1×1 convolution reads, taken before an unstrided one.

    The result is the same, and no strided 1×1 kernel is called: the CPU library of the pinned torch writes
    out of bounds in its weight gradient when there are fewer input channels than a vector holds (8 or 16) and
    the layout is channels_last (oneDNN issue 6035), which corrupts memory in silence.
    """

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """Map N×C×H×W to N×C×⌈H/stride⌉×⌈W/stride⌉."""
        return x[:, :, :: self.stride, :: self.stride]


class Padding(nn.Module):
    """Shortcut without parameters: every `stride`-th pixel, and zero channels (half before, half after)."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.stride, self.before = stride, (c_out - c_in) // 2
        self.after = c_out - c_in - self.before

    def forward(self, x: Tensor) -> Tensor:
        """Map N×c_in×H×W to N×c_out×⌈H/stride⌉×⌈W/stride⌉."""
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


class BranchScale(nn.Module):
    """Factor on a residual branch: learned from 0 (skipinit) or 1/√blocks (depth)."""

    def __init__(self, kind: str, blocks: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.zeros(())) if kind == "skipinit" else blocks**-0.5

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled branch."""
        return x * self.factor


def branch_scale(kind: str, blocks: int) -> nn.Module:
    """Return the factor on each of `blocks` residual branches."""
    return nn.Identity() if kind == "none" else BranchScale(kind, blocks)


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(
        self, config: ModelConfig, builder: Builder, k: int, c_in: int, c_out: int, stride: int, blocks: int
    ) -> None:
        super().__init__()
        self.activation = builder.activation
        self.conv1 = builder.conv(f"block{k}.conv1", 2 * k, "inner", c_in, c_out, stride=stride)
        self.conv2 = builder.conv(f"block{k}.conv2", 2 * k + 1, "outer", c_out, c_out)
        self.scale = branch_scale(config.branch_scale, blocks)
        self.shortcut: nn.Module = nn.Identity()
        if c_in != c_out or stride != 1:
            if config.shortcut == "projection":
                name = f"block{k}.shortcut"
                projection = builder.conv(name, None, "shortcut", c_in, c_out, kernel=1)
                self.shortcut = nn.Sequential(Subsample(stride), projection)
            else:
                self.shortcut = Padding(c_in, c_out, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map N×c_in×H×W to N×c_out×⌈H/stride⌉×⌈W/stride⌉."""
        branch = self.scale(self.conv2(self.activation(self.conv1(x))))
        return self.activation(self.shortcut(x) + branch)


class ResNet(PooledNetwork):
    """The whole network; see the module's docstring."""

    def __init__(
        self, config: ModelConfig, builder: Builder, input_shape: tuple[int, int, int], n_classes: int
    ) -> None:
        super().__init__()
        self.activation = builder.activation
        plan = stages(config, builder)
        self.stem = builder.conv("stem", 1, "stem", input_shape[0], plan[0][0])
        self.blocks = nn.Sequential(
            *(Block(config, builder, k, *shape, blocks=len(plan)) for k, shape in enumerate(plan, start=1))
        )
        self.end(builder, config.depth, plan[-1][1], n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images N×C×H×W to logits N×classes."""
        x = self.activation(self.stem(x))
        return self.logits(self.blocks(x))


def stages(config: ModelConfig, builder: Builder) -> list[tuple[int, int, int]]:
    """Return (channels in, channels out, stride) of every block; ConfigError for an impossible depth."""
    widths = [builder.width(w) for w in config.widths]
    if not widths:
        raise ConfigError(f"model.widths=[] is empty; network '{config.name}' needs at least one stage")
    per_n = 2 * len(widths)
    n, rest = divmod(config.depth - 2, per_n)
    if n < 1 or rest:
        raise ConfigError(
            f"model.depth={config.depth} is not possible with {len(widths)} stages: "
            f"it must be {per_n}n + 2 with n ≥ 1"
        )
    if config.shortcut == "padding" and widths != sorted(widths):
        raise ConfigError(f"model.widths={list(config.widths)} must not decrease with shortcut=padding")
    plan, c_in = [], widths[0]
    for stage, width in enumerate(widths):
        for i in range(n):
            plan.append((c_in, width, 2 if stage > 0 and i == 0 else 1))
            c_in = width
    return plan


def build(config: ModelConfig, builder: Builder, input_shape: tuple[int, int, int], n_classes: int) -> ResNet:
    """Return the network for C×H×W images; sides of at least 2^(stages − 1) pixels."""
    check_size(config, input_shape, 2 ** (len(config.widths) - 1))
    return ResNet(config, builder, input_shape, n_classes)
