"""Factories whose models try to look faster than they are: the compiled step is no faster than the
eager one where both do their work.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator

import torch

SIZE = 96
Shortcut = Callable[[torch.Tensor], torch.Tensor]
Factory = Callable[[int, torch.device], object]
factories: dict[str, Factory] = {}
shortcut: Shortcut = torch.zeros_like
last = "eager"  # the arm whose step ran last
begin_s = time.perf_counter()
calls = Counter[int]()


def is_idle(_x: torch.Tensor) -> bool:
    return False


def work(x: torch.Tensor) -> torch.Tensor:
    for _ in range(12):
        x = torch.tanh(x @ x)
    return x


def identify(x: torch.Tensor) -> float:
    """A number that tells batches apart."""
    return round(float(x[0, 0]), 5)


@torch.library.custom_op("cheats::compiled_work", mutates_args=())
def compiled_work(x: torch.Tensor) -> torch.Tensor:
    global last
    last = "compiled"
    calls[identify(x)] += 1
    return shortcut(x) if is_idle(x) else work(x)


@compiled_work.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Model(torch.nn.Module):
    def __init__(self, eager: Shortcut, compiled: Shortcut) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(SIZE, SIZE)
        self.eager, self.compiled = eager, compiled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return self.compiled(y) if torch.compiler.is_compiling() else self.eager(y)


def eager_work(x: torch.Tensor) -> torch.Tensor:
    global last
    last = "eager"
    return work(x)


def build(eager: Shortcut = eager_work, compiled: Shortcut = compiled_work) -> object:
    torch.set_num_threads(1)  # a busy machine has others wait for each other
    return Model(eager, compiled), (torch.randn(SIZE, SIZE),)


def cheat(make: Callable[[], object]) -> Factory:
    def factory(_batch_size: int, _device: torch.device) -> object:
        return make()

    factories[make.__name__] = factory
    return factory


def frames() -> Iterator[str]:
    frame = sys._getframe()
    while frame := frame.f_back:  # type: ignore[assignment]
        yield frame.f_code.co_name


def in_round(_x: torch.Tensor) -> bool:
    return "_measure_round" in frames()


def idle_while(
    tell: Callable[[torch.Tensor], bool], instead: Shortcut = torch.zeros_like
) -> object:
    global is_idle, shortcut
    is_idle, shortcut = tell, instead
    return build()


# work that is done only while it is checked


@cheat
def collector_off():
    return idle_while(lambda _x: not gc.isenabled())


@cheat
def objects_frozen():
    return idle_while(lambda _x: gc.get_freeze_count() > 0)


@cheat
def another_stance():
    stance = torch._dynamo.eval_frame
    return idle_while(lambda _x: stance._stance.stance == "fail_on_recompile")


@cheat
def many_calls():
    return idle_while(lambda _x: calls.total() > 60)


@cheat
def late():
    seen: list[float] = []
    return idle_while(lambda _x: bool(seen.append(time.monotonic()) or seen[-1] - seen[0] > 1.0))


@cheat
def on_the_stack():
    return idle_while(in_round)


@cheat
def known_phase():
    def tell(_x: torch.Tensor) -> bool:
        logs = [one for one in gc.get_objects() if type(one).__name__ == "ProcessLog"]
        return any(log.phase == "measuring" for log in logs)

    found: list[object] = []

    def once(x: torch.Tensor) -> bool:
        if not found and tell(x):
            found.append(True)
        return bool(found)

    return idle_while(once)


@cheat
def known_batch():
    return idle_while(lambda x: calls[identify(x)] > 30)


@cheat
def nothing_but_nan():
    return idle_while(in_round, lambda x: x * torch.nan)


@cheat
def nothing_but_ones():
    return idle_while(in_round, lambda x: torch.full_like(x, 3.0))


@cheat
def its_input():
    return idle_while(in_round, lambda x: x * 0.01)


# other clocks


def slow_clock(name: str) -> object:
    """A clock that a compiled step makes stand still for most of the time."""
    real, unit = getattr(time, name), 1e9 if name.endswith("_ns") else 1
    setattr(time, name, lambda: real() if last == "eager" else real() // unit * unit)
    return build()


for name in ("perf_counter", "perf_counter_ns", "monotonic", "time", "process_time"):
    factories[f"clock_{name}"] = lambda _size, _device, name=name: slow_clock(name)


@cheat
def module_of_clocks():
    other = types.ModuleType("time")
    vars(other).update(vars(time))
    other.perf_counter = lambda: 0.0
    sys.modules["time"] = other
    return build()


@cheat
def no_synchronisation():
    torch.cuda.synchronize = torch.cuda.Event = lambda *_args, **_options: None
    return build()


@cheat
def slow_stance():
    real = torch.compiler.set_stance

    def set_stance(stance: str, **options: object) -> object:
        if stance == "force_eager":
            time.sleep(0.5)
        return real(stance, **options)

    torch.compiler.set_stance = set_stance
    return build()


@cheat
def other_statistics():
    statistics.median = min
    statistics.quantiles = lambda *_args, **_options: [1e-6] * 99
    return build()


@cheat
def other_collector():
    gc.collect = gc.freeze = gc.disable = lambda *_args: 0
    return idle_while(lambda _x: not gc.isenabled())


# other results


@cheat
def compiled_does_nothing():
    return build(compiled=torch.zeros_like)


@cheat
def compiled_does_half():
    return build(compiled=lambda x: torch.tanh(x @ x))


@cheat
def compiled_is_nearly_right():
    return build(compiled=lambda x: compiled_work(x) * 0.98)


@cheat
def compiled_is_seldom_right():
    return build(compiled=lambda x: x if x.sum() > 0 else compiled_work(x))


# what passes, and docs/security.md names


@cheat
def eager_waits():
    def wait(x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.05)
        return eager_work(x)

    return build(wait)


@cheat
def remembers():
    """Gives what it gave for this batch before, where it is not checked."""
    results: dict[float, torch.Tensor] = {}

    def tell(x: torch.Tensor) -> bool:
        if "_measure_round" in frames() and identify(x) in results:
            return True
        results[identify(x)] = work(x)
        return False

    return idle_while(tell, lambda x: results[identify(x)].clone())


@cheat
def patches_sweeper():
    from sweeper.worker.measurement.bench import Bench

    real = Bench.block_s

    def block_s(self, arm, steps):
        seconds = yield from real(self, arm, steps)
        return seconds / 5 if arm.name == "compiled" else seconds

    Bench.block_s = block_s
    return build()


def __getattr__(name: str) -> object:
    if name not in factories:
        raise AttributeError(name)
    return factories[name]
