from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
from records import make_process, make_record, make_trial

from sweeper.core.record import PerArm
from sweeper.core.trial import Trial
from sweeper.execution.memory_budget import (
    NOTHING,
    WHOLE_DEVICE,
    KnownNeeds,
    MemoryBudget,
    Need,
    Reservation,
)

NEVER = threading.Event()


class Guest:
    """Somebody who reserves memory, in a thread of its own."""

    def __init__(self, budget: MemoryBudget, need: Need | None) -> None:
        self.inside, self._leave = threading.Event(), threading.Event()
        self.reservation: Reservation | None = None

        def live() -> None:
            with budget.reserve(need, NEVER) as self.reservation:
                self.inside.set()
                assert self._leave.wait(60)

        self._thread = threading.Thread(target=live)
        self._thread.start()

    def leave(self) -> None:
        self._leave.set()
        self._thread.join()


@pytest.fixture
def guests() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def invite(guests: ExitStack, budget: MemoryBudget, need: Need | float | None) -> Guest:
    """A number is what it holds; its steps need nothing more."""
    guest = Guest(budget, Need(need, need) if isinstance(need, float | int) else need)
    guests.callback(guest.leave)
    return guest


def test_as_many_as_fit_and_the_next_when_one_has_left(guests: ExitStack) -> None:
    budget = MemoryBudget(100)
    first, second = invite(guests, budget, 40), invite(guests, budget, 40)
    assert first.inside.wait(60)
    assert second.inside.wait(60)
    third = invite(guests, budget, 40)
    assert not third.inside.wait(0.3)
    first.leave()
    assert third.inside.wait(60)
    assert third.reservation is not None
    assert third.reservation.had_company


def test_one_that_is_larger_than_the_device_is_let_in_alone(guests: ExitStack) -> None:
    budget = MemoryBudget(100)
    large = invite(guests, budget, 1000)
    assert large.inside.wait(60)
    assert large.reservation is not None
    assert not large.reservation.had_company


def test_unknown_needs_and_unknown_devices_are_let_in(guests: ExitStack) -> None:
    budget = MemoryBudget(None)
    assert invite(guests, budget, 1e15).inside.wait(60)
    assert invite(guests, budget, None).inside.wait(60)


@pytest.mark.parametrize("total", [100, None], ids=["known", "unknown"])
def test_who_wants_everything_waits_for_all_and_nobody_passes_it(
    guests: ExitStack, total: float | None
) -> None:
    budget = MemoryBudget(total)
    first = invite(guests, budget, 1)
    assert first.inside.wait(60)
    everything = invite(guests, budget, WHOLE_DEVICE)
    assert not everything.inside.wait(0.3)
    small = invite(guests, budget, 1)
    assert not small.inside.wait(0.3), "it came later"
    first.leave()
    assert everything.inside.wait(60)
    assert not small.inside.wait(0.3)
    everything.leave()
    assert everything.reservation is not None
    assert not everything.reservation.had_company
    assert small.inside.wait(60)


def learn(
    known: KnownNeeds,
    trial: Trial,
    *eager: float | None,
    cold: bool = True,
    held: float = 3.0,
    **changes: object,
) -> None:
    """From a record whose processes held 3 bytes, and needed 20 for their check."""
    process = replace(make_process(cold=cold), held_bytes=held, check_peak_bytes=20.0)
    peaks = (PerArm(peak, 90.0) for peak in eager)
    processes = tuple(replace(process, allocator_peak_bytes=peak) for peak in peaks)
    known.learn(replace(make_record(trial=trial), processes=processes, **changes))


def test_needs_are_of_a_model_and_its_batch_size() -> None:
    known, trial = KnownNeeds(), make_trial(batch_size=8)
    learn(known, trial, 10.0, 30.0)
    assert known.look_up(trial, 8, True) == Need(3, 30)
    learn(known, trial, 25.0)
    assert known.look_up(replace(trial, mode="max-autotune"), 8, True) == Need(3, 30)
    learn(known, trial, 25.0, held=2.0)
    assert known.look_up(trial, 8, True) == Need(3, 30), "the most seen"
    assert known.look_up(trial, 16, True) is None
    other = replace(trial, model=replace(trial.model, image_size=64))
    assert known.look_up(other, 8, True) is None


def test_a_cold_process_may_hold_more_than_others() -> None:
    known, trial = KnownNeeds(), make_trial(batch_size=8)
    learn(known, trial, 30.0, held=12.0)
    assert known.look_up(trial, 8, cold=False) == Need(12, 30), "as long as no other was seen"
    learn(known, trial, None, cold=False)
    assert known.look_up(trial, 8, cold=False) == Need(3, 30)
    assert known.look_up(trial, 8, cold=True) == Need(12, 30)
    learn(known, trial, None, held=40.0)
    assert known.look_up(trial, 8, cold=True) == Need(40, 40), "it held more than a step needs"


def test_a_check_may_need_more_than_a_step() -> None:
    known, trial = KnownNeeds(), make_trial(batch_size=8)
    learn(known, trial, 10.0, None)
    assert known.look_up(trial, 8, True) == Need(3, 20)


def test_two_that_compute_at_once_have_room_for_their_peaks(guests: ExitStack) -> None:
    budget = MemoryBudget(100)
    first, second = (invite(guests, budget, need) for need in (Need(10, 50), Need(5, 30)))
    assert first.inside.wait(60)
    assert second.inside.wait(60)
    assert invite(guests, budget, Need(10, 15)).inside.wait(60), "50 + 30 + 10 of 90"
    more = invite(guests, budget, Need(1, 1))
    assert not more.inside.wait(0.3)
    second.leave()
    assert more.inside.wait(60)


def let_in(guests: ExitStack, budget: MemoryBudget, *needs: Need) -> list[Reservation]:
    reservations = []
    for need in needs:
        guest = invite(guests, budget, need)
        assert guest.inside.wait(60)
        assert guest.reservation is not None
        reservations.append(guest.reservation)
    return reservations


def test_all_that_share_have_room_beside_what_others_hold_and_one_computes_with(
    guests: ExitStack,
) -> None:
    budget = MemoryBudget(100)
    needs = Need(10, 45), Need(5, 25), Need(5, 15)
    first, second, third = let_in(guests, budget, *needs)
    assert budget.share(first), "the first may always"
    assert budget.share(second), "20 + 35 + 20 + 10 of 90, of which another one has the last"
    assert budget.share(third), "nobody is left beside them"
    for reservation in (first, second, third):
        budget.end_sharing(reservation)
    (fourth,) = let_in(guests, budget, Need(5, 10))
    assert budget.share(third)
    assert budget.share(second)
    assert not budget.share(fourth), "25 + 10 + 20 + 5 beside the 35 of the first are 95 of 90"
    budget.end_sharing(third)
    assert budget.share(fourth)


def test_two_large_ones_share_where_nobody_else_is(guests: ExitStack) -> None:
    budget = MemoryBudget(100)
    both = let_in(guests, budget, Need(5, 37), Need(5, 37))
    assert all(map(budget.share, both)), "74 of 90"


def test_who_has_the_whole_device_may_share_it(guests: ExitStack) -> None:
    budget = MemoryBudget(100)
    (alone,) = let_in(guests, budget, WHOLE_DEVICE)
    assert budget.share(alone)


def test_nobody_begins_without_room_beside_all_that_share(guests: ExitStack) -> None:
    budget = MemoryBudget(150)
    sharers = let_in(guests, budget, Need(3, 33), Need(3, 33), Need(3, 33))
    for reservation in sharers:
        assert budget.share(reservation), "99 of 135"
    large = invite(guests, budget, Need(10, 90))
    assert not large.inside.wait(0.3), "99 + 90 of 135, though 19 and the two largest have room"
    budget.end_sharing(sharers[0])
    assert not large.inside.wait(0.3)
    budget.end_sharing(sharers[1])
    assert large.inside.wait(60), "19 + 80 + 30"


def test_nine_tenths_of_a_device_are_for_trials(guests: ExitStack) -> None:
    budget = MemoryBudget(100)
    first, second = invite(guests, budget, 45), invite(guests, budget, 45)
    assert first.inside.wait(60)
    assert second.inside.wait(60)
    more = invite(guests, budget, 0.5)
    assert not more.inside.wait(0.3)
    second.leave()
    assert more.inside.wait(60)


def test_a_process_without_a_reading_teaches_nothing() -> None:
    known, trial = KnownNeeds(), make_trial(batch_size=8)
    known.learn(replace(make_record(trial=trial), processes=(make_process(),)))
    assert known.look_up(trial, 8, True) is None
    learn(known, trial, 70.0, smaller_batch_size=4)
    assert known.look_up(trial, 8, True) is None
    assert known.look_up(trial, 4, True) == Need(3, 70)


def test_who_is_told_to_stop_waits_no_longer(guests: ExitStack) -> None:
    budget, stop = MemoryBudget(100), threading.Event()
    assert invite(guests, budget, WHOLE_DEVICE).inside.wait(60)
    stop.set()
    with budget.reserve(Need(50, 50), stop) as reservation:
        assert reservation.had_company


def test_of_those_who_wait_the_first_is_let_in(guests: ExitStack) -> None:
    """A third that would fit waits behind the second, though the second needs more."""
    budget = MemoryBudget(100)
    first = invite(guests, budget, 60)
    assert first.inside.wait(60)
    second = invite(guests, budget, 60)
    assert not second.inside.wait(0.3)
    third = invite(guests, budget, 10)
    assert not third.inside.wait(0.3)
    first.leave()
    assert second.inside.wait(60)
    assert third.inside.wait(60)
    assert third.reservation is not None
    assert third.reservation.need == Need(10, 10)


def test_unknown_needs_reserve_nothing(guests: ExitStack) -> None:
    budget = MemoryBudget(100)
    unknown = invite(guests, budget, None)
    assert unknown.inside.wait(60)
    assert unknown.reservation is not None
    assert unknown.reservation.need == NOTHING
    assert invite(guests, budget, 90).inside.wait(60)


def test_two_of_the_same_size_are_two() -> None:
    assert Reservation(NOTHING) != Reservation(NOTHING)
