"""What the check before a sweep finds: names, arguments, factories and options that cannot be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import factories
import pytest
import torch
from checkout import SEARCH_PATH, place_in_factories

from sweeper.config.error_messages import explain
from sweeper.core.ablation import change
from sweeper.core.errors import ConfigError
from sweeper.core.protocol import Preflight
from sweeper.core.serialization import to_json
from sweeper.core.system.gpus import Device
from sweeper.core.trial import Compile, Labels, Model, Trial
from sweeper.sweep import preflight
from sweeper.sweep.preflight import require_runnable

pytestmark = pytest.mark.compile
RESNET18 = Model("torchvision", "resnet18")


def ask(folder: Path, *trials: Trial) -> dict[str, list[str]]:
    """As the check process is asked, without the process."""
    from sweeper.worker.preflight import check

    lines = [json.dumps(to_json(trial)) for trial in trials]
    (folder / "trials.jsonl").write_text("\n".join(lines))
    check(folder / "trials.jsonl", folder / "answer.json")
    found: dict[str, list[str]] = json.loads((folder / "answer.json").read_text())
    return found


def problems(folder: Path, *trials: Trial) -> list[str]:
    return ask(folder, *trials)["problems"]


def trial_of(model: Model, **changes: object) -> Trial:
    return replace(Trial(model, 4, Labels(model.name, "fp32"), device="cpu"), **changes)


@pytest.mark.parametrize(("num", "last"), [(10, "problem 9"), (12, "and 2 more")])
def test_a_message_names_ten_problems_and_counts_the_rest(
    num: int, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Preflight(tuple(f"problem {number}" for number in range(num)), ())
    monkeypatch.setattr(preflight, "_ask", lambda *_: found)
    with pytest.raises(ConfigError) as raised:
        require_runnable([trial_of(RESNET18)], Device(None), inspect=False)
    shown = explain(raised.value).splitlines()
    assert (shown[:10], shown[-1]) == ([*found.problems[:10]], last)


def test_a_question_about_many_trials_is_never_in_memory_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError("after the question")

    monkeypatch.setattr(preflight.processes, "start_group", refuse)
    trials = [replace(trial_of(RESNET18), batch_size=size) for size in range(1, 2001)]
    tracemalloc.start()
    with pytest.raises(ConfigError, match="the models cannot be checked"):
        require_runnable(trials, Device(None), inspect=False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 500_000  # bytes; the trials as JSON have 2 million


def test_a_backend_that_nobody_knows_is_a_problem_and_one_that_is_missing_is_none(
    tmp_path: Path,
) -> None:
    backends = ("inductorr", "thunder", "nvfuser", "aot_eager", None)
    trials = [trial_of(RESNET18, backend=backend) for backend in backends]
    (found,) = problems(tmp_path, *trials)
    assert found.startswith("backend.name=inductorr: torch has no backend inductorr, and no")
    assert found.endswith("registers it; nearest: inductor")
    own = [trial_of(Model("custom", "factories:mlp"), backend="gives_graph_back")]
    assert problems(tmp_path, *own) == [], "the factory's module registers it"


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Model("timm", "convnext_tinny"), ["nearest: convnext_tiny", "list_models"]),
        (Model("torchvision", "resnet19"), ["nearest: resnet1"]),
        (Model("transformers", "BertForMaskedML"), ["nearest: BertForMaskedLM"]),
        (Model("transformers", "Wav2Vec2ForCTC"), ["neither tokens nor images"]),
        (Model("torchvision", "resnet18", arguments={"x": 1}), ["model.arguments", "'x'"]),
        (
            Model("transformers", "BertForMaskedLM", arguments={"num_hiden_layers": 1}),
            ["nearest: num_hidden_layers"],
        ),
        (Model("custom", "factories:nothing"), ["has no function nothing"]),
        (Model("custom", "no_such_module:build"), ["cannot import no_such_module"]),
        (Model("custom", "factories"), ["package.module:function"]),
        (Model("custom", "factories:returns_a_list"), ["must return", "a list"]),
        (
            Model("custom", "factories:lists_tensors"),
            ["one batch of 3 arguments", "too many positional", "[(x1,), (x2,), (x3,)]"],
        ),
        (Model("custom", "factories:returns_no_tensor"), ["must return", "a tuple of str"]),
        (
            Model("custom", "factories:fails_to_build"),
            [
                "calling it failed: ",
                place_in_factories('raise RuntimeError("no such dataset")')
                + ": RuntimeError: no such dataset",
            ],
        ),
        (
            Model("custom", "factories:leaves"),
            ["calling it failed: ", f"{place_in_factories('sys.exit(0)')}: SystemExit: 0"],
        ),
        (
            Model("custom", "factories:stops"),
            [f"{place_in_factories('raise Stop')}: Stop: its text could not be made"],
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Model) else None,
)
def test_model_that_cannot_be_built(tmp_path: Path, model: Model, says: list[str]) -> None:
    (found,) = problems(tmp_path, trial_of(model), trial_of(model, optimizer="sgd"))
    for text in says:
        assert text in found


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("BertForMaskedLM", {}, "workload=decode is for decoder language models"),
        ("T5ForConditionalGeneration", {}, "workload=decode is for decoder language models"),
        ("ViTForImageClassification", {}, "workload=decode is for decoder language models"),
        ("XLNetLMHeadModel", {}, "workload=decode is for decoder language models"),
        ("BertLMHeadModel", {}, "unless you add +model.arguments.is_decoder=true"),
        ("BertLMHeadModel", {"is_decoder": True}, None),
        ("BartForCausalLM", {}, None),
        ("LlamaForCausalLM", {}, None),
    ],
)
def test_model_that_cannot_decode(
    tmp_path: Path, name: str, arguments: dict[str, Any], says: str | None
) -> None:
    model = Model("transformers", name, sequence_length=64, arguments=arguments)
    found = problems(
        tmp_path, trial_of(model, workload="decode", decode_position=9), trial_of(model)
    )
    assert len(found) == (says is not None)
    assert (says or "") in "".join(found)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (Compile(options={"epilogue_fussion": True}), "options.epilogue_fussion: torch"),
        (Compile(options={"epilogue_fussion": True}), "nearest: epilogue_fusion"),
        (Compile(options={"max_autotune": "abc"}), "options.max_autotune=abc: it must be a bool"),
        (Compile(dynamo={"recompile_limt": 9}), "nearest: recompile_limit"),
        (Compile(dynamo={"capture_scalar_outputs": 1}), "=1: it must be a bool, torch has False"),
        (Compile(functorch={"donated_bufer": False}), "import torch._functorch.config"),
    ],
)
def test_setting_of_the_compiler_that_cannot_be(tmp_path: Path, asked: Compile, says: str) -> None:
    (found,) = problems(tmp_path, trial_of(RESNET18, compile=asked))
    assert found.startswith("compile.")
    assert says in found


def test_settings_that_torch_has_are_no_problem(tmp_path: Path) -> None:
    asked = Compile(
        options={"triton.cudagraphs": True, "cpp.simdlen": 1},
        dynamo={"capture_scalar_outputs": True},
        functorch={"donated_buffer": False},
        memory_budget=0.5,
        recompile_limit=3,
        precision_casts=True,
    )
    assert problems(tmp_path, trial_of(RESNET18, compile=asked)) == []


def test_what_can_be_built_has_no_problem(tmp_path: Path) -> None:
    assert problems(tmp_path, trial_of(RESNET18), trial_of(Model("custom", "factories:mlp"))) == []


def test_python_without_torch_is_said(tmp_path: Path) -> None:
    """`-S` leaves out the installed packages."""
    (tmp_path / "trials.jsonl").touch()
    command = [
        sys.executable,
        "-S",
        "-m",
        "sweeper.worker",
        "--check",
        "trials.jsonl",
        "answer.json",
    ]
    subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": SEARCH_PATH}, check=True)
    (problem,) = json.loads((tmp_path / "answer.json").read_text())["problems"]
    assert problem.startswith(
        "this Python cannot import torch (No module named 'torch'); install torch: "
    )


def test_the_loss_of_a_factory_is_noted(tmp_path: Path) -> None:
    trial = trial_of(Model("custom", "given_inputs:bert_with_labels"))
    found = ask(tmp_path, trial, replace(trial, mode="reduce-overhead"), trial_of(RESNET18))
    assert found == {
        "problems": [],
        "notes": ["loss of given_inputs:bert_with_labels: output.loss"],
        "lacking": [],
    }


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import torch\nraise KeyError('a')\n", "mine.py:2: KeyError: 'a'"),
        ("import no_such_package\n", "mine.py:1: ModuleNotFoundError: No module named 'no_such"),
        ("def build(:\n", "SyntaxError: invalid syntax (mine.py, line 1)"),
        ("raise SystemExit('no data')\n", "mine.py:1: SystemExit: no data"),
        ("x = 1\n", "has no function build"),
    ],
    ids=["error", "import", "syntax", "exit", "no function"],
)
def test_a_file_that_cannot_be_imported_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, says: str
) -> None:
    (tmp_path / "mine.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (found,) = problems(tmp_path, trial_of(Model("custom", "mine:build")))
    assert says in found


def test_a_factory_is_called_once_for_each_batch_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    mlp = factories.mlp
    monkeypatch.setattr(
        factories,
        "mlp",
        lambda batch_size, _device: calls.append(batch_size) or mlp(batch_size, _device),
    )
    grid = [
        trial_of(Model("custom", "factories:mlp"), mode=mode)
        for mode in ("default", "reduce-overhead")
    ]
    ask(tmp_path, *grid, *(replace(trial, batch_size=8) for trial in grid))
    assert calls == [4, 8]


def test_a_factory_that_runs_out_of_memory_is_a_trial_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def needs_too_much(_batch_size: int, _device: torch.device) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(factories, "mlp", needs_too_much)
    assert ask(tmp_path, trial_of(Model("custom", "factories:mlp"))) == {
        "problems": [],
        "notes": [],
        "lacking": [],
    }


SPOILS = (
    "sys.stdout = sys.stderr = sys.__stdout__ = None",
    "sys.stdout.detach()",
    "sys.stderr.close()",
    "os.close(1)",
    "os.dup2(os.open('/dev/full', os.O_WRONLY), 1)",
)
WRITES = """
import os, sys
import factories
def build(batch_size, device):
    for stream in (sys.stdout, sys.stderr, sys.__stdout__):
        stream.write("one")
        stream.flush()
    os.write(1, b"two")
    return factories.mlp(batch_size, device)
"""


def test_what_one_factory_does_to_the_streams_hits_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"spoils_{number}" for number in range(len(SPOILS))]
    for name, spoil in zip(names, SPOILS, strict=True):
        (tmp_path / f"{name}.py").write_text(f"import os, sys\n{spoil}\n")
    (tmp_path / "writes.py").write_text(WRITES)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{SEARCH_PATH}")
    writes = trial_of(Model("custom", "writes:build"))
    trials = []
    for size, name in enumerate(names, 1):
        trials += [trial_of(Model("custom", f"{name}:build")), replace(writes, batch_size=size)]
    with pytest.raises(ConfigError) as raised:
        require_runnable(trials, Device(None), inspect=False)
    assert str(raised.value).splitlines() == [
        f"model.factory={name}:build: {name} has no function build" for name in names
    ]


def test_inspection_without_tlparse_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    trial = replace(trial_of(RESNET18), python=f"{tmp_path}/bin/python")
    with pytest.raises(ConfigError, match=f"type: {tmp_path}/bin/python -m pip install tlparse"):
        require_runnable([trial], Device("cpu"), inspect=True)


@pytest.mark.parametrize(
    ("mode", "options", "is_noted"),
    [
        ("max-autotune-no-cudagraphs", {}, True),
        ("default", {"max_autotune_gemm": True}, True),
        ("default", {"max_autotune_gemm": False}, False),
    ],
)
def test_a_second_ptxas_is_noted_where_inductor_autotunes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    options: dict[str, bool],
    is_noted: bool,
) -> None:
    from sweeper.worker import preflight

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(preflight, "explain_second_ptxas", lambda: "two versions")
    trial = replace(trial_of(RESNET18), device="cuda", mode=mode)
    trial = replace(trial, compile=replace(trial.compile, options=options))
    found = ask(tmp_path, trial)
    assert (found["problems"], found["notes"]) == ([], ["two versions"] * is_noted)


def test_features_that_torch_lacks_or_has_as_they_would_make_it_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch._inductor.config

    plain = trial_of(RESNET18)
    names = ("strict_numerics", "combo_kernels", "cuda_graphs", "dynamic")
    graphed = change(replace(plain, mode="reduce-overhead"), "cuda_graphs")
    asked = [*(change(plain, name) for name in names), graphed]
    monkeypatch.setattr(torch._inductor.config, "combo_kernels", True)
    found = ask(tmp_path, *asked)
    lacking = [
        ["default", "strict_numerics"],
        ["default", "combo_kernels"],
        ["reduce-overhead", "cuda_graphs"],
    ]
    assert (found["problems"], found["lacking"]) == ([], lacking)
    missing, same, of_mode = found["notes"]
    assert missing.startswith(
        "feature=strict_numerics is left out: compile.options.numerics: torch"
    )
    assert missing.endswith("has no such setting")
    assert same.endswith("already does so by default in mode=default")
    assert of_mode.startswith("feature=cuda_graphs is left out: torch ")
    assert of_mode.endswith("already does so by default in mode=reduce-overhead")


def test_a_feature_is_left_out_in_the_modes_that_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = trial_of(RESNET18)
    graphed = replace(plain, mode="reduce-overhead")
    trials = [change(trial, "cuda_graphs") for trial in (plain, graphed)]
    answer = Preflight((), (), (("reduce-overhead", "cuda_graphs"),))
    monkeypatch.setattr(preflight, "_ask", lambda *_: answer)
    found = require_runnable([plain, graphed, *trials], Device(None), inspect=False)
    assert [*map(found.lacks, [plain, graphed, *trials])] == [False, False, False, True]
