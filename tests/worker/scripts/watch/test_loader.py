"""Which batches train, and which are read ahead of the script."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from sweeper.worker.scripts.watch import loader as module
from sweeper.worker.scripts.watch.loader import LoaderWatch
from sweeper.worker.scripts.watch.patches import Patches

Counted = tuple[int, int, int]


@pytest.fixture
def watch() -> Iterator[LoaderWatch]:
    with Patches() as patches:
        made = LoaderWatch(patches)
        made.begin()
        yield made


def load(rows: int, batch: int = 4, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(rows)), batch_size=batch, **options)


def bar(loader: Iterable[Any]) -> Iterator[Any]:
    """Takes every batch of every loader on one line, as progress bars do."""
    yield from loader


def prefetch(loader: Iterable[Any]) -> Iterator[Any]:
    """Takes a batch before it gives the last one, as accelerate does."""
    iterator = iter(loader)
    batch = next(iterator)
    for following in iterator:
        yield batch
        batch = following
    yield batch


def evaluate(loader: Iterable[Any]) -> None:
    for _ in bar(loader):
        with torch.no_grad():
            torch.ones(2).sum()


def train(
    watch: LoaderWatch,
    loaders: Sequence[Any],
    epochs: int,
    after_step: Callable[[int], None] = lambda _number: None,
    through: Callable[[Iterable[Any]], Iterator[Any]] = bar,
    per_step: int = 1,
) -> Counted:
    """Train, of which the first eight steps are watched; what was counted after them."""
    number = 0
    for _ in range(epochs):
        for index, _ in enumerate(zip(*map(through, loaders), strict=False)):
            if (index + 1) % per_step:
                continue
            watch.end_step(counts=number >= 8)
            number += 1
            if number == 8:
                watch.decide()
            after_step(number)
    return watch.num_batches, watch.others, watch.num_epochs


def test_each_epoch_of_a_loader_counts(watch: LoaderWatch) -> None:
    assert train(watch, [load(40)], 3) == (22, 0, 2)


@pytest.mark.parametrize("through", [bar, prefetch])
@pytest.mark.parametrize("every", [5, 10])  # in the middle of an epoch, and at its end
def test_an_evaluation_on_the_line_of_the_training_is_none_of_it(
    watch: LoaderWatch, through: Callable[[Iterable[Any]], Iterator[Any]], every: int
) -> None:
    training, test = load(40), load(12)

    def after_step(number: int) -> None:
        if number > 8 and number % every == 0 and number < 30:
            evaluate(test)

    batches, others, epochs = train(watch, [training], 3, after_step, through)
    assert (others, epochs) == (3 * len([n for n in range(9, 30) if n % every == 0]), 2)
    # one is taken before the eighth step
    assert batches == 22 - (through is prefetch)


def test_an_evaluation_on_the_data_of_the_training_is_none_of_it(watch: LoaderWatch) -> None:
    loader = load(40)

    def after_step(number: int) -> None:
        if number in (12, 13):
            evaluate(loader)

    assert train(watch, [loader], 2, after_step) == (12, 20, 1)


def test_a_pass_before_the_training_is_none_of_it(watch: LoaderWatch) -> None:
    loader, other = load(400), load(800)
    evaluate(loader)
    evaluate(other)
    next(iter(other))
    assert train(watch, [loader], 1) == (92, 0, 0)


def test_what_is_taken_without_gradients_does_not_train(watch: LoaderWatch) -> None:
    loader = load(40)

    def after_step(number: int) -> None:
        if number == 20:
            with torch.no_grad():
                next(iter(loader))

    assert train(watch, [loader], 3, after_step) == (22, 1, 2)


def test_loaders_that_give_together_train_together(watch: LoaderWatch) -> None:
    labelled, unlabelled, test = load(40), load(80, 8), load(12)

    def after_step(number: int) -> None:
        if number == 15:
            evaluate(test)

    assert train(watch, [labelled, unlabelled], 2, after_step) == (24, 3, 1)


def test_epochs_may_have_loaders_and_data_of_their_own(watch: LoaderWatch) -> None:
    for epoch in range(3):
        for _ in load(40):
            watch.end_step(counts=epoch > 0)
        watch.decide()
    assert (watch.num_batches, watch.others, watch.num_epochs) == (20, 0, 2)


@pytest.mark.parametrize("per_step", [2, 10])  # the whole loader, too
def test_a_step_may_take_several_batches(watch: LoaderWatch, per_step: int) -> None:
    _, others, _ = train(watch, [load(40)], 20, per_step=per_step)
    assert others == 0
    assert watch.num_batches == (20 * 10 // per_step - 8) * per_step


def take(iterator: Iterator[Any]) -> list[int]:
    return next(iterator)[0].tolist()


@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_read_ahead_is_given_once_and_in_order(watch: LoaderWatch, workers: int) -> None:
    loader = load(40, num_workers=workers, persistent_workers=workers > 0)
    expected = [list(range(start, start + 4)) for start in range(0, 40, 4)]
    for _ in range(2):  # persistent workers have one iterator
        iterator = iter(loader)
        given = [take(iterator)]
        watch.end_step(counts=False)
        assert watch.read_ahead(3) == 3
        assert watch.read_ahead(3) == 3
        given += [take(iterator)]
        assert watch.read_ahead(100) == 8
        given += [take(iterator) for _ in range(8)]
        with pytest.raises(StopIteration):
            next(iterator)
        assert given == expected
    assert (watch.max_steps, watch.num_ahead) == (9, 8)


@pytest.mark.parametrize("pin", [False, True])
def test_workers_rest_when_batches_have_been_read_ahead(
    watch: LoaderWatch, pin: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, _device=None: tensor)
    iterator: Any = iter(load(400, num_workers=2, prefetch_factor=4, pin_memory=pin))
    take(iterator)
    watch.end_step(counts=False)
    assert watch.read_ahead(20) == 20
    # of 8, but for those of one worker that came before their turn and have been taken
    assert iterator._data_queue.qsize() == iterator._tasks_outstanding >= 4


def test_nothing_is_read_ahead_where_an_epoch_is_over_or_there_is_no_loader(
    watch: LoaderWatch,
) -> None:
    assert watch.read_ahead(3) == math.inf
    for _ in load(8):
        watch.end_step(counts=False)
    assert watch.read_ahead(3) == 0


def test_a_smaller_batch_at_the_end_is_read_and_not_timed(watch: LoaderWatch) -> None:
    iterator = iter(load(42))
    take(iterator)
    watch.end_step(counts=False)
    assert watch.read_ahead(100) == 9
    assert [len(take(iterator)) for _ in range(10)] == [*[4] * 9, 2]


def test_lengths_that_differ_in_each_batch_are_all_timed(watch: LoaderWatch) -> None:
    texts = [torch.ones(length) for length in range(1, 21)]
    iterator = iter(DataLoader(texts, batch_size=None))  # type: ignore[arg-type]
    next(iterator)
    watch.end_step(counts=False)
    assert watch.read_ahead(100) == 19


class OneBuffer(Dataset[torch.Tensor]):
    """Writes each batch to the memory of the last one."""

    def __init__(self) -> None:
        self.buffer = torch.zeros(4)

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.buffer.fill_(index)


class Curriculum(torch.utils.data.Sampler[int]):
    """Gives rows by what the script has done so far."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(40))

    def __len__(self) -> int:
        return 40


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(OneBuffer(), batch_size=None),
        DataLoader(torch.arange(40), sampler=Curriculum()),  # type: ignore[arg-type]
        DataLoader(
            torch.arange(40),  # type: ignore[arg-type]
            batch_sampler=torch.utils.data.BatchSampler(Curriculum(), 1, drop_last=False),
        ),
    ],
    ids=["one buffer", "a sampler of the script", "the same in a sampler of torch"],
)
def test_what_may_change_is_not_read_ahead(watch: LoaderWatch, loader: DataLoader[Any]) -> None:
    iterator = iter(loader)
    given = []
    for _ in range(4):
        given.append(int(next(iterator).flatten()[0]))
        watch.end_step(counts=False)
        watch.read_ahead(8)
    assert given == [0, 1, 2, 3]
    assert watch.num_ahead <= 1
    assert watch.read_ahead(8) == math.inf


def test_nothing_is_read_ahead_of_another_thread(watch: LoaderWatch) -> None:
    iterator, given = iter(load(40)), list[list[int]]()
    before_s = watch.seconds
    for _ in range(3):
        thread = threading.Thread(target=lambda: given.append(take(iterator)))
        thread.start()
        thread.join()
        watch.end_step(counts=False)
        assert watch.read_ahead(8) == math.inf
    assert [rows[0] for rows in given] == [0, 4, 8]
    assert watch.seconds == before_s, "the script's own thread has not waited"


def test_as_much_is_read_ahead_as_memory_leaves_room_for(
    watch: LoaderWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "free_memory_bytes", lambda: 8 * 5 * 4 * 8)  # five batches, of 1/8
    iterator = iter(load(400))
    take(iterator)
    watch.end_step(counts=False)
    assert watch.read_ahead(50) == 5
    assert watch.max_steps == 5


def test_an_error_of_a_loader_comes_in_its_turn(watch: LoaderWatch) -> None:
    class Failing(OneBuffer):
        def __getitem__(self, index: int) -> torch.Tensor:
            if index == 2:
                raise ValueError("a broken file")
            return torch.tensor([index])

    iterator = iter(DataLoader(Failing(), batch_size=None))
    next(iterator)
    watch.end_step(counts=False)
    assert watch.read_ahead(5) == 1
    assert int(next(iterator)) == 1
    with pytest.raises(ValueError, match="a broken file"):
        next(iterator)
    assert int(next(iterator)) == 3


@pytest.mark.parametrize("is_timed", [False, True])
def test_a_loop_that_is_timed_keeps_no_batch(watch: LoaderWatch, is_timed: bool) -> None:
    """A fork maps all memory, so each batch that is kept makes the start of workers slower."""
    if is_timed:
        watch.keep_none()
    batch = weakref.ref(next(iter(load(8)))[0])
    assert (batch() is None) is is_timed
