"""Trials take turns: races of modes, the time of a sweep, interruptions."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from records import make_process, make_record, make_trial

from sweeper.analysis.derive import derive
from sweeper.analysis.gains import find_gain_so_far
from sweeper.core.ablation import change
from sweeper.core.ladder import climb
from sweeper.core.record import Accuracy
from sweeper.core.settings import Measure, Settings
from sweeper.core.system.gpus import Device, Gpu
from sweeper.core.trial import Trial
from sweeper.execution.placement import DeviceSlot
from sweeper.execution.scheduler import Finished, OnPhase, Started, Steps, run_all
from sweeper.execution.turns import name_races

SLOT = DeviceSlot(Device("cuda", Gpu("0", "GPU-0", "A GPU")))
GAINS = {"default": 1.5, "reduce-overhead": 2.0, "max-autotune": 1.98}
PROCESSES = 3  # that a trial wants


class Races:
    """Runs trials of models in modes; each wants `PROCESSES` processes, which show what its mode
    gains.
    """

    def __init__(self, settings: Settings, gains: Mapping[str, float] = GAINS) -> None:
        self._settings, self._gains = settings, gains
        self.process_s = 0.0
        self.order: list[str] = []  # of processes

    def run(
        self, models: Sequence[str], modes: Sequence[str] = tuple(GAINS), **axes: object
    ) -> Counter[str]:
        """How many processes each trial got."""
        trials = [make_trial(model, mode=mode, **axes) for model in models for mode in modes]  # type: ignore[arg-type]
        events = list(run_all(trials, [SLOT], self.run_trial, self._settings))
        ended = [event for event in events if isinstance(event, Finished)]
        assert len(ended) == len(set(self.order))
        return Counter(self.order)

    def run_trial(
        self, trial: Trial, _slot: DeviceSlot, _on_phase: OnPhase, stop: threading.Event
    ) -> Steps[Finished]:
        record = make_record(trial=trial, speedups=())
        for index in range(PROCESSES):
            if index:
                gain = find_gain_so_far(record, derive(record), self._settings.measure)
                if not (yield gain):
                    break
            self.order.append(f"{trial.model.name} {trial.mode}")
            if stop.wait(self.process_s):
                record = replace(record, status="interrupted")
                break
            process = make_process(self._gains[trial.mode], index=index)
            process = replace(process, accuracy=Accuracy("float64", True))
            record = replace(record, processes=(*record.processes, process))
        return Finished(record, derive(record))


def test_modes_that_another_one_beats_end_after_one_process() -> None:
    """The two fastest cannot be told apart."""
    races = Races(Settings("s"))
    assert races.run(["a", "b"]) == {
        "a default": 1,
        "a reduce-overhead": 3,
        "a max-autotune": 3,
        "b default": 1,
        "b reduce-overhead": 3,
        "b max-autotune": 3,
    }
    assert races.order[:3] == ["a default", "a reduce-overhead", "a max-autotune"]
    assert races.order.index("b default") == 7, "race by race"


def test_a_process_of_a_cpu_tells_nothing_apart_and_two_may() -> None:
    got = Races(Settings("s")).run(["a"], device="cpu")
    assert got == {"a default": 2, "a reduce-overhead": 3, "a max-autotune": 3}


def test_what_is_asked_for_goes_on_trial_by_trial() -> None:
    races = Races(Settings("s", measure=Measure(processes=3)))
    races.run(["a"])
    assert races.order == [f"a {mode}" for mode in GAINS for _ in range(PROCESSES)]


def test_eager_and_controls_are_in_no_race() -> None:
    """Nothing beats them, they beat nothing, and nobody waits for them."""
    races = Races(Settings("s"), {"eager": 1.0, "default": 1.5})
    assert races.run(["a"], ["eager", "default"]) == {"a eager": 3, "a default": 3}
    controls = Races(Settings("s"), {"default": 1.0})
    assert controls.run(["a"], ["default"], backend="eager") == {"a default": 3}


def test_rungs_of_a_ladder_are_in_no_race() -> None:
    """Each is compared with all others, so one that another beats needs its interval, too."""
    modes = [make_trial(mode=mode) for mode in GAINS]
    assert len({*name_races(modes, Measure())}) == 1
    rungs = [climb(make_trial(), rung) for rung in ("graphed", *GAINS)]
    assert len({*name_races(rungs, Measure())}) == len(rungs)


def test_time_of_the_sweep_goes_to_those_with_the_fewest_processes() -> None:
    races = Races(Settings("s", sweep_time_s=1000.0))
    races.run(["a", "b"], ["default"])
    assert races.order == ["a default", "b default"] * PROCESSES


def test_when_the_time_is_over_no_process_begins() -> None:
    """The fourth trial does not begin, and the others end with what they have."""
    races = Races(Settings("s", sweep_time_s=2.5))
    races.process_s = 1.0
    assert races.run(["a", "b", "c", "d"], ["default"]) == dict.fromkeys(
        ["a default", "b default", "c default"], 1
    )


def test_interrupted_trials_end_whether_they_run_or_wait() -> None:
    settings = Settings("s", sweep_time_s=1000.0)
    races = Races(settings)
    races.process_s = 0.4
    trials = [make_trial(model) for model in "abc"]
    events = run_all(trials, [SLOT], races.run_trial, settings)
    seen = [next(events) for _ in range(3)]
    time.sleep(0.2)
    events.close()
    assert [type(event) for event in seen] == [Started] * 3
    assert len(races.order) == 5, "two that waited are asked once more, and told to end"


def test_features_begin_after_one_process_of_their_default_and_go_on_after_its_end() -> None:
    """On three trials in flight, and with the default last in the plan."""
    default = make_trial("a")
    features = [change(default, "combo_kernels"), change(default, "dynamic")]
    order: list[str | None] = []  # the feature of each process as it begins
    all_began = threading.Barrier(len(features) + 1, timeout=10.0)

    def run_trial(
        trial: Trial, _slot: DeviceSlot, _on_phase: OnPhase, _stop: threading.Event
    ) -> Steps[Finished]:
        order.append(trial.labels.feature)
        if trial is not default:
            all_began.wait()
        yield None
        order.append(trial.labels.feature)
        if trial is default:
            all_began.wait()
            time.sleep(0.05)
        record = make_record(trial=trial)
        return Finished(record, derive(record))

    slot = replace(SLOT, concurrency=3)
    events = run_all([*features, default], [slot], run_trial, Settings("s"))
    ended = [event.record.trial for event in events if isinstance(event, Finished)]
    assert (order[0], ended[0]) == (None, default)
    assert sorted(map(str, order[1:4])) == ["None", "combo_kernels", "dynamic"]
    assert sorted(map(str, order[4:])) == ["combo_kernels", "dynamic"]


def test_a_feature_that_raises_keeps_no_other_waiting_for_the_default() -> None:
    """The one of two devices on which the default began runs its next process all the same."""
    default = make_trial("a")
    features = [change(default, "combo_kernels"), change(default, "dynamic")]
    slots = [replace(SLOT, device=Device("cuda", Gpu(name, name, "A GPU"))) for name in "01"]
    of_default: list[DeviceSlot] = []
    ended: list[Trial] = []

    def run_trial(
        trial: Trial, slot: DeviceSlot, _on_phase: OnPhase, _stop: threading.Event
    ) -> Steps[Finished]:
        if trial is default:
            of_default.append(slot)
        elif slot in of_default:
            time.sleep(0.1)
            raise OSError("no space")
        yield None
        ended.append(trial)
        record = make_record(trial=trial)
        return Finished(record, derive(record))

    raised: list[str] = []

    def run() -> None:
        try:
            list(run_all([*features, default], slots, run_trial, Settings("s")))
        except OSError as error:
            raised.append(str(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(30)
    assert raised == ["no space"]
    assert default in ended


def test_features_begin_where_the_default_is_not_in_the_plan() -> None:
    races = Races(Settings("s"))
    trial = change(make_trial("a"), "combo_kernels")
    list(run_all([trial], [SLOT], races.run_trial, Settings("s")))
    assert races.order == ["a default"] * PROCESSES
