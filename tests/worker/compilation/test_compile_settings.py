"""Settings of `torch.compile` that change the program: real Inductor on tiny functions."""

from __future__ import annotations

import pytest
from worker_runs import custom, private_cache

from sweeper.core.trial import Compile

pytestmark = pytest.mark.compile
assert private_cache  # a fixture that every test here uses


@pytest.mark.slow
def test_smaller_memory_budget_saves_less_and_no_cache_gives_the_program_of_another_budget() -> (
    None
):
    import torch
    from torch._dynamo.utils import counters as torch_counters

    from sweeper.worker.compilation.compiler import compile_function
    from sweeper.worker.compilation.counters import CompileCounters

    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(16, 16), torch.nn.GELU())]
    module, inputs = torch.nn.Sequential(*layers), torch.ones(64, 16)

    def saved(budget: float | None) -> tuple[int, bool]:
        """How many numbers are saved for backward, and whether a cache had the program."""
        counters = CompileCounters()
        counters.begin()
        trial = custom("x", backend="inductor", mode="lite", compile=Compile(memory_budget=budget))
        output = compile_function(module, trial, counters)(inputs)
        tensors = output.grad_fn.saved_tensors
        output.sum().backward()
        found = (
            torch_counters["aot_autograd"]["autograd_cache_hit"]
            + torch_counters["inductor"]["fxgraph_cache_hit"]
        )
        return sum(tensor.numel() for tensor in tensors), found > 0

    before = torch._functorch.config.activation_memory_budget
    whole, half, again, last = (saved(budget) for budget in (None, 0.5, 0.5, None))
    assert torch._functorch.config.activation_memory_budget == before
    assert half[0] < whole[0]
    assert (again, last) == ((half[0], True), (whole[0], True))
    assert (whole[1], half[1]) == (False, False)


def test_precision_casts_round_where_eager_does() -> None:
    import torch

    from sweeper.worker.compilation.compiler import compile_function
    from sweeper.worker.compilation.counters import CompileCounters

    def chain(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * x.exp() + x.cos()

    x = torch.linspace(-3, 3, 999, dtype=torch.bfloat16)
    trial = custom("x", backend="inductor", compile=Compile(precision_casts=True))
    compiled = compile_function(chain, trial, CompileCounters())
    assert torch.equal(compiled(x), chain(x)), "without the switch a third of them differ"


def test_precision_casts_join_the_options_of_the_mode() -> None:
    from sweeper.worker.compilation.compiler import compile_arguments

    trial = custom(
        "x", backend="inductor", mode="max-autotune", compile=Compile(precision_casts=True)
    )
    options = compile_arguments(trial)["options"]
    assert (options["emulate_precision_casts"], options["max_autotune"]) == (True, True)
    assert "options" not in compile_arguments(custom("x", backend="inductor"))


def test_settings_of_dynamo_and_of_functorch_reach_the_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A loop over numbers is compiled for each of them, up to the limit; functorch's setting holds
    while torch compiles, and not after it.
    """
    import torch
    import torch._functorch.config as functorch
    from torch._dynamo.backends.common import aot_autograd

    from sweeper.worker.compilation import compiler
    from sweeper.worker.compilation.counters import CompileCounters

    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 8)
    monkeypatch.setattr(torch._dynamo.config, "error_on_nested_fx_trace", True)
    seen = []

    def note(graph: torch.fx.GraphModule, _inputs: object) -> torch.fx.GraphModule:
        seen.append((functorch.donated_buffer, torch._dynamo.config.error_on_nested_fx_trace))
        return graph

    torch._dynamo.register_backend(aot_autograd(fw_compiler=note), name="notes_settings")
    asked = Compile(
        recompile_limit=2,
        dynamo={"error_on_nested_fx_trace": False},
        functorch={"donated_buffer": not functorch.donated_buffer},
    )
    before = functorch.donated_buffer
    counters = CompileCounters()
    counters.begin()
    trial = custom("x", backend="notes_settings", compile=asked)
    call = compiler.compile_function(lambda x, text: x + len(text), trial, counters)
    for number in range(4):
        call(torch.ones(1), "a" * number)
    assert seen == [(not before, False)] * 2
    assert functorch.donated_buffer == before


@pytest.mark.parametrize(
    ("changes", "calls"),
    [
        ({}, True),
        ({"backend": "aot_eager"}, True),
        ({"mode": "max-autotune-no-cudagraphs"}, False),  # kernels of its own
        ({"compile": Compile(options={"max_autotune": True})}, False),
        ({"compile": Compile(options={"max_autotune_gemm": True})}, False),
        ({"mode": "reduce-overhead"}, False),  # what was recorded
        ({"compile": Compile(options={"triton.cudagraphs": True})}, False),
        ({"backend": "tensorrt"}, False),
        ({"mode": "eager"}, True),
    ],
)
def test_a_program_heeds_switches_of_convolutions_where_it_calls_torchs_own(
    changes: dict[str, object], calls: bool
) -> None:
    import torch

    from sweeper.worker.compilation.compiler import calls_convolutions

    trial = custom("x", **{"backend": "inductor", **changes})
    assert calls_convolutions(trial, torch.device("cuda")) is calls
