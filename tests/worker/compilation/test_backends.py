"""Backends by name: what each needs, which are no more, and torch's ways without Dynamo on tiny
models.
"""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from worker_runs import custom, private_cache, run

from sweeper.config.schema import conf_folder
from sweeper.core.backends import GONE, GRAPHED, NEEDS, WITHOUT_DYNAMO, WITHOUT_MODE
from sweeper.core.trial import Precision
from sweeper.worker.compilation.backends import OPENVINO_LOG, require
from sweeper.worker.compilation.compiler import LegacyModule
from sweeper.worker.compilation.counters import CompileCounters
from sweeper.worker.failures import UnavailableError

pytestmark = pytest.mark.compile
assert private_cache  # a fixture that every test here uses


def test_the_plan_knows_every_option() -> None:
    options = {path.stem for path in (conf_folder() / "backend").glob("*.yaml")}
    assert options - WITHOUT_MODE == {"inductor"}


def test_a_name_is_no_more_or_needs_something() -> None:
    assert not GONE.keys() & (NEEDS.keys() | set(WITHOUT_DYNAMO))


@pytest.mark.parametrize(
    ("name", "workload", "device", "says"),
    [
        ("cudagraphs", "train", "cpu", "backend cudagraphs needs device=cuda, this is cpu"),
        ("tensorrt", "inference", "cpu", "backend tensorrt needs device=cuda, this is cpu"),
        (
            "openvino",
            "train",
            "cpu",
            "backend openvino is for workload=inference alone, this is train",
        ),
        ("openvino", "inference", "cuda", "backend openvino needs device=cpu, this is cuda"),
        ("tvm", "train", "cpu", "needs tvm.relay, which TVM 0.20 took out"),
        ("nvfuser", "train", "cuda", "take inductor, or thunder"),
        ("aot_cudagraphs", "train", "cuda", "take cudagraphs"),
        ("jit_tracer", "train", "cpu", "nearest: jit_trace"),
    ],
)
def test_unavailable_says_what_to_install_or_take(
    name: str, workload: str, device: str, says: str
) -> None:
    with pytest.raises(UnavailableError, match=says):
        require(name, workload, device)


@pytest.mark.parametrize(
    "name", ["inductor", "ts", *(name for name in WITHOUT_DYNAMO if name != GRAPHED)]
)
def test_what_torch_has_itself_needs_nothing(name: str) -> None:
    require(name, "train", "cpu")


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("raise AttributeError('no align_as here')", "AttributeError: no align_as here"),
        ("import sys; sys.exit('made for another torch')", "SystemExit: made for another torch"),
    ],
)
def test_a_package_that_cannot_be_imported_is_unavailable_with_its_own_reason(
    module: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "thunder").mkdir()
    (tmp_path / "thunder" / "__init__.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        UnavailableError, match="backend thunder: thunder.dynamo cannot be imported here: " + says
    ):
        require("thunder", "train", "cpu")


def test_what_openvino_tells_its_log_alone_is_heard(caplog: pytest.LogCaptureFixture) -> None:
    counters, log = CompileCounters(), logging.getLogger(f"{OPENVINO_LOG}.execute")
    counters.begin()
    torch._dynamo.utils.counters["stats"]["unique_graphs"] = 1
    log.debug("OpenVINO graph execution successful")
    assert counters.explain_not_compiled() is None
    failed = "OpenVINO execution failed with x. Falling back to native PyTorch"
    log.debug("%s\nmore", failed)
    assert counters.explain_not_compiled() == f"the backend goes on without itself: {failed}"
    log.warning("seen as before")
    assert caplog.messages == ["seen as before"]
    counters.end()
    CompileCounters().begin()
    assert counters.explain_not_compiled() != f"the backend goes on without itself: {failed}"


@pytest.mark.parametrize("backend", ["ts", "aot_ts"])
def test_torchscript_takes_the_graphs_of_dynamo(backend: str) -> None:
    outcome, _ = run(custom("mlp", backend=backend))
    assert outcome.status == "ok", outcome.message
    assert outcome.diagnostics is not None
    assert (outcome.diagnostics.graphs, outcome.diagnostics.graphs_run_eager) == (1, 0)


@pytest.mark.parametrize(
    ("backend", "status", "phase", "says"),
    [
        ("jit_trace", "accuracy_mismatch", "checking", "is off by"),
        ("jit_script", "ok", None, ""),
        (
            "fx",
            "compile_error",
            "compiling",
            "symbolically traced variables cannot be used as inputs to control flow",
        ),
    ],
)
def test_a_branch_on_the_data_without_dynamo(
    backend: str, status: str, phase: str | None, says: str
) -> None:
    outcome, _ = run(custom("branches_on_data", backend=backend))
    assert (outcome.status, outcome.phase) == (status, phase), outcome.message
    assert says in str(outcome.message)


def test_scripting_that_is_refused_is_a_compile_error_in_the_words_of_torch() -> None:
    outcome, _ = run(custom("compiles_itself", backend="jit_script"))
    assert (outcome.status, outcome.phase) == ("compile_error", "compiling"), outcome.message


@pytest.mark.parametrize("backend", ["jit_trace", "fx"])
@pytest.mark.parametrize("workload", ["train", "inference"])
def test_names_in_and_a_dict_out(backend: str, workload: str) -> None:
    outcome, _ = run(custom("dict_and_loss", backend=backend, workload=workload))
    assert outcome.status == "ok", outcome.message
    assert outcome.process is not None
    assert outcome.process.compile_s is not None


def test_a_trace_under_autocast_keeps_its_gradients() -> None:
    outcome, _ = run(custom("mlp", backend="jit_trace", precision=Precision(autocast="bfloat16")))
    assert outcome.status == "ok", outcome.message
    assert outcome.process is not None
    assert outcome.process.accuracy is not None
    assert outcome.process.accuracy.tensors == 8  # loss, output, input, gradients


def test_a_trace_gives_back_the_structure_of_the_output_and_no_warning() -> None:
    class Nested(nn.Module):
        def forward(self, x, *, scale, offset=None):
            return {"logits": (x * scale, None), "sum": [x.sum()], "offset": offset}

    traced = LegacyModule(Nested(), "jit_trace")
    x, scale = torch.ones(2, 3), torch.tensor(2.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        traced(x, scale=scale)
    found = traced(2 * x, scale=scale)
    assert found["logits"][0].tolist() == (4 * x).tolist()
    assert found["logits"][1] is None
    assert found["sum"][0].item() == 12.0
