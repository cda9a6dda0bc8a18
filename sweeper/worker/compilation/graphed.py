"""`backend=graphed`: a module whose forward and backward pass are CUDA graphs, without any
compiler.

`torch.cuda.make_graphed_callables` records them, as people do by hand
(https://docs.pytorch.org/docs/stable/notes/cuda.html#partial-network-capture): the kernels stay
those of eager, and the host launches two graphs a step. Loss and optimizer stay outside.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .flat_module import FlatModule, Structure


class GraphedModule:
    """A module that is recorded at its first call, in training at the second one.

    The first training step runs eager and shows which outputs a loss uses. The others leave the
    graph without a gradient: a model of transformers with labels gives loss and logits, and the
    graph would add zeros to the gradient of the logits.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._used: set[int] | None = None  # outputs that got a gradient
        self._run: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._run is not None:
            return self._run(*args, **kwargs)
        if self._used is None and torch.is_grad_enabled():
            return self._watch_gradients(args, kwargs)
        flat = OutputsOf(self._module, args, kwargs, self._used)
        inputs = []
        for tensor in flat.inputs.tensors:
            # the graph's own, into which each call copies
            inputs.append(tensor.detach().clone().requires_grad_(tensor.requires_grad))
        graphed = record_graphs(flat, tuple(inputs))

        def run(*args: Any, **kwargs: Any) -> Any:
            given = iter(graphed(*Structure((args, kwargs)).tensors))
            outputs = []
            for index, recorded in enumerate(flat.output.tensors):
                # each replay writes to the memory of the others
                output = next(given) if flat.is_used(index) else recorded.detach()
                outputs.append(output)
            return flat.output.fill(outputs)

        self._run = run
        return run(*args, **kwargs)

    def _watch_gradients(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        output = Structure(self._module(*args, **kwargs))
        self._used = used = set[int]()
        # Gradients that come from outside of the module reach an alias alone.
        aliases = tuple(tensor.view_as(tensor) for tensor in output.tensors)
        for index, alias in enumerate(aliases):
            if alias.requires_grad:
                alias.register_hook(lambda _gradient, index=index: used.add(index))  # type: ignore[no-untyped-call]
        return output.fill(aliases)


class OutputsOf(FlatModule):
    """The module with tensors alone going in, and those outputs coming out that are `used` (None:
    all).

    The forward pass runs under the autocast that was on when this was made, without its cache,
    which would keep casts from outside of the recording. The backward pass is recorded without
    autocast, as eager's runs.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        used: set[int] | None,
    ) -> None:
        super().__init__(module, args, kwargs)
        self._used = used
        kind = next((tensor.device.type for tensor in self.inputs.tensors), "cuda")
        enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        self._autocast = functools.partial(
            torch.autocast, kind, dtype=dtype, enabled=enabled, cache_enabled=False
        )

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with self._autocast():
            outputs = super().forward(*tensors)
        return tuple(output for index, output in enumerate(outputs) if self.is_used(index))

    def is_used(self, index: int) -> bool:
        return self._used is None or index in self._used


def record_graphs(module: OutputsOf, inputs: tuple[torch.Tensor, ...]) -> Callable[..., Any]:
    """Record forward and, where there are gradients, backward. Raises what the first kernel that
    cannot be raises.
    """
    # one of eager's stream, which something kept alive, would spoil the recording
    renew_gradient_nodes(module)
    try:
        with torch.autocast("cuda", enabled=False):
            # A parameter that nothing uses has no gradient, as in eager.
            graphed = torch.cuda.make_graphed_callables(module, inputs, allow_unused_input=True)
    except RuntimeError as error:  # leaving a recording that failed raises as well, and says less
        raise find_first(error) from None
    renew_gradient_nodes(module)
    return graphed


def renew_gradient_nodes(module: torch.nn.Module) -> None:
    """Have autograd make the node anew that stores a parameter's gradient; data and addresses stay.

    A node works on the stream on which it was made, and lives as long as anything that was computed
    from its parameter. The outputs of a recording stay, so all later backward passes, eager's too,
    would wait for a stream of the recording and back, once for each parameter. Data of another type
    make torch drop the node (`VariableHooks::set_data`).
    """
    for parameter in module.parameters():
        if parameter.requires_grad and torch.is_grad_enabled():
            data = parameter.data
            other = torch.float32 if data.dtype == torch.float64 else torch.float64
            parameter.data = torch.empty(0, dtype=other, device=data.device)
            parameter.data = data


def find_first(error: BaseException) -> BaseException:
    """The error during whose handling the others were raised."""
    while error.__context__ is not None:
        error = error.__context__
    return error
