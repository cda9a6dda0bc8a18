"""What is read from generated code, on short code as Inductor writes it for both kinds of
device.
"""

from __future__ import annotations

import pytest

from sweeper.worker.inspection.kernels import Kernel, count_scheduled, find_kernels, find_operations
from sweeper.worker.inspection.torch_trace import Part

GRAPH = """
class GraphModule(torch.nn.Module):
    def forward(self, primals_1: "f32[4]", primals_2: "f32[4]"):
         # File: /a/model.py:7 in forward, code: return (x + y).relu()
        add: "f32[4][1]cpu" = torch.ops.aten.add.Tensor(primals_1, primals_2)
        relu: "f32[4]" = torch.ops.aten.relu.default(add);  add = None
        add_1 = torch.ops.aten.add.Tensor(relu, 1)
        getitem: "f32[4]" = relu[0]
        return (add_1,)
"""
CPU = """
cpp_fused_add_relu_0 = async_compile.cpp_pybinding(['const float*'], r'''
    // [Provenance debug handles] not_a_launch
''')
def call(args):
    # [Provenance debug handles] cpp_fused_add_relu_0:1
    cpp_fused_add_relu_0(primals_1, buf0)
    # Topologically Sorted Source Nodes: [linear], Original ATen: [aten.addmm]
    # [Provenance debug handles] extern_kernels.mm:2
    extern_kernels.mm(buf0, primals_2, out=buf1)
    # [Provenance debug handles] cpp_fused_add_relu_0:3
    cpp_fused_add_relu_0(buf1, buf2)
"""
GPU = CPU.replace("cpp_pybinding(['const float*'], r'''", "triton('triton_', '''").replace(
    "cpp_", "triton_poi_"
)
NODES = {":1": ["add", "relu", "primals_1"], ":3": ["add_1", "relu"]}


@pytest.mark.parametrize(
    ("code", "prefix"), [(CPU, "cpp"), (GPU, "triton_poi")], ids=["C++", "Triton"]
)
def test_kernels_say_what_they_fuse_and_where_it_comes_from(code: str, prefix: str) -> None:
    name = f"{prefix}_fused_add_relu"
    stack = (
        '  File "/a/train.py", line 3, in step\n    model(x)\n  File "/a/model.py", line 7, in '
        "forward\n    x + y\n"
    )
    part = Part(
        "forward", post_grad_graph=GRAPH, output_code=code, stacks={f"{name}_0:1": [stack, stack]}
    )
    part.nodes = {f"{name}_0{number}": nodes for number, nodes in NODES.items()}
    fused, library = find_kernels(part, {})
    assert fused == Kernel(name, 2, True, (("add", 2), ("relu", 2)), ("/a/model.py:7",))
    assert library == Kernel("extern_kernels.mm", 1, False, (), ())


def test_find_kernels_a_wrapper_in_another_language_are_known_by_their_names() -> None:
    code = (
        "    // [Provenance debug handles] triton_red_fused_sum_3:1\n    "
        "launch(triton_red_fused_sum_3, stream);\n"
    )
    assert find_kernels(Part("forward", output_code=code), {}) == (
        Kernel("triton_red_fused_sum", 1, True, (), ()),
    )


def test_nodes_that_the_trace_lacks_are_taken_from_elsewhere() -> None:
    part = Part("backward", post_grad_graph=GRAPH, output_code=CPU)
    fused, _ = find_kernels(part, {"cpp_fused_add_relu_0:1": ["relu"]})
    assert fused.fuses == (("relu", 1),)


def test_part_without_code_has_no_kernels() -> None:
    assert find_kernels(Part("forward"), {}) == ()


def test_operations_are_calls_alone() -> None:
    assert find_operations(GRAPH) == {"add", "relu", "add_1"}


def test_scheduled_nodes_are_counted() -> None:
    assert count_scheduled("op0: SchedulerNode\nop0.writes\n\n\n\nop1: Extern\n\n\n\n") == 2
