"""Lets go of the device while the compiler runs on the CPU.

Inductor autotunes kernels on the device while it compiles and when it first runs them: it has the
device for itself for one benchmark at a time, so that several workers that autotune take turns.
No kernel is compiled while others wait for the device: those of templates are compiled before their
benchmark begins, since Inductor may compile them in the first call, and those of coordinate
descent, which Inductor compiles one by one in the first step, without the device or sharing it.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import torch
from torch._dynamo.callback import CallbackArgs, CallbackTrigger, callback_handler
from torch._inductor.autotune_process import TritonBenchmarkRequest
from torch._inductor.runtime import benchmarking, triton_compat

from sweeper.core.protocol import DEVICE, NOTHING, RESUME, SHARES
from sweeper.worker.lease import Lease

F = TypeVar("F", bound=Callable[..., object])
# the other triggers are work on the device, such as a recording of CUDA graphs
COMPILES = (CallbackTrigger.DYNAMO, CallbackTrigger.LAZY_BACKWARD)


def _not_compiled(method: F) -> F:
    """Within a compiled step Dynamo would compile what it calls back as well, and wait for
    itself.
    """
    return torch.compiler.disable(method)  # type: ignore[no-untyped-call, no-any-return]


def _compile_before_benchmark() -> None:
    """Have a kernel of a template compiled when its benchmark is made, not in its first call: the
    benchmark would take the device, let go of it to compile, and wait for it again.
    """
    make: Callable[..., Any] = TritonBenchmarkRequest.make_run_fn

    @functools.wraps(make)
    def make_compiled(*arguments: Any, **options: Any) -> Any:
        call = make(*arguments, **options)
        call.func.__self__.precompile()  # the kernel's; nothing to do where it is compiled
        return call

    setattr(TritonBenchmarkRequest, "make_run_fn", make_compiled)  # noqa: B010  # a method, to mypy


def _is_recording() -> bool:
    """Whether a CUDA graph is being recorded, within which nothing may wait for the device."""
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return used and torch.cuda.is_current_stream_capturing()


def _within(
    context: Callable[[], AbstractContextManager[object]], function: Callable[..., Any]
) -> Callable[..., Any]:
    """Return the function with each call within a context of its own."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        with context():
            return function(*arguments, **options)

    return call


class LeaseBreaks:
    """Gives a lease back whenever the compiler runs."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._after_compiling = NOTHING  # what was held when compiling began

    def begin(self) -> None:
        """Begin, after `torch._dynamo.reset`; Inductor then times every candidate on the GPU within
        `_benchmark`.
        """
        callback_handler.register_start_callback(self._start_compiling)
        callback_handler.register_end_callback(self._end_compiling)
        _compile_before_benchmark()
        triton: Any = triton_compat.triton
        if compile_kernel := getattr(triton, "compile", None):  # there is none on a CPU
            setattr(triton, "compile", _within(self._let_others_compute, compile_kernel))  # noqa: B010
        if hasattr(benchmarking, "set_gpu_benchmark_lock_context"):  # from torch 2.13 on
            benchmarking.set_gpu_benchmark_lock_context(self._benchmark)
            return
        benchmark = _within(self._benchmark, benchmarking.benchmarker.benchmark_gpu)
        setattr(benchmarking.benchmarker, "benchmark_gpu", benchmark)  # noqa: B010  # a method, to mypy

    @_not_compiled
    def _let_go(self) -> str:
        """Let go of the device, unless a CUDA graph is being recorded; return what was held, for
        `_take_back`.
        """
        with self._lease.lock:
            held = self._lease.holds
            if held == NOTHING or _is_recording():
                return NOTHING
            self._lease.leave()
            return held

    @_not_compiled
    def _take_back(self, held: str) -> None:
        """Take what was held, unless another thread has taken the device since."""
        with self._lease.lock:
            if self._lease.holds == NOTHING and held != NOTHING:
                self._lease.take(held)

    @_not_compiled
    def _start_compiling(self, call: CallbackArgs) -> None:
        if call.callback_trigger in COMPILES:
            self._after_compiling = self._let_go()

    @_not_compiled
    def _end_compiling(self, _call: CallbackArgs) -> None:
        held, self._after_compiling = self._after_compiling, NOTHING
        self._take_back(held)

    @contextmanager
    def _let_others_compute(self) -> Iterator[None]:
        """Let go of the device while a kernel is compiled in the middle of a step, unless it is
        shared.
        """
        held = NOTHING if self._lease.shares else self._let_go()
        try:
            yield
        finally:
            self._take_back(RESUME if held == DEVICE else held)

    @contextmanager
    def _benchmark(self) -> Iterator[None]:
        """Have the device for itself while Inductor benchmarks a kernel, in the middle of compiling
        or in a step.
        """
        held = self._start_benchmark()
        try:
            yield
        finally:
            self._end_benchmark(held)

    @_not_compiled
    def _start_benchmark(self) -> str:
        """Take the device, unless others do not compute on it anyway; return what was held. The
        lock stays held until `_end_benchmark`.
        """
        with self._lease.lock:  # let go of again where the driver cannot be asked
            held = self._lease.holds
            if held in (NOTHING, *SHARES):
                self._lease.take(RESUME)
            self._lease.lock.acquire()
        return held

    @_not_compiled
    def _end_benchmark(self, held: str) -> None:
        try:
            if held == NOTHING:
                self._lease.leave()
            elif held in SHARES:
                self._lease.take(held)
        finally:
            self._lease.lock.release()
