"""The graphs of a compiled step, captured once: each can be swapped for a mutant, and run in fp64.

A backend made of AOTAutograd captures forward, backward and optimizer graphs with Inductor's
decompositions, so that masks, epsilons, softmaxes and updates of buffers are nodes of their own.
What it hands to torch delegates to the graph that is current, so planting a fault compiles nothing.
`inductor_backend` plants in the graphs that reach Inductor.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch._dynamo import register_backend
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.decomposition import select_decomp_table

AOT, INDUCTOR = "mutants_aot", "mutants_inductor"  # names of the backends
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
SOFTMAXES = (torch.ops.aten._softmax.default, torch.ops.aten._log_softmax.default)
Plant = Callable[[torch.fx.Graph], None]


@dataclass
class Captured:
    """A graph of the step; `plant` puts a mutant in its place, and `exactly` runs what is there in
    fp64.
    """

    name: str  # e.g. "backward 0"
    graph: torch.fx.GraphModule
    mutated_inputs: tuple[int, ...] = ()  # placeholders whose new values are the first outputs
    num_results: int | None = None  # outputs that are not saved for the backward graph; None: all
    run: Callable[..., Any] = field(init=False)
    exactly: bool = field(init=False, default=False)
    _exact: torch.fx.GraphModule | None = field(init=False, default=None)
    _unmutated_exact: torch.fx.GraphModule | None = field(init=False, default=None)
    _current: torch.fx.GraphModule = field(init=False)

    def __post_init__(self) -> None:
        self._current = self.graph
        self.run = self.graph

    @property
    def has_fixed_shapes(self) -> bool:
        """Whether no size is a symbol; faults are planted in such graphs alone."""
        return all(
            isinstance(node.meta.get("val"), torch.Tensor)
            for node in placeholders_of(self.graph.graph)
        )

    @property
    def is_backward(self) -> bool:
        return self.name.startswith("backward")

    def __call__(self, *inputs: Any) -> Any:
        return self._run_exactly(inputs) if self.exactly else self.run(*inputs)

    def plant(self, plant: Plant) -> None:
        """Run a mutant from now on."""
        self._current = mutate(self.graph, plant)
        self._unmutated_exact, self._exact = self._unmutated_exact or self._exact, None
        self.run = self._current

    def uproot(self) -> None:
        """Run the graph as it was captured."""
        self.run = self._current = self.graph
        self._exact = self._unmutated_exact

    def _run_exactly(self, inputs: Sequence[Any]) -> list[Any]:
        """Results leave in the formats that they have in the step; what is saved for backward stays
        in fp64.
        """
        self._exact = self._exact or make_exact(self._current)
        doubles = [_to_double(value) for value in inputs]
        outputs = self._exact(*doubles)
        for index in self._copied_inputs():
            inputs[index].copy_(doubles[index])
        formats = [_dtype(node) for node in output_of(self.graph.graph).args[0]]
        results = len(outputs) if self.num_results is None else self.num_results
        return [
            output.to(dtype)
            if index < results and isinstance(output, torch.Tensor) and dtype
            else output
            for index, (output, dtype) in enumerate(zip(outputs, formats, strict=True))
        ]

    def _copied_inputs(self) -> list[int]:
        """Placeholders that the graph itself copies into."""
        copies = self._current.graph.find_nodes(
            op="call_function", target=torch.ops.aten.copy_.default
        )
        targets = {node.args[0] for node in copies}
        return [
            index
            for index, node in enumerate(placeholders_of(self._current.graph))
            if node in targets
        ]


def mutate(graph: torch.fx.GraphModule, plant: Plant) -> torch.fx.GraphModule:
    """A copy of the graph with a fault planted in it."""
    copied = copy.deepcopy(graph.graph)
    plant(copied)
    copied.lint()
    return torch.fx.GraphModule(graph, copied)


def make_exact(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A copy of the graph that computes in fp64, given fp64: whatever it casts to a float format,
    it casts to that.
    """

    def lengthen(value: Any) -> Any:
        return torch.float64 if isinstance(value, torch.dtype) and value in FLOATS else value

    copied = copy.deepcopy(graph.graph)
    for node in copied.nodes:
        node.args = torch.fx.node.map_aggregate(node.args, lengthen)
        node.kwargs = torch.fx.node.map_aggregate(node.kwargs, lengthen)
        if node.target in SOFTMAXES:
            node.args = (*node.args[:2], False)  # half_to_float
    exact = torch.fx.GraphModule(graph, copied)
    for node in copied.find_nodes(op="get_attr"):
        if isinstance(constant := getattr(graph, node.target, None), torch.Tensor):
            setattr(exact, node.target, _to_double(constant.detach()))
    return exact


def _to_double(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.dtype in FLOATS else value


def output_of(graph: torch.fx.Graph) -> torch.fx.Node:
    return next(iter(graph.find_nodes(op="output")))


def placeholders_of(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    return list(graph.find_nodes(op="placeholder"))


def _dtype(node: Any) -> torch.dtype | None:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return value.dtype if isinstance(value, torch.Tensor) else None


class Capture:
    """The graphs that the backends of this module have captured since the last `clear`, in the
    order of compiling.
    """

    def __init__(self) -> None:
        self.graphs: list[Captured] = []
        # by the index of the graph, for those that Inductor is still to compile
        self.plants: dict[int, Plant] = {}

    def clear(self) -> None:
        self.graphs.clear()
        self.plants.clear()

    def take(self, graph: torch.fx.GraphModule, kind: str) -> Captured:
        """Capture a graph while AOTAutograd compiles it."""
        context = TracingContext.try_get()
        metadata = context.fw_metadata if context and kind != "backward" else None
        mutated = tuple(metadata.mutated_inp_runtime_indices) if metadata else ()
        results = metadata.num_forward if metadata and kind == "forward" else None
        captured = Captured(f"{kind} {len(self.graphs)}", graph, mutated, results)
        self.graphs.append(captured)
        return captured

    @contextmanager
    def exactly(self) -> Iterator[None]:
        """Run every graph in fp64 in here."""
        for captured in self.graphs:
            captured.exactly = True
        try:
            yield
        finally:
            for captured in self.graphs:
                captured.exactly = False


CAPTURE = Capture()


def _delegate(kind: str) -> Callable[..., Any]:
    def compile_graph(graph: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Any:
        return make_boxed_func(CAPTURE.take(graph, kind))

    return compile_graph


@register_backend(name=AOT)
def aot_backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """AOTAutograd alone: the captured graphs run as they are, in eager kernels."""
    compiler = aot_autograd(
        fw_compiler=_delegate("forward"),
        bw_compiler=_delegate("backward"),
        inference_compiler=_delegate("whole"),
        decompositions=select_decomp_table(),
        keep_inference_input_mutations=False,
    )
    return compiler(graph, inputs)


@register_backend(name=INDUCTOR)
def inductor_backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """Inductor, with the fault of `CAPTURE.plants` planted in a graph before Inductor compiles
    it.
    """
    return compile_fx(graph, list(inputs), inner_compile=_compile_inner)


def _compile_inner(graph: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
    kind = (
        "backward"
        if options.get("is_backward")
        else "whole"
        if options.get("is_inference")
        else "forward"
    )
    index = len(CAPTURE.graphs)
    if index in CAPTURE.plants:
        graph = mutate(graph, CAPTURE.plants[index])
    captured = CAPTURE.take(copy.deepcopy(graph), kind)  # before Inductor's passes change it
    compiled = compile_fx_inner(graph, inputs, **options)
    if not hasattr(compiled, "current_callable"):  # a graph without operations, which runs as it is
        return make_boxed_func(captured)
    run = compiled.current_callable
    compiled.current_callable = lambda values: (
        captured(*values) if captured.exactly else run(values)
    )
    return compiled
