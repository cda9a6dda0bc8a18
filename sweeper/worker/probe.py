"""What torch and its backends can do here, tried out in a process that may break.

    python -m sweeper.worker.probe versions cpu           what is installed, and which backends there are to try
    python -m sweeper.worker.probe backend inductor cpu   train a tiny model with it, and compare with eager

Place in the flow: started by `sweeper.doctor.probes`. The answer is one line of JSON on standard output; all that
libraries print goes to standard error.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sweeper.core.backends import NEEDS, WITHOUT_DYNAMO
from sweeper.core.host import Part
from sweeper.core.libraries import library_packages
from sweeper.core.protocol import Software, Verdict
from sweeper.core.serialization import to_json
from sweeper.worker.process import die_with_parent

if TYPE_CHECKING:  # a torch that cannot be imported is an answer too
    import torch

    from sweeper.worker.compilation.wrapped_backend import WrappedBackend

STEPS = 3  # graph modes run the first as it is, record the second and replay the third
TOLERANCE = 1e-3
REASON_LENGTH = 300
SKIPPED = "skipping cudagraphs due to"  # torch/_inductor/cudagraph_utils.py, sometimes twice


def main() -> None:
    options = _parse()
    die_with_parent()
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if options.question == "versions":
        answer: Software | Verdict = software(options.device)
    else:
        answer = verdict(options.name, options.device, options.mode)
    said.write(json.dumps(to_json(answer)) + "\n")
    said.flush()
    os._exit(0)  # teardown takes seconds, and some backends hang in it


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sweeper.worker.probe", description="Try out torch's backends.")
    questions = parser.add_subparsers(dest="question", required=True)
    versions = questions.add_parser("versions", help="what is installed")
    versions.add_argument("device", nargs="?", default="cpu", choices=("cpu", "cuda"))
    backend = questions.add_parser("backend", help="train a tiny model with a backend")
    backend.add_argument("name")
    backend.add_argument("device", choices=("cpu", "cuda"))
    backend.add_argument("--mode", default="default", help="a mode of Inductor")
    return parser.parse_args()


def software(device: str) -> Software:
    """Versions of everything; torch is imported to see whether it works, the others are not."""
    python = Part("Python", platform.python_version())
    advice = {
        **{package: f"pip install {package}" for package in library_packages()},
        "triton": "only a GPU needs it; torch built for CUDA brings it along",
        "mlflow": "pip install mlflow; tracking=none does without",
        "sweeper": "pip install --editable . in its checkout",
    }
    others = [Part(name, _version(name), None if _version(name) else note) for name, note in advice.items()]
    try:
        import torch

        from sweeper.worker.compilation.backends import known

        backends = dict.fromkeys([*NEEDS, *WITHOUT_DYNAMO, *known()])
    except Exception as error:  # noqa: BLE001  # a broken torch may raise anything, and that is the answer
        note = f"cannot be imported: {_why(error)}" if _version("torch") else "pip install torch, see pytorch.org"
        return Software((python, Part("torch", _version("torch"), note), *others), (), torch_works=False)
    parts = (python, Part("torch", torch.__version__), *_cuda_parts(device), *others)
    native = None
    if device == "cuda" and torch.cuda.is_available():
        native = bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return Software(parts, tuple(backends), torch_works=True, bfloat16_native=native)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cuda_parts(device: str) -> list[Part]:
    """CUDA and cuDNN as torch was built with them, and whether torch can use the GPU."""
    import torch

    if torch.version.cuda is None:
        note = "this torch is a CPU build; for the GPU install one built for CUDA, see pytorch.org"
        return [Part("CUDA of torch", None, note if device == "cuda" else "a CPU build; a GPU would need another")]
    problem = None
    if device == "cuda":
        try:
            torch.zeros(1, device="cuda")
        except RuntimeError as error:  # CUDA's errors, a driver that is too old among them
            problem = f"the GPU cannot be used: {_why(error)}"
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return [Part("CUDA of torch", torch.version.cuda, problem), Part("cuDNN", str(cudnn) if cudnn else None)]


def verdict(backend: str, device: str, mode: str = "default") -> Verdict:
    """Whether a step compiled by the backend gives what eager gives, and is compiled at all.

    A training step, or inference for a backend that does nothing else.
    """
    needs = NEEDS.get(backend)
    workload = (needs.workload if needs else None) or "train"
    try:
        if (missing := _missing(backend, workload, device)) is not None:
            return Verdict(backend, mode, "missing", missing)
        reason, first_step_s = _try_out(backend, mode, device, workload)
        if reason is None and workload != "train":
            return Verdict(backend, mode, "ok", f"for workload={workload} alone", first_step_s)
        return Verdict(backend, mode, "broken" if reason else "ok", reason, first_step_s)
    except Exception as error:  # noqa: BLE001  # a backend may raise anything, and that is the answer
        root = _root(error)
        if isinstance(root, ModuleNotFoundError):
            return Verdict(backend, mode, "missing", f"install what has {root.name}")
        return Verdict(backend, mode, "broken", _why(error) + _if_inference_works(backend, device))


def _missing(backend: str, workload: str, device: str) -> str | None:
    """What a trial would be told where the backend cannot be asked for anything, or None."""
    from sweeper.worker.compilation.backends import require
    from sweeper.worker.failures import UnavailableError

    try:
        require(backend, workload, device)
    except UnavailableError as error:
        return str(error)
    return None


def _compiler(backend: str, mode: str) -> WrappedBackend:
    """The backend's compiler, watched."""
    import torch

    from sweeper.worker.compilation.backends import compiler_of
    from sweeper.worker.compilation.wrapped_backend import WrappedBackend

    if backend == "inductor" and mode != "default":
        from torch._inductor.compile_fx import compile_fx

        return WrappedBackend(functools.partial(compile_fx, config_patches=torch._inductor.list_mode_options(mode)))
    return WrappedBackend(compiler_of(backend))


def _try_out(backend: str, mode: str, device: str, workload: str) -> tuple[str | None, float | None]:
    """What is wrong with the backend, or None, and the seconds of its first step. Raises whatever it raises."""
    import torch
    from torch._dynamo.utils import counters

    from sweeper.worker.compilation.backends import GivingUp
    from sweeper.worker.compilation.legacy import Converted

    torch._inductor.config.triton.cudagraph_or_error = True  # torch would only log that it does without
    expected, _ = _steps(_model(device), None, device, workload)
    model = _model(device)
    if backend in WITHOUT_DYNAMO:
        actual, first_step_s = _steps(model, Converted(model, backend), device, workload)
        return _difference(expected, actual), first_step_s
    compiler, giving_up = _compiler(backend, mode), GivingUp.of(backend)
    actual, first_step_s = _steps(model, torch.compile(model, backend=compiler), device, workload, compiler.forget)
    if not any(compiler.calls):
        return "what it compiled was never called" if compiler.calls else "no graph reached it", None
    if any(compiler.runs_as_given) and backend != "eager":
        return "runs eager", None
    if giving_up and (reason := giving_up.why()):
        return reason, None
    if counters["inductor"]["cudagraph_skips"]:
        return "CUDA graphs were skipped", None
    return _difference(expected, actual), first_step_s


def _model(device: str) -> torch.nn.Module:
    """The same small model every time: a reduction, elementwise work and matrix products."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 8)).to(device)


def _steps(
    model: torch.nn.Module,
    compiled: Callable[..., Any] | None,
    device: str,
    workload: str,
    after_first: Callable[[], None] = lambda: None,
) -> tuple[list[torch.Tensor], float]:
    """Output and, of training, gradients of the last of `STEPS` steps, and the wall seconds of the first."""
    import torch

    inputs = torch.randn(16, 32, generator=torch.Generator().manual_seed(1)).to(device)
    model.train(workload == "train")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    results: list[torch.Tensor] = []
    first_step_s = 0.0
    for step in range(STEPS):
        start = time.monotonic()
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        optimizer.zero_grad()
        with torch.inference_mode(workload == "inference"):
            output = (compiled or model)(inputs)
        if workload == "train":
            output.square().mean().backward()
            optimizer.step()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        results = [tensor.detach().cpu().clone() for tensor in (output, *gradients)]
        if step == 0:
            first_step_s = time.monotonic() - start
            after_first()
    return results, first_step_s


def _difference(expected: list[torch.Tensor], actual: list[torch.Tensor]) -> str | None:
    import torch

    if len(expected) != len(actual):
        return f"{len(actual) - 1} of {len(expected) - 1} gradients came back"
    pairs = list(zip(expected, actual, strict=True))
    if all(torch.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE) for a, b in pairs):
        return None
    return f"wrong: differs from eager by up to {max(float((a - b).abs().max()) for a, b in pairs):.2g}"


def _if_inference_works(backend: str, device: str) -> str:
    """What to add to the reason why training does not work."""
    import torch

    torch._dynamo.reset()
    try:
        wrong, _ = _try_out(backend, "default", device, "inference")
    except Exception:  # noqa: BLE001  # the first error has been told already
        return ""
    return "" if wrong else "; inference works"


def _root(error: BaseException) -> BaseException:
    """The innermost cause; Dynamo keeps a backend's error in `inner_exception`."""
    inner = getattr(error, "inner_exception", None) or error.__cause__
    return _root(inner) if isinstance(inner, BaseException) else error


def _why(error: BaseException) -> str:
    root = _root(error)
    lines = str(root).strip().splitlines()
    if lines and lines[0].startswith(SKIPPED):
        return f"no CUDA graphs: {lines[0].replace(SKIPPED, '').strip()}"[:REASON_LENGTH]
    return f"{type(root).__name__}: {lines[0] if lines else ''}"[:REASON_LENGTH]


if __name__ == "__main__":
    main()
