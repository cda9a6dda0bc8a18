"""The worker's side of the device lease, against a driver that answers in this process; compiles
for real.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.compile

import torch  # noqa: E402
from torch._inductor.autotune_process import TensorMeta, TritonBenchmarkRequest  # noqa: E402
from torch._inductor.codecache import PyCodeCache  # noqa: E402
from torch._inductor.runtime import triton_compat, triton_heuristics  # noqa: E402, F401  # make_run_fn
from torch._inductor.runtime.benchmarking import benchmarker  # noqa: E402

from sweeper.core.protocol import ALONE, DEVICE, NOTHING, RESUME, SHARED, SHARES, SOLE, LeaseGrant  # noqa: E402
from sweeper.worker.compilation.lease_breaks import LeaseBreaks  # noqa: E402
from sweeper.worker.lease import Lease  # noqa: E402


class Driver:
    """Grants everything after `takes_s`, and remembers what it was asked."""

    def __init__(self, takes_s: float = 0.0, grant: LeaseGrant = LeaseGrant()) -> None:  # noqa: B008  # frozen
        self.heard: list[str] = []
        self._takes_s, self.grant = takes_s, grant

    def ask(self, wants: str) -> LeaseGrant | None:
        self.heard.append(wants)
        if wants == NOTHING:
            return None
        time.sleep(self._takes_s)
        return replace(self.grant, granted_s=time.monotonic())


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    torch._dynamo.reset()
    # both are put back after each test; other tests may have left theirs
    make = inspect.unwrap(TritonBenchmarkRequest.make_run_fn)
    monkeypatch.setattr(TritonBenchmarkRequest, "make_run_fn", make)
    monkeypatch.setattr(triton_compat, "triton", SimpleNamespace())
    return Driver()


def begin_breaks(lease: Lease) -> LeaseBreaks:
    lease.take()
    breaks = LeaseBreaks(lease)
    breaks.begin()
    return breaks


def compiled(seen: Callable[[], object]) -> object:
    """Compile and run a function; `seen` is called while the backend works."""

    def backend(graph: torch.fx.GraphModule, _inputs: object) -> object:
        seen()
        return graph.forward

    return torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))


def test_device_is_let_go_while_the_compiler_runs_and_taken_back(driver: Driver) -> None:
    begin_breaks(Lease(driver.ask))
    at_compilation: list[list[str]] = []
    compiled(lambda: at_compilation.append(list(driver.heard)))
    assert at_compilation == [[DEVICE, NOTHING]]
    assert driver.heard == [DEVICE, NOTHING, DEVICE]


def test_whoever_had_it_alone_has_it_alone_after_a_recompilation(driver: Driver) -> None:
    lease = Lease(driver.ask)
    begin_breaks(lease)
    lease.take(ALONE)
    compiled(lambda: None)
    assert driver.heard == [DEVICE, NOTHING, ALONE, NOTHING, ALONE]


def test_each_benchmark_while_compiling_has_the_device_for_itself_alone(driver: Driver) -> None:
    breaks = begin_breaks(Lease(driver.ask))

    def benchmarks() -> None:
        driver.heard.clear()
        for _ in range(2):
            with breaks._benchmark():
                driver.heard.append("benchmark")

    compiled(benchmarks)
    assert driver.heard == [RESUME, "benchmark", NOTHING] * 2 + [DEVICE]


def test_a_benchmark_within_a_benchmark_leaves_the_device_to_the_outer_one(driver: Driver) -> None:
    breaks = begin_breaks(Lease(driver.ask))

    def benchmarks() -> None:
        driver.heard.clear()
        with breaks._benchmark():
            with breaks._benchmark():
                driver.heard.append("inner")
            driver.heard.append("outer")

    compiled(benchmarks)
    assert driver.heard == [RESUME, "inner", "outer", NOTHING, DEVICE]


def test_a_benchmark_that_fails_lets_go_of_the_device(driver: Driver) -> None:
    breaks = begin_breaks(Lease(driver.ask))

    def benchmarks() -> None:
        with pytest.raises(RuntimeError, match="no such kernel"), breaks._benchmark():
            raise RuntimeError("no such kernel")
        assert driver.heard[-1] == NOTHING

    compiled(benchmarks)
    assert driver.heard[-1] == DEVICE


def test_a_benchmark_that_cannot_ask_for_the_device_keeps_no_lock() -> None:
    def ask(_wants: str) -> LeaseGrant:
        raise BrokenPipeError("the driver has gone")

    lease = Lease(ask)
    with pytest.raises(BrokenPipeError, match="has gone"), LeaseBreaks(lease)._benchmark():
        pass
    with ThreadPoolExecutor() as other:
        assert other.submit(lease.lock.acquire, blocking=False).result()


def test_a_benchmark_in_a_step_changes_nothing(driver: Driver) -> None:
    breaks = begin_breaks(Lease(driver.ask))
    with breaks._benchmark():
        pass
    assert driver.heard == [DEVICE]


def test_inductors_timing_of_kernels_is_such_a_benchmark(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, inside = Lease(driver.ask), []
    begin_breaks(lease)
    monkeypatch.setattr(lease, "take", inside.append)
    lease.leave()
    # there is no GPU
    with pytest.raises((AssertionError, RuntimeError, AttributeError, ImportError)):
        benchmarker.benchmark_gpu(lambda: None)
    assert inside == [RESUME]


def test_a_kernel_of_a_template_is_compiled_before_its_benchmark(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Kernel:
        def precompile(self) -> None:
            driver.heard.append("compiles")

        def run(self, *_arguments: object, **_options: object) -> None:
            driver.heard.append("runs")

    module = SimpleNamespace(triton_mm=Kernel())
    monkeypatch.setattr(PyCodeCache, "load_by_key_path", lambda *_, **__: module)
    breaks = begin_breaks(Lease(driver.ask))
    tensor = torch.ones(1)
    meta = TensorMeta(tensor.device, tensor.dtype, (1,), (1,), 0)
    request = TritonBenchmarkRequest("triton_mm", meta, meta, (), "module.py", "key", 1, 1)

    def benchmarks() -> None:
        driver.heard.clear()
        call = request.make_run_fn(tensor, out=tensor)
        with breaks._benchmark():
            call()

    compiled(benchmarks)
    assert driver.heard == ["compiles", RESUME, "runs", NOTHING, DEVICE]


@pytest.mark.parametrize(("wants", "then"), [(DEVICE, RESUME), (ALONE, ALONE)])
def test_a_kernel_that_a_step_compiles_is_compiled_without_the_device(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, wants: str, then: str
) -> None:
    def compile_kernel(source: str) -> str:
        driver.heard.append("compiles")
        return f"binary of {source}"

    triton = SimpleNamespace(compile=compile_kernel)
    monkeypatch.setattr(triton_compat, "triton", triton)
    lease = Lease(driver.ask)
    begin_breaks(lease)
    lease.take(wants)
    driver.heard.clear()
    assert triton.compile("a kernel") == "binary of a kernel"
    assert driver.heard == [NOTHING, "compiles", then]


def test_what_another_thread_has_taken_meanwhile_stays(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lease(driver.ask)

    def compile_kernel() -> None:
        other = threading.Thread(target=lease.take, args=[ALONE])
        other.start()
        other.join()

    triton = SimpleNamespace(compile=compile_kernel)
    monkeypatch.setattr(triton_compat, "triton", triton)
    begin_breaks(lease)
    triton.compile()
    assert (lease.holds, driver.heard) == (ALONE, [DEVICE, NOTHING, ALONE])


def test_a_kernel_that_does_not_compile_leaves_the_device_as_it_was(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_kernel() -> None:
        raise RuntimeError("out of registers")

    triton = SimpleNamespace(compile=compile_kernel)
    monkeypatch.setattr(triton_compat, "triton", triton)
    begin_breaks(Lease(driver.ask))
    with pytest.raises(RuntimeError, match="out of registers"):
        triton.compile()
    assert driver.heard == [DEVICE, NOTHING, RESUME]


def test_clock_stands_still_while_it_waits_and_while_it_is_stopped() -> None:
    lease = Lease(Driver(takes_s=0.3).ask)
    before, begin = lease.clock(), time.perf_counter()
    lease.take()
    lease.stopped_s = 100.0
    passed_s = time.perf_counter() - begin
    assert lease.away_s >= 100.3
    assert lease.clock() - before == pytest.approx(passed_s - lease.away_s, abs=0.05)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("is_before", [True, False])
def test_no_stop_is_in_the_clock_when_it_is_read(
    monkeypatch: pytest.MonkeyPatch, is_before: bool, share: str
) -> None:
    """A worker that shares the device is stopped for 7 s just before or after it reads a clock that
    shows 100 s.
    """
    stopped_s = 0.0

    def read_clock() -> float:
        nonlocal stopped_s
        before_s, stopped_s = stopped_s, 7.0
        return 100.0 + (stopped_s if is_before else before_s)

    lease = Lease()
    lease.may_share = True
    lease.take(share)
    waited_s = lease.away_s
    lease.hear = lambda: setattr(lease, "stopped_s", stopped_s)
    monkeypatch.setattr("sweeper.worker.lease.perf_counter", read_clock)
    assert lease.clock() + waited_s == pytest.approx(100.0)


def test_a_stop_before_a_grant_is_read_counts_once() -> None:
    """It waits for 1 s, and is stopped for 7 s when it has been granted what it wants."""
    lease = Lease()

    def ask(wants: str) -> LeaseGrant:
        if wants != SHARED:
            return LeaseGrant()
        lease.stopped_s = 7.0
        return LeaseGrant(granted_s=time.monotonic() + 1.0)

    lease._ask = ask
    lease.may_share = True
    lease.take(SHARED)
    assert lease.away_s == pytest.approx(8.0, abs=0.01)


def test_whoever_keeps_books_is_told_before_leaving_and_after_returning(driver: Driver) -> None:
    lease = Lease(driver.ask)
    begin_breaks(lease)
    lease.before_leaving = lambda: driver.heard.append("leaves")
    lease.after_returning = lambda: driver.heard.append("is back")
    compiled(lambda: None)
    lease.take(ALONE)
    returns = ["leaves", NOTHING, DEVICE, "is back", "leaves", NOTHING, ALONE, "is back"]
    assert driver.heard == [DEVICE, *returns]


@pytest.mark.parametrize("share", SHARES)
def test_sharing_the_device_goes_on_after_a_benchmark_and_while_a_kernel_is_compiled(
    share: str, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_kernel = lambda: driver.heard.append("compiles")  # noqa: E731
    monkeypatch.setattr(triton_compat, "triton", SimpleNamespace(compile=compile_kernel))
    lease = Lease(driver.ask)
    lease.may_share = True
    breaks = begin_breaks(lease)
    lease.take(share)
    driver.heard.clear()
    with breaks._benchmark():
        driver.heard.append("benchmark")
    triton_compat.triton.compile()
    assert driver.heard == [RESUME, "benchmark", share, "compiles"]
    compiled(lambda: driver.heard.append("backend"))
    assert driver.heard[4:] == [NOTHING, "backend", share]


def test_whoever_takes_the_sole_share_lets_go_of_its_own_first(driver: Driver) -> None:
    lease = Lease(driver.ask)
    breaks = begin_breaks(lease)
    lease.take()
    assert not lease.take_sole_share(), "it has the device for itself"
    lease.may_share = True
    driver.grant = LeaseGrant(neighbours=(7,))
    lease.take(SHARED)
    driver.heard.clear()
    driver.grant = LeaseGrant()
    assert lease.take_sole_share()
    assert not lease.may_have_neighbours
    assert not lease.take_sole_share()
    with breaks._benchmark():
        driver.heard.append("benchmark")
    assert driver.heard == [NOTHING, SOLE, RESUME, "benchmark", SOLE]


def test_the_sole_share_of_a_device_without_others_is_no_more_room(driver: Driver) -> None:
    lease = Lease(driver.ask)
    lease.may_share = True
    lease.take(SHARED)
    assert lease.may_have_neighbours, "some may come meanwhile"
    assert not lease.take_sole_share()
    assert not lease.may_have_neighbours


def test_where_memory_is_known_of_the_whole_device_alone_it_is_not_shared(driver: Driver) -> None:
    lease = Lease(driver.ask)
    lease.take(SHARED)
    assert driver.heard == [DEVICE]


def test_whoever_has_stopped_sharers_waits_until_their_work_is_done(driver: Driver) -> None:
    lease = Lease(driver.ask)
    lease.await_idle = lambda: driver.heard.append("idle")
    lease.take()
    driver.grant = LeaseGrant(has_stopped_sharers=True)
    lease.take(ALONE)
    assert driver.heard == [DEVICE, NOTHING, ALONE, "idle"]


def test_without_a_driver_it_is_always_ours() -> None:
    lease = Lease()
    lease.take()
    lease.take(ALONE)
    lease.leave()
    lease.take()
    assert lease.neighbours == frozenset()
