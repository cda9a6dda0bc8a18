"""`python -m sweeper` with bad input, as a user types it: exit 2, a few lines, no traceback,
nothing started.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from checkout import Run, place_in_factories

YAMLS = {
    "unknown_key": "library: timm\nname: x\nbatch_size: 4\nfamly: cnn\n",
    "missing_key": "library: timm\nname: x\n",
    "tab": "library: timm\n\tname: x\n",
    "duplicate": "library: timm\nname: x\nname: y\nbatch_size: 1\n",
    "wrong_type": "library: timm\nname: x\nbatch_size: many\n",
    "no_library": "library: keras\nname: x\nbatch_size: 4\n",
}


def assert_refused(run: Run, folder: Path, arguments: list[str], *says: str) -> None:
    result = run("sweeper", *arguments)
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.splitlines()) <= 7, result.stderr
    for text in says:
        assert text in result.stderr
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["model=resnet51"], ["nearest: resnet50", "python -m sweeper --help"]),
        (["model=timm/dla103"], ["model=timm/dla103", "nearest: timm/dla102"]),
        (["model=BertForMaskedML"], ["transformers/BertForMaskedLM"]),
        (["model/timm=dla102"], ["write model=timm/NAME"]),
        (["mode=reduce_overhead"], ["nearest: reduce-overhead"]),
        (["backend=inducter"], ["nearest: inductor"]),
        (["precision=fp16"], ["amp_fp16"]),
        (["batch_size=abc"], ["batch_size=abc: give a whole number or null"]),
        (["dry_run=maybe"], ["dry_run=maybe: give true or false"]),
        (["measure.rounds=1.5"], ["measure.rounds=1.5: give a whole number"]),
        (["measure.timeout_s=[1]"], ["measure.timeout_s=[1]: give a number"]),
        (
            ["vary.sequence_length=64"],
            ["vary.sequence_length: give a list of whole numbers, e.g. vary.sequence"],
        ),
        (["vary.batch_size=[8,b]"], ["vary.batch_size[1]=b: give a list of whole numbers"]),
        (["vary=3"], ["vary: it has keys of its own: vary.batch_size"]),
        (["compile.options=3"], ["compile.options.NAME=VALUE"]),
        (["batch_size=${foo}"], ["no key foo"]),
        (["model", "resnet18"], ["write model=resnet18"]),
        (["batch_size", "mode=default"], ["write batch_size=VALUE"]),
        (["reprot", "night"], ["nearest: report"]),
        (["model=resnet18", "report"], ["a command stands first"]),
        (["--no-such-flag"], ["--no-such-flag", "python -m sweeper --help"]),
        (["--help", "bakend"], ["nearest: backend"]),
        (["+model=resnet50"], ["without +"]),
        (["~batch_size"], ["batch_size=null"]),
        (["batch_size=0"], ["at least 1"]),
        (["nope.py"], ["model.path=nope.py: there is no such file in"]),
        (["nope.py", "mode=default", "--", "--help"], ["model.path=nope.py: there is no such"]),
        (["compile.scope=nonsense", "mode=eager"], ["compile.scope=nonsense: allowed are model"]),
        (
            ["model=custom", "model.factory=./no.py:f"],
            ["model.factory=./no.py:f: there is no such"],
        ),
        (["model=custom", "model.factory=./no.py"], ["name the function too: ./no.py:build"]),
        (["worker.python=/no/python"], ["there is no program /no/python"]),
        (["batchsize=4"], ["nearest: batch_size"]),
        (["compile.fulgraph=true"], ["nearest: compile.fullgraph"]),
        (["mode=max-autotune", "backend=aot_eager"], ["backend=aot_eager takes no mode"]),
        (["parallel.devices=4"], ["parallel=none has one process; add parallel=ddp or fsdp2"]),
        (["-m", "parallel.devices=2", "batch_size=1,2"], ["parallel=none has one process"]),
        (["sweep=../../x"], ["sweep's name"]),
        (["model=resnet18,resnet50"], ["add -m"]),
        (["-m", "model=resnet18,resnet51"], ["nearest: resnet50"]),
        (["-m", "experiment=cpu_demo,modes"], ["one experiment per command"]),
        (["-m", "measure=quick,trusted"], ["cannot be swept"]),
        (["-m", "batch_size=4,0"], ["at least 1"]),
        (["-m", "batch_size=range(1,4)", "model=timm"], ["model.name=convnext_tiny"]),
        (["-m", "batch_size=interval(1,4)"], ["list the values"]),
        (["batch_size=[1"], ["close each bracket"]),
        (["model=résnet"], ["quote"]),
        (["tracking=null"], ["the name of an option"]),
        (["measure=null"], ["not null"]),
        (["--resolve"], ["--cfg"]),
        (["experiment=cpu_demo,modes"], ["one experiment per command"]),
        (["measure.target=2"], ["0.02 for 2 %"]),
        (["+measure.rouds=2"], ["measure.rouds", "measure.rounds"]),
        (["+precission=amp"], ["precission"]),
        (["-m", "+junk=3,4"], ["junk"]),
        (["hydra/launcher=nope"], ["hydra/launcher=nope"]),
        (["hydra/launcher=basic", "device=cpu"], ["hydra/launcher=basic is for a grid", "add -m"]),
        (
            ["-m", "hydra.launcher.partition=gpu"],
            ["hydra.launcher.partition: ", "--cfg hydra hydra/launcher=slurm"],
        ),
        (["-m", "hydra/launcher=basic", "dry_run=true"], ["say device=cuda or device=cpu"]),
        (["model=[resnet18,resnet50]"], ["give one option"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_override(
    run_forked: Run, tmp_path: Path, arguments: list[str], says: list[str]
) -> None:
    assert_refused(run_forked, tmp_path, arguments, *says)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("unknown_key", ["model.famly", "family"]),
        ("missing_key", ["model.batch_size"]),
        ("tab", ["tab.yaml, line 2", "spaces, not tabs"]),
        ("duplicate", ["duplicate.yaml, line 3"]),
        ("wrong_type", ["batch_size", "many"]),
        ("no_library", ["torchvision, timm, transformers, diffusers, torchbench, custom"]),
    ],
)
def test_bad_yaml_of_the_user(run_forked: Run, tmp_path: Path, name: str, says: list[str]) -> None:
    (tmp_path / "mine" / "model").mkdir(parents=True)
    (tmp_path / "mine" / "model" / f"{name}.yaml").write_text(YAMLS[name])
    assert_refused(
        run_forked, tmp_path, ["--config-dir", "mine", f"model={name}", "device=cpu"], *says
    )


@pytest.mark.slow
def test_slurm_that_does_not_answer(run_module: Run, tmp_path: Path) -> None:
    """Where SLURM is installed, its commands find no cluster; elsewhere there are no commands."""
    result = run_module(
        "sweeper", "-m", "hydra/launcher=slurm", "device=cpu", SLURM_CONF=str(tmp_path / "none")
    )
    assert result.returncode == 2, result.stdout + result.stderr
    assert "sweeper: hydra/launcher=slurm needs a SLURM that answers: " in result.stderr
    assert not (tmp_path / "runs").exists()


def test_gpu_that_is_not_there(run_module: Run, tmp_path: Path) -> None:
    result = run_module("sweeper", "device=cuda", CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 2
    assert "use device=cpu" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param(
            ["-m", "model=resnet18,timm", "model.name=resnet18,no_such_resnet"],
            ["no_such_resnet", "list_models"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["model=resnet18", "compile.options={max_autotun:true}"],
            ["nearest: max_autotune"],
            marks=pytest.mark.slow,
        ),
        (
            ["model=custom", "model.factory=factories:leaves"],
            ["calling it failed: ", f"{place_in_factories('sys.exit(0)')}: SystemExit: 0"],
        ),
        pytest.param(
            ["model=custom", "model.factory=factories:killed_while_built"],
            ["no answer"],
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else None,
)
def test_what_the_check_process_finds(
    run_module: Run, tmp_path: Path, arguments: list[str], says: list[str]
) -> None:
    """All that it can find is in test_check."""
    assert_refused(run_module, tmp_path, [*arguments, "device=cpu"], *says)
