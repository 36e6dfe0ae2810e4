"""Figs 22 and 23 of Bjorck et al. 2018 (App. K): histograms of activations by depth."""

import numpy as np
import pandas as pd

from analysis import style
from analysis.figures import _probes as probes
from analysis.figures._bins import edges, root_mean_square, shares_between
from analysis.load import Frames
from analysis.tidy import each, groups

TITLE = "Figs 22 and 23: histograms of activations by depth"
SECTION = probes.APPENDIX
ORDER = 22
NEEDS = ("probe:activation_histogram",)
EXPECTED = "fig22"
MEASURED = (
    "Each row is one layer, the first at the top: how its values are distributed, darker where more of them "
    "lie. With normalisation these are the values after it."
)
HOW = (
    "One batch of training images before any update, all channels of a layer together. Whether a layer's "
    "values have one mode is tested on a random sample of 2,000 of them (Hartigan's dip test)."
)

LEVEL = 0.01
LIMITS = np.linspace(-4, 4, 81)


def draw(frames: Frames) -> style.Drawing:
    """A picture per norm, of its first seed."""
    table = after_norm(probes.rows(frames, "activation_histogram"))
    shown = probes.first_seed(table)
    data = []
    with style.styled():
        figure, grid = probes.panels(1, shown["norm"].nunique(), 4.2, sharey=True, sharex=True)
        for axes, (norm, seed, run) in zip(grid[0], probes.each_run(shown), strict=True):
            run = run.sort_values("number")
            depth = run["number"].to_numpy(float)
            shares = np.stack([_relative(probes.numbers(c)) for c in run["counts"]])
            top = float(np.nanquantile(shares, 0.99)) if np.isfinite(shares).any() else 0.0
            bounds = _bounds(depth)
            axes.pcolormesh(LIMITS, bounds, shares, cmap="Blues", vmin=0, vmax=top or 1.0, rasterized=True)
            axes.axvline(0, color="#444444", linewidth=0.6, linestyle=(0, (2, 2)))
            axes.set(title=f"{norm}, seed {seed}", xlabel="value ÷ its layer's root mean square")
            axes.grid(visible=False)
            axes.set_ylim(bounds[-1], bounds[0])
            data.append(_long(norm, seed, depth, shares))
        grid[0, 0].set_ylabel("layer")
    caption = (
        "Each layer's values are divided by their root mean square, so that the shapes of all layers can be "
        "compared (Fig 5 shows the sizes). The recorded bins are narrow near zero and half as wide as the "
        f"value itself far from it. First of {table['seed'].nunique()} seeds."
    )
    return style.Drawing(figure, pd.concat(data), caption, tuple(_seen(table)))


def _relative(counts: "probes.Floats") -> "probes.Floats":
    """Shares of a layer's values between LIMITS times their root mean square; NaN if none was finite."""
    if not len(counts):
        return np.full(len(LIMITS) - 1, np.nan)
    return shares_between(counts, LIMITS * root_mean_square(counts))


def after_norm(table: pd.DataFrame) -> pd.DataFrame:
    """Main path, first call; what leaves the site where it differs from the layer's own output."""
    rows = table[table["number"].notna() & (table["call"] == 0)]
    return rows.sort_values("side", ascending=False, kind="stable").drop_duplicates(["run_id", "number"])


def _bounds(depth: "probes.Floats") -> "probes.Floats":
    middle = (depth[:-1] + depth[1:]) / 2
    return np.concatenate([[depth[0] - 0.5], middle, [depth[-1] + 0.5]])


def _long(norm: str, seed: int, depth: "probes.Floats", shares: "probes.Floats") -> pd.DataFrame:
    centres = (LIMITS[:-1] + LIMITS[1:]) / 2
    wide = pd.DataFrame(shares, index=pd.Index(depth, name="number"), columns=centres.round(3))
    long = wide.melt(ignore_index=False, var_name="relative_value", value_name="share").reset_index()
    return long[long["share"] > 0].assign(norm=norm, seed=seed)


def _seen(table: pd.DataFrame) -> list[str]:
    """Modes in early and late thirds; the classifier, whose outputs are of ten classes, left out."""
    last = max(probes.layers(table))
    hidden = table[table["number"] < last]
    thirds = {"first": hidden["number"] <= last / 3, "last": hidden["number"] > 2 * last / 3}
    said = []
    for name, where in thirds.items():
        rows = hidden[where]
        tested = rows[rows["unimodal_p"].notna()]
        if tested.empty:
            said.append(f"No layer of the {name} third was tested for modes.")
            continue
        shares = several_modes(tested)
        said.append(
            f"Layers of the {name} third for which “one mode” is rejected at {100 * LEVEL:.0f}%, as a share: "
            f"{probes.by_norm(shares, 'share')}; median dip {probes.by_norm(shares, 'dip')}."
        )
    means = hidden[["norm", "seed", "number"]].assign(mean=[relative_mean(r) for r in each(hidden)])
    for name, where in thirds.items():
        medians = means[where].groupby(["norm", "seed"])["mean"].median().reset_index()
        said.append(
            f"|mean| of all values of a layer, as a share of their root mean square (median over the {name} "
            f"third): {probes.by_norm(medians, 'mean')}."
        )
    lost = int(table["nonfinite"].sum())
    return [*said, *([f"{lost} values are not finite."] if lost else [])]


def several_modes(tested: pd.DataFrame) -> pd.DataFrame:
    """Share of layers for which one mode is rejected, and their median dip: norm, seed, share, dip."""
    found = [
        (norm, seed, float((run["unimodal_p"] < LEVEL).mean()), float(run["dip"].median()))
        for (norm, seed), run in groups(tested, ["norm", "seed"])
    ]
    return pd.DataFrame(found, columns=["norm", "seed", "share", "dip"])


def relative_mean(row: object) -> float:
    """|Mean| of all values of a layer over their root mean square."""
    counts = probes.numbers(row.counts)  # type: ignore[attr-defined]
    if not counts.sum():
        return float("nan")
    between = edges()
    middles = (between[1:] + between[:-1]) / 2
    return abs(float((counts * middles).sum() / counts.sum())) / root_mean_square(counts)
