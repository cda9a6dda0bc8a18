"""The states in which the check runs a step."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.compile


def test_state_is_restored_in_place() -> None:
    import torch

    from sweeper.worker.accuracy.states import MOVED, States

    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    places = [parameter.data_ptr() for parameter in module.parameters()]
    optimizer = torch.optim.Adam(module.parameters())
    states = States(module, 1)
    states.move(1.0)
    states.restore([optimizer, None], 1, MOVED)
    assert not torch.equal(module[0].bias, before["0.bias"])
    module(torch.randn(4, 2)).sum().backward()
    optimizer.step()
    states.restore([optimizer, None], 1)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert [parameter.data_ptr() for parameter in module.parameters()] == places
    assert all(not value.any() for state in optimizer.state.values() for value in state.values())


def test_no_branch_is_dead_in_the_second_state() -> None:
    import torch

    from sweeper.worker.accuracy.states import MOVED, States

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(1000)
            self.scale = torch.nn.Parameter(torch.full((1000,), 1e-5))
            self.skip_gain = torch.nn.Parameter(torch.zeros(()))
            self.position = torch.nn.Parameter(torch.zeros(1, 50, 20))
            self.layer = torch.nn.Linear(100, 100)
            self.tied = self.layer.weight
            self.register_buffer("table", torch.zeros(10))
            torch.nn.init.zeros_(self.norm.weight)

    torch.manual_seed(0)
    module = Model()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    states = States(module, 1)
    assert states.is_dead
    states.move(1.0)
    states.restore([], 1, MOVED)
    for factors in (module.norm.weight, module.scale):
        assert factors.mean().item() == pytest.approx(1.0, abs=0.02)
        assert factors.std().item() == pytest.approx(0.1, rel=0.1)
    assert 0.5 < module.skip_gain.item() < 1.5
    assert module.position.std().item() == pytest.approx(0.02, rel=0.1)
    assert (module.layer.bias - before["layer.bias"]).std().item() == pytest.approx(0.02, rel=0.3)
    assert torch.equal(module.layer.weight, before["layer.weight"])
    assert module.tied is module.layer.weight
    assert torch.equal(module.table, before["table"])
    assert not torch.equal(module.norm.running_mean, before["norm.running_mean"])
    assert (module.norm.running_var > 0).all()
    first = module.scale.clone()
    states.move(0.5)
    states.restore([], 1, MOVED)
    assert module.scale.mean().item() == pytest.approx(0.5, abs=0.02)
    states.move(1.0)
    states.restore([], 1, MOVED)
    assert torch.equal(module.scale, first), "the same each time"


def test_model_of_random_weights_without_small_constants_has_no_dead_branch() -> None:
    import torch

    from sweeper.worker.accuracy.states import States

    assert not States(torch.nn.Linear(4, 4), 1).is_dead
    assert States(torch.nn.BatchNorm1d(4), 1).is_dead, "biases of zero"


def test_reference_in_place_leaves_everything_where_it_was() -> None:
    """Addresses stay, gradients come back, hooks see the numbers of the reference."""
    import torch

    from sweeper.worker.measurement.capture import cast_in_place

    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    tensors = [*module.parameters(), *module.buffers()]
    module(torch.randn(4, 2)).sum().backward()
    before = [(tensor.data_ptr(), tensor.clone(), tensor.grad) for tensor in tensors]
    seen = []
    module[0].weight.register_hook(lambda gradient: seen.append(gradient.dtype))
    with cast_in_place(module, torch.float64):
        assert module[0].weight.grad is None
        module(torch.randn(4, 2, dtype=torch.float64)).sum().backward()
    assert seen == [torch.float64]
    for tensor, (place, value, gradient) in zip(tensors, before, strict=True):
        assert tensor.data_ptr() == place
        assert torch.equal(tensor, value)
        assert tensor.grad is gradient


def test_only_what_moves_is_copied_to_the_device_again(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from sweeper.worker.accuracy.states import States

    module = torch.nn.Linear(3, 2)
    states = States(module, seed=0)
    states.place(torch.device("meta"))
    copied, to = [], torch.Tensor.to

    def note(tensor: torch.Tensor, *arguments: object) -> torch.Tensor:
        if torch.device("meta") in arguments:
            copied.append(tensor.shape)
        return to(tensor, *arguments)

    monkeypatch.setattr(torch.Tensor, "to", note)
    states.move(1.0)
    assert copied == [module.bias.shape], "the weight stays where it was"


@pytest.mark.parametrize(("number", "is_state"), [(4, True), (8, False)])
def test_objects_that_know_each_other_are_looked_at_once_or_are_no_state(
    number: int, is_state: bool
) -> None:
    """As Lightning's trainer, its loops and its callbacks: by paths there are more than 10,000."""
    import torch

    from sweeper.worker.measurement.attributes import Attributes

    class Part:
        pass

    parts = [Part() for _ in range(number)]
    for one in parts:
        one.others, one.seen, one.sine = list(parts), torch.zeros(2), torch.sin  # type: ignore[attr-defined]
    module = torch.nn.Linear(2, 2)
    module.trainer = parts[0]
    attributes = Attributes(module)
    assert any(attributes.name_tensors()) is is_state
    parts[-1].count = 1  # type: ignore[attr-defined]
    attributes.restore()
    assert hasattr(parts[-1], "count") is not is_state
