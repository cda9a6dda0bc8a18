"""Between which steps of a script a block fits."""

from __future__ import annotations

from sweeper.worker.scripts.watch.interruptions import Interruptions, UnusualCalls


def make(*seen: int) -> Interruptions:
    """`seen` counts what interrupted the training by the end of each step."""
    made = Interruptions()
    for count in seen:
        made.note(count)
    return made


def test_nothing_is_known_before_the_second_interruption() -> None:
    for found in (make(), make(0, 0, 0), make(0, 3, 3)):
        assert found.interval == 0
        assert found.leave_room(10**6)


def test_a_block_has_to_end_before_the_next_interruption() -> None:
    """Three batches of another loader before the second, the seventh and the twelfth step."""
    found = make(0, 3, 3, 3, 3, 3, 6, 6, 6, 6, 6, 9)
    assert found.interval == 5
    assert (found.leave_room(4), found.leave_room(5)) == (True, False)
    found.note(9)
    assert (found.leave_room(3), found.leave_room(4)) == (True, False)


def test_one_interval_that_is_shorter_than_the_others_changes_nothing() -> None:
    assert make(1, 1, 1, 1, 2, 2, 2, 2, 3, 4, 4, 4, 4, 5).interval == 4


def find_unusual(*counts: int) -> list[int]:
    """The steps with more calls than usual; `counts` are the calls in each step."""
    calls, total = UnusualCalls(), 0
    found = []
    for step, count in enumerate(counts):
        total += count
        if calls.note(total):
            found.append(step)
    return found


def test_calls_without_gradients_are_an_evaluation_where_most_steps_have_none() -> None:
    assert find_unusual(0, 0, 20, 0, 0, 20, 0) == [2, 5]
    assert find_unusual(*[1] * 9, 21, *[1] * 9, 21) == [9, 19]


def test_what_each_step_calls_without_gradients_is_part_of_it() -> None:
    """A teacher, and a rollout of another length each time."""
    assert find_unusual(*[1] * 20) == []
    assert find_unusual(30, 41, 28, 50, 33, 47, 29) == []
