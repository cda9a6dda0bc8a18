"""Records of the rungs of a ladder, with step times that a test can divide in its head."""

from __future__ import annotations

import math
from dataclasses import replace

from records import make_process, make_record, make_trial

from sweeper.core.ladder import climb
from sweeper.core.record import Record
from sweeper.core.trial import Trial

A = 0.01  # processes are this far above and below their mean, in logs
T2 = 4.302652729911275  # Student's t of 95 % with 2 degrees of freedom
HALF = T2 * math.sqrt(2) * A  # of the interval of a ratio of two such means of two processes
STEPS_S = {
    "eager": 0.020,
    "channels_last": 0.016,
    "fused": 0.010,
    "cudnn_benchmark": 0.0125,
    "graphed": 0.011,
    "default": 0.008,
    "reduce-overhead": 0.005,
    "max-autotune": 0.00625,
}


def make_rung(
    rung: str, plain: Trial | None = None, step_s: float | None = None, eager_s: float = 0.02
) -> Record:
    """A trial of two processes, A above and below its step time; of an eager rung both arms have
    that time.
    """
    trial = climb(plain or make_trial(), rung)
    time_s = step_s or STEPS_S[rung]
    eager_s = time_s if trial.mode == "eager" else eager_s
    record = make_record(trial=trial)
    factors = (math.exp(-A), math.exp(A))
    processes = (
        make_process(eager_s / time_s, index=index, eager_s=eager_s * factor)
        for index, factor in enumerate(factors)
    )
    return replace(record, processes=tuple(processes))


def make_failure(rung: str, status: str, plain: Trial | None = None) -> Record:
    return make_record(trial=climb(plain or make_trial(), rung), status=status, message="no")
