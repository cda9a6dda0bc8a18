"""What is installed here, and whether torch works: `python -m sweeper.worker.probe cpu`.

The answer is one line of JSON on standard output; all that libraries print goes to standard error.
"""

import argparse
import json
import os
import platform
import traceback

from sweeper.core.libraries import library_packages, read_versions
from sweeper.core.protocol import Package, Software
from sweeper.core.serialization import to_json
from sweeper.core.system.pipes import open_standard_streams

from .parent_death import die_with_parent

ADVICE = {
    "triton": "only a GPU needs it; torch built for CUDA brings it along",
    "mlflow": "pip install mlflow; tracking=none does without",
    "tlparse": "only inspect=true needs it; pip install tlparse",
    "sweeper": "pip install --editable . in its checkout",
}


def main() -> None:
    open_standard_streams()
    parser = argparse.ArgumentParser(
        prog="python -m sweeper.worker.probe", description="List what is installed."
    )
    parser.add_argument("device", choices=("cpu", "cuda"))
    options = parser.parse_args()
    die_with_parent()
    answer_file = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    answer = list_software(options.device)
    answer_file.write(json.dumps(to_json(answer)) + "\n")
    answer_file.flush()
    os._exit(0)  # teardown takes seconds


def list_software(device: str) -> Software:
    """List versions of everything; torch is imported to see whether it works, the others are
    not.
    """
    advice = {package: f"pip install {package}" for package in library_packages()} | ADVICE
    versions = read_versions(["torch", *advice])
    python = Package("Python", platform.python_version())
    others = [
        Package(name, versions.get(name), None if name in versions else note)
        for name, note in advice.items()
    ]
    try:
        import torch
    except Exception as error:  # noqa: BLE001  # a broken torch may raise anything, and that is the answer
        note = "pip install torch, see pytorch.org"
        if "torch" in versions:
            note = f"cannot be imported: {_explain(error)}"
        torch_part = Package("torch", versions.get("torch"), note)
        return Software((python, torch_part, *others), torch_works=False)
    from .compilation.ptxas import explain_second_ptxas  # needs torch

    if problem := explain_second_ptxas():
        others.append(Package("ptxas", "two versions", problem))
    cuda = _cuda_parts(device)
    works = device == "cpu" or all(part.note is None for part in cuda)
    parts = (python, Package("torch", torch.__version__), *cuda, *others)
    has_gpu = device == "cuda" and torch.cuda.is_available()
    native = bool(torch.cuda.is_bf16_supported(including_emulation=False)) if has_gpu else None
    return Software(parts, works, native)


def _explain(error: Exception) -> str:
    return traceback.format_exception_only(error)[-1].splitlines()[0]


def _cuda_parts(device: str) -> list[Package]:
    """CUDA and cuDNN as torch was built with them, and whether torch can use the GPU."""
    import torch

    if torch.version.cuda is None:
        note = "a CPU build; a GPU would need another"
        if device == "cuda":
            note = (
                "this torch is a CPU build; for the GPU install one built for CUDA, see pytorch.org"
            )
        return [Package("CUDA of torch", None, note)]
    problem = None
    if device == "cuda":
        try:
            torch.zeros(1, device="cuda")
        except RuntimeError as error:  # CUDA's errors, a driver that is too old among them
            problem = f"the GPU cannot be used: {_explain(error)}"
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return [
        Package("CUDA of torch", torch.version.cuda, problem),
        Package("cuDNN", str(cudnn) if cudnn else None),
    ]


if __name__ == "__main__":
    main()
