"""What the report says of scripts as people have them, each in a worker: what is found in those
that have a trap.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from script_runs import find, make_entry, read_script, run_stored

from sweeper.report.answers.findings import Findings
from sweeper.report.answers.scripts import ScriptAnswer, conclude


@pytest.mark.slow
def test_a_compiled_form_that_nobody_calls_is_found(tmp_path: Path) -> None:
    trial, outcome, _ = run_stored("gated", tmp_path)
    assert outcome.status == "not_compiled"
    assert "the script calls torch.compile (gated.py:11), and runs nothing compiled" in find(
        trial, outcome
    )


NEEDS = {"trainer": "accelerate", "with_accelerate": "accelerate", "with_lightning": "lightning"}
MODULES = {
    "trainer": ("BertForSequenceClassification",),
    "with_accelerate": ("torch.nn.Sequential",),
    "with_lightning": ("torch.nn.Sequential",),
    "gan": ("torch.nn.Sequential", "torch.nn.Sequential"),
}
TRAPS = {
    "accumulation": ("ok", "4 batches per step"),
    "gan": ("ok", "2 optimizers take turns"),
    "slow_loader": ("ok", "the loop waits for its loader (no workers) for"),
    "changing_shapes": ("ok", "shapes of inputs: pad to"),
    "graph_break": ("ok", "graph breaks at graph_break.py:17"),
    "eager_evaluation": ("ok", "evaluation ran eager: it calls nothing that is compiled"),
    "own_compile": ("ok", 'torch.compile Net at own_compile.py:22 with {"dynamic": false}'),
    "trainer": ("ok", "shapes of inputs"),
    "with_accelerate": ("ok", "2 batches per step"),
    "with_lightning": ("ok", ""),  # see MODULES
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAPS)
def test_the_report_names_what_a_script_does(name: str, tmp_path: Path) -> None:
    if (package := NEEDS.get(name)) and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: make slow installs it")
    trial, outcome, printed = run_stored(name, tmp_path)
    status, said = TRAPS[name]
    assert outcome.status == status, f"{outcome.message}\n{printed[-3000:]}"
    assert said in find(trial, outcome)
    script = read_script(outcome)
    assert script.modules == MODULES.get(name, script.modules)
    assert script.loop_eager is not None
    assert script.loop_compiled is not None
    assert outcome.diagnostics is not None
    assert not [
        item.where for item in outcome.diagnostics.graph_breaks if "sweeper" in (item.where or "")
    ]
    assert outcome.process is not None
    assert outcome.process.accuracy is not None
    assert outcome.process.accuracy.passed is True, outcome.process.accuracy.unverified


@pytest.mark.slow
def test_texts_that_are_padded_to_the_longest_are_named_with_sizes_to_pad_to(
    tmp_path: Path,
) -> None:
    trial, outcome, printed = run_stored("padded_text", tmp_path)
    assert outcome.status == "ok", f"{outcome.message}\n{printed[-3000:]}"
    script = read_script(outcome)
    assert script.modules == ("BertForSequenceClassification",)
    assert all(
        re.fullmatch(r"\[4, (\d+)\], \[4, \1\], \[4\]", item.shapes) for item in script.shapes
    ), script.shapes
    # all of the compiled loop
    assert len(script.sizes) == script.num_shapes > len(script.pad_to) > 1
    assert script.sizes[-1].size == script.pad_to[-1]
    sizes = ", ".join(map(str, script.pad_to))
    assert f"{script.num_shapes} shapes of inputs: pad to {sizes}" in find(trial, outcome)
    entry = make_entry(trial, outcome)
    (said,) = conclude(Findings([entry]).answers)
    assert said.startswith("script padded_text.py: "), said
    assert ScriptAnswer(entry).loop is not None
    assert entry.result.loop_speedup != entry.result.speedup


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None,
    reason="accelerate is not installed: make slow installs it",
)
def test_a_trainer_that_compiles_is_the_compiled_arm(tmp_path: Path) -> None:
    trial, outcome, printed = run_stored("trainer", tmp_path, "--compile")
    assert outcome.status == "ok", printed[-3000:]
    assert "torch.compile BertForSequenceClassification at " in find(trial, outcome)


@pytest.mark.slow
def test_a_compiler_that_is_switched_off_is_found(tmp_path: Path) -> None:
    trial, outcome, _ = run_stored("own_compile", tmp_path, TORCHDYNAMO_DISABLE="1")
    assert outcome.status == "not_compiled"
    assert "TORCHDYNAMO_DISABLE or torch._dynamo.config.disable turns the compiler off" in find(
        trial, outcome
    )
