"""ladder.csv: how much of the speedup is torch.compile's. A row per rung of each model that was run
in several ways.

A rung has the free one-liners of the rungs before it, as far as they apply; compiled rungs do
without the CUDA graph that is recorded by hand. A ladder needs eager as built and one other way to
run eager. A trial that ran with a smaller batch has no figures, and its status is `oom with batch
N`.

| column | meaning |
|---|---|
| `model family batch_size workload precision sweep` | what all rungs of a ladder have in common |
| `variant` | every other axis that is not at its default, and the device where a sweep has \
several |
| `rung` | `eager`, `eager + channels_last`, ..., `compile max-autotune` |
| `mode backend trial_id status flags` | of its trial, or of the first one whose eager arm stands \
for it |
| `step_ms` | wall time per step: of both arms where eager is timed against eager, of the compiled \
arm where it is not |
| `speedup speedup_low speedup_high` | over eager as built |
| `before` | the last rung above that worked |
| `speedup_over_before` | over that rung, with `_low _high` |
| `device_step_ms` | device step time, where known |
| `strongest_eager` | the fastest rung without torch.compile, where all that apply were tried |
| `speedup_over_strongest_eager` | of a compiled rung, with `_low _high` |

Trials are compared unpaired, by Welch's t over processes (over draws where there are three).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import geometric_mean

from sweeper.analysis.flags import DOUBTS, UNVERIFIED
from sweeper.analysis.stats import Estimate, difference
from sweeper.core.ladder import COMPILED_RUNGS, EAGER_RUNGS
from sweeper.core.record import ARMS
from sweeper.core.serialization import get_mapping
from sweeper.loading.entries import Entry
from sweeper.loading.ladder import Ladder, Step
from sweeper.report import formatting
from sweeper.report.findings import Findings
from sweeper.report.formatting import estimate, number, number_column, ratio, text, text_column
from sweeper.report.spec import TableSpec
from sweeper.report.table import MARKDOWN, PAGE, Column, Row, Table, TextColumn, estimate_columns
from sweeper.report.tables.candidates import NOISE
from sweeper.report.tables.speedups import select_columns

_AXES = ("workload", "batch_size", "variant", "sweep")
LADDER = ("model", "precision", *_AXES)  # the columns that are one for all rungs of a ladder
MAX_SENTENCES = 3  # of a verdict


@dataclass(frozen=True)
class Rung:
    """A step with what it is compared with."""

    ladder: Ladder
    step: Step
    before: Step | None

    @property
    def speedup(self) -> Estimate | None:
        """Over eager as built; for eager itself 1, without an interval."""
        eager = self.ladder.eager
        return Estimate(0.0) if eager is self.step else _compare(eager, self.step)

    @property
    def over_strongest(self) -> Estimate | None:
        return (
            _compare(self.ladder.strongest, self.step) if self.step.rung in COMPILED_RUNGS else None
        )

    @property
    def device_step_s(self) -> float | None:
        """Of the arms whose step time it has: the mean of both where eager is timed against
        eager.
        """
        is_eager, compiles = (
            self.step.rung in EAGER_RUNGS,
            self.step.entry.record.trial.mode != "eager",
        )
        arms = ("eager",) if is_eager and compiles else ("compiled",) if compiles else ARMS
        found = [self.step.entry.result.readings.get(f"{arm}_device_step_s") for arm in arms]
        known = [value for value in found if value is not None]
        return sum(known) / len(known) if len(known) == len(arms) and self.step.time else None


def _compare(one: Step | None, other: Step) -> Estimate | None:
    return difference(one.time, other.time) if one and one.time and other.time else None


def list_rungs(ladders: Iterable[Ladder]) -> Iterator[Rung]:
    """Yield the rungs of all ladders; a rung stands against the last one above it that worked."""
    for ladder in ladders:
        before = None
        for step in ladder.steps:
            yield Rung(ladder, step, before)
            before = step if step.time else before


def _entry(rung: Rung) -> Entry:
    return rung.step.entry


COLUMNS: tuple[Column[Rung], ...] = (
    *select_columns(("model", "family", "batch_size", "workload", "precision", "sweep"), _entry),
    Column(
        "variant",
        lambda rung: "; ".join(filter(None, (rung.ladder.plain.variant, *rung.ladder.origin))),
    ),
    Column("rung", lambda rung: rung.step.title),
    *select_columns(("mode", "backend", "trial_id"), _entry),
    Column("status", lambda rung: rung.step.status),
    *select_columns(("flags",), _entry),
    Column("step_ms", lambda rung: rung.step.time.ratio * 1e3 if rung.step.time else None, float),
    *estimate_columns("speedup", lambda rung: rung.speedup),
    Column("before", lambda rung: rung.before.title if rung.before else None),
    *estimate_columns("speedup_over_before", lambda rung: _compare(rung.before, rung.step)),
    Column(
        "device_step_ms",
        lambda rung: None if rung.device_step_s is None else rung.device_step_s * 1e3,
        float,
    ),
    Column(
        "strongest_eager",
        lambda rung: strongest.title if (strongest := rung.ladder.strongest) else None,
    ),
    *estimate_columns("speedup_over_strongest_eager", lambda rung: rung.over_strongest),
)


def make_table(findings: Findings) -> Table:
    return Table.make(COLUMNS, list_rungs(findings.ladders))


def speedup_or_status(row: Row) -> str:
    return estimate(row, "speedup") if row["status"] == "ok" else text(row["status"])


def text_columns(rows: Sequence[Row], _trials: Sequence[Row]) -> list[TextColumn]:
    return [
        text_column("model", folds=True, is_name=True),
        *formatting.axis_columns(rows, _AXES),
        text_column("precision", is_name=True),
        text_column("rung", is_name=True),
        number_column("step ms", "step_ms", align_right=True),
        number_column("device ms", "device_step_ms", align_right=True, needs="device_step_ms"),
        number_column(
            "over eager as built",
            "speedup",
            speedup_or_status,
            meaning="speedups are ratios of step times of different trials",
        ),
        number_column(
            "over the rung before",
            "speedup_over_before",
            lambda row: estimate(row, "speedup_over_before"),
            meaning="the rung before is the last one above that worked",
        ),
        number_column(
            "over strongest eager",
            "speedup_over_strongest_eager",
            lambda row: estimate(row, "speedup_over_strongest_eager"),
            needs="speedup_over_strongest_eager",
        ),
        *(
            [TextColumn("flags", formatting.flags, media=(PAGE, MARKDOWN))]
            if any(map(formatting.flags, rows))
            else []
        ),
    ]


def group_by_ladder(rows: Sequence[Row]) -> list[list[Row]]:
    """Put the rows of each ladder together."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in LADDER), []).append(row)
    return list(groups.values())


def find_axes(rows: Sequence[Row]) -> list[str]:
    """Find the columns in which ladders of one model differ."""
    models = defaultdict(list)
    for row in rows:
        models[row["model"]].append(row)
    return [
        name
        for name in LADDER[1:]
        if any(formatting.find_varying(found, [name]) for found in models.values())
    ]


def name_ladder(row: Row, axes: Sequence[str]) -> str:
    """Name a ladder by its model and the values of `axes`, e.g. `resnet50 amp`."""
    return " ".join(part for name in ("model", *axes) if (part := text(row[name])))


@dataclass(frozen=True)
class Answer:
    """What a ladder says, by the rungs that it compares. Every sentence about a ladder is made of
    it.
    """

    built: Row  # eager as built
    strongest: Row | None  # eager; None: not every way to run it was tried
    # the compiled rung that is fastest against the strongest eager; None: none worked
    best: Row | None

    @staticmethod
    def of(rows: Sequence[Row]) -> Answer:
        """Read it of the rungs of a ladder."""
        strongest = next((row for row in rows if row["rung"] == row["strongest_eager"]), None)
        gains = [
            (gain, row) for row in rows if (gain := number(row, "speedup_over_strongest_eager"))
        ]
        return Answer(rows[0], strongest, max(gains, key=itemgetter(0), default=(0.0, None))[1])

    @property
    def without(self) -> float | None:
        """How many times as fast as eager as built the strongest eager is."""
        return number(self.strongest, "speedup") if self.strongest else None

    @property
    def by_it(self) -> float | None:
        """How many times as fast as the strongest eager the best compiled rung is."""
        return number(self.best, "speedup_over_strongest_eager") if self.best else None

    @property
    def adds(self) -> bool:
        """Whether torch.compile gains anything beyond the strongest eager."""
        return (self.by_it or 0.0) > 1 + NOISE

    @property
    def doubts(self) -> dict[str, list[str]]:
        """The flags of each rung that say that its step time may be off."""
        compared = {
            text(row["rung"]): row for row in (self.built, self.strongest, self.best) if row
        }
        doubts = {
            rung: [flag for flag in formatting.flags(row) if flag in DOUBTS]
            for rung, row in compared.items()
        }
        return {rung: flags for rung, flags in doubts.items() if flags}

    def describe(self) -> str:
        """E.g. `gains 1.93x without torch.compile (eager + channels_last), and another 1.35x with
        compile default`.
        """
        assert self.strongest
        assert self.best
        with_it = f"{ratio(self.by_it)}x with {text(self.best['rung'])}"
        by_it = (
            f"and another {with_it}"
            if self.adds
            else f"and torch.compile adds nothing to that ({with_it})"
        )
        flags = dict.fromkeys(flag for found in self.doubts.values() for flag in found)
        doubts = f"; flagged {', '.join(flags)}" if flags else ""
        return (
            f"gains {ratio(self.without)}x without torch.compile "
            f"({text(self.strongest['rung'])}), {by_it}{doubts}"
        )

    def explain(self) -> str:
        """Say the same with intervals, and what is missing of it."""
        if self.strongest is None:
            return "not every way to run eager was tried, so none is called the strongest"
        strongest = f"the strongest eager is {text(self.strongest['rung'])}"
        if self.without and self.strongest is not self.built:
            strongest += f", {estimate(self.strongest, 'speedup')} times as fast as eager as built"
        if self.best is None:
            return f"{strongest}; no compiled rung worked"
        gain = f"{estimate(self.best, 'speedup_over_strongest_eager')} ({text(self.best['rung'])}"
        total = (
            f", {total} over eager as built" if (total := estimate(self.best, "speedup")) else ""
        )
        named = ", ".join(f"{rung} ({', '.join(flags)})" for rung, flags in self.doubts.items())
        doubts = f"; doubts: {named}" if named else ""
        return f"{strongest}; beyond it torch.compile gives {gain}{total}){doubts}"


def read_answers(rows: Sequence[Row]) -> list[Answer]:
    """Read the answers of the ladders that say what is torch.compile's."""
    return [
        answer
        for answer in map(Answer.of, group_by_ladder(rows))
        if answer.without and answer.by_it
    ]


def conclude(found: Sequence[Answer], axes: Sequence[str]) -> list[str]:
    """Say what is torch.compile's, in a sentence for each of a few ladders, in one for more of
    them.

    A mean is over verified ones. `axes` are the columns in which ladders of one model differ.
    """
    if len(found) <= MAX_SENTENCES:
        return [
            f"over eager as built, {name_ladder(answer.built, axes)} {answer.describe()}"
            for answer in found
        ]
    verified = [
        answer
        for answer in found
        if not any(UNVERIFIED in flags for flags in answer.doubts.values())
    ]
    if not verified:
        return [f"over eager as built, none of {len(found)} ladders is verified"]
    without, by_it = (
        geometric_mean(getattr(item, name) for item in verified) for name in ("without", "by_it")
    )
    gains = f"gain {ratio(without)}x without torch.compile, and another {ratio(by_it)}x with it"
    sure = sum(not item.doubts for item in verified)
    free = f"{sure or 'none'} of them without doubt"
    rest = f"; {len(found) - len(verified)} more not verified" if len(verified) < len(found) else ""
    count = f"{len(verified)} ladder{'' if len(verified) == 1 else 's'}"
    return [
        f"over eager as built, {count} {gains} (geometric means over the best rungs; {free}{rest})"
    ]


def _notes(rows: Sequence[Row]) -> list[str]:
    """Make a line per ladder that says how much of the best speedup torch.compile gives."""
    axes = find_axes(rows)
    return [
        f"on {name_ladder(found[0], axes)}: {Answer.of(found).explain()}"
        for found in group_by_ladder(rows)
    ]


def _explain(findings: Findings, rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    spread = dict.fromkeys(
        ladder.plain.labels.model for ladder in findings.ladders if _count_gpus(ladder) > 1
    )
    moved = (
        f" The rungs of {formatting.shorten_names(list(spread))} ran on several GPUs."
        if spread
        else ""
    )
    return (
        "Each rung has the one-liners of those before it, as far as they apply to the model; the "
        "compiled ones have "
        "all of them and do without the CUDA graph by hand. The strongest eager is the fastest "
        "rung without "
        f"torch.compile.{moved}"
    )


def _count_gpus(ladder: Ladder) -> int:
    devices = (get_mapping(step.entry.record.environment, "device") for step in ladder.steps)
    return len({device["uuid"] for device in devices if device.get("uuid")})


SPEC = TableSpec(
    "ladder",
    "How much of the speedup is torch.compile's",
    make_table,
    text_columns,
    notes=_notes,
    explain=_explain,
    entries=lambda findings: [_entry(rung) for rung in list_rungs(findings.ladders)],
)
