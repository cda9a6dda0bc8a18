"""Which grids may not run, since two precisions would carry one weight in one mean."""

from __future__ import annotations

from dataclasses import replace

import pytest
from records import make_trial

from sweeper.core.errors import ConfigError
from sweeper.core.trial import Labels, Precision, Trial
from sweeper.sweep.plan import make_plan

AMP = make_trial()
BF16 = make_trial(precision="bf16", weight="amp")


def check(*trials: Trial) -> None:
    make_plan(trials, {}, "failed")


def test_two_precisions_of_one_weight_in_one_row_are_refused() -> None:
    with pytest.raises(
        ConfigError,
        match="precision=amp and precision=bf16 both carry the weight amp, which only one",
    ):
        check(AMP, BF16)


def test_two_settings_of_one_precision_in_one_row_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="two settings of precision=amp both carry the weight amp"
    ):
        check(AMP, replace(AMP, precision=Precision(autocast="float16")))


@pytest.mark.parametrize(
    "other",
    [
        replace(BF16, device="cpu"),
        replace(BF16, workload="inference"),
        replace(BF16, mode="max-autotune"),
        replace(BF16, backend="aot_eager"),
        replace(BF16, mode="eager"),
        replace(BF16, labels=Labels("resnet50", "bf16", weight="fp32")),
        replace(BF16, labels=Labels("resnet50", "bf16")),
        make_trial("vgg16"),
    ],
    ids=["device", "workload", "mode", "backend", "eager", "weight", "no weight", "model"],
)
def test_precisions_that_share_no_mean_may_have_one_weight(other: Trial) -> None:
    check(AMP, other)
