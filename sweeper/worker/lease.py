"""The worker's side of the device lease: when it may compute on the device, and a clock that leaves
out the waiting.

The device is held from building on, let go while the compiler runs on the CPU, and held alone from
the warm-up to the last reading. Inductor autotunes kernels on the device while it compiles: it has
the device back for one benchmark at a time, so that several workers that autotune take turns.
Without a driver the device is always ours.
"""

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch._dynamo.callback import CallbackArgs, CallbackTrigger, callback_handler
from torch._inductor.runtime import benchmarking

from sweeper.core.protocol import DEVICE, NOTHING, LeaseGrant

# tells the driver what is wanted and waits for the device; None for nothing
Ask = Callable[[str], LeaseGrant | None]
F = TypeVar("F", bound=Callable[..., object])
# the other triggers are work on the device
COMPILES = (CallbackTrigger.DYNAMO, CallbackTrigger.LAZY_BACKWARD)


def _not_compiled(method: F) -> F:
    """Within a compiled step Dynamo would compile what it calls back as well, and wait for
    itself.
    """
    return torch.compiler.disable(method)  # type: ignore[no-untyped-call, no-any-return]


class Lease:
    """Who computes on the device; `before_leaving` and `after_returning` are called around every
    time without it.
    """

    def __init__(self, ask: Ask = lambda wants: None if wants == NOTHING else LeaseGrant()) -> None:
        self._ask = ask
        self._lock = threading.RLock()  # compilers and their timers have threads of their own
        self._holds = NOTHING
        self._after_compiling: str | None = None  # what was held when compiling began
        self.away_s = 0.0  # waited for the device, or stopped
        # process groups of other workers that are on the device
        self.neighbours: frozenset[int] = frozenset()
        self.before_leaving: Callable[[], None] = lambda: None
        self.after_returning: Callable[[], None] = lambda: None

    def clock(self) -> float:
        """Seconds like `time.perf_counter`, standing still while this process waits or is
        stopped.
        """
        return time.perf_counter() - self.away_s

    def take(self, wants: str = DEVICE) -> None:
        """Wait for the device, or for the device alone."""
        with self._lock:
            held, self._holds = self._holds, wants
            if held == wants:
                return
            begin = time.perf_counter()
            grant = self._ask(wants)
            assert grant is not None
            self.away_s += time.perf_counter() - begin + grant.stopped_s
            self.neighbours = frozenset(grant.neighbours)
            if held == NOTHING:
                self.after_returning()

    def leave(self) -> None:
        """Let go of the device when nothing of ours runs on it any more, and of the memory that is
        kept for later.
        """
        with self._lock:
            if self._holds == NOTHING:
                return
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
            self.before_leaving()
            self._holds = NOTHING
            self._ask(NOTHING)

    def leave_while_compiling(self) -> None:
        """From now on let go of the device whenever the compiler runs; to be called after
        `torch._dynamo.reset`.
        """
        callback_handler.register_start_callback(self._start_compiling)
        callback_handler.register_end_callback(self._end_compiling)
        _wrap_benchmarks(self._benchmark)

    @_not_compiled
    def _start_compiling(self, call: CallbackArgs) -> None:
        with self._lock:
            if call.callback_trigger in COMPILES and self._holds != NOTHING:
                self._after_compiling = self._holds
                self.leave()

    @_not_compiled
    def _end_compiling(self, _call: CallbackArgs) -> None:
        with self._lock:
            if self._after_compiling is not None:
                wants, self._after_compiling = self._after_compiling, None
                self.take(wants)

    @contextmanager
    def _benchmark(self) -> Iterator[None]:
        """Hold the device while Inductor benchmarks a kernel, in the middle of compiling or in a
        step.
        """
        was_ours = self._start_benchmark()
        try:
            yield
        finally:
            self._end_benchmark(was_ours)

    @_not_compiled
    def _start_benchmark(self) -> bool:
        """Take the device if it is not held; return whether it was."""
        self._lock.acquire()
        was_ours = self._holds != NOTHING
        if not was_ours:
            self.take()
        return was_ours

    @_not_compiled
    def _end_benchmark(self, was_ours: bool) -> None:
        try:
            if not was_ours:
                self.leave()
        finally:
            self._lock.release()


def _wrap_benchmarks(context: Callable[[], Any]) -> None:
    """Have Inductor time every candidate on the GPU within `context`; torch has a hook for it from
    2.13 on.
    """
    if hasattr(benchmarking, "set_gpu_benchmark_lock_context"):
        benchmarking.set_gpu_benchmark_lock_context(context)
        return
    measure: Callable[..., Any] = benchmarking.benchmarker.benchmark_gpu

    @functools.wraps(measure)
    def within(*arguments: Any, **options: Any) -> Any:
        with context():
            return measure(*arguments, **options)

    setattr(benchmarking.benchmarker, "benchmark_gpu", within)  # noqa: B010  # a method, to mypy
