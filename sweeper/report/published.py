"""Speedups that were published for PyTorch 2.0, with their hardware, year and source, to stand
beside ours.

All are of training, as eager / compiled step time. `References` say how this report differs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sweeper.core.text import printable
from sweeper.loading.entries import Entry
from sweeper.loading.environment import read_environment, read_text_form
from sweeper.report.answers.findings import Findings
from sweeper.report.answers.groups import ALL, Group
from sweeper.report.answers.model_points import has_weight
from sweeper.report.answers.provenance import name_amp_format
from sweeper.report.columns.formats import ratio

ANNOUNCEMENT = "https://pytorch.org/get-started/pytorch-2-x/"
TUTORIAL = "https://pyimagesearch.com/2023/03/27/whats-new-in-pytorch-2-0-torch-compile/"
PublishedSettings = Mapping[str, tuple[str, Callable[[Entry], str | None]]]
FULL = "of full length without a mask"
SOURCES = {
    ANNOUNCEMENT: "A100, 2022: training, weighted 0.75 AMP + 0.25 fp32, slowdowns raised to 1.0",
    TUTORIAL: "A6000, 2023: training, averages over a handful of models as the source words them",
}


def _describe_texts(entry: Entry) -> str | None:
    form = read_text_form(entry.record)
    if form == "none":
        return FULL
    return form


def _show_switch(is_on: bool | None, off: str = "off") -> str:
    if is_on:
        return "on"
    return off


# The settings of the announcement, which conf/preset/pt2.yaml has, and how a trial has them; None:
# it has none of it.
SETTINGS: PublishedSettings = {
    "TF32": ("on", lambda entry: _show_switch(entry.trial.precision.tf32, "as torch sets it")),
    "AMP": ("float16 autocast without gradient scaler", lambda entry: name_amp_format([entry])),
    "optimizer": ("none", lambda entry: entry.trial.optimizer),
    "dropout": ("off", lambda entry: _show_switch(entry.trial.model.dropout)),
    "texts": (FULL, _describe_texts),
    "memory format": ("contiguous", lambda entry: entry.trial.model.memory_format),
    "cudnn_benchmark": ("off", lambda entry: _show_switch(entry.trial.cudnn_benchmark)),
}
MACHINE: PublishedSettings = {
    "GPU": ("NVIDIA A100", lambda entry: read_environment(entry).device),
    "torch": ("before 2.0", lambda entry: read_environment(entry).torch),
}


@dataclass(frozen=True, slots=True)
class Published:
    """What was published for a suite, a family, or `all`; `low` equals `high` unless the source
    gives a range.
    """

    low: float
    high: float
    device: str
    year: int
    source: str

    @property
    def value(self) -> str:
        if self.low == self.high:
            return ratio(self.low)
        return f"{ratio(self.low)} to {ratio(self.high)}"

    @property
    def label(self) -> str:
        """`1.38 (A100, 2022)`, or `1.02 to 1.03 (A6000, 2023)`."""
        return f"{self.value} ({self.device}, {self.year})"


OF_2022 = ("A100", 2022, ANNOUNCEMENT)
OF_2023 = ("A6000", 2023, TUTORIAL)
SUITES = {  # weighted means, 0.75 AMP + 0.25 fp32
    "timm": Published(1.38, 1.38, *OF_2022),
    "huggingface": Published(1.52, 1.52, *OF_2022),
    "torchbench": Published(1.76, 1.76, *OF_2022),
    ALL: Published(1.43, 1.43, *OF_2022),  # 163 models of these three
}
FAMILIES = {  # averages; the source does not say in which precision
    "cnn": Published(1.10, 1.10, *OF_2023),  # figure 5
    "vit": Published(1.02, 1.03, *OF_2023),  # figure 6
    "nlp": Published(1.05, 1.06, *OF_2023),  # figure 7
}


def find_published(group: Group) -> Published | None:
    """Find what was published for a row of the summary: for its suite, its family, or for `all` the
    total of the suites that its models belong to; None for other models and for inference.
    """
    if group.key.workload != "train":
        return None
    if not group.suite and not group.is_whole:
        return FAMILIES.get(group.family)
    suites = {group.suite} if group.suite else {point.suite for point in group.points}
    if suites == SUITES.keys() - {ALL}:
        return SUITES[ALL]
    if len(suites) == 1:
        return SUITES.get(suites.pop())
    return None


@dataclass(frozen=True)
class References:
    """What was published for the rows of a report, and how the trials of the report differ from
    it.
    """

    shown: Sequence[Published]
    differences: str  # in settings, e.g. `optimizer none, here adam; dropout off, here on`
    machine: str  # in GPU and version of torch

    @property
    def sources(self) -> list[tuple[str, str]]:
        """Describe each source of the published numbers; pairs of a text and a URL."""
        used = {item.source for item in self.shown}
        return [(text, url) for url, text in SOURCES.items() if url in used]

    @property
    def sentence(self) -> str:
        """Say how the published numbers were measured."""
        settings = "with the settings of this sweep"
        if self.differences:
            settings = f"with other settings ({self.differences})"
        machine = ""
        if self.machine:
            machine = f", on another machine ({self.machine})"
        known = {
            ANNOUNCEMENT: f"The figures of 2022 were measured {settings}{machine}.",
            TUTORIAL: "The source of the figures of 2023 names no settings.",
        }
        return " ".join(known[url] for _, url in self.sources)


def find_references(findings: Findings) -> References:
    """Find what was published for the rows of a report."""
    shown = map(find_published, [*findings.groups, *findings.suites])
    weighted = list(filter(has_weight, findings.entries))
    differences, machine = _compare(SETTINGS, weighted), _compare(MACHINE, weighted)
    return References(list(filter(None, shown)), differences, machine)


def _compare(settings: PublishedSettings, entries: Sequence[Entry]) -> str:
    """Say where the trials differ from what was published; empty where they do not."""
    parts = []
    for name, (published, read) in settings.items():
        ours = list(dict.fromkeys(filter(None, map(read, entries))))
        if ours and ours != [published]:
            parts.append(f"{name} {published}, here {' or '.join(ours)}")
    return printable("; ".join(parts))
