"""Lets go of the device while the compiler runs on the CPU.

Inductor autotunes kernels on the device while it compiles: it has the device back for one benchmark
at a time, so that several workers that autotune take turns. Every kernel is compiled without the
device: those of templates before their benchmark begins, since Inductor may compile them in the
first call, and those of coordinate descent, which Inductor compiles one by one in the first step.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch._dynamo.callback import CallbackArgs, CallbackTrigger, callback_handler
from torch._inductor.autotune_process import TritonBenchmarkRequest
from torch._inductor.runtime import benchmarking, triton_compat

from sweeper.core.protocol import NOTHING
from sweeper.worker.lease import Lease

F = TypeVar("F", bound=Callable[..., object])
# the other triggers are work on the device
COMPILES = (CallbackTrigger.DYNAMO, CallbackTrigger.LAZY_BACKWARD)


def _not_compiled(method: F) -> F:
    """Within a compiled step Dynamo would compile what it calls back as well, and wait for
    itself.
    """
    return torch.compiler.disable(method)  # type: ignore[no-untyped-call, no-any-return]


def _compile_before_benchmark() -> None:
    """Have a kernel of a template compiled when its benchmark is made, not in its first call."""
    make: Callable[..., Any] = TritonBenchmarkRequest.make_run_fn

    @functools.wraps(make)
    def make_compiled(*arguments: Any, **options: Any) -> Any:
        call = make(*arguments, **options)
        call.func.__self__.precompile()  # the kernel's; nothing to do where it is compiled
        return call

    setattr(TritonBenchmarkRequest, "make_run_fn", make_compiled)  # noqa: B010  # a method, to mypy


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
        if hasattr(triton, "compile"):
            triton.compile = self._around_compiling(triton.compile)
        if hasattr(benchmarking, "set_gpu_benchmark_lock_context"):  # from torch 2.13 on
            benchmarking.set_gpu_benchmark_lock_context(self._benchmark)
            return
        measure: Callable[..., Any] = benchmarking.benchmarker.benchmark_gpu

        @functools.wraps(measure)
        def within(*arguments: Any, **options: Any) -> Any:
            with self._benchmark():
                return measure(*arguments, **options)

        setattr(benchmarking.benchmarker, "benchmark_gpu", within)  # noqa: B010  # a method, to mypy

    def _leave(self) -> None:
        """Let go of the device when it has nothing more to do, and of the memory that is kept for
        later.
        """
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        self._lease.leave()

    @_not_compiled
    def _let_go(self) -> str:
        """Let go of the device; return what was held, for `_take_back`."""
        with self._lease.lock:
            held = self._lease.holds
            if held != NOTHING:
                self._leave()
            return held

    @_not_compiled
    def _take_back(self, held: str) -> None:
        with self._lease.lock:
            if held != NOTHING:
                self._lease.take(held)

    @_not_compiled
    def _start_compiling(self, call: CallbackArgs) -> None:
        with self._lease.lock:
            if call.callback_trigger in COMPILES and self._lease.holds != NOTHING:
                self._after_compiling = self._let_go()

    @_not_compiled
    def _end_compiling(self, _call: CallbackArgs) -> None:
        with self._lease.lock:
            held, self._after_compiling = self._after_compiling, NOTHING
            self._take_back(held)

    def _around_compiling(self, compile_kernel: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(compile_kernel)
        def within(*arguments: Any, **options: Any) -> Any:
            held = self._let_go()
            try:
                return compile_kernel(*arguments, **options)
            finally:
                self._take_back(held)

        return within

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
        self._lease.lock.acquire()
        was_ours = self._lease.holds != NOTHING
        if not was_ours:
            self._lease.take()
        return was_ours

    @_not_compiled
    def _end_benchmark(self, was_ours: bool) -> None:
        try:
            if not was_ours:
                self._leave()
        finally:
            self._lease.lock.release()
