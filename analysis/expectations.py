"""What Bjorck et al. 2018 (arXiv 1806.02375) report, figure by figure, each statement with its mark.

The only place of the analysis where a number of the paper stands. What is unknown is not listed.
"""

from dataclasses import dataclass

MARKS = {
    "P": "stated by a summary of the paper",
    "R": "read off a figure of the paper, or from another account of it",
    "O": "our own earlier trial of the same network on other images: an order of magnitude, not the paper's",
    "M": "recalled, not checked",
}
"""How well a statement is known. Only P may decide a verdict."""


@dataclass(frozen=True)
class Expectation:
    """One statement, and how well it is known."""

    marks: tuple[str, ...]
    """Keys of MARKS."""
    text: str

    def __post_init__(self) -> None:
        """Refuse a statement without a known mark: it could pass for the paper's."""
        if not self.marks or set(self.marks) - set(MARKS):
            raise ValueError(f"expectation needs marks of {', '.join(MARKS)}, has {self.marks}: {self.text}")

    @property
    def ours(self) -> bool:
        """Whether it rests on our own trial alone, and so must not pass for the paper's."""
        return set(self.marks) == {"O"}

    @property
    def mark(self) -> str:
        """As shown: [P], or [R, O]."""
        return f"[{', '.join(self.marks)}]"


def _of(*pairs: tuple[str, str]) -> tuple[Expectation, ...]:
    return tuple(Expectation(tuple(marks), text) for marks, text in pairs)


PRODUCTS = ("P", "the tail of the singular values and the condition number grow with the number of matrices")

EXPECTED: dict[str, tuple[Expectation, ...]] = {
    "fig01": _of(
        ("P", "at the same low rate, networks with and without BN are about equally accurate"),
        ("P", "larger rates improve networks with BN; without it they make them diverge"),
        ("P", "at a low rate BN has the larger gap between train and test accuracy"),
        (
            "R",
            "test accuracy at the end, on CIFAR-10: with BN 93.3% at 0.1, 90.4% at 0.003, 81.3% at 0.0001; "
            "without it 82.0% at 0.0001 (±0.1; the last swings between 80.8% and 83.2%)",
        ),
        ("P", "BN before the classifier alone (Figs 11, 12) makes rates up to 0.03 work"),
        ("P", "that brings about two thirds of BN's gain: 90.1% on CIFAR-10 after 330 epochs"),
    ),
    "table3": _of(
        ("P", "shallower networks train at the same rates as deeper ones, or at higher ones"),
        ("P", "one epoch at 0.0001 first raises the highest rate at which a network trains"),
        ("P", "statistics that are renewed only every other batch do not make high rates possible"),
    ),
    "table4": _of(
        ("P", "every normalisation scheme gets worse at smaller rates"),
        ("P", "the best rate of layer normalisation is slightly smaller than that of the others"),
        (
            "P",
            "weights scaled so that every layer's output is normalised once replace BN at a small loss (§6)",
        ),
    ),
    "loss": _of(
        ("R", "a run has diverged once its mini-batch loss is beyond 10³: no network recovered from there"),
        ("O", "without BN the loss before training is often 100–700 on 32×32 images"),
    ),
    "fig13": _of(
        ("P", "taking the normalisation away hurts far more than taking γ and β away"),
        ("P", "γ and β are worth about 0.6 points"),
        ("P", "both the mean and the variance matter"),
        ("P", "every variant is best at the highest rate at which it does not diverge"),
    ),
    "fig02": _of(
        ("P", "without BN the gradients are wider by about two orders of magnitude, and heavier-tailed"),
        ("M", "the layer is 55"),
        (
            "O",
            "with BN standard deviation 0.006–0.011 and kurtosis 3.4–4.5; without 2.5–67 and 8–33 "
            "(a Gaussian has kurtosis 3)",
        ),
    ),
    "fig03": _of(
        ("P", "with BN the loss improves over a far broader range of step sizes"),
        ("P", "beyond it, growth is seemingly exponential without BN and linear with it"),
        ("RO", "with BN the loss is lowest at a step of about 0.02 and back where it began at about 0.06"),
        (
            "RO",
            "without BN it is lowest at 0.0001–0.00025, above its start from about 0.001, and a thousand "
            "times its start at about 0.002",
        ),
    ),
    "fig04": _of(
        ("P", "without BN the channels of later layers come to lie orders of magnitude above earlier ones'"),
        ("R", "|mean| up to about 1 in layer 8, 4·10³ in layer 44, 3·10⁸ in layer 80"),
    ),
    "fig05": _of(
        (
            "P",
            "without BN both grow with depth, almost exponentially; some channels reach a scale of 10², "
            "partly whatever the images: noise images do the same",
        ),
        ("R", "ln(standard deviation) grows by about 0.045 a layer without BN, and by about 0 with it"),
    ),
    "fig06": _of(
        ("P", "without BN nearly all of the positive gradient lies in one class"),
        (
            "O",
            "the share of images predicted as one class does not tell the two apart: it is 64–100% with BN "
            "too",
        ),
    ),
    "table1": _of(
        ("P", "a/b is within about 2 without BN, and about 10² with it"),
        ("M", "with BN 251.8, 112.8 and about 40 in layers 18, 54 and 90; without 1.7, 2.6 and 2.1"),
        ("O", "with BN 240, 102 and 32; without 1.5–8.6"),
    ),
    "fig07": _of(
        (
            "P",
            "without BN some pairs of channels dominate throughout, those whose input channel has a large "
            "mean",
        ),
    ),
    "fig14": _of(
        ("P", "without BN mean and gradient are strongly related, with BN they are not"),
        (
            "P",
            "without BN large negative means go with channels that are dead after the ReLU and have tiny "
            "gradients",
        ),
    ),
    "fig15": _of(
        ("P", "without BN the channels differ most in early layers; with BN layers are alike"),
    ),
    "fig16": _of(
        ("P", "without BN the class favoured at the start has at least ten times the gradient of the others"),
    ),
    "fig18": _of(("P", "without BN the gradients lie to one side of zero")),
    "fig19": _of(
        ("P", "without BN the points lie near a straight line; with it there is none"),
    ),
    "fig22": _of(
        ("P", "without BN the mean is not zero, and deep layers have several modes"),
        ("P", "with BN there is one mode, and the mean is near 0"),
    ),
    "fig24": _of(
        ("P", "means and variances of higher layers shrink over the first mini-batches"),
    ),
    "fig25": _of(
        (
            "P",
            "at mini-batches 1, 4 and 7, trained at 0.1 with BN and at 0.0001 without, BN improves over a "
            "far broader range of step sizes",
        ),
    ),
    "gradient_noise": _of(
        ("P", "the variance of a batch's gradient is inversely proportional to the batch size"),
        ("R", "the derivation draws images independently: a finite data set brings the factor (N − b)/N"),
    ),
    "batch_rate": _of(
        ("M", "the noise of stochastic gradients grows with the rate and falls with the batch size"),
        ("M", "that noise is why larger rates generalise better"),
    ),
    "random_matrices": _of(PRODUCTS),
    "condition_number": _of(
        PRODUCTS,
        (
            "O",
            "at N = 1000 the mean log₁₀ condition number is 3.7, 5.1, 8.2, 9.1, 11.6 and 13.4 for 1 to 6 "
            "matrices (three draws)",
        ),
    ),
}
"""Figure or table → what to expect of it."""
