"""Whether a backend works here: a few steps of a tiny model with it, compared with eager."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress

import torch
from torch import nn

from sweeper.core.backends import CONTROLS, NEEDS, Needs
from sweeper.core.protocol import Verdict
from sweeper.core.trial import Labels, Model, Trial
from sweeper.worker.compilation import backends, compiler
from sweeper.worker.compilation.counters import CompileCounters
from sweeper.worker.failures import UnavailableError
from sweeper.worker.measurement.bench import Arm, ModelBench, complete
from sweeper.worker.measurement.capture import GRADIENT, Keep, OutputCapture, capture_step
from sweeper.worker.measurement.step import make_inference_step, make_optimizer, make_training_step
from sweeper.worker.models import Built
from sweeper.worker.models.batches import Batch

STEPS = 3  # graph modes run the first as it is, record the second and replay the third
TOLERANCE = 1e-3
REASON_LENGTH = 300
SKIPPED = "skipping cudagraphs due to"  # torch/_inductor/cudagraph_utils.py, sometimes twice


def check_backend(backend: str, device: str, mode: str = "default") -> Verdict:
    """Check whether a step compiled by the backend gives what eager gives, and is compiled at all.

    It is a training step, or inference for a backend that does nothing else.
    """
    if backend in CONTROLS and backend != "eager":
        return Verdict(
            backend,
            mode,
            "control",
            "compiles nothing, on purpose: what it costs is TorchDynamo's own",
        )
    workload = NEEDS.get(backend, Needs()).workload or "train"
    try:
        backends.require(backend, workload, device)
        reason, first_step_s = _try_out(backend, mode, device, workload)
    except UnavailableError as error:
        return Verdict(backend, mode, "missing", str(error))
    except Exception as error:  # noqa: BLE001  # a backend may raise anything, and that is the answer
        if isinstance(root := _innermost(error), ModuleNotFoundError):
            return Verdict(backend, mode, "missing", f"install what has {root.name}")
        if isinstance(root, TypeError) and f"{backend}() missing" in str(root):
            return Verdict(
                backend,
                mode,
                "missing",
                f"for callers in Python: torch.compile gives it too little ({root})",
            )
        works = ""
        if workload == "train":
            with suppress(Exception):  # the error in training has been told already
                works = (
                    ""
                    if _try_out(backend, "default", device, "inference")[0]
                    else "; inference works"
                )
        return Verdict(backend, mode, "broken", _explain(error) + works)
    note = reason or (None if workload == "train" else f"for workload={workload} alone")
    return Verdict(backend, mode, "broken" if reason else "ok", note, first_step_s)


def _try_out(
    backend: str, mode: str, device: str, workload: str
) -> tuple[str | None, float | None]:
    """What is wrong with the backend, or None, and the seconds of its first step. Raises whatever
    it raises.
    """
    # torch would only log that it does without
    torch._inductor.config.triton.cudagraph_or_error = True
    tiny, labels = Model("", "tiny"), Labels("tiny", "fp32")  # of no library
    trial = Trial(
        tiny, 16, labels, workload, mode=mode, backend=backend, optimizer="sgd", device=device
    )
    expected, _ = _run_steps(trial, None)
    counters = CompileCounters()
    actual, first_step_s = _run_steps(trial, counters)
    if counters.graphs_run_eager:
        return "runs eager", None
    if reason := counters.explain_not_compiled():
        return reason, None
    if counters.report({}).cudagraph_skips:
        return "CUDA graphs were skipped", None
    gradients, returned = (
        sum(name.startswith(GRADIENT) for name in found) for found in (expected, actual)
    )
    if gradients != returned:
        return f"{returned} of {gradients} gradients came back", first_step_s
    pairs = [(tensor, actual[name]) for name, tensor in expected.items()]
    if all(torch.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE) for a, b in pairs):
        return None, first_step_s
    return (
        "wrong: differs from eager by up to "
        f"{max(float((a - b).abs().max()) for a, b in pairs):.2g}",
        first_step_s,
    )


def _run_steps(
    trial: Trial, counters: CompileCounters | None
) -> tuple[dict[str, torch.Tensor], float]:
    """The tensors of the last of `STEPS` steps, and the wall seconds of the first; eager without
    counters.
    """
    device = torch.device(trial.device)
    torch.manual_seed(0)
    # A reduction, elementwise work and matrix products.
    model = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 8)).to(
        device
    )
    model.train(trial.workload == "train")
    module = model if counters is None else compiler.compile_function(model, trial, counters)
    batch = Batch((torch.randn(trial.batch_size, 32).to(device),))
    capture = OutputCapture()
    step: Callable[[Batch], object] = make_inference_step(module, nullcontext)
    if trial.workload == "train":
        built = Built(
            model, (batch,), batch, capture.wrap(lambda output, _batch: output.square().mean())
        )
        step = make_training_step(
            built, module, make_optimizer(trial, model, scaler=False), None, nullcontext
        )
    bench = ModelBench((batch,), device)
    arm = Arm("tiny", step, eager=counters is None, marks_steps=True)
    first_step_s = complete(bench.block_s(arm, 1))
    if counters is not None:
        counters.reset_run_counts()
    bench.run(arm, STEPS - 2)
    return Keep().copy(
        capture_step(lambda: bench.run_one(arm), capture, model, trial)
    ), first_step_s


def _innermost(error: BaseException) -> BaseException:
    """The innermost cause; Dynamo keeps a backend's error in `inner_exception`."""
    inner = getattr(error, "inner_exception", None) or error.__cause__
    return _innermost(inner) if isinstance(inner, BaseException) else error


def _explain(error: BaseException) -> str:
    """One line about what went wrong."""
    root = _innermost(error)
    lines = str(root).strip().splitlines()
    if lines and lines[0].startswith(SKIPPED):
        return f"no CUDA graphs: {lines[0].replace(SKIPPED, '').strip()}"[:REASON_LENGTH]
    return f"{type(root).__name__}: {lines[0] if lines else ''}"[:REASON_LENGTH]
