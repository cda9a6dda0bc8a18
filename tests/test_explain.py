"""`python -m sweeper.explain` as its users run it, and every word that answers use."""

from __future__ import annotations

import math
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
from ladder_records import STEPS_S, make_rung
from records import GIB, make_record, make_trial
from script_records import make_trained

from sweeper.analysis.derive import derive
from sweeper.analysis.flags import DOUBTS, FLAGS, RANKS, find_disturbances
from sweeper.analysis.meanings import CAUSES, STATUSES
from sweeper.analysis.metrics import METRICS
from sweeper.compare.quantities import QUANTITIES
from sweeper.compare.verdicts import REGRESSIONS, VERDICTS
from sweeper.core.ablation import FEATURES
from sweeper.core.record import GpuState, HostState, PerArm, Record
from sweeper.core.system.exit_codes import BAD_INPUT, OK
from sweeper.core.trial import MODES
from sweeper.explain import explain, list_groups, main
from sweeper.loading.entries import Entry
from sweeper.report.answers.decision import COMPILE, OPEN, STAY, Limits
from sweeper.report.answers.findings import Findings
from sweeper.report.text.verdict import make_verdict

pytestmark = pytest.mark.xdist_group("explain")  # the same answers

# What sentences hold beside words: numbers with their units, and the names of trials.
NAMES = (
    *sorted(set(MODES) - {"eager"}, key=len, reverse=True),
    *("cudagraphs", "resnet50", "train.py", "AMP", "fp32"),
    *("channels_last", "fused optimizer", "cudnn.benchmark", "CUDA graph by hand"),
)
VALUES = re.compile(
    r"\[[^]]*\]|\b\d[\d.,]*(x|( (s|min|h|GiB|%))*)\b|(?<!\w)("
    + "|".join(map(re.escape, NAMES))
    + r")(?!\w)"
)
GLUE = {"+", "a", "about", "and", "another", "for", "in", "is", "none", "of", "on", "to", "with"}


@pytest.mark.parametrize("title", [feature.title for feature in FEATURES.values()])
def test_every_feature_of_an_ablation_is_explained(title: str) -> None:
    assert main([title]) == OK


def test_a_flag_is_explained_with_its_rank_and_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["host-bound", "graph_break"]) == OK, "the report's column is called host-bound"
    flag, _, cause = capsys.readouterr().out.partition("\n\n")
    said = " ".join(flag.split())
    assert said.startswith("host_bound (flag) The device waits for the host")
    assert FLAGS["host_bound"].why in said
    assert f"Context: {RANKS['context']}" in said
    assert "What to do: `mode=reduce-overhead`" in said
    assert cause.startswith("graph_break (cause of lost time)")


def test_a_figure_is_explained_by_its_column_and_its_metric(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert explain("eager-step-ms") == explain("eager_step_s")
    assert main(["eager-step-ms", "speedup_min"]) == OK
    assert capsys.readouterr().out.split("\n\n") == [
        "eager_step_ms, eager_step_s (figure)\n"
        "  Wall time per step of the eager arm, geometric mean over processes.",
        "speedup_min (figure)\n  Smallest speedup of a process, where there are several.\n",
    ]


@pytest.mark.parametrize(
    ("typed", "titles"),
    [
        (["stay", "eager"], ["stay eager (word)"]),
        (["stay eager"], ["stay eager (word)"]),
        (["one", "process", "SLOWER"], ["one process (word)", "SLOWER (word)"]),
        (
            ["not sure: one process"],
            ["not sure, unsure, ? (word)", "one process (word)"],
        ),
        (
            ["disturbed: clocks that differ, neighbours on the GPU"],
            [
                "disturbed (word)",
                "clock_mismatch, clocks that differ (flag)",
                "shared_gpu, neighbours on the GPU (flag)",
            ],
        ),
        (["UNRESOLVED"], ["unresolved (flag)"]),
        (["ceiling"], ["ceiling (word)"]),
        (["host", "share"], ["host share (word)"]),
        (["variant", "rung"], ["variant (word)", "rung (word)"]),
        (["left out"], ["left out (word)"]),
        (
            ["default, unsure"],
            [
                "default, lite, reduce-overhead, max-autotune, max-autotune-no-cudagraphs (word)",
                "not sure, unsure, ? (word)",
            ],
        ),
        (["tied"], ["cannot be told apart, tied (word)"]),
    ],
)
def test_words_of_answers_are_typed_as_they_are_printed(
    typed: list[str], titles: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed) == OK
    found = capsys.readouterr().out.split("\n\n")
    assert [text.partition("\n")[0] for text in found] == titles


def test_no_two_words_have_one_name() -> None:
    seen: set[str] = set()
    for meanings in list_groups().values():
        for names in meanings:
            lowered = {re.sub("[ -]", "_", name.lower()) for name in names.split(", ")}
            assert not lowered & seen
            seen |= lowered


def test_without_a_word_every_name_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == OK
    listed = capsys.readouterr().out.splitlines()
    for kind, meanings in list_groups().items():
        assert kind in listed
        for names, meaning in meanings.items():
            assert f"  {names:<22}  {meaning.says}" in listed
    for name in (*STATUSES, *FLAGS, *CAUSES, *(metric.csv_name for metric in METRICS)):
        assert any(line.startswith(f"  {name}") for line in listed), name


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        (
            "hostbound",
            "hostbound: no word of a report; nearest: host_bound, host_bound_arms, ",
        ),
        ("stay eagr", "stay_eagr: no word of a report; nearest: stay_eager"),
        ("open one proces", "one_proces: no word of a report; nearest: one_process"),
    ],
)
def test_an_unknown_word_is_bad_input_with_the_nearest(
    typed: str, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed.split()) == BAD_INPUT
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith(answer)


def test_the_program_takes_several_words() -> None:
    command = [sys.executable, "-m", "sweeper.explain", "stay", "eager"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (OK, "")
    assert result.stdout.startswith("stay eager (word)\n")


@dataclass(frozen=True)
class Said:
    """What the answers to many sweeps say."""

    reasons: set[str]
    sentences: set[str]


def make_models(draw: random.Random, flag: str) -> Iterator[Record]:
    """A model in several modes, with this flag and others, and some failures."""
    device = draw.choice(["cuda", "cuda", "cpu"])
    middle, number = draw.choice([0.8, 1.03, 1.07, 1.07, 1.09, 1.4]), draw.choice([1, 2, 3, 5])
    others = sorted(FLAGS.keys() - DOUBTS)
    for mode in draw.sample(MODES, draw.randint(1, 3)):
        backend = draw.choice(["inductor"] * 8 + ["eager", "cudagraphs"])
        noise = draw.choice([0.002, 0.002, 0.05])
        speedups = [middle * math.exp(draw.gauss(0, noise)) for _ in range(number)]
        record = make_record(
            trial=make_trial(mode=mode, backend=backend, device=device),
            speedups=speedups,
            status=draw.choice(["ok"] * 30 + [status for status in STATUSES if status != "ok"]),
            flags=tuple(sorted({flag, *draw.sample(others, draw.choice([0, 2]))})),
        )
        peaks = PerArm(2.0 * GIB, draw.uniform(1.0, 3.0) * GIB)
        step_s = draw.choice([None, PerArm(0.015, 0.01)])
        void = draw.choice([None] * 9 + ["recompiled"])
        mhz = PerArm(1900.0, draw.choice([1900.0, 1500.0, 1600.0]))
        gpu = GpuState(mhz, PerArm(), PerArm(), (), 0)
        host = HostState(busy_while_measuring=draw.choice([0.2, 0.6]))
        processes = []
        for process in record.processes:
            rounds = tuple(replace(item, void=void) for item in process.rounds)
            processes.append(
                replace(
                    process,
                    memory_bytes=peaks,
                    device_step_s=step_s,
                    rounds=rounds,
                    gpu=gpu,
                    host=host,
                )
            )
        yield replace(record, processes=tuple(processes))


def make_scripts(draw: random.Random, _flag: str) -> Iterator[Record]:
    """A script whose loop takes 0.1 s per step in eager."""
    steps = draw.choice([None, 300, 100_000])
    for mode in ("default", "reduce-overhead"):
        times_s = [draw.uniform(0.03, 0.12) for _ in range(draw.choice([1, 3]))]
        yield make_trained(steps, *times_s, mode=mode, device=draw.choice(["cuda", "cpu"]))


def make_ladder(draw: random.Random, _flag: str) -> Iterator[Record]:
    for rung, step_s in STEPS_S.items():
        flags = tuple(draw.sample(["shared_gpu", "unequal_settings"], draw.choice([0, 1])))
        yield replace(make_rung(rung, step_s=step_s * draw.uniform(0.8, 1.2)), flags=flags)


def make_control(draw: random.Random, _flag: str) -> Iterator[Record]:
    yield make_record(mode="eager", backend=None, speedups=[draw.uniform(0.99, 1.01)])


@cache
def say_much() -> Said:
    draw, reasons, sentences = random.Random(11), set[str](), set[str]()
    flags = [*sorted(DOUBTS), "compile_contended", "host_bound"] * 25
    for number, flag in enumerate(flags):
        makers = [make_models]
        if number % 7 == 0:
            makers = draw.choice([[make_scripts], [make_ladder], [make_control], [make_models] * 2])
        entries = []
        for make in makers:
            for record in make(draw, flag):
                disturbances = find_disturbances(record)
                entries.append(
                    Entry(
                        record,
                        derive(record),
                        Path("runs/night/t"),
                        record.trial.variant,
                        record.flags,
                        disturbances=disturbances,
                    )
                )
        limits = Limits(draw.choice([None, 1, 400, 10_000]), draw.choice([None, 1.5, 2.5]))
        findings = Findings(entries, limits)
        verdict = make_verdict(findings, ())
        sentences.update((*verdict.sentences, verdict.failed))
        sentences.update(item.why for item in verdict.again)
        for answer in findings.answers:
            reasons.update((answer.verdict, *answer.why_unsure))
            sentences.add(str(answer))
            sentences.update(item.partition(": ")[2] for item in answer.ruled_out)
    return Said(reasons, sentences)


def test_each_reason_of_many_answers_is_explained_in_whole() -> None:
    said = say_much()
    for reason in said.reasons:
        assert explain(reason)
    disturbed = ", ".join(reason for reason in said.reasons if reason.startswith("disturbed: "))
    assert all(flag.cause in disturbed for flag in FLAGS.values())
    assert said.reasons >= {
        COMPILE,
        STAY,
        OPEN,
        "one process",
        "the interval reaches both answers",
        "unverified",
        "its compile time is an upper bound",
    }


@cache
def pattern() -> re.Pattern[str]:
    """Any word that `explain` knows."""
    names = [name for group in list_groups().values() for name in ", ".join(group).split(", ")]
    return re.compile(rf"(?<!\w)({'|'.join(map(re.escape, names))})(?!\w)", re.IGNORECASE)


def knows(phrase: str) -> bool:
    """Whether `explain` knows any words of a phrase."""
    return bool(pattern().search(phrase) or pattern().search(re.sub("[ -]", "_", phrase)))


def list_phrases(text: str) -> Iterator[str]:
    """What stands between the marks of a sentence, without values and what joins them."""
    for phrase in re.split(r"[;:,()?]", VALUES.sub(" ", text)):
        words = phrase.strip(" .").split()
        if not GLUE.issuperset(word.lower() for word in words):
            yield " ".join(words)


def test_each_phrase_of_many_sentences_has_a_word_that_is_explained() -> None:
    phrases = {phrase for text in say_much().sentences for phrase in list_phrases(text)}
    assert len(phrases) > 30
    assert sorted(phrase for phrase in phrases if not knows(phrase)) == []


def test_a_phrase_without_a_known_word_is_seen() -> None:
    text = "compile default: 1.28x [1.25, 1.31], 1.3x in moonlight; pays back after 3,178 steps"
    assert [phrase for phrase in list_phrases(text) if not knows(phrase)] == ["in moonlight"]


def test_each_verdict_of_compare_is_explained() -> None:
    directions = {verdict for quantity in QUANTITIES for verdict in quantity.verdicts}
    for word in {*VERDICTS, *REGRESSIONS, *directions, "size uncertain", "BASE", "HEAD", "control"}:
        (text,) = explain(word)
        assert word in text


def test_each_figure_is_explained_by_both_names() -> None:
    by_metric = explain(" ".join(metric.name for metric in METRICS))
    assert by_metric == explain(" ".join(metric.csv_name for metric in METRICS))
    assert len(by_metric) == len(METRICS)
