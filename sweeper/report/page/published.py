"""Speedups that were published for PyTorch 2.0, to stand beside ours with their hardware, year and source.

All are of training, as eager / compiled step time. Place in the flow: `summary -> page, figures`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from sweeper.report.formatting import ratio
from sweeper.report.tables.groups import ALL

ANNOUNCEMENT = "https://pytorch.org/get-started/pytorch-2-x/"
TUTORIAL = "https://pyimagesearch.com/2023/03/27/whats-new-in-pytorch-2-0-torch-compile/"
PT2_SUITES = frozenset({"timm", "huggingface", "torchbench"})


@dataclass(frozen=True, slots=True)
class Published:
    """What was published for a suite, a family, or `all`; `low` equals `high` unless the source gives a range."""

    group: str  # as in the columns `suite` and `family`
    low: float
    high: float
    weighted: bool  # 0.75 AMP + 0.25 fp32; else the source does not say which precision
    device: str
    year: int
    source: str

    @property
    def label(self) -> str:
        """`1.38 (A100, 2022)`, or `1.02 to 1.03 (A6000, 2023)`."""
        value = ratio(self.low) if self.low == self.high else f"{ratio(self.low)} to {ratio(self.high)}"
        return f"{value} ({self.device}, {self.year})"


def _weighted(suite: str, speedup: float) -> Published:
    return Published(suite, speedup, speedup, True, "A100", 2022, ANNOUNCEMENT)


def _average(family: str, low: float, high: float) -> Published:
    return Published(family, low, high, False, "A6000", 2023, TUTORIAL)


SUITES = (
    _weighted("timm", 1.38),  # https://pytorch.org/get-started/pytorch-2-x/
    _weighted("huggingface", 1.52),  # https://pytorch.org/get-started/pytorch-2-x/
    _weighted("torchbench", 1.76),  # https://pytorch.org/get-started/pytorch-2-x/
    _weighted(ALL, 1.43),  # https://pytorch.org/get-started/pytorch-2-x/, 163 models of these three
)
FAMILIES = (
    _average(
        "cnn", 1.10, 1.10
    ),  # https://pyimagesearch.com/2023/03/27/whats-new-in-pytorch-2-0-torch-compile/, figure 5
    _average(
        "vit", 1.02, 1.03
    ),  # https://pyimagesearch.com/2023/03/27/whats-new-in-pytorch-2-0-torch-compile/, figure 6
    _average(
        "nlp", 1.05, 1.06
    ),  # https://pyimagesearch.com/2023/03/27/whats-new-in-pytorch-2-0-torch-compile/, figure 7
)


def of_family(family: str, suites: Collection[str]) -> Published | None:
    """What was published for a row of the summary whose trials belong to `suites`.

    For `all` it is the figure of the suite, or the total where all three are there, and nothing for other models.
    """
    if family != ALL:
        return next((item for item in FAMILIES if item.group == family), None)
    if set(suites) == PT2_SUITES:
        return of_suite(ALL)
    return of_suite(next(iter(suites))) if len(suites) == 1 else None


def of_suite(suite: str) -> Published | None:
    return next((item for item in SUITES if item.group == suite), None)


def sources(shown: Iterable[Published]) -> list[tuple[str, str]]:
    """What to say of those that are shown, and the URL: one a source."""
    named = {
        ANNOUNCEMENT: "A100, 2022: training, weighted 0.75 AMP + 0.25 fp32, slowdowns raised to 1.0",
        TUTORIAL: "A6000, 2023: training, averages over a handful of models as the source words them",
    }
    found = {item.source for item in shown}
    return [(text, url) for url, text in named.items() if url in found]
