"""Backends of torch.compile that misbehave in one way each; importing this module registers
them.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch._dynamo.backends.registry import register_backend
from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func


def _with(run_graph):
    """A backend that differentiates as aot_eager does and runs each graph, forward and backward, by
    `run_graph`.
    """

    def compiler(graph, _inputs):
        return make_boxed_func(lambda *arguments: run_graph(graph, arguments))

    return lambda graph, inputs: aot_module_simplified(
        graph, inputs, fw_compiler=compiler, bw_compiler=compiler
    )


def _floats(results, change):
    """`change` made to every floating-point tensor of a graph's results."""
    return [
        change(item) if isinstance(item, torch.Tensor) and item.is_floating_point() else item
        for item in results
    ]


@register_backend
def gives_graph_back(graph, _inputs):
    return graph.forward


@register_backend
def gives_closure_over_graph(graph, _inputs):
    return lambda *arguments: graph.forward(*arguments)


@register_backend
def adds_to_graph(graph, _inputs):
    return lambda *arguments: [output + 0.5 for output in graph.forward(*arguments)]


@register_backend
def gives_interpreter_of_graph(graph, _inputs):
    return lambda *arguments: torch.fx.Interpreter(graph).run(*arguments)


@register_backend
def compiles_every_second_graph(graph, inputs):
    turns.append(graph)
    return (
        graph.forward
        if len(turns) % 2
        else _with(lambda graph, arguments: graph(*arguments))(graph, inputs)
    )


turns = []


@register_backend
def nothing_but_zeros(graph, inputs):
    return _with(lambda graph, arguments: _floats(graph(*arguments), lambda item: item * 0.0))(
        graph, inputs
    )


@register_backend
def slightly_off(graph, inputs):
    return _with(lambda graph, arguments: _floats(graph(*arguments), lambda item: item * 1.01))(
        graph, inputs
    )


@register_backend
def wrong_while_a_file_exists(graph, inputs):
    """One program, whose results are off while a file with the name `wrong` is in the current
    folder.
    """
    factor = 1.5 if Path("wrong").exists() else 1.0
    return _with(lambda graph, arguments: _floats(graph(*arguments), lambda item: item * factor))(
        graph, inputs
    )


@register_backend
def nan_when_compiled(graph, inputs):
    return _with(
        lambda graph, arguments: _floats(graph(*arguments), lambda item: item * float("nan"))
    )(graph, inputs)


@register_backend
def remembers(graph, inputs):
    """After six calls a graph gives its last results again and does no work."""
    last = {}

    def run(graph, arguments):
        calls, results = last.get(id(graph), (0, None))
        if calls < 6:
            results = graph(*arguments)
        last[id(graph)] = calls + 1, results
        return list(results)

    return _with(run)(graph, inputs)


@register_backend
def switches_tf32_on(graph, inputs):
    torch.backends.cuda.matmul.allow_tf32 = True
    return _with(lambda graph, arguments: graph(*arguments))(graph, inputs)


@register_backend
def runs_out_of_memory(graph, inputs):
    def run(_graph, _arguments):
        raise torch.OutOfMemoryError("out of memory, says the backend")

    return _with(run)(graph, inputs)


@register_backend
def hangs_in_compile(graph, _inputs):
    time.sleep(3600)
    return graph.forward


def _in_a_later_step(most_calls, what_happens):
    """Computes at first, as asked; `what_happens` instead once a process has called its graphs so
    often.
    """
    calls = []

    def run(graph, arguments):
        calls.append(1)
        if len(calls) > most_calls:
            what_happens()
        return graph(*arguments)

    return _with(run)


@register_backend
def hangs_in_a_step(graph, inputs):
    # the first steps are at most fifteen, each with a forward and a backward
    return _in_a_later_step(60, lambda: time.sleep(3600))(graph, inputs)


@register_backend
def raises_in_a_step(graph, inputs):
    def fails():
        raise RuntimeError("a kernel fails, says the backend")

    # in training: at most 32 calls in the first steps and the check, at least 54 in all
    return _in_a_later_step(40, fails)(graph, inputs)
