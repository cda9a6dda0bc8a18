"""Which trials `experiment=ladder` makes of a model, and why others are left out."""

from __future__ import annotations

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from records import make_trial

from hydra_plugins.sweeper_hydra.grid import expand
from sweeper.config.grid import Composer
from sweeper.config.schema import conf_folder
from sweeper.core.backends import GRAPHED
from sweeper.core.errors import ConfigError
from sweeper.core.ladder import RUNGS, climb, explain_not_by_hand
from sweeper.sweep import hydra_app
from sweeper.sweep.plan import Plan, describe_plan, make_plan

CNN = "model.memory_format=channels_last"
ALL = "free one-liners"


def plan_ladder(*arguments: str) -> Plan:
    """What `python -m sweeper experiment=ladder ARGUMENTS` would run, on a GPU unless they name a
    device.
    """
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_folder()), job_name="test"):
        loader = GlobalHydra.instance().config_loader()
        master = loader.load_configuration("config", ["experiment=ladder"], RunMode.MULTIRUN)
        axes = [f"{key}={value}" for key, value in master.hydra.sweeper.params.items()]
        words = ["sweep=x", "device=cuda", *axes, "experiment=ladder", *arguments]
        composer = Composer(loader, master)
        points = composer.points(expand(OverridesParser.create(loader).parse_overrides(words)))
        return make_plan(
            [hydra_app.read_point(item, composer.repository).trial for item in points], {}
        )


def describe(plan: Plan) -> list[tuple[str, str | None, str]]:
    return [(trial.mode, trial.backend, trial.variant) for trial in plan.trials]


COMPILED = [
    ("default", "graphed", ALL),
    ("default", "inductor", ALL),
    ("reduce-overhead", "inductor", ALL),
    ("max-autotune", "inductor", ALL),
]


def test_rungs_of_a_cnn() -> None:
    plan = plan_ladder("model=resnet50")
    fused = f"{CNN}; optimizer.impl=fused"
    eager = [
        ("eager", None, variant) for variant in ("", CNN, fused, f"{fused}; cudnn_benchmark=true")
    ]
    assert describe(plan) == [*eager, *COMPILED]
    assert plan.left_out == ()
    assert {trial.labels.precision for trial in plan.trials} == {"amp"}
    top = plan.trials[-1]
    assert (top.model.memory_format, top.optimizer_impl, top.cudnn_benchmark) == (
        "channels_last",
        "fused",
        True,
    )


def test_every_line_of_a_plan_names_its_rung() -> None:
    plan = plan_ladder("model=resnet50")
    names = [line.split()[1] for line in describe_plan(plan)]
    assert names == [f"resnet50-train-amp-rung-{rung}-b128" for rung in RUNGS]


def test_rungs_that_a_language_model_has_not_are_left_out_of_later_ones_too() -> None:
    plan = plan_ladder("model=bert_base", "precision=fp32")
    assert describe(plan) == [
        ("eager", None, ""),
        ("eager", None, "optimizer.impl=fused"),
        *COMPILED,
    ]
    assert [item.trial.labels.rung for item in plan.left_out] == [
        "channels_last",
        "cudnn_benchmark",
    ]
    assert plan.left_out[0].reason == (
        "rung=channels_last is for convolutional networks, and bert_base has model.family=nlp: "
        "later rungs go without "
        "it"
    )
    top = plan.trials[-1]
    assert (top.model.memory_format, top.optimizer_impl, top.cudnn_benchmark) == (
        "contiguous",
        "fused",
        False,
    )


def test_inference_has_no_optimizer_and_a_cpu_no_cudnn() -> None:
    plan = plan_ladder(
        "model=resnet50,vit_b16",
        "workload=inference",
        "device=cpu",
        "rung=eager,fused,cudnn_benchmark",
    )
    assert [(trial.labels.model, trial.labels.rung) for trial in plan.trials] == [
        ("resnet50", "eager"),
        ("vit_b16", "eager"),
    ]
    said = [item.reason for item in plan.left_out]
    assert said[0].startswith("rung=fused is for a step with an optimizer")
    assert said[1].startswith("rung=cudnn_benchmark is for a GPU")
    assert said[3].startswith(
        "rung=cudnn_benchmark is for convolutional networks, and vit_b16 has model.family=vit"
    )


def test_a_cpu_has_no_graph_by_hand() -> None:
    plan = plan_ladder("model=resnet50", "device=cpu")
    assert "graphed" not in [trial.labels.rung for trial in plan.trials]
    assert "rung=graphed is for a GPU, with device=cpu there are no CUDA graphs" in [
        item.reason for item in plan.left_out
    ]


def test_compile_settings_are_for_the_compiled_rungs_alone() -> None:
    plan = plan_ladder("model=bert_base", "compile.scope=blocks")
    scopes = {trial.labels.rung: trial.compile.scope for trial in plan.trials}
    assert {rung for rung, scope in scopes.items() if scope == "blocks"} == {
        "default",
        "reduce-overhead",
        "max-autotune",
    }
    assert scopes["graphed"] == scopes["eager"] == "model"


def test_a_model_of_a_library_of_images_has_every_rung() -> None:
    assert len(plan_ladder("model=timm", "model.name=convnext_tiny").trials) == len(RUNGS)


def test_a_rung_is_the_trial_that_its_options_make() -> None:
    plain = make_trial("resnet50", "amp")
    by_hand = make_trial("resnet50", "amp", mode="eager", backend=None, optimizer_impl="fused")
    assert climb(make_trial("resnet50", "amp", family="vit"), "fused").id == by_hand.id
    assert climb(plain, "eager").id == make_trial("resnet50", "amp", mode="eager", backend=None).id


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("mode=reduce-overhead", "rung=fused chooses mode itself: leave mode=reduce-overhead out"),
        ("optimizer.impl=foreach", "leave optimizer.impl=foreach out"),
        ("cudnn_benchmark=true", "leave cudnn_benchmark=true out"),
    ],
)
def test_what_a_rung_chooses_cannot_be_given_beside_it(given: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        plan_ladder(given, "rung=fused")


def test_an_unknown_rung_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"rung.name=jit: allowed are eager, channels_last"):
        plan_ladder("rung.name=jit", "rung=fused")


def test_no_graph_of_sizes_that_change_or_of_a_cache() -> None:
    assert "records a graph of one size" in str(
        explain_not_by_hand(make_trial(vary={"batch_size": (8, 16)}), GRAPHED)
    )
    llama = make_trial(workload="decode")
    assert "moves the cache" in str(explain_not_by_hand(llama, GRAPHED))
    assert explain_not_by_hand(make_trial(), GRAPHED) is None
