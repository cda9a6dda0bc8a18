"""scripts.csv: a row per trial of a user's own script, with what its loop gains and what was seen
of it.

| column | meaning |
|---|---|
| `trial_id model variant mode backend status flags sweep` | the trial; `model` is the script's \
name |
| `speedup` | of a step, both arms in one process on the same batches, with `_low _high` |
| `loop_speedup` | of the whole loop, each arm in runs of its own, with `_low _high` |
| `eager_loop_step_ms compiled_loop_step_ms` | wall time per step of these loops |
| `eager_loader_share compiled_loader_share` | share of that time in which the loop waits for its \
loader |
| `ceiling` | what the loop could gain at most: all of it but that wait in no time |
| `break_even_steps` | of the loop: steps after which compiling with an empty cache has paid |
| `total_steps` | of the training that the user plans, where the command named it |
| `saved_s` | seconds that compiling with an empty cache saves over these steps, with `_low \
_high`; below 0 it loses |
| `modules optimizers` | classes of the outermost modules that train, and of the optimizers |
| `batches_per_step` | of the loader; more than one where gradients are accumulated |
| `num_shapes recompiles` | different shapes of inputs in the compiled loop; compilations while it \
was timed |
| `compile_calls` | the script's own calls of `torch.compile` |
| `trajectory` | with `model.trajectory`, whether it trains as in eager: `same`, `differs` or \
`unknown` |
| `findings` | what to know and to do, in words |
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from sweeper.core.libraries import SCRIPT
from sweeper.core.record import ARMS, TORCH_NN, CompileCall, ScriptRun
from sweeper.core.serialization import drop_defaults
from sweeper.loading.entries import Entry
from sweeper.report import formatting
from sweeper.report.findings import Findings
from sweeper.report.formatting import (
    estimate,
    figure,
    finite,
    number_column,
    ratio,
    read_texts,
    text,
    text_column,
)
from sweeper.report.spec import TableSpec
from sweeper.report.table import MARKDOWN, PAGE, Column, Row, Table, TextColumn
from sweeper.report.tables import ladder, trajectories
from sweeper.report.tables.candidates import NOISE, Times, find_times
from sweeper.report.tables.decision import NOT_KNOWN
from sweeper.report.tables.speedups import select_columns

# torch compiles a frame for so many shapes that differ in more than one size, then runs it eager
MANY_SHAPES = 8
SAID = {
    trajectories.SAME: "trains as in eager",
    trajectories.DIFFERS: "does not train as in eager",
    trajectories.UNKNOWN: "whether it trains as in eager is not known",
}
NOTABLE_WAIT = 0.1  # share of the loop's time
_AXES = ("mode", "backend", "variant", "sweep")


def _script(entry: Entry) -> ScriptRun:
    return entry.result.seen_of_script or ScriptRun()


def _ceiling(entry: Entry) -> float | None:
    share = entry.result.readings.get("eager_loader_share")
    return 1 / share if share else None


def _time_loop(entry: Entry) -> Times | None:
    times = find_times(entry)
    return times if times and times.of_loop else None


def advises_to_pad(script: ScriptRun) -> bool:
    """Whether a script has so many shapes that its batches should be padded to a few sizes, and
    these are known.
    """
    return script.num_shapes > MANY_SHAPES and bool(script.pad_to)


def _saved_s(entry: Entry, end: str = "") -> float | None:
    """Seconds that compiling saves over the whole training, or an end of their interval; it follows
    the loop's.
    """
    times, steps = _time_loop(entry), entry.record.trial.labels.total_steps
    speedup, compile_s = (
        getattr(entry.result, f"loop_speedup{end}"),
        entry.result.readings.get("compile_cold_s"),
    )
    if times is None or steps is None or speedup is None or compile_s is None:
        return None
    saved_s = times.saved_s(compile_s, steps, speedup)
    return saved_s if math.isfinite(saved_s) else None


def _describe_total(entry: Entry) -> Iterator[str]:
    """Say what compiling gives over the whole training, and when it has paid."""
    compile_s, saved_s = entry.result.readings.get("compile_cold_s"), _saved_s(entry)
    if compile_s is None or saved_s is None:
        return
    steps, break_even = entry.record.trial.labels.total_steps, entry.result.break_even_steps
    most = "at most " if "compile_contended" in entry.flags else ""
    compiling = f"{most}{_show_time(compile_s)} of compilation"
    paid = "have paid back" if saved_s > 0 else "would pay back"
    when = (
        f"{paid} after {math.ceil(break_even):,} steps"
        if break_even is not None
        else "never pay back"
    )
    gain = _describe_saving(saved_s, _saved_s(entry, "_low"), _saved_s(entry, "_high"))
    yield f"over {steps:,} steps compiling {gain}: {compiling} {when}"


def _describe_saving(saved_s: float, low_s: float | None, high_s: float | None) -> str:
    """Say `saves 3 min 20 s (3 min 05 s to 3 min 41 s)`, or that it is not known which of both."""
    verb = "saves" if saved_s > 0 else "loses"
    if low_s is None or high_s is None:
        return f"{verb} {_show_time(saved_s)}"
    if low_s < 0 < high_s:
        return f"may save up to {_show_time(high_s)} or lose up to {_show_time(low_s)}"
    least, most = sorted((low_s, high_s), key=abs)
    return f"{verb} {_show_time(saved_s)} ({_show_time(least)} to {_show_time(most)})"


def _show_time(seconds: float) -> str:
    return (
        formatting.format_duration(abs(seconds))
        if abs(seconds) >= 10
        else f"{figure(abs(seconds))} s"
    )


def list_findings(entry: Entry) -> Iterator[str]:
    """Say what a user should know of the script, the most useful first."""
    script, readings = _script(entry), entry.result.readings
    yield from _describe_total(entry)
    own = [call for call in script.compile_calls if call.is_arm]
    if own:
        asked = " and ".join(_describe_call(call) for call in own)
        who = (
            "a library compiles the script's modules"
            if all(call.by_library for call in own)
            else "the script compiles"
        )
        yield f"{who} already, which is the compiled arm whatever the mode: {asked}"
    elif (
        (entry.result.loop_speedup or 0.0) > 1 + NOISE
        and script.called_at
        and entry.record.trial.mode != "eager"
    ):
        yield from _list_changes(script, _arguments(entry))
    yield from trajectories.describe(
        script.trajectory, entry.record.trial.model.arguments.get("trajectory")
    )
    share = readings.get("eager_loader_share")
    if share is not None and share >= NOTABLE_WAIT:
        wait = f"{_percent(share)} of its time, which compiling does not shorten"
        yield f"the loop waits for its loader ({script.loader}) for {wait}"
    elif (
        compiled := readings.get("compiled_loader_share")
    ) is not None and compiled >= NOTABLE_WAIT:
        wait = f"{_percent(compiled)} of its time, which it did not in eager"
        yield (
            f"once compiled, the loop waits for its loader ({script.loader}) for {wait}: speed "
            "that up next"
        )
    if any(run and run.left_out for run in (script.loop_eager, script.loop_compiled)):
        yield (
            "evaluations, saved files or ends of epochs are not in the loop's time, or not as "
            "often in both arms"
        )
    if script.num_shapes > 1:
        advice = f": pad to {', '.join(map(str, script.pad_to))}" if advises_to_pad(script) else ""
        yield f"{script.num_shapes} shapes of inputs{advice}"
    loop = script.loop_compiled
    if loop is not None and loop.recompiles:
        times = "once" if loop.recompiles == 1 else f"{loop.recompiles} times"
        yield f"the loop compiled {times} in {loop.steps} steps, after the first steps"
    diagnostics = entry.record.diagnostics
    breaks = (
        dict.fromkeys(item.where for item in diagnostics.graph_breaks if item.where)
        if diagnostics
        else {}
    )
    if breaks:
        yield f"graph breaks at {', '.join(breaks)}"
    if loop is not None and loop.batches > 1:
        yield f"{loop.batches:.2g} batches per step"
    if len(script.optimizers) > 1:
        yield f"{len(script.optimizers)} optimizers take turns, and a step is one turn of all"
    if script.skipped_steps:
        yield f"the gradient scaler skipped {script.skipped_steps} steps"
    silenced = [call for call in script.compile_calls if not call.is_arm]
    if silenced:
        yield (
            "compiled by libraries, and eager in the eager arm too: "
            f"{' and '.join(map(_describe_call, silenced))}"
        )


def _list_changes(script: ScriptRun, arguments: str) -> Iterator[str]:
    """Say how to compile each module. `compile` of a class of torch's own compiles nothing: Dynamo
    skips its frames.
    """
    found: dict[bool, list[str]] = {False: [], True: []}
    for name, place in zip(script.modules, script.called_at, strict=True):
        found[name.startswith(TORCH_NN)].append(f"{name} ({place})")
    for is_torchs, names in found.items():
        each, given = "it" if len(names) == 1 else "each", f", {arguments}" if arguments else ""
        how = (
            f"replace {each} by torch.compile(model{given})"
            if is_torchs
            else f"call .compile({arguments}) on {each}"
        )
        if names:
            yield f"to compile: {how} before the loop: {', '.join(names)}"


def _arguments(entry: Entry) -> str:
    """The arguments of `torch.compile` that give what was measured."""
    trial = entry.record.trial
    given = {"mode": trial.mode, "backend": trial.backend, **drop_defaults(trial.compile)}
    usual = {"mode": "default", "backend": "inductor"}
    return ", ".join(
        f"{name}={value!r}" for name, value in given.items() if value != usual.get(name)
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _describe_call(call: CompileCall) -> str:
    what = f" {call.target}" if call.target else ""
    return (
        f"torch.compile{what} at {call.where}{f' with {call.arguments}' if call.arguments else ''}"
    )


OF_SPEEDUPS = [
    "trial_id",
    "model",
    "variant",
    "mode",
    "backend",
    "status",
    "flags",
    "speedup",
    "speedup_low",
    "speedup_high",
    "loop_speedup",
    "loop_speedup_low",
    "loop_speedup_high",
    "eager_loop_step_ms",
    "compiled_loop_step_ms",
    "eager_loader_share",
    "compiled_loader_share",
]
COLUMNS: tuple[Column[Entry], ...] = (
    *select_columns(OF_SPEEDUPS, lambda entry: entry),
    Column("ceiling", _ceiling, float),
    *select_columns(("break_even_steps",), lambda entry: entry),
    Column("total_steps", lambda entry: entry.record.trial.labels.total_steps, int),
    Column("saved_s", _saved_s, float),
    Column("saved_s_low", lambda entry: _saved_s(entry, "_low"), float),
    Column("saved_s_high", lambda entry: _saved_s(entry, "_high"), float),
    Column("modules", lambda entry: _script(entry).modules),
    Column("optimizers", lambda entry: _script(entry).optimizers),
    Column(
        "batches_per_step",
        lambda entry: run.batches if (run := _script(entry).loop_eager) else None,
        float,
    ),
    Column("num_shapes", lambda entry: _script(entry).num_shapes or None, int),
    Column(
        "recompiles",
        lambda entry: run.recompiles if (run := _script(entry).loop_compiled) else None,
        int,
    ),
    Column("compile_calls", lambda entry: tuple(map(_describe_call, _script(entry).compile_calls))),
    Column("trajectory", lambda entry: trajectories.name_verdict(_script(entry).trajectory)),
    Column("findings", lambda entry: tuple(list_findings(entry))),
    *select_columns(("sweep",), lambda entry: entry),
)


def select_scripts(findings: Findings) -> list[Entry]:
    return [entry for entry in findings.entries if entry.record.trial.workload == SCRIPT]


def make_table(findings: Findings) -> Table:
    return Table.make(COLUMNS, select_scripts(findings))


def conclude(rows: Sequence[Row], answers: Sequence[Row]) -> list[str]:
    """Say each recommendation of a script in a sentence, with the figures of the trial that it
    rests on.

    `rows` are of this table. For example `script train.py: compile; step 1.50x, loop 1.08x`; the
    most gain comes first.
    """
    row_of = {(row["sweep"], row["trial_id"]): row for row in rows}
    found = [(answer, row_of.get((answer["sweep"], answer["trial_id"]))) for answer in answers]
    axes = formatting.find_varying(answers, ("variant",))
    return [
        f"script {ladder.name_ladder(answer, axes)}: {_conclude(answer, row)}"
        for answer, row in sorted(found, key=lambda pair: _loop_gain(pair[1]), reverse=True)
    ]


def _loop_gain(row: Row | None) -> float:
    return (finite(row, "loop_speedup") or finite(row, "speedup") or 0.0) if row else 0.0


def _conclude(answer: Row, row: Row | None) -> str:
    if row is None:  # nothing was compared
        reason = text(answer["reason"])
        return f"{text(answer['recommended'])} ({reason})" if answer["recommended"] else reason
    step, loop = finite(row, "speedup"), finite(row, "loop_speedup")
    said = f"{_advise(answer, _loop_gain(row))}; step {ratio(step)}x"
    said += f", loop {ratio(loop)}x" if loop else ""
    # else the loader is not what keeps the loop from gaining
    if max(step or 0.0, loop or 0.0) > 1 + NOISE:
        said += _describe_loader(row)
    if (saving := _show_saving(row)) and (steps := finite(row, "total_steps")) == finite(
        answer, "steps"
    ):
        said += f"; over {steps:,.0f} steps compiling {saving}"
    if said_of_training := SAID.get(text(row["trajectory"])):
        said += f"; {said_of_training}"
    return said


def _advise(answer: Row, gain: float) -> str:
    """Say what is recommended, and why nothing is though the loop gains."""
    recommended, mode, backend = text(answer["recommended"]), answer["mode"], answer["backend"]
    if mode is None:
        needs_reason = gain > 1 + NOISE or recommended == NOT_KNOWN
        return f"{recommended} ({text(answer['reason'])})" if needs_reason else recommended
    usual = {"backend": "inductor", "mode": "default"}
    options = [
        f"{name}={value}"
        for name, value in (("mode", mode), ("backend", backend))
        if value != usual[name]
    ]
    return f"compile with {' '.join(options)}" if options else "compile"


def _describe_loader(row: Row) -> str:
    """Say where the loader limits what the loop gains."""
    eager, compiled = (finite(row, f"{arm}_loader_share") or 0.0 for arm in ARMS)
    step = finite(row, "speedup") or 1.0
    if eager >= NOTABLE_WAIT and 1 / (eager + (1 - eager) / step) < step / (1 + NOISE):
        return (
            f"; the loader takes {_percent(eager)}, so no loop gains more than "
            f"{ratio(finite(row, 'ceiling'))}x"
        )
    return (
        f"; once compiled, the loader takes {_percent(compiled)}"
        if compiled >= NOTABLE_WAIT
        else ""
    )


def _show_saving(row: Row) -> str:
    saved_s, low_s, high_s = (finite(row, f"saved_s{end}") for end in ("", "_low", "_high"))
    return "" if saved_s is None else _describe_saving(saved_s, low_s, high_s)


def _show_loader(row: Row) -> str:
    share = finite(row, "eager_loader_share")
    return "" if share is None else _percent(share)


def text_columns(rows: Sequence[Row], _trials: Sequence[Row]) -> list[TextColumn]:
    return [
        text_column("model", folds=True, is_name=True),
        *formatting.axis_columns(rows, ("variant", "sweep")),
        text_column("mode", is_name=True),
        number_column(
            "step", "speedup", lambda row: estimate(row, "speedup") or text(row["status"])
        ),
        number_column("loop", "loop_speedup", lambda row: estimate(row, "loop_speedup")),
        number_column("loader", "eager_loader_share", _show_loader),
        number_column("saved", "saved_s", _show_saving, needs="saved_s"),
        TextColumn("trains alike", lambda row: text(row["trajectory"]), needs="trajectory"),
        TextColumn(
            "findings", lambda row: "; ".join(read_texts(row, "findings")), media=(PAGE, MARKDOWN)
        ),
    ]


def _notes(rows: Sequence[Row]) -> list[str]:
    axes = formatting.find_varying(rows, _AXES)
    return [
        f"on {ladder.name_ladder(row, axes)}: {line}"
        for row in rows
        for line in read_texts(row, "findings")
    ]


SPEC = TableSpec(
    "scripts",
    "Your own scripts",
    make_table,
    text_columns,
    notes=_notes,
    entries=select_scripts,
)
