from __future__ import annotations

from dataclasses import replace

import pytest

from sweeper.core.errors import ConfigError
from sweeper.core.libraries import SCRIPT
from sweeper.core.trial import Compile, Model, Precision, Trial
from sweeper.sweep.plan import describe_plan, make_plan

LLAMA = Model("transformers", "LlamaForCausalLM")
DDP: dict[str, object] = {"parallel": "ddp", "parallel_devices": 2}


def test_same_experiment_runs_once_and_that_is_said(trial: Trial) -> None:
    planned = make_plan([trial, trial], {})
    assert planned.trials == (trial,)
    assert "the same experiment" in planned.left_out[0].reason


@pytest.mark.parametrize(
    "change",
    [
        {"backend": "eager", "mode": "reduce-overhead"},
        {"backend": "aot_eager", "compile": Compile(options={"x": 1})},
        {"compile": Compile(fullgraph=True, scope="step")},
        {"compile": Compile(scope="step"), "workload": "inference"},
        {"compile": Compile(scope="step"), "workload": "decode", "model": LLAMA},
        {"backend": "jit_trace", "workload": "prefill", "model": LLAMA},
        {"workload": "decode"},
        {"model": Model("timm", "vit_tiny_patch16_224", attention="sdpa")},
        {"backend": "openvino", "mode": "max-autotune"},
        {"backend": "nvfuser", "compile": Compile(options={"x": 1})},
        {"backend": "jit_trace", "compile": Compile(dynamic=False)},
        {"backend": "jit_script", "compile": Compile(fullgraph=True)},
        {"backend": "fx", "compile": Compile(scope="step")},
        {"compile": Compile(scope="loss"), "workload": "inference"},
        {"compile": Compile(scope="optimizer"), "workload": "inference"},
        {"compile": Compile(scope="optimizer"), "optimizer": "none"},
        {"compile": Compile(scope="optimizer", fullgraph=True)},
        {"compile": Compile(memory_budget=0.5), "workload": "inference"},
        {"compile": Compile(memory_budget=0.5, scope="optimizer")},
        {"compile": Compile(memory_budget=0.5), "backend": "cudagraphs"},
        {"compile": Compile(wrapper="outside")},
        {"compile": Compile(precision_casts=True), "backend": "aot_eager"},
        {"compile": Compile(precision_casts=True), "backend": "one_of_mine"},
        {"compile": Compile(start="mega_cache"), "backend": "aot_eager"},
        {"compile": Compile(start="aot_compile", scope="blocks")},
        {**DDP, "workload": "inference", "optimizer": "none"},
    ],
)
def test_impossible_combination_is_left_out_of_a_grid_and_refused_alone(
    trial: Trial, change: dict[str, object]
) -> None:
    impossible = replace(trial, **change)
    planned = make_plan([impossible, trial], {})
    assert planned.trials == (trial,)
    assert planned.left_out[0].trial == impossible
    with pytest.raises(ConfigError):
        make_plan([impossible], {})


def test_a_model_trains_in_several_processes_with_what_a_loop_takes(trial: Trial) -> None:
    ddp = replace(trial, **DDP)
    outside = replace(ddp, compile=Compile(wrapper="outside", fullgraph=True))
    eager = replace(ddp, mode="eager", backend=None)
    script = Model(SCRIPT, "train.py", arguments={"launch": "torchrun --nproc-per-node 2"})
    launched = replace(
        trial, model=script, workload=SCRIPT, optimizer="none", compile=Compile(wrapper="outside")
    )
    grid = (ddp, outside, eager, launched)
    assert make_plan(grid, {}).trials == grid
    refused: dict[str, dict[str, object]] = {
        "workload=inference: allowed are train": {"workload": "inference", "optimizer": "none"},
        "optimizer=none: allowed are adam, adamw, sgd": {"optimizer": "none"},
        "compile.scope=blocks: allowed are model": {"compile": Compile(scope="blocks")},
        "compile.start=mega_cache: allowed are local": {"compile": Compile(start="mega_cache")},
        "torch shards contiguous parameters alone": {
            "parallel": "fsdp2",
            "model": replace(trial.model, memory_format="channels_last"),
        },
        "batches of one size": {"vary": {"batch_size": (2, 4)}},
        "rung=fused is for parallel=none": {"labels": replace(trial.labels, rung="fused")},
        "backend=jit_trace converts a model by hand": {"backend": "jit_trace"},
    }
    for said, change in refused.items():
        with pytest.raises(ConfigError, match=said):
            make_plan([replace(ddp, **change)], {})


@pytest.mark.parametrize(
    ("retry", "status", "runs"),
    [
        ("failed", "ok", False),
        ("failed", "crashed", True),
        ("none", "crashed", False),
        ("all", "ok", True),
    ],
)
def test_resume_leaves_out_what_has_a_record(
    trial: Trial, retry: str, status: str, runs: bool
) -> None:
    planned = make_plan([trial], {trial.id: status}, retry)
    assert bool(planned.trials) == runs
    assert [item.finished for item in planned.left_out] == ([] if runs else [True])


def test_two_precisions_with_one_weight_are_refused_before_anything_runs(trial: Trial) -> None:
    tf32 = replace(
        trial, precision=Precision(tf32=True), labels=replace(trial.labels, precision="my_tf32")
    )
    with pytest.raises(
        ConfigError, match="precision=fp32 and precision=my_tf32 both carry the weight fp32"
    ):
        make_plan([trial, tf32], {})
    without = replace(tf32, labels=replace(tf32.labels, weight=None))
    assert len(make_plan([trial, without], {}).trials) == 2


def test_description_has_a_line_a_trial_that_starts_with_its_id(trial: Trial) -> None:
    lines = describe_plan(make_plan([trial, replace(trial, batch_size=8), trial], {}))
    assert lines[0].startswith(f"{trial.id}  {trial.label}")
    assert lines[-1].startswith(trial.id)
    assert "left out:" in lines
