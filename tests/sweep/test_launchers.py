"""How many GPUs the launchers of clusters ask for: of a trial in several processes one for each."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hydra.core.singleton import Singleton
from omegaconf import OmegaConf

from hydra_plugins.sweeper_hydra.ray import RayLauncher
from hydra_plugins.sweeper_hydra.slurm import SlurmLauncher


def fake_module(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    module = ModuleType(name)
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize(("given", "wanted"), [(1, 2), (0, 0)])
def test_a_ray_task_gets_gpus_for_each_of_its_processes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: int, wanted: int
) -> None:
    """On CPUs, where `num_gpus` is 0, none."""
    asked: list[object] = []

    def launch_job(_context: object, remote: Any, *_rest: object) -> None:
        asked.append(OmegaConf.to_container(remote))

    fake_module(
        monkeypatch,
        "ray",
        wait=lambda *_, **__: None,
        get=lambda tasks: tasks,
        cluster_resources=lambda: {"GPU": 1},
    )
    util = "hydra_plugins.hydra_ray_launcher._launcher_util"
    fake_module(monkeypatch, util.rpartition(".")[0])
    fake_module(monkeypatch, util, launch_job_on_ray=launch_job)
    monkeypatch.setattr(Singleton, "get_state", staticmethod(lambda: None))
    launcher = RayLauncher(OmegaConf.create({"remote": {"num_gpus": given, "num_cpus": 1}}))
    config = OmegaConf.create({"hydra": {"job": {}}})
    loader = SimpleNamespace(load_sweep_config=lambda *_: config.copy())
    context: Any = SimpleNamespace(config_loader=loader)
    launcher.setup(hydra_context=context, task_function=lambda _: None, config=config)
    launcher.ask_for(2)
    launcher.launch([["model=a"]], 0)
    launcher.ask_for(1)
    launcher.launch([["model=b"]], 0)
    assert asked == [{"num_gpus": gpus, "num_cpus": 1} for gpus in (wanted, given)]
    assert capsys.readouterr().err.count("fewer than the 2 GPUs of a task") == given


@pytest.mark.parametrize(("given", "wanted"), [(1, 2), (None, None)])
def test_an_array_of_slurm_gets_gpus_for_each_process_of_its_trials(
    monkeypatch: pytest.MonkeyPatch, given: int | None, wanted: int | None
) -> None:
    submitit_launcher = pytest.importorskip(
        "hydra_plugins.hydra_submitit_launcher.submitit_launcher"
    )
    asked: list[object] = []

    class Recorder:
        def __init__(self, **parameters: object) -> None:
            asked.append(parameters)

        def setup(self, **_arguments: object) -> None:
            pass

        def launch(self, _overrides: object, _number: int) -> list[object]:
            return []

    monkeypatch.setattr(submitit_launcher, "SlurmLauncher", Recorder)
    launcher = SlurmLauncher(gpus_per_node=given, timeout_min=5)
    context: Any = None
    config = OmegaConf.create({})
    launcher.setup(hydra_context=context, task_function=lambda _: None, config=config)
    launcher.ask_for(2)
    launcher.launch([["model=a"]], 0)
    assert asked == [{"gpus_per_node": wanted, "timeout_min": 5}]
