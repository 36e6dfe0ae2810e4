"""Pre-activation ResNet (He et al. 2016, 1603.05027) for small images.

Depth, widths, layer numbers, shortcuts and branch scales are those of `resnet`. What differs: norm and
activation stand before a block's convolutions, so nothing but additions lies on the path from the stem to the
top. As there (appendix), the first block's norm and activation come before its shortcut leaves, and a
projection starts from the normalised, activated stream and is not itself normalised.

    x: C×H×W → stem → [norm → act → conv1 → norm → act → conv2, ·s, + shortcut]·(S·n) → norm → act → top
      → mean over H, W → dropout → classifier → logits: classes

sites          kind      stands after
stem           stem      the stem's 3×3 convolution, before the first block's activation
block{k}.conv1 inner     the first 3×3 convolution, before the activation
block{k}.conv2 outer     the addition of the second 3×3 convolution to the stream, before the next activation;
                         it normalises the next block's input (or, after the last, the top's), not the stream
block{k}.shortcut outer  the 1×1 projection; its output too is normalised after the addition, with conv2's,
                         so only norms that act on weights (ws, wn) change this layer
top            top       the last activation, before pooling
"""

from torch import Tensor, nn

from study.config import ModelConfig
from study.models.base import Builder, PooledNetwork, check_size
from study.models.resnet import Padding, Subsample, branch_scale, stages

READS = frozenset({"depth", "widths", "shortcut", "branch_scale"})


class Block(nn.Module):
    """Two convolutions and a shortcut; its input has already been normalised and activated."""

    def __init__(
        self, config: ModelConfig, builder: Builder, k: int, c_in: int, c_out: int, stride: int, blocks: int
    ) -> None:
        super().__init__()
        self.activation = builder.activation
        self.conv1 = builder.conv(f"block{k}.conv1", 2 * k, "inner", c_in, c_out, stride=stride)
        conv2 = builder.conv(f"block{k}.conv2", 2 * k + 1, "outer", c_out, c_out)
        self.conv2, self.norm = builder.split(conv2)
        self.scale = branch_scale(config.branch_scale, blocks)
        self.shortcut: nn.Module | None = None
        self.projects = False
        if c_in != c_out or stride != 1:
            self.projects = config.shortcut == "projection"
            if self.projects:
                name = f"block{k}.shortcut"
                projection = builder.conv(name, None, "outer", c_in, c_out, kernel=1)
                self.shortcut = nn.Sequential(Subsample(stride), builder.alone(projection))
            else:
                self.shortcut = Padding(c_in, c_out, stride)

    def forward(self, stream: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map the stream and its normalised activation (N×C×H×W both) to those after this block."""
        branch = self.scale(self.conv2(self.activation(self.conv1(x))))
        if self.shortcut is not None:
            stream = self.shortcut(x if self.projects else stream)
        stream = stream + branch
        return stream, self.activation(self.norm(stream))


class PreactResNet(PooledNetwork):
    """The whole network; see the module's docstring."""

    def __init__(
        self, config: ModelConfig, builder: Builder, input_shape: tuple[int, int, int], n_classes: int
    ) -> None:
        super().__init__()
        self.activation = builder.activation
        plan = stages(config, builder)
        self.stem = builder.conv("stem", 1, "stem", input_shape[0], plan[0][0])
        self.blocks = nn.ModuleList(
            Block(config, builder, k, *shape, blocks=len(plan)) for k, shape in enumerate(plan, start=1)
        )
        self.end(builder, config.depth, plan[-1][1], n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images N×C×H×W to logits N×classes."""
        x = self.activation(self.stem(x))
        stream = x
        for block in self.blocks:
            stream, x = block(stream, x)
        return self.logits(x)


def build(
    config: ModelConfig, builder: Builder, input_shape: tuple[int, int, int], n_classes: int
) -> PreactResNet:
    """Return the network for C×H×W images; sides of at least 2^(stages − 1) pixels."""
    check_size(config, input_shape, 2 ** (len(config.widths) - 1))
    return PreactResNet(config, builder, input_shape, n_classes)
