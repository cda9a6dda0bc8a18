"""Which trials `experiment=ablation` makes of a model, and why others are left out."""

from __future__ import annotations

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode

from hydra_plugins.sweeper_hydra.grid import expand
from sweeper.config.grid import Composer
from sweeper.config.schema import conf_folder
from sweeper.core.ablation import FEATURES, change
from sweeper.core.errors import ConfigError
from sweeper.core.trial import Trial
from sweeper.sweep import hydra_app
from sweeper.sweep.plan import Plan, make_plan


def plan_ablation(*arguments: str) -> Plan:
    """What `python -m sweeper experiment=ablation ARGUMENTS` would run."""
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_folder()), job_name="test"):
        loader = GlobalHydra.instance().config_loader()
        master = loader.load_configuration("config", ["experiment=ablation"], RunMode.MULTIRUN)
        axes = [f"{key}={value}" for key, value in master.hydra.sweeper.params.items()]
        words = ["sweep=x", *axes, "experiment=ablation", *arguments]
        composer = Composer(loader, master)
        points = composer.points(expand(OverridesParser.create(loader).parse_overrides(words)))
        return make_plan(
            [hydra_app.read_point(item, composer.repository).trial for item in points], {}
        )


def test_on_a_gpu_each_feature_has_a_trial_that_differs_from_the_default_in_it_alone() -> None:
    default, *others = plan_ablation("device=cuda", "model=resnet18").trials
    assert (default.variant, default.labels.feature, default.labels.default_id) == ("", None, None)
    assert [trial.labels.feature for trial in others] == [*FEATURES]
    for trial in others:
        key, _, _ = trial.variant.partition("=")
        assert key == f"compile.{FEATURES[str(trial.labels.feature)].key}"
        assert trial.labels.default_id == default.id
        assert trial.key_without("compile") == default.key_without("compile")
    assert len({trial.id for trial in others}) == len(FEATURES)


def test_on_a_cpu_what_only_gpus_have_is_left_out() -> None:
    plan = plan_ablation("device=cpu", "model=resnet18")
    left_out = {item.trial.labels.feature: item.reason for item in plan.left_out}
    assert left_out["cuda_graphs"] == "feature=cuda_graphs is for device=cuda"
    assert "epilogue_fusion" not in left_out
    assert len(plan.trials) + len(left_out) == 1 + len(FEATURES)


def test_settings_that_all_trials_have_stay_beside_those_of_a_feature() -> None:
    given = ["device=cuda", "++compile.options.max_fusion_size=8", "feature=null,epilogue_fusion"]
    default, other = plan_ablation(*given).trials
    assert default.compile.options == {"max_fusion_size": 8}
    assert other.compile.options == {"max_fusion_size": 8, "epilogue_fusion": False}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["++compile.options.epilogue_fusion=true"],
            "feature=epilogue_fusion sets compile.options.",
        ),
        (["compile.memory_budget=0.3"], "feature=memory_budget sets compile.memory_budget: leave"),
        (["feature=epilog_fusion"], "feature=epilog_fusion: nearest: epilogue_fusion"),
        (["feature=dynamic", "mode=eager"], "feature=dynamic is for what torch.compile makes"),
        (["feature=null,dynamic", "backend=aot_eager"], "feature=dynamic is for backend=inductor"),
        (["feature=dynamic,lowerings"], "feature=dynamic is compared with feature=null: name both"),
        (["feature=dynamic", "backend=aot_eager"], "feature=dynamic is for backend=inductor"),
    ],
)
def test_what_no_ablation_can_have_is_refused(arguments: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        plan_ablation("device=cpu", *arguments)


def test_a_default_that_has_a_record_is_there(trial: Trial) -> None:
    plan = make_plan([trial, change(trial, "dynamic")], {trial.id: "ok"})
    assert [planned.labels.feature for planned in plan.trials] == ["dynamic"]


def test_features_can_be_changed_together() -> None:
    (default,) = plan_ablation("device=cuda", "feature=null").trials
    both = change(change(default, "mix_order_reduction"), "memory_budget")
    assert both.compile.options == {"triton.mix_order_reduction": False}
    assert both.compile.memory_budget == 0.5
    given = [f"++{override}" for override in both.compile.list_overrides()]
    (together,) = plan_ablation("device=cuda", "feature=null", *given).trials
    assert together.id == both.id, "the answer finds what its advice made"
