"""What stands around the CUDA graphs of `backend=graphed`; recording itself needs a GPU
(tests/worker/test_gpu.py).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from worker_runs import custom, private_cache, run

from sweeper.worker.compilation import graphed
from sweeper.worker.compilation.graphed import (
    GraphedModule,
    OutputsOf,
    find_first,
    renew_gradient_nodes,
)

assert private_cache  # a fixture that every test here uses


class Named(nn.Module):
    """Takes names, numbers and None; gives a dict in which `loss` and another output depend on
    `logits`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x, *, scale, offset=None, power=1):
        logits = self.layer(x) * scale**power
        return {
            "loss": logits.square().mean(),
            "logits": logits,
            "size": x.shape[0],
            "offset": offset,
        }


class Recorder:
    """Stands for torch's recorder: runs the module with the inputs that the graph owns, as a replay
    would.
    """

    def __init__(self) -> None:
        self.recorded: list[OutputsOf] = []
        self.inputs: tuple[torch.Tensor, ...] = ()

    def __call__(
        self, module: OutputsOf, inputs: tuple[torch.Tensor, ...]
    ) -> Callable[..., tuple[torch.Tensor, ...]]:
        self.recorded.append(module)
        self.inputs = inputs

        def replay(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            assert all(isinstance(tensor, torch.Tensor) for tensor in given)
            with torch.no_grad():
                for own, tensor in zip(self.inputs, given, strict=True):
                    own.copy_(tensor)
            return module(*self.inputs)

        return replay


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    found = Recorder()
    monkeypatch.setattr(graphed, "record_graphs", found)
    return found


def step(
    module: Callable[..., dict[str, object]], x: torch.Tensor, scale: torch.Tensor
) -> dict[str, object]:
    found = module(x, scale=scale, power=2)
    assert isinstance(found["loss"], torch.Tensor)
    found["loss"].backward()
    return found


def test_arguments_by_name_and_the_structure_of_the_output_come_through(recorder: Recorder) -> None:
    torch.manual_seed(0)
    module = Named()
    compiled = GraphedModule(module)
    batches = [torch.randn(4, 3) for _ in range(3)]
    for x in batches:
        scale = torch.rand(1)
        module.zero_grad()
        found = step(compiled, x, scale)
        gradient = module.layer.weight.grad
        module.zero_grad()
        expected = step(module, x, scale)
        assert torch.equal(found["loss"], expected["loss"])
        assert torch.equal(found["logits"], expected["logits"])
        assert (found["size"], found["offset"]) == (4, None)
        assert torch.equal(gradient, module.layer.weight.grad)
    assert len(recorder.recorded) == 1
    # Batches keep their values: the graph has inputs of its own.
    torch.manual_seed(0)
    Named()
    assert torch.equal(batches[0], torch.randn(4, 3))


def test_only_outputs_that_the_loss_uses_have_gradients_in_the_graph(recorder: Recorder) -> None:
    compiled = GraphedModule(Named())
    for _ in range(2):
        found = step(compiled, torch.ones(4, 3), torch.ones(1))
    outputs = recorder.recorded[0](*recorder.inputs)
    # the loss; logits are among those written by a replay
    assert [tuple(output.shape) for output in outputs] == [()]
    assert not found["logits"].requires_grad
    assert found["loss"].requires_grad


def test_inference_is_recorded_at_the_first_call_with_every_output(recorder: Recorder) -> None:
    with torch.no_grad():
        found = GraphedModule(Named())(torch.ones(4, 3), scale=torch.ones(1))
    assert len(recorder.recorded[0](*recorder.inputs)) == 2
    assert not found["loss"].requires_grad


def test_the_forward_is_recorded_under_autocast_without_its_cache_and_the_rest_without(
    recorder: Recorder,
) -> None:
    seen: list[tuple[bool, bool, torch.dtype]] = []

    class Watching(Named):
        def forward(self, x, *, scale):
            seen.append(
                (
                    torch.is_autocast_enabled("cpu"),
                    torch.is_autocast_cache_enabled(),
                    self.layer(x).dtype,
                )
            )
            return super().forward(x, scale=scale)

    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        GraphedModule(Watching())(torch.ones(4, 3), scale=torch.ones(1))
    recorder.recorded[0](*recorder.inputs)  # outside of autocast
    assert set(seen) == {(True, False, torch.bfloat16)}


def test_nodes_of_gradients_are_renewed_although_a_recording_keeps_the_old_ones() -> None:
    def find_node(parameter: nn.Parameter) -> object:
        view = parameter.view_as(parameter)
        assert view.grad_fn is not None
        return view.grad_fn.next_functions[0][0]

    layer = nn.Linear(3, 2)
    layer.bias.requires_grad_(False)
    address, before, kept = (
        layer.weight.data_ptr(),
        layer.weight.detach().clone(),
        layer(torch.ones(4, 3)).sum(),
    )
    kept.backward(retain_graph=True)
    gradient, node = layer.weight.grad, find_node(layer.weight)
    with torch.inference_mode():
        renew_gradient_nodes(layer)
    assert find_node(layer.weight) is node
    renew_gradient_nodes(layer)
    assert find_node(layer.weight) is not node
    assert (layer.weight.data_ptr(), layer.weight.shape) == (address, (2, 3))
    assert torch.equal(layer.weight, before)
    assert layer.weight.grad is gradient
    layer.weight.grad = None
    layer(torch.ones(4, 3)).sum().backward()
    assert torch.equal(layer.weight.grad, gradient)


def test_the_error_that_came_first_is_told() -> None:
    first = ValueError("operation not permitted when stream is capturing")

    def record() -> None:
        try:
            raise first
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")

    with pytest.raises(RuntimeError) as raised:
        record()
    assert find_first(raised.value) is first


@pytest.mark.compile
def test_without_a_gpu_a_trial_is_unavailable() -> None:
    outcome, _ = run(custom("mlp", backend="graphed"))
    assert (outcome.status, outcome.message) == (
        "unavailable",
        "backend graphed needs device=cuda, this is cpu",
    )
