"""What is put together from parts is what Hydra composes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from sweeper.config.grid import Composed, Composer, OverrideAxis
from sweeper.config.schema import conf_folder
from sweeper.core.trial import Trial
from sweeper.sweep import hydra_app


class Counting(Composer):
    """Counts what Hydra itself composes."""

    composed = 0

    def compose(self, overrides) -> Composed:
        self.composed += 1
        return super().compose(overrides)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder of options."""
    folder = tmp_path_factory.mktemp("own")
    files = {
        "model/plain": "library: timm\nname: convnext_tiny\nbatch_size: 3\n",
        "model/refers": "library: timm\nname: ${oc.env:HOME}\nbatch_size: "
        "${measure.rounds}\nsequence_length: 9\n",
        "model/with_defaults": "defaults: [resnet18, _self_]\nbatch_size: 5\n",
        "mode/reaches_over": "# @package _global_\nmode: {name: default}\nmodel: {batch_size: 7}\n",
        "precision/half": "parameters: float16\nautocast: null\n",
        "tuned/default": "a: 1\n",
        "tuned/reduce-overhead": "a: 2\n",
    }
    for name, text in files.items():
        path = folder / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    primary = (
        (conf_folder() / "config.yaml")
        .read_text()
        .replace("- _self_", "- tuned@compile.options: ${mode}\n  - _self_")
    )
    (folder / "by_mode.yaml").write_text(primary)
    return folder


@pytest.fixture(scope="module")
def loaded(
    own: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[ConfigLoaderImpl, DictConfig]]:
    """What a composer needs, for the command `python -m sweeper` or with another primary
    configuration, the fixture's parameter.
    """
    primary = getattr(request, "param", "config")
    main, other = (conf_folder(), own) if primary == "config" else (own, conf_folder())
    with initialize_config_dir(version_base="1.3", config_dir=str(main), job_name="test"):
        loader = GlobalHydra.instance().config_loader()
        overrides = [f"hydra.searchpath=[file://{other}]"]
        yield loader, loader.load_configuration(primary, overrides, RunMode.RUN)


@pytest.fixture
def composer(loaded: tuple[ConfigLoaderImpl, DictConfig]) -> Counting:
    return Counting(*loaded)


def axes(text: str) -> list[OverrideAxis]:
    """`model=a,b batch_size=1,2` as axes."""
    found = []
    for word in ["sweep=x", *text.split()]:
        key, _, values = word.partition("=")
        found.append(
            OverrideAxis(key.lstrip("+"), tuple(f"{key}={value}" for value in values.split(",")))
        )
    return found


SAME = {
    "one point": "model=resnet18",
    "no group": "batch_size=1,2",
    "groups": "model=resnet18,plain mode=default,eager precision=amp,half",
    "three options": "model=resnet18,vit_b16,plain",
    "a value of the option": "model=resnet18,vit_b16 model.image_size=32,64 mode=reduce-overhead",
    "values between "
    "groups": "batch_size=2 model=resnet18,plain compile.scope=step mode=default,eager",
    "interpolation": "model=refers,resnet18 measure.rounds=2 measure=quick,trusted",
    "new keys": "model=resnet18,plain ++compile.options.a=1,2 ++compile.options.b.c=x",
    "an experiment": "experiment=cpu_demo model=resnet18,plain precision=fp32,amp",
    "another option's node": "mode=default,reaches_over model=resnet18,plain",
    "defaults of its own": "model=plain,with_defaults",
    "defaults of its own, first": "model=with_defaults,plain",
    "the same value twice": "model=resnet18,resnet18 mode=eager",
}


# each is put together as another one is
ALIKE = ("no group", "three options", "values between groups", "defaults of its own, first")


@pytest.mark.parametrize(
    "grid",
    [
        pytest.param(grid, id=name, marks=[pytest.mark.slow] if name in ALIKE else [])
        for name, grid in SAME.items()
    ],
)
def test_points_are_what_hydra_composes(composer: Counting, grid: str) -> None:
    points = list(composer.points(axes(grid)))
    assert points
    for point in points:
        whole = composer.compose(point.overrides)
        assert OmegaConf.to_yaml(point.config) == OmegaConf.to_yaml(whole.config)
        assert OmegaConf.to_object(point.config) == OmegaConf.to_object(whole.config)
        assert point.choices == whole.choices


def test_an_option_is_composed_once(composer: Counting) -> None:
    grid = axes(
        "model=resnet18,vit_b16,plain mode=default,eager precision=fp32,amp,half batch_size=1,2"
    )
    assert len(list(composer.points(grid))) == 3 * 2 * 3 * 2
    assert composer.composed == 1 + 2 + 1 + 2


@pytest.mark.parametrize(
    "grid",
    [
        "mode=default,reaches_over model=resnet18,plain,vit_b16",
        "model=with_defaults,plain precision=fp32,amp",
    ],
)
def test_options_that_depend_on_others_are_composed_by_hydra(
    composer: Counting, grid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("sweeper.config.grid.pickle")  # nothing is put together from copies
    points = list(composer.points(axes(grid)))
    assert composer.composed > len(points) > 3


@pytest.mark.parametrize("loaded", ["by_mode"], indirect=True)
def test_defaults_that_name_a_choice_are_composed_by_hydra(composer: Counting) -> None:
    points = list(composer.points(axes("mode=default,reduce-overhead model=resnet18,plain")))
    assert [point.config.compile.options for point in points] == [
        {"a": 1},
        {"a": 1},
        {"a": 2},
        {"a": 2},
    ]


@pytest.mark.parametrize(
    ("grid", "match"),
    [
        ("model=resnet18,resnet81 mode=default,eager", "resnet81"),
        ("model=resnet18,vit_b16 batchsize=1,2", "batchsize"),
        ("model=resnet18,vit_b16 batch_size=1,many", "many"),
    ],
)
def test_bad_overrides_are_hydras_errors(composer: Counting, grid: str, match: str) -> None:
    with pytest.raises(HydraException, match=match):
        list(composer.points(axes(grid)))


def test_points_do_not_share_values(composer: Counting) -> None:
    first, second = composer.points(axes("model=resnet18 batch_size=1,2"))
    first.config.model.image_size = 99
    assert second.config.model.image_size is None


def test_trials_of_a_grid_share_equal_parts(
    composer: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials: list[Trial] = []
    monkeypatch.setattr(hydra_app, "run_sweep", lambda grid, _settings: trials.extend(grid) or 0)
    grid = axes("batch_size=1,2,3 model=resnet18,plain ++compile.options.a=1,true mode=default")
    assert hydra_app.run_grid(composer.points(grid), composer.repository) == 0
    assert len({trial.id for trial in trials}) == 12
    for part in ("model", "labels", "compile"):
        assert len({id(getattr(trial, part)) for trial in trials}) == 2
    for part in ("precision", "text", "vary", "workload"):
        assert len({id(getattr(trial, part)) for trial in trials}) == 1
