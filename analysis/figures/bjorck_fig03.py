"""Fig 3 of Bjorck et al. 2018 (§3): the loss along the gradient, on the very batch the gradient is of."""

from analysis import style
from analysis.figures import _loss_lines as lines
from analysis.figures import _probes as probes
from analysis.load import Frames

TITLE = "Fig 3: how far one may step along the gradient"
SECTION = probes.STEPS
ORDER = 3
NEEDS = ("probe:loss_along_gradient",)
EXPECTED = "fig03"
MEASURED = (
    "The loss after a step of size α against the gradient, divided by the loss before it, on the same "
    "images: below 1 the step helped, above 1 it hurt. Gradient descent can use no larger steps than these."
)
HOW = (
    "The gradient of the first batch is taken once; the weights are moved by −α times it, the loss is "
    "measured again, for step sizes from tiny to large, and the weights are put back."
)


def draw(frames: Frames) -> style.Drawing:
    """One line per seed."""
    table = probes.rows(frames, "loss_along_gradient")
    return lines.draw({"first batch": table}, table)
