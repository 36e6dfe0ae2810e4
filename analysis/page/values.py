"""What the report's page holds, as plain values for the template."""

from dataclasses import dataclass, field

from analysis.expectations import MARKS, Expectation
from analysis.tables import Table

MISSING = "–"


@dataclass(frozen=True)
class Link:
    """A place on the page, or why there is none."""

    text: str
    target: str = ""
    """The element's id; empty if it is not on the page."""
    note: str = ""


@dataclass(frozen=True)
class Sheet:
    """A table of texts, the first column naming the row."""

    columns: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Picture:
    """A figure, with what is measured, how, what the paper says and what these runs show."""

    name: str
    title: str
    caption: str
    source: str
    """data: URI of the SVG."""
    alt: str
    measured: str
    how: str
    expected: tuple[Expectation, ...]
    """What the paper reports of this figure."""
    earlier: tuple[Expectation, ...]
    """What an earlier trial of ours found."""
    seen: tuple[str, ...]
    """What these runs show."""
    table: Sheet | None = None
    small: bool = False
    """Whether it is drawn narrower than the text."""
    verdicts: list[Link] = field(default_factory=list)
    """The verdicts that rest on it."""


@dataclass(frozen=True)
class Section:
    """The figures of one section of the paper."""

    title: str
    pictures: list[Picture]


@dataclass(frozen=True)
class Cell:
    """A table cell: what is shown, what it sorts by, and where it leads."""

    text: str
    value: float | str = ""
    kind: str = ""


@dataclass(frozen=True)
class Trial:
    """One run's row."""

    anchor: str
    cells: list[Cell]


@dataclass(frozen=True)
class Verdict:
    """One claim, judged on the runs of one setting, and the evidence it opens to."""

    anchor: str
    verdict: str
    claim: str
    """Its id."""
    sentence: str
    source: str
    estimate: str
    interval: str
    n: str
    scale: str
    setting: str
    """What its runs have in common: their setting without what the claim varies."""
    reason: str
    sections: list[Link]
    """Where the page shows the settings of its runs: number, place and name of each, if it shows several."""
    details: list[tuple[str, str]]
    figures: list[Link]
    runs: list[Link]
    outcomes: Sheet | None
    """Per norm and rate, what became of the runs."""
    measured: Sheet | None
    """Per run, what the test was given."""

    @property
    def estimated(self) -> str:
        """Estimate and interval in one cell."""
        return f"{self.estimate} ({self.interval})" if self.interval != MISSING else self.estimate


@dataclass(frozen=True)
class Group:
    """Everything about the runs of one setting, the only ones that may be compared by norm and rate."""

    anchor: str
    name: str
    rates: list[str]
    grid: list[tuple[str, list[list[str]]]]
    """Per norm: per rate, the lines of its cell."""
    rules: list[tuple[str, ...]]
    """Per norm: norm, best over rates (test), chosen on validation, highest trainable rate, plateaus."""
    sections: list[Section]
    not_drawn: list[str]
    scales: str
    stage: str
    """How far its runs were to be trained: "before training", "first steps" or, to their end, "outcomes"."""
    data: str


@dataclass(frozen=True)
class Page:
    """All of the page."""

    title: str
    summary: list[str]
    notices: list[str]
    words: list[tuple[str, str]] = field(default_factory=list)
    """What the words of the page mean; empty if there is nothing to show."""
    verdicts: list[Verdict] = field(default_factory=list)
    verdict_counts: list[tuple[str, int]] = field(default_factory=list)
    """How many of each kind there are; kinds that do not occur are left out."""
    groups: list[Group] = field(default_factory=list)
    apart: list[Section] = field(default_factory=list)
    """Figures that show no run."""
    apart_not_drawn: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    trial_columns: list[tuple[str, str]] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    problems: list[tuple[str, ...]] = field(default_factory=list)
    provenance: list[tuple[str, str]] = field(default_factory=list)
    marks: dict[str, str] = field(default_factory=lambda: dict(MARKS))
