"""Speedups that were published for PyTorch 2.0, with their hardware, year and source, to stand
beside ours.

All are of training, as eager / compiled step time. `find_differences` says what ran otherwise here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sweeper.core.serialization import get_mapping
from sweeper.core.text import printable
from sweeper.loading.entries import Entry
from sweeper.report.formatting import ratio
from sweeper.report.tables.groups import ALL
from sweeper.report.tables.speedups import read_form
from sweeper.report.text.provenance import name_amp_format

ANNOUNCEMENT = "https://pytorch.org/get-started/pytorch-2-x/"
TUTORIAL = "https://pyimagesearch.com/2023/03/27/whats-new-in-pytorch-2-0-torch-compile/"
_Settings = Mapping[str, tuple[str, Callable[[Entry], str | None]]]
FULL = "of full length without a mask"
SOURCES = {
    ANNOUNCEMENT: "A100, 2022: training, weighted 0.75 AMP + 0.25 fp32, slowdowns raised to 1.0",
    TUTORIAL: "A6000, 2023: training, averages over a handful of models as the source words them",
}


def _describe_texts(entry: Entry) -> str | None:
    form = read_form(entry)
    return FULL if form == "none" else form


def _read_text(found: Mapping[str, object], name: str) -> str | None:
    return str(found[name]) if found.get(name) else None


# The settings of the announcement, which conf/preset/pt2.yaml has, and how a trial has them; None:
# it has none of it.
SETTINGS: _Settings = {
    "TF32": ("on", lambda entry: "on" if entry.record.trial.precision.tf32 else "as torch sets it"),
    "AMP": (
        "float16 autocast without gradient scaler",
        lambda entry: name_amp_format([entry]) or None,
    ),
    "optimizer": ("none", lambda entry: entry.record.trial.optimizer),
    "dropout": ("off", lambda entry: "on" if entry.record.trial.model.dropout else "off"),
    "texts": (FULL, _describe_texts),
    "memory format": ("contiguous", lambda entry: entry.record.trial.model.memory_format),
    "cudnn_benchmark": ("off", lambda entry: "on" if entry.record.trial.cudnn_benchmark else "off"),
}
_MACHINE: _Settings = {
    "GPU": (
        "NVIDIA A100",
        lambda entry: _read_text(get_mapping(entry.record.environment, "device"), "name"),
    ),
    "torch": (
        "before 2.0",
        lambda entry: _read_text(get_mapping(entry.record.environment, "versions"), "torch"),
    ),
}
PT2_SUITES = frozenset({"timm", "huggingface", "torchbench"})


@dataclass(frozen=True, slots=True)
class Published:
    """What was published for a suite, a family, or `all`; `low` equals `high` unless the source
    gives a range.
    """

    group: str  # as in the columns `suite` and `family`
    low: float
    high: float
    device: str
    year: int
    source: str

    @property
    def label(self) -> str:
        """`1.38 (A100, 2022)`, or `1.02 to 1.03 (A6000, 2023)`."""
        value = (
            ratio(self.low) if self.low == self.high else f"{ratio(self.low)} to {ratio(self.high)}"
        )
        return f"{value} ({self.device}, {self.year})"


SUITES = (  # weighted means, 0.75 AMP + 0.25 fp32
    Published("timm", 1.38, 1.38, "A100", 2022, ANNOUNCEMENT),
    Published("huggingface", 1.52, 1.52, "A100", 2022, ANNOUNCEMENT),
    Published("torchbench", 1.76, 1.76, "A100", 2022, ANNOUNCEMENT),
    Published(ALL, 1.43, 1.43, "A100", 2022, ANNOUNCEMENT),  # 163 models of these three
)
FAMILIES = (  # averages; the source does not say in which precision
    Published("cnn", 1.10, 1.10, "A6000", 2023, TUTORIAL),  # figure 5
    Published("vit", 1.02, 1.03, "A6000", 2023, TUTORIAL),  # figure 6
    Published("nlp", 1.05, 1.06, "A6000", 2023, TUTORIAL),  # figure 7
)


def find_for_family(family: str, suites: Collection[str]) -> Published | None:
    """Find what was published for a row of the summary whose trials belong to `suites`.

    The row `all` gets the number of its suite, the total of all three suites, or nothing for other
    models.
    """
    if family != ALL:
        return next((item for item in FAMILIES if item.group == family), None)
    if set(suites) == PT2_SUITES:
        return find_for_suite(ALL)
    return find_for_suite(next(iter(suites))) if len(suites) == 1 else None


def find_for_suite(suite: str) -> Published | None:
    return next((item for item in SUITES if item.group == suite), None)


def find_sources(shown: Iterable[Published]) -> list[tuple[str, str]]:
    """Describe each source of the published numbers that are shown; pairs of a text and a URL."""
    used = {item.source for item in shown}
    return [(text, url) for url, text in SOURCES.items() if url in used]


def find_differences(entries: Sequence[Entry]) -> tuple[str, str]:
    """Say in which settings, and on what, the trials of a weighted mean ran otherwise than the
    figures of 2022 did.

    Two texts such as `optimizer none, here adam; dropout off, here on`; empty where nothing
    differs.
    """
    weighted = [
        entry
        for entry in entries
        if entry.record.trial.mode != "eager" and entry.record.trial.labels.weight
    ]
    return _compare(SETTINGS, weighted), _compare(_MACHINE, weighted)


def _compare(settings: _Settings, entries: Sequence[Entry]) -> str:
    ours = {
        name: dict.fromkeys(filter(None, map(read, entries)))
        for name, (_, read) in settings.items()
    }
    differ = [name for name, found in ours.items() if found and list(found) != [settings[name][0]]]
    return printable(
        "; ".join(f"{name} {settings[name][0]}, here {' or '.join(ours[name])}" for name in differ)
    )
