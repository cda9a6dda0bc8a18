"""What is read from a report of tlparse, on short code as Inductor writes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sweeper.worker.inspection.trace import CompiledPart, read_part, read_parts, write_report

GRAPH = """
        add: "f32[4][1]cpu" = torch.ops.aten.add.Tensor(primals_1, primals_2)
        relu: "f32[4]" = torch.ops.aten.relu.default(add);  add = None
        getitem: "f32[4]" = relu[0]
"""
CPU = """
# AOT ID: ['0_forward']
cpp_fused_add_relu_0 = async_compile.cpp_pybinding(['const float*'], r'''
    // [Provenance debug handles] not_a_launch
''')
mine_0 = async_compile.triton('mine', '''
def call(args):
    # [Provenance debug handles] cpp_fused_add_relu_0:1
    cpp_fused_add_relu_0(primals_1, buf0)
    # [Provenance debug handles] extern_kernels.mm:2
    extern_kernels.mm(buf0, primals_2, out=buf1)
    # [Provenance debug handles] cpp_fused_add_relu_1:3
    cpp_fused_add_relu_1(buf1, buf2)
    # [Provenance debug handles] mine_0:4
"""


@pytest.mark.parametrize("prefix", ["cpp", "triton_poi"])
def test_kernels_that_differ_in_their_number_are_counted_together(prefix: str) -> None:
    code = CPU.replace("cpp_fused", f"{prefix}_fused")
    kernels = {f"{prefix}_fused_add_relu": 2, "mine": 1}
    assert read_part("0/0", GRAPH, code) == CompiledPart(
        "0/0", "forward", 2, kernels, {"extern_kernels.mm": 1}
    )


def test_launches_in_cpp_are_counted_too() -> None:
    code = "    // [Provenance debug handles] triton_red_fused_sum_3:1\n"
    assert read_part("0/0", "", code).kernels == {"triton_red_fused_sum": 1}


def test_code_belongs_to_the_graph_before_it(tmp_path: Path) -> None:
    texts = {
        "inductor_post_grad_graph_1.txt": GRAPH,
        "inductor_output_code_abc_2.txt": CPU,
        "inductor_post_grad_graph_3.txt": "",
        "inductor_output_code_def_4.txt": CPU.replace("forward", "backward"),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    compiled = {"artifacts": [{"name": name, "url": name} for name in texts]}
    (tmp_path / "compile_directory.json").write_text(json.dumps({"[0/1_2]": compiled}))
    found = [
        (part.compile_id, part.direction, part.num_operations) for part in read_parts(tmp_path)
    ]
    assert found == [("0/1", "forward", 2), ("0/1", "backward", 0)]


def test_process_without_a_trace_has_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = "sweeper.worker.inspection.trace.find_tlparse"
    monkeypatch.setattr(find, lambda: "tlparse")
    assert write_report(tmp_path, tmp_path / "report") == "torch traced nothing"
    monkeypatch.setattr(find, lambda: None)
    assert "pip install tlparse" in str(write_report(tmp_path, tmp_path / "report"))
    assert read_parts(tmp_path / "report") == []
