"""Errors of a script name its own lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkout import ROOT

from sweeper.core.text import clean_text
from sweeper.worker.failures import EagerError
from sweeper.worker.source_lines import describe_in_script, name_class, name_place

SCRIPT = """import torch
def take(losses):
    {line}
take([])
"""


def raise_in_script(folder: Path, line: str) -> Exception:
    file = folder / "train.py"
    file.write_text(SCRIPT.format(line=line))
    with pytest.raises(RuntimeError) as raised:
        exec(compile(file.read_text(), str(file), "exec"), {})  # as a script is run
    return raised.value


def test_an_error_names_the_line_of_the_script_that_called_the_library(tmp_path: Path) -> None:
    error = raise_in_script(tmp_path, "torch.stack(losses)")
    assert describe_in_script(error).startswith(
        f"{tmp_path}/train.py:3: RuntimeError: stack expects"
    )


def test_a_tensor_that_a_cuda_graph_has_overwritten_is_to_be_copied(tmp_path: Path) -> None:
    overwritten = (
        "Error: accessing tensor output of CUDAGraphs that has been overwritten by a "
        "subsequent run."
    )
    text = describe_in_script(raise_in_script(tmp_path, f"raise RuntimeError({overwritten!r})"))
    assert "train.py:3 reads a tensor that the script has kept from an earlier step" in text
    assert "loss.detach().clone()" in text


def test_what_a_compiler_has_written_is_no_line_of_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = tmp_path / "cache" / "cdym.py"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(written.parent))
    calls = f"exec(compile('torch.stack([])', {str(written)!r}, 'exec'))"
    assert describe_in_script(raise_in_script(tmp_path, calls)).startswith(
        f"{tmp_path}/train.py:3: RuntimeError: stack"
    )


def test_what_is_no_error_of_the_script_is_said_as_it_is() -> None:
    assert describe_in_script(EagerError("no step was seen")) == "no step was seen"
    assert describe_in_script(RuntimeError("raised nowhere")) == "RuntimeError: raised nowhere"


def test_places_are_relative_to_the_folder_in_which_the_script_began() -> None:
    assert name_place(str(Path.cwd() / "sub" / "train.py"), 7) == "sub/train.py:7"
    assert name_place("/elsewhere/train.py", 7) == "/elsewhere/train.py:7"


@pytest.mark.parametrize("layer", ["site-packages", "dist-packages", "torch beside it"])
def test_libraries_of_another_layer_are_no_part_of_the_script(tmp_path: Path, layer: str) -> None:
    """An environment above another one, as in images of containers, has torch below."""
    folder = tmp_path / layer
    (folder / "torch").mkdir(parents=True)
    if layer == "torch beside it":
        (folder / "torch" / "__init__.py").touch()
    code = (
        "import sys; from sweeper.worker.source_lines import is_users; "
        "print([is_users(file) for file in sys.argv[1:]])"
    )
    files = [folder / "torch/nn.py", folder / "tqdm/std.py", tmp_path / "train.py"]
    result = subprocess.run(
        [sys.executable, "-c", code, *map(str, files)],
        env={"PYTHONPATH": f"{ROOT}:{folder}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout == "[False, False, True]\n", result.stderr


def test_a_class_has_the_name_that_a_record_keeps() -> None:
    kind = type("\x1b[31mNet\u202e", (torch.nn.Linear,), {})
    assert name_class(kind(1, 1)) == clean_text(kind.__name__) == "Net\ufffd"
