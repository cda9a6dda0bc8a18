"""Classes of faults: where in a captured graph one can be planted, and how.

`sites(captured)` gives every place; `plant(graph, site)` changes a copy of the graph there. Nodes
are named by their position in the graph, which every copy has in common.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch._guards import detect_fake_mode

import mutation.bfloat16_sums  # noqa: F401  # registers its operators
from mutation.graphs import Captured, output_of, placeholders_of

aten, prims = torch.ops.aten, torch.ops.prims
Node = torch.fx.Node
EPSILON_FACTOR = 1e3
# constants that are added, or multiplied, and count as an epsilon
MAX_EPSILON, MAX_FACTOR = 2e-3, 1e-6
BETAS = (0.8, 1.0)  # what Adam takes powers of
MOVES = {  # operators that move values and compute nothing
    "alias", "clone", "detach", "view", "_unsafe_view", "reshape", "expand", "_to_copy",
    "convert_element_type", "copy",
    "permute", "squeeze", "unsqueeze", "slice", "select", "lift_fresh_copy", "full_like",
}  # fmt: skip
UPDATES = ("add", "sub", "mul", "lerp", "addcmul", "addcdiv", "fma")
OFF_BY_ONE = {aten.le: aten.lt, aten.lt: aten.le, aten.ge: aten.gt, aten.gt: aten.ge}


@dataclass(frozen=True)
class Site:
    """A place in a graph: a node by its position, which of its arguments or outputs, and the
    position of another.
    """

    node: int
    detail: int = 0
    other: int = 0


@dataclass(frozen=True)
class Fault:
    """A class of faults."""

    sites: Callable[[Captured], Iterator[Site]]
    plant: Callable[[torch.fx.Graph, Site], None]


def value(node: Any) -> torch.Tensor | None:
    """What a node gives, as a fake tensor; None for everything else."""
    found = node.meta.get("val") if isinstance(node, Node) else None
    return found if isinstance(found, torch.Tensor) else None


def _like(node: Any, other: Any) -> bool:
    """Whether both are tensors of the same shape and number format."""
    a, b = value(node), value(other)
    return a is not None and b is not None and a.shape == b.shape and a.dtype == b.dtype


def _is_float(node: Any) -> bool:
    found = value(node)
    return found is not None and found.is_floating_point()


def _size(node: Any) -> int:
    found = value(node)
    return 0 if found is None else found.numel()


def _packet(node: Node) -> Any:
    return getattr(node.target, "overloadpacket", None)


def _operator(node: Node) -> str:
    """The name of the operator without its overload; empty for anything else."""
    packet = _packet(node) if node.op == "call_function" else None
    return "" if packet is None else str(packet.__name__)


def _enumerate(captured: Captured) -> Iterator[tuple[int, Node, str]]:
    for index, node in enumerate(captured.graph.graph.nodes):
        if operator := _operator(node):
            yield index, node, operator


def _at(graph: torch.fx.Graph, site: Site) -> Node:
    return list(graph.nodes)[site.node]


def _insert(graph: torch.fx.Graph, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
    """Add a node with the fake tensor that it gives, which Inductor reads."""
    node = graph.call_function(target, args, kwargs)
    fake_args, fake_kwargs = torch.fx.node.map_arg((args, kwargs), lambda item: item.meta["val"])
    mode = detect_fake_mode(list(fake_args))
    assert mode is not None
    with mode:
        node.meta["val"] = target(*fake_args, **fake_kwargs)
    return node


def _replace(graph: torch.fx.Graph, node: Node, make: Callable[[], Node]) -> None:
    """Have all users of `node` read what `make` adds after it."""
    users = list(node.users)
    with graph.inserting_before(node.next):
        new = make()
    for user in users:
        user.replace_input_with(node, new)


# op dropped


def _droppable(captured: Captured) -> Iterator[Site]:
    for index, node, operator in _enumerate(captured):
        if (
            operator in (*MOVES, "where", "index_put", "scatter")
            or not node.args
            or not _like(node, node.args[0])
        ):
            continue
        others = [item for item in node.all_input_nodes if item is not node.args[0]]
        if _is_float(node) and all(_size(item) < _size(node) for item in others):
            yield Site(index)


def _drop(graph: torch.fx.Graph, site: Site) -> None:
    node = _at(graph, site)
    node.replace_all_uses_with(node.args[0])
    graph.erase_node(node)


# operands swapped


def _swappable(captured: Captured) -> Iterator[Site]:
    for index, node, operator in _enumerate(captured):
        args, pair = node.args, node.args[:2]
        nodes = (
            all(isinstance(item, Node) for item in pair)
            and len(pair) == 2
            and pair[0] is not pair[1]
        )
        square = operator in ("mm", "bmm") and _like(node, args[0]) and _like(node, args[1])
        chosen = operator == "where" and len(args) == 3 and args[1] is not args[2]
        if (
            (operator in ("sub", "div", "pow") and nodes)
            or (operator == "sub" and isinstance(args[1], float | int) and _is_float(args[0]))
            or (square and nodes)
            or (chosen and _is_float(args[1]) and _is_float(args[2]))
            or (
                operator == "cat"
                and len(args[0]) > 1
                and _like(*args[0][:2])
                and args[0][0] is not args[0][1]
            )
        ):
            yield Site(index)


def _swap(graph: torch.fx.Graph, site: Site) -> None:
    node = _at(graph, site)
    args = list(node.args)
    if _operator(node) == "cat":
        first, second, *rest = args[0]
        node.args = ([second, first, *rest], *args[1:])
    elif _operator(node) == "where":
        node.args = (args[0], args[2], args[1])
    elif isinstance(args[1], Node):
        node.args = (args[1], args[0], *args[2:])
    else:
        _replace(graph, node, lambda: _insert(graph, aten.neg.default, node))


# one gradient negated, doubled, times 1.1


def _gradients(captured: Captured) -> Iterator[Site]:
    if captured.is_backward:
        last = len(captured.graph.graph.nodes) - 1
        outputs = output_of(captured.graph.graph).args[0]
        yield from (Site(last, index) for index, item in enumerate(outputs) if _is_float(item))


def _scale_gradient(graph: torch.fx.Graph, site: Site, factor: float) -> None:
    output = _at(graph, site)
    gradients = list(output.args[0])
    with graph.inserting_before(output):
        gradients[site.detail] = _insert(graph, aten.mul.Tensor, gradients[site.detail], factor)
    output.args = (tuple(gradients),)


# copy into a buffer skipped


def _buffer_copies(captured: Captured) -> Iterator[Site]:
    graph = captured.graph.graph
    last, outputs, placeholders = (
        len(graph.nodes) - 1,
        output_of(graph).args[0],
        placeholders_of(graph),
    )
    for index, mutated in enumerate(captured.mutated_inputs):
        if _like(outputs[index], placeholders[mutated]):
            yield Site(last, index, mutated)
    for index, node, operator in _enumerate(captured):
        if operator == "copy_" and node.args[0] in placeholders:
            yield Site(index)


def _skip_copy(graph: torch.fx.Graph, site: Site) -> None:
    node = _at(graph, site)
    if node.op != "output":
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
        return
    outputs = list(node.args[0])
    old = placeholders_of(graph)[site.other]
    with graph.inserting_before(node):
        outputs[site.detail] = _insert(graph, aten.clone.default, old)
    node.args = (tuple(outputs),)


# stale read


def _stale_reads(captured: Captured) -> Iterator[Site]:
    """One of several users of an update reads what was updated."""
    for index, node, operator in _enumerate(captured):
        if (
            operator in UPDATES
            and _is_float(node)
            and _like(node, node.args[0])
            and len(node.users) > 1
        ):
            places = {
                item: place
                for place, item in enumerate(captured.graph.graph.nodes)
                if item in node.users
            }
            yield from (
                Site(index, other=place) for item, place in places.items() if item.op != "output"
            )


def _read_stale(graph: torch.fx.Graph, site: Site) -> None:
    node = _at(graph, site)
    list(graph.nodes)[site.other].replace_input_with(node, node.args[0])


# accumulation in bfloat16


def _sums(captured: Captured) -> Iterator[Site]:
    names = ("mm", "addmm", "bmm", "baddbmm", "sum", "mean", "var_mean")
    for index, node, operator in _enumerate(captured):
        tensor = value(node) if operator != "var_mean" else value(node.args[0])
        if operator in names and tensor is not None and tensor.is_floating_point():
            yield Site(index)


def _accumulate_in_bfloat16(graph: torch.fx.Graph, site: Site) -> None:
    node = _at(graph, site)
    operator, args = _operator(node), node.args
    if operator in ("sum", "mean"):
        _replace(
            graph, node, lambda: _sum(graph, node, args[0], *_dims(node), mean=operator == "mean")
        )
    elif operator == "var_mean":
        _accumulate_variance(graph, node)
    else:
        _replace(graph, node, lambda: _matmul(graph, *args))


def _dims(node: Node) -> tuple[list[int], bool]:
    dims = node.args[1] if len(node.args) > 1 and node.args[1] is not None else []
    keepdim = node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)
    return list(dims), bool(keepdim)


def _sum(
    graph: torch.fx.Graph, like: Node, x: Node, dims: list[int], keepdim: bool, mean: bool = False
) -> Node:
    total = _insert(graph, torch.ops.mutants.sum.default, x, dims, keepdim)
    if mean:
        count = _size(x) // max(_size(total), 1)
        total = _insert(graph, aten.mul.Tensor, total, 1.0 / count)
    return _cast(graph, total, like)


def _cast(graph: torch.fx.Graph, node: Node, like: Node) -> Node:
    dtype = like.meta["val"].dtype
    return (
        node
        if node.meta["val"].dtype == dtype
        else _insert(graph, prims.convert_element_type.default, node, dtype)
    )


def _matmul(graph: torch.fx.Graph, *args: Node) -> Node:
    *bias, a, b = args[:3] if len(args) > 2 else args
    flat = a.meta["val"].dim() == 2
    pair = [_insert(graph, aten.unsqueeze.default, item, 0) for item in (a, b)] if flat else [a, b]
    product = _insert(graph, torch.ops.mutants.bmm.default, *pair)
    product = _insert(graph, aten.squeeze.dim, product, 0) if flat else product
    return _insert(graph, aten.add.Tensor, product, bias[0]) if bias else product


def _accumulate_variance(graph: torch.fx.Graph, node: Node) -> None:
    """`var_mean.correction(x, dims, correction=, keepdim=)`, of which the users take one part
    each.
    """
    x, dims, keepdim = node.args[0], list(node.args[1]), bool(node.kwargs.get("keepdim", False))
    correction = node.kwargs.get("correction", 1)
    with graph.inserting_before(node):
        mean = _insert(graph, torch.ops.mutants.sum.default, x, dims, True)
        count = _size(x) // _size(mean)
        mean = _insert(graph, aten.mul.Tensor, mean, 1.0 / count)
        centred = _insert(graph, aten.sub.Tensor, x, mean)
        squares = _insert(graph, aten.mul.Tensor, centred, centred)
        variance = _insert(graph, torch.ops.mutants.sum.default, squares, dims, keepdim)
        variance = _insert(
            graph,
            aten.mul.Tensor,
            variance,
            1.0 / (count - (1 if correction is None else correction)),
        )
        parts = (variance, mean if keepdim else _insert(graph, aten.squeeze.dims, mean, dims))
    for user in list(node.users):
        user.replace_all_uses_with(parts[user.args[1]])
        graph.erase_node(user)
    graph.erase_node(node)


# wrong epsilon


def _epsilons(captured: Captured) -> Iterator[Site]:
    limits = {"add": MAX_EPSILON, "clamp_min": MAX_EPSILON, "mul": MAX_FACTOR}
    for index, node, operator in _enumerate(captured):
        constant = node.args[1] if operator in limits and len(node.args) > 1 else None
        if isinstance(constant, float) and 0 < constant <= limits[operator]:
            yield Site(index, 1)
        if operator in ("native_layer_norm", "native_group_norm") and isinstance(
            node.args[-1], float
        ):
            yield Site(index, len(node.args) - 1)


def _enlarge_epsilon(graph: torch.fx.Graph, site: Site) -> None:
    node = _at(graph, site)
    node.update_arg(site.detail, node.args[site.detail] * EPSILON_FACTOR)


# no bias correction


ALL_POWERS = 1


def _bias_corrections(captured: Captured) -> Iterator[Site]:
    """One parameter's powers of a beta; and all of them."""
    seen = set()
    for index, node, _ in _enumerate(captured):
        if node.target is aten.pow.Scalar and BETAS[0] < node.args[0] < BETAS[1]:
            yield Site(index)
            if node.args[0] not in seen:
                seen.add(node.args[0])
                yield Site(index, ALL_POWERS)


def _forget_bias_correction(graph: torch.fx.Graph, site: Site) -> None:
    node = _at(graph, site)
    powers = (
        graph.find_nodes(op="call_function", target=aten.pow.Scalar)
        if site.detail == ALL_POWERS
        else [node]
    )
    for power in [item for item in powers if item.args[0] == node.args[0]]:
        _replace(graph, power, partial(_insert, graph, aten.mul.Tensor, power, 0.0))


# mask off by one


def _masks(captured: Captured) -> Iterator[Site]:
    for index, node, operator in _enumerate(captured):
        compared = (
            _packet(node) in OFF_BY_ONE
            and value(node.args[0]) is not None
            and not _is_float(node.args[0])
        )
        counted = operator in ("iota", "arange") and _size(node) > 1
        chosen = operator == "where" and value(node.args[0]) is not None and _size(node.args[0]) > 1
        if compared or counted or (chosen and node.args[0].meta["val"].shape[-1] > 1):
            yield Site(index)


def _move_mask(graph: torch.fx.Graph, site: Site) -> None:
    node = _at(graph, site)
    if (packet := _packet(node)) in OFF_BY_ONE:
        node.target = getattr(OFF_BY_ONE[packet], node.target._overloadname)
    elif _operator(node) == "where":
        with graph.inserting_before(node):
            node.update_arg(0, _roll(graph, node.args[0]))
    else:
        _replace(graph, node, lambda: _roll(graph, node))


def _roll(graph: torch.fx.Graph, node: Node) -> Node:
    """By one along the last dimension."""
    last = node.meta["val"].dim() - 1
    length = node.meta["val"].shape[-1]
    parts = [
        _insert(graph, aten.slice.Tensor, node, last, length - 1, sys.maxsize),
        _insert(graph, aten.slice.Tensor, node, last, 0, length - 1),
    ]
    return _insert(graph, aten.cat.default, parts, last)


# one branch lost


def _branches(captured: Captured) -> Iterator[Site]:
    for index, node, operator in _enumerate(captured):
        pair = node.args[:2]
        if (
            operator == "add"
            and _is_float(node)
            and _size(node) > 1
            and all(_like(node, item) for item in pair)
        ):
            yield from (Site(index, detail) for detail in range(2))


def _lose_branch(graph: torch.fx.Graph, site: Site) -> None:
    node = _at(graph, site)
    with graph.inserting_before(node):
        zeros = _insert(graph, aten.mul.Tensor, node.args[site.detail], 0.0)
    node.update_arg(site.detail, zeros)


# outputs exchanged, in another format, off by one


def _results(captured: Captured) -> Iterator[tuple[int, Node]]:
    """What the module gives, by the place among the outputs of a forward graph."""
    if captured.is_backward:
        return
    outputs = output_of(captured.graph.graph).args[0][: captured.num_results]
    for place, item in enumerate(outputs):
        if place >= len(captured.mutated_inputs) and value(item) is not None:
            yield place, item


def _exchangeable(captured: Captured) -> Iterator[Site]:
    last, results = len(captured.graph.graph.nodes) - 1, list(_results(captured))
    for (place, item), (other_place, other) in combinations(results, 2):
        if item is not other and _like(item, other):
            yield Site(last, place, other_place)


def _exchange(graph: torch.fx.Graph, site: Site) -> None:
    output = _at(graph, site)
    results = list(output.args[0])
    results[site.detail], results[site.other] = results[site.other], results[site.detail]
    output.args = (tuple(results),)


def _change_result(graph: torch.fx.Graph, site: Site, change: Callable[..., Any]) -> None:
    output = _at(graph, site)
    results = list(output.args[0])
    with graph.inserting_before(output):
        results[site.detail] = change(graph, results[site.detail])
    output.args = (tuple(results),)


def _is_counted(item: Node) -> bool:
    return not _is_float(item) and item.meta["val"].dtype != torch.bool


def _find_results(captured: Captured, fits: Callable[[Node], bool]) -> Iterator[Site]:
    last = len(captured.graph.graph.nodes) - 1
    yield from (Site(last, place) for place, item in _results(captured) if fits(item))


def _change_format(graph: torch.fx.Graph, node: Node) -> Node:
    dtype = torch.float16 if _is_float(node) else torch.int32
    return _insert(graph, prims.convert_element_type.default, node, dtype)


def _has_other_format(item: Node) -> bool:
    # the mean, which is the loss, has no gradient in another format
    return item.meta["val"].dim() > 0


def _add_one(graph: torch.fx.Graph, node: Node) -> Node:
    return _insert(graph, aten.add.Tensor, node, 1)


FORMAT = "output in another format"  # of which a run in fp64 shows nothing
FAULTS: Mapping[str, Fault] = {
    "op dropped": Fault(_droppable, _drop),
    "operands swapped": Fault(_swappable, _swap),
    "gradient negated": Fault(_gradients, partial(_scale_gradient, factor=-1.0)),
    "gradient times 2": Fault(_gradients, partial(_scale_gradient, factor=2.0)),
    "gradient times 1.1": Fault(_gradients, partial(_scale_gradient, factor=1.1)),
    "buffer copy skipped": Fault(_buffer_copies, _skip_copy),
    "stale read": Fault(_stale_reads, _read_stale),
    "bfloat16 accumulation": Fault(_sums, _accumulate_in_bfloat16),
    "wrong epsilon": Fault(_epsilons, _enlarge_epsilon),
    "no bias correction": Fault(_bias_corrections, _forget_bias_correction),
    "mask off by one": Fault(_masks, _move_mask),
    "branch lost": Fault(_branches, _lose_branch),
    "outputs exchanged": Fault(_exchangeable, _exchange),
    FORMAT: Fault(
        partial(_find_results, fits=_has_other_format),
        partial(_change_result, change=_change_format),
    ),
    "whole number off by one": Fault(
        partial(_find_results, fits=_is_counted), partial(_change_result, change=_add_one)
    ),
}
