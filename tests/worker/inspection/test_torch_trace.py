"""The structured trace of torch, on lines as torch writes them."""

from __future__ import annotations

from pathlib import Path

from sweeper.worker.inspection.torch_trace import read, read_events

HEAD = "V1121 15:22:13.306000 19710 torch/_dynamo/utils.py:2350] "
OF = '"frame_id": {frame}, "frame_compile_id": 0, "attempt": 0'


def event(kind: str, text: str = "", frame: int = 0, fields: str = "{}") -> str:
    payload = "".join(f"\t{line}\n" for line in text.splitlines())
    return f'{HEAD}{{"{kind}": {fields}, {OF.format(frame=frame)}, "has_payload": "0"}}\n{payload}'


def artifact(name: str, text: str, frame: int = 0) -> str:
    return event("artifact", text, frame, f'{{"name": "{name}", "encoding": "string"}}')


def code(aot_id: str) -> str:
    return f"# AOT ID: ['{aot_id}']\nimport torch\n"


TRACE = "".join(
    [
        "a line that is no event\n",
        event("chromium_event", "long and of no use"),
        artifact("dynamo_graph_break_reason", "Graph break in user code at a.py:3\nwhy"),
        event("dynamo_output_graph", "first graph"),
        event("aot_forward_graph", "first forward"),
        event("aot_backward_graph", "first backward"),
        artifact("inductor_post_grad_graph", "first forward, changed"),
        event("inductor_output_code", code("0_forward")),
        artifact(
            "inductor_provenance_tracking_node_mappings",
            '{"cppCodeToPost": {"k_0:1": ["add"]}, "version": 2.0}',
        ),
        artifact("inductor_provenance_tracking_kernel_stack_traces", '{"k_0:1": ["a stack"]}'),
        event("dynamo_output_graph", "second graph", frame=1),
        event("aot_inference_graph", "second inference", frame=1),
        artifact("inductor_post_grad_graph", "first backward, changed"),
        artifact("inductor_post_grad_graph", "second inference, changed", frame=1),
        event("inductor_output_code", code("0_backward")),
        event("inductor_output_code", "no id\n", frame=1),
        artifact("recompile_reasons", "0/0: size mismatch", frame=1),
        artifact("recompile_reasons", '[\n"0/0: one",\n"0/1: two"\n]', frame=2),
        event(
            "compilation_metrics",
            fields='{"co_name": "f", "co_filename": "a.py", "co_firstlineno": 2}',
        ),
        event(
            "compilation_metrics",
            fields='{"fail_type": "Unsupported", "fail_reason": "no"}',
            frame=2,
        ),
    ]
)


def test_parts_of_graphs_that_come_mixed_are_put_together(tmp_path: Path) -> None:
    (tmp_path / "of_torch.log").write_text(TRACE)
    first, second = read(tmp_path).graphs
    assert (first.compile_id, first.graph, first.function) == (
        "0/0",
        "first graph\n",
        "f at a.py:2",
    )
    assert {name: part.aot_graph for name, part in first.parts.items()} == {
        "forward": "first forward\n",
        "backward": "first backward\n",
    }
    forward, backward = first.parts["forward"], first.parts["backward"]
    assert (forward.aot_id, forward.post_grad_graph) == ("0_forward", "first forward, changed\n")
    assert (forward.nodes, forward.stacks) == ({"k_0:1": ["add"]}, {"k_0:1": ["a stack"]})
    assert (backward.aot_id, backward.post_grad_graph) == (
        "0_backward",
        "first backward, changed\n",
    )
    assert second.parts["inference"].output_code == "no id\n"
    assert second.parts["inference"].post_grad_graph == "second inference, changed\n"


def test_breaks_and_recompilations_keep_what_torch_says(tmp_path: Path) -> None:
    (tmp_path / "of_torch.log").write_text(TRACE)
    trace = read(tmp_path)
    assert trace.breaks == ["Graph break in user code at a.py:3\nwhy\n"]
    assert trace.recompiles == [("1/0", "0/0: size mismatch"), ("2/0", "0/0: one\n0/1: two")]
    assert trace.compilations["2/0"].failure == "Unsupported: no"


def test_text_of_no_use_is_not_kept() -> None:
    texts = {item.kind: item.text for item in read_events(TRACE.splitlines(keepends=True))}
    assert texts["chromium_event"] == ""


def test_process_that_compiled_nothing_has_an_empty_trace(tmp_path: Path) -> None:
    assert read(tmp_path).graphs == []
