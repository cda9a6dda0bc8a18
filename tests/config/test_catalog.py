"""Every option of `conf/model/` and every experiment is a configuration; the models of the suites
are built and run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
from catalog import SUITES, loss_of, model_of, options
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import OmegaConf

from hydra_plugins.sweeper_hydra.grid import expand
from sweeper.config.grid import Composed, Composer
from sweeper.config.schema import ModelConf, conf_folder
from sweeper.core.libraries import LIBRARIES
from sweeper.sweep import hydra_app

GIVEN = ["sweep=x", "device=cpu"]
EXPERIMENTS = sorted(file.stem for file in (conf_folder() / "experiment").glob("*.yaml"))
# One for every special case of ours: a model without classes of its own, an old name of timm, a
# distilled head; positions counted from the padding, labels of each kind, spectrograms, images with
# texts.
SAMPLE = [
    "dinov3_vit_b16",
    "timm/adv_inception_v3",
    "timm/deit_base_distilled_patch16_224",
    "torchbench/hf_Whisper",
    "torchbench/hf_clip",
    "transformers/LayoutLMForSequenceClassification",
    "transformers/RobertaForQuestionAnswering",
    "transformers/T5Small",
]
CANNOT = {"transformers/Speech2Text2ForCausalLM": "transformers 5.0 removed the class"}
NEEDS_TORCHBENCH = [
    option for option in options("torchbench") if model_of(option).library == "torchbench"
]
NEEDS_TWO_SAMPLES = "control_flow"
BUILT_HERE = [
    pytest.param(option, marks=pytest.mark.xfail(strict=True, reason=CANNOT[option]))
    if option in CANNOT
    else option
    for option in options()
    if option not in (*LIBRARIES, *NEEDS_TORCHBENCH, NEEDS_TWO_SAMPLES)
]


@pytest.fixture(scope="module")
def composer() -> Iterator[Composer]:
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_folder()), job_name="test"):
        loader = GlobalHydra.instance().config_loader()
        yield Composer(loader, loader.load_configuration("config", [], RunMode.RUN))


@pytest.fixture(scope="module")
def composed(composer: Composer) -> Composed:
    """What each option's values are put into: composing a configuration a model takes ten times as
    long.
    """
    return composer.compose(GIVEN)


@pytest.mark.parametrize("option", [option for option in options() if option not in LIBRARIES])
def test_a_named_model_makes_a_trial(composer: Composer, composed: Composed, option: str) -> None:
    found = composer.repository.load_config(f"model/{option}")
    assert found is not None
    assert not found.defaults_list
    config = composed.config.copy()
    config.model = OmegaConf.merge(OmegaConf.structured(ModelConf), found.config)
    trial = hydra_app.read_point(
        Composed(config, {**composed.choices, "model": option}, ()), composer.repository
    ).trial
    suite, _, name = option.rpartition("/")
    assert trial.labels.model == name
    if suite:
        assert trial.labels.suite == {"transformers": "huggingface"}.get(suite, suite)
    assert trial.variant == ""
    assert (
        f"model={option}"
        in (conf_folder() / "model" / f"{option}.yaml").read_text().splitlines()[0]
    )


def test_options_in_folders_are_composed_by_hydra_as_others_are(composer: Composer) -> None:
    point = hydra_app.read_point(
        composer.compose([*GIVEN, "model=transformers/T5Small", "precision=amp"]),
        composer.repository,
    )
    assert point.trial.model == replace(model_of("transformers/T5Small"), dropout=True)
    assert point.trial.labels.model == "T5Small"


def test_suites_are_complete() -> None:
    assert [len(options(suite)) for suite in SUITES] == [61, 46, 65]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiment_is_a_grid_of_options_that_exist(composer: Composer, name: str) -> None:
    loader = GlobalHydra.instance().config_loader()
    master = loader.load_configuration("config", [f"experiment={name}"], RunMode.MULTIRUN)
    parser = OverridesParser.create(loader)
    axes = expand(
        parser.parse_overrides(
            [f"{key}={value}" for key, value in master.hydra.sweeper.params.items()]
        )
    )
    for axis in axes:
        for override in axis.overrides if composer.repository.group_exists(axis.key) else ():
            group, _, option = override.partition("=")
            assert composer.repository.config_exists(f"{group}/{option}"), override
    first = Composer(loader, master).compose([*GIVEN, *(axis.overrides[0] for axis in axes)])
    assert hydra_app.read_point(first, composer.repository).trial.id


@pytest.mark.parametrize(
    ("name", "folders"),
    [
        ("pt2_timm", ("timm",)),
        ("pt2_huggingface", ("transformers",)),
        ("pt2_torchbench", ("torchbench",)),
        ("pt2_all", SUITES),
    ],
)
def test_experiments_of_figure_8_name_the_files_of_their_suites(
    name: str, folders: tuple[str, ...]
) -> None:
    params = OmegaConf.load(conf_folder() / "experiment" / f"{name}.yaml").hydra.sweeper.params
    named = [item.strip() for item in params.model.split(",")]
    assert sorted(named) == options(*folders)
    assert params.precision == "fp32,amp"


@pytest.mark.parametrize("option", SAMPLE)
def test_model_is_built_and_gives_a_loss(option: str) -> None:
    _require_scalar(loss_of(option))


@pytest.mark.catalog
@pytest.mark.parametrize("option", BUILT_HERE)
def test_every_model_is_built_and_gives_a_loss(option: str) -> None:
    _require_scalar(loss_of(option))


def _require_scalar(loss) -> None:
    """A loss of one finite number; on the meta device it has none."""
    assert loss.shape == ()
    assert loss.is_meta or math.isfinite(loss)
