"""A training loop that somebody else wrote, seen from outside: its steps.

A step of the loop ends when an optimizer's step returns. Where several optimizers take turns, it is
the step of the one that steps least often, and of those the last in turn. Wrappers call the
optimizers within them, so the outermost call counts. Until that is known the loop runs as it is,
and the outermost modules that it calls are noted.
"""

from __future__ import annotations

import itertools
import math
import operator
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from traceback import walk_stack
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from sweeper.worker.failures import Failure
from sweeper.worker.measurement.bench import Steps
from sweeper.worker.scripts.ranks import ALONE, Ranks

from .interruptions import Interruptions, UnusualCalls
from .loader import LoaderWatch
from .modules import ModuleWatch, find_script_line
from .patches import Patches
from .script_runner import EndOfScript
from .several_processes import describe_children

MIN_WATCHED = 8  # optimizer steps, before it is decided which of them end a step of the loop
LATE_WATCHED = 32  # steps that a fast loop is watched for, as an optimizer may come late in a turn
MAX_WATCH_S = 2.0  # after which a slow loop is watched no longer than it has to be
WATCHED_PER_FIRST = 4  # times the steps before its first one, in which an optimizer steps again
MAX_SINCE_LAST = 64  # steps of other optimizers, before it is decided anew
OnEnd = Callable[[BaseException | None], None]


class Loop:
    """Sees the steps of a loop, and goes on with the phases of a run at the end of each."""

    def __init__(self, patches: Patches, ranks: Ranks = ALONE) -> None:
        self.ranks = ranks
        self.num_steps = 0  # of the loop, since it is known where they end
        self.num_watched = 0  # optimizer steps before that
        self.length: int | None = None  # steps of the whole loop, where the script ended by itself
        self.num_saved = 0  # calls of `torch.save`
        # steps before which other loaders gave batches, or modules were called without gradients
        self.num_evaluations = self._others = 0
        self.evaluation_s = 0.0  # of these steps
        self.count_calls: Callable[[], Calls] = Calls
        self._untrained = UnusualCalls()
        self.num_skipped = 0  # optimizer steps that a gradient scaler left out
        self.optimizers: list[Optimizer] = []  # in the order of their first steps
        # optimizers that stepped first when it was decided already, with the line
        self.late: dict[Optimizer, str] = {}
        # `_watching` holds all but what sees steps
        self._hooks, self._watching = patches.part(), patches.part()
        self.loader = LoaderWatch(self._watching)
        self.modules = ModuleWatch(patches)
        self.interruptions = Interruptions()  # evaluations and saved files
        self.epochs = Interruptions()  # their beginnings
        self.watched = 0  # optimizer steps after which an earlier run has decided; 0: none has
        self._order: list[Optimizer] = []
        self._last: Optimizer | None = None  # whose step ends a step of the loop
        self._num_before = 0  # steps that ended before that was known
        self.last_step = time.monotonic()
        self._resumed = self.last_step  # after the last step of the loop
        self._begin = math.inf  # of the watch: the first step
        self._since_last = 0  # steps of others
        self._running: list[FrameType] = []  # of steps that have begun, from the outermost
        self._thread = threading.get_ident()
        self._num_elsewhere = 0  # optimizer steps of other threads
        self._ended = False
        self._phases: Steps[None]
        self._on_end: OnEnd

    def begin(self, phases: Steps[None], on_end: OnEnd) -> None:
        """Watch from now on. `phases` goes on at the end of each step of the loop; the script ends
        with it, and before that `on_end` gets what went wrong in it, or None.
        """
        self._phases, self._on_end = phases, on_end
        before = register_optimizer_step_pre_hook(self._before_step)
        self._hooks.own("hook before the step of optimizers", before.remove)
        after = register_optimizer_step_post_hook(self._after_step)
        self._hooks.own("hook after the step of optimizers", after.remove)
        save, step = torch.save, torch.amp.GradScaler.step

        def note_save(*arguments: Any, **options: Any) -> Any:
            self.num_saved += 1
            return save(*arguments, **options)

        # a function, so that the scaler is its first argument
        def note_skip(
            scaler: torch.amp.GradScaler, optimizer: Optimizer, *rest: Any, **options: Any
        ) -> Any:
            before = self.num_seen
            returned = step(scaler, optimizer, *rest, **options)
            if self.num_seen == before and optimizer is self._last:
                self.num_skipped += 1
            return returned

        self.modules.begin()
        self.loader.begin()
        self._watching.replace(torch, "save", note_save)
        self._watching.replace(torch.amp.GradScaler, "step", note_skip)

    def stop(self) -> None:
        """Take everything away that was put into torch."""
        self._hooks.undo()
        self._stop_watching()

    def _stop_watching(self) -> None:
        """Take away all but what sees steps; the script's own clean-up runs as without us."""
        self.modules.stop()
        self._watching.undo()

    def find_device(self) -> torch.device:
        """The device of the parameters that the optimizers train."""
        for group in self.optimizers[0].param_groups:
            for item in group["params"]:
                device: torch.device = item.device
                return device
        raise AssertionError("torch lets no optimizer have no parameters")

    @property
    def disturbances(self) -> tuple[Interruptions, Interruptions]:
        """What no block may hold."""
        return self.interruptions, self.epochs

    def count(self) -> Counts:
        loader = self.loader
        return Counts(
            self.num_steps,
            loader.num_batches,
            loader.seconds,
            loader.others,
            self.num_saved,
            self.num_skipped,
            self.num_evaluations,
            loader.num_epochs,
            *self.count_calls(),
            self.evaluation_s,
            time.perf_counter(),
        )

    @property
    def num_seen(self) -> int:
        """Optimizer steps, watched or of the loop."""
        return self.num_watched + self.num_steps

    def _count_steps(self) -> str:
        steps = self.num_seen or self._num_elsewhere
        if not steps:
            return f"no step of an optimizer of torch was seen{describe_children()}"
        were = f"{steps:,} {'step was' if steps == 1 else 'steps were'}"
        if not self.num_seen:
            return (
                f"{were} in other threads, and only those of the main thread are measured; call "
                "the training there"
            )
        if self._last is None:
            return (
                f"{were} seen, and up to {LATE_WATCHED} are watched before the first one is timed; "
                "give it several hundred by its arguments"
            )
        return f"{were} seen, and more are needed"

    def finish(self, error: BaseException | None = None) -> None:
        """The script has ended by itself, or with an error: its phases hear it, and what it has is
        kept.
        """
        if self._ended:
            return
        self._ended = True
        self.stop()
        if error is None and self._last is not None:
            self.length = self._num_before + self.num_steps
        over = ScriptOverError(f"the script ended by itself: {self._count_steps()}")
        end: BaseException | None = error or over  # where the phases want more steps as well
        try:
            self._phases.throw(ScriptFailedError() if error else over)
        except StopIteration:
            end = None
        except ScriptFailedError:
            pass
        except Exception as failure:  # noqa: BLE001  # it becomes the trial's status
            end = failure
        self._on_end(end)

    def _before_step(self, *_: object) -> None:
        if threading.get_ident() != self._thread:
            return
        caller = sys._getframe(1)
        if self._running:
            # A step that raises has no end that torch tells of, but its frame is gone.
            callers = [frame for frame, _ in walk_stack(caller)]
            self._running = [frame for frame in self._running if frame in callers]
        self._running.append(caller)

    def _after_step(self, optimizer: Optimizer, *_: object) -> None:
        if threading.get_ident() != self._thread:
            self._num_elsewhere += 1
            return
        self._running.remove(sys._getframe(1))
        if self._running:
            return
        self.last_step = time.monotonic()
        self._begin = min(self._begin, self.last_step)
        if self._last is None:
            self._watch(optimizer)
        elif optimizer is self._last:
            self.num_steps += 1
            self._since_last = 0
            self._go_on()
        else:
            self._note_other(optimizer)

    def _watch(self, optimizer: Optimizer) -> None:
        if optimizer not in self.optimizers:
            self.optimizers.append(optimizer)
        self._order.append(optimizer)
        self.num_watched += 1
        self.loader.end_step(counts=False)
        counts = Counter(self._order)
        if not self._is_clear(counts):
            return
        self.watched = self.num_watched
        repeated = {item: count for item, count in counts.items() if count > 1} or counts
        least = min(repeated.values())
        within_one = [item for item, count in repeated.items() if count <= least + (least > 1)]
        self._last = within_one[-1]
        self._num_before += counts[self._last]
        self.modules.stop()
        self.loader.decide()
        if optimizer is self._last:
            self._go_on()

    def _is_clear(self, counts: Counter[Optimizer]) -> bool:
        """Whether the optimizers so far, in the order of their first steps, show a turn of all."""
        if self.watched >= self.num_watched:
            return self.watched == self.num_watched
        steps, watched_s = len(self._order), self.last_step - self._begin
        if steps < MIN_WATCHED:
            return False
        if steps < LATE_WATCHED and max(self.ranks.share("watch", watched_s)) < MAX_WATCH_S:
            return False
        first = self._order.index(list(counts)[-1]) + 1
        return min(counts.values()) > 1 or steps >= WATCHED_PER_FIRST * first

    def _note_other(self, optimizer: Optimizer) -> None:
        """Note a step of an optimizer that ends no step of the loop."""
        if optimizer not in self.optimizers and optimizer not in self.late:
            self.late[optimizer] = f"{type(optimizer).__name__} ({find_script_line()})"
        self._since_last += 1
        if self._since_last > MAX_SINCE_LAST:  # the one that does steps no more
            self._last, self._since_last = None, 0
            self._order.clear()

    def _go_on(self) -> None:
        if self._ended:  # the script has caught what should have ended it
            raise EndOfScript
        self.loader.end_step(counts=True)
        evaluates = self._untrained.note(self.count_calls().untrained)
        if evaluates or self.loader.others > self._others:
            self.num_evaluations += 1
            self.evaluation_s += self.last_step - self._resumed
        self._others = self.loader.others
        self.interruptions.note(self.num_evaluations + self.num_saved)
        self.epochs.note(self.loader.num_epochs)
        try:
            next(self._phases)
            self._resumed = time.monotonic()
            return
        except StopIteration:
            error = None
        except Exception as failure:  # noqa: BLE001  # it becomes the trial's status; the script must not catch it
            error = failure
        self._ended = True
        self._stop_watching()
        self._on_end(error)
        raise EndOfScript


class Calls(NamedTuple):
    """How often the modules of both arms were called so far, and how much was compiled for it."""

    trained: int = 0  # with gradients
    untrained: int = 0
    programs: int = 0


class Counts(NamedTuple):
    """What has happened in a loop since its end of a step is known."""

    steps: int
    batches: int
    loader_s: float  # waited for batches
    others: int  # batches of other loaders
    saved: int
    skipped: int
    evaluations: int = 0  # steps before which the script evaluated
    epochs: int = 0  # times that the training loader began anew
    calls: int = 0  # those of `Calls`
    untrained: int = 0
    programs: int = 0
    evaluation_s: float = 0.0  # of the steps before which the script evaluated
    seconds: float = 0.0

    @property
    def events(self) -> tuple[int, int, int]:
        """From what is usually the rarest on."""
        return self.evaluations, self.saved, self.epochs

    def since(self, before: Counts) -> Counts:
        return Counts(*map(operator.sub, self, before))


class ScriptOverError(Failure):
    """The script has ended by itself."""

    status = "eager_error"


class ScriptFailedError(Failure):
    """The script has raised an error, which is the trial's and no reading's: it passes every
    `try_steps`.
    """


def run_steps(steps: int) -> Iterable[None]:
    """Let the loop run for some steps."""
    return itertools.repeat(None, steps)
