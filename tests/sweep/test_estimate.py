from __future__ import annotations

from dataclasses import replace

from records import make_trial

from sweeper.core.trial import Compile, Trial
from sweeper.sweep.estimate import History, ProcessTimes, estimate_s


def test_a_trial_takes_what_it_took_or_what_similar_ones_took() -> None:
    def trial(name: str, batch_size: int, **axes: object) -> Trial:
        return replace(make_trial(name), batch_size=batch_size, **axes)

    history = History(
        [
            (trial("a", 1), ProcessTimes(9.0, 8.0)),
            (trial("a", 1), ProcessTimes(10.0, 3.0)),
            (trial("a", 2), ProcessTimes(30.0, 5.0)),
            (trial("b", 1), ProcessTimes(2.0, 1.0)),
        ]
    )
    assert history.expect(trial("a", 1)) == (10.0, 3.0), "the last time"
    assert history.expect(trial("a", 4)) == (10.0, 5.0), "the medians of 9, 10, 30 and of 8, 3, 5"
    unlike = [
        trial("c", 4),
        trial("a", 1, mode="max-autotune"),
        trial("a", 1, workload="inference"),
        trial("a", 1, compile=Compile(scope="step")),
        trial("a", 1, model=replace(trial("a", 1).model, image_size=32)),
    ]
    assert [history.expect(one) for one in unlike] == [None] * len(unlike)
    order = history.longest_first(
        [trial("b", 1), trial("a", 1), trial("c", 1), trial("a", 2), trial("b", 2)]
    )
    assert order == (trial("a", 2), trial("a", 1), trial("c", 1), trial("b", 1), trial("b", 2))


def test_without_a_history_nothing_is_expected_and_the_order_stays() -> None:
    trials = [make_trial("a"), make_trial("b")]
    assert [History([]).expect(trial) for trial in trials] == [None, None]
    assert History([]).longest_first(trials) == tuple(trials)


def test_estimate_divides_what_can_go_on_beside() -> None:
    assert estimate_s(80.0, 30.0, devices=1, concurrency=1) == 80.0
    assert estimate_s(80.0, 30.0, devices=1, concurrency=5) == 30.0 + 50.0 / 5
    assert estimate_s(80.0, 30.0, devices=2, concurrency=5) == 15.0 + 25.0 / 5
