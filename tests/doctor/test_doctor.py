"""The doctor: a torch that does not answer, exit codes, and the noise card by hand."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from records import make_process, make_record, write_sweep

from sweeper.core.protocol import Package, Software
from sweeper.core.record import Round
from sweeper.core.system import gpus
from sweeper.core.system.gpus import Device, GpuReading
from sweeper.core.system.host import Host
from sweeper.doctor import __main__, noise
from sweeper.doctor.__main__ import Examination, decide_exit_code
from sweeper.doctor.noise import Noise, compute_noise, count_processes_needed
from sweeper.doctor.software import ask_software
from sweeper.execution import processes

CPU = Device("cpu")
QUIET = Host("a processor", cores=4, usable_cores=4, load=0.2)


def test_a_broken_torch_is_a_line_with_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(
        "raise OSError('libcudart.so.12: cannot open shared object file')"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    software = ask_software(CPU, timeout_s=60)
    assert not software.torch_works
    torch = next(part for part in software.parts if part.name == "torch")
    assert (
        torch.note == "cannot be imported: OSError: libcudart.so.12: cannot open shared object file"
    )


@pytest.mark.parametrize(
    ("program", "says"),
    [("import time; time.sleep(60)", "no answer within 5 s"), ("exit(3)", "the probe ")],
    ids=["hangs", "exits"],
)
def test_a_probe_without_an_answer_is_a_line_with_why(
    monkeypatch: pytest.MonkeyPatch, program: str, says: str
) -> None:
    monkeypatch.setattr(processes, "make_command", lambda *_: [sys.executable, "-c", program, "--"])
    software = ask_software(CPU, timeout_s=5)
    assert not software.torch_works
    assert str(software.parts[0].note).startswith(says)


def test_command_tries_every_backend_that_is_left_and_modes_only_on_a_gpu() -> None:
    on_cpu = __main__.name_backend_sweep(CPU)
    options = dict(part.split("=") for part in on_cpu.split()[4:])
    backends = set(options["backend"].split(","))
    assert {"inductor", "aot_eager", "cudagraphs", "eager", "ts", "openvino"} <= backends
    assert "nvfuser" not in backends
    assert (options["model"], options["device"], "mode" in options) == ("pointwise", "cpu", False)
    gpu = Device("cuda", gpus.Gpu("0", "GPU-aaa", "NVIDIA H200"))
    assert " mode=default,reduce-overhead,max-autotune " in __main__.name_backend_sweep(gpu)


# Exit codes


def findings(
    torch_works: bool = True,
    compiler: str | None = "g++ 12",
    device: Device = CPU,
    wobble: tuple[Noise, ...] | None = None,
) -> Examination:
    software = Software((), torch_works)
    return Examination(device, QUIET, None, software, Package("C++ compiler", compiler), (), wobble)


def test_exit_code_is_that_of_torch_of_the_compiler_and_of_the_noise() -> None:
    good = tuple(Noise(model, "ok", 5) for model in noise.MODELS)
    gpu = Device("cuda", gpus.Gpu("0", "GPU-aaa", "NVIDIA H200"))
    assert decide_exit_code(findings()) == 0
    assert decide_exit_code(findings(torch_works=False)) == 1
    assert decide_exit_code(findings(compiler=None)) == 1
    assert decide_exit_code(findings(compiler=None, device=gpu)) == 0
    assert decide_exit_code(findings(wobble=good)) == 0
    assert decide_exit_code(findings(wobble=good[:2])) == 1
    assert decide_exit_code(findings(wobble=(*good[:2], Noise("bert_small", "oom", 0)))) == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--device", "tpu"], "tpu: give cpu, cuda or cuda:N"),
        (["--device", "cuda"], "no NVIDIA GPU is visible"),
        (["--processes", "1"], "from 2 on"),
        (["--timeout-s", "0"], "more than 0"),
        (["--json", "no/such/folder/doctor.json"], "no file can be written there"),
        (["--nonsense"], "unrecognized arguments"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_arguments_are_exit_2(
    arguments: list[str],
    complaint: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    in_empty_folder: Path,
) -> None:
    monkeypatch.setattr(gpus, "visible_gpus", tuple)
    try:
        code = __main__.main(arguments)
    except SystemExit as error:
        code = int(str(error.code))
    assert code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.compile
def test_the_doctor_never_imports_torch_and_writes_what_it_prints(tmp_path: Path) -> None:
    """With a limit so short that no probe answers, which is exit 1 and no traceback."""
    code = """
import sys
from sweeper.doctor import __main__ as doctor
code = doctor.main(["--device", "cpu", "--timeout-s", "0.3", "--json", "doctor.json"])
names = ("torch", "mlflow", "pandas", "transformers", "timm")
print(code, [name for name in names if name in sys.modules])
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.splitlines()[-1] == "1 []", result.stdout + result.stderr
    assert "python -m sweeper -m model=pointwise backend=aot_eager," in result.stdout
    written = json.loads((tmp_path / "doctor.json").read_text())
    assert written["device"]["type"] == "cpu"
    assert written["software"]["parts"][0]["note"] == "no answer within 0.3 s"


# State of the host and the GPU


def test_what_a_gpu_does_not_tell_is_left_out() -> None:
    reading = GpuReading(
        driver="580.1",
        memory_used_bytes=2**30,
        memory_total_bytes=2**37,
        pids=frozenset(),
        power_w=71.5,
        lowered_clocks=("idle", "hardware_thermal"),
    )
    described = dict(__main__.describe_gpu(gpus.Gpu("0", "GPU-aaa", "A GPU"), reading))
    assert described == {
        "GPU": "A GPU, GPU-aaa",
        "memory": "1.0 of 128.0 GiB in use",
        "processes": "none seen beside this one",
        "power": "72 W",
        "clock lowered": "idle, hardware_thermal",
    }


# Noise


def test_processes_needed_by_hand() -> None:
    # t(1), t(2), t(3), t(5), t(6) = 12.706, 4.303, 3.182, 2.571, 2.447
    assert count_processes_needed(0.0) == 2
    assert count_processes_needed(0.001) == 2  # 12.706 * 0.001 / 1.414 = 0.0090
    # 3: 4.303 * 0.005 / 1.732 = 0.0124; 4: 3.182 * 0.005 / 2 = 0.0080
    assert count_processes_needed(0.005) == 4
    # 6: 2.571 * 0.01 / 2.449 = 0.0105; 7: 2.447 * 0.01 / 2.646 = 0.0092
    assert count_processes_needed(0.01) == 7
    assert count_processes_needed(0.06) is None  # 100: 1.984 * 0.06 / 10 = 0.0119


def test_noise_of_a_record_by_hand() -> None:
    """Two processes with speedups e and 1/e of a hundredth; blocks of 0.9, 1.0 and 1.1 s around
    them.
    """
    processes = []
    for index, ratio in enumerate((math.exp(0.01), math.exp(-0.01))):
        rounds = [Round("AB", block_s, block_s / ratio) for block_s in (0.9, 1.0, 1.1)]
        rounds.append(Round("BA", 50.0, 0.1, void="another process used the GPU"))
        processes.append(dataclasses.replace(make_process(index=index), rounds=tuple(rounds)))
    found = compute_noise(dataclasses.replace(make_record(), processes=tuple(processes)))
    assert found.processes == 2
    assert found.spread_within == pytest.approx(0.1)
    assert found.spread_between == pytest.approx(0.01 * math.sqrt(2))
    # 10: 2.262 * 0.01414 / 3.162 = 0.0101; 11: 2.228 * 0.01414 / 3.317 = 0.0095
    assert found.processes_needed == 11
    assert found.speedup == pytest.approx(1.0)


def test_the_noise_card_from_records_on_disk(in_empty_folder: Path) -> None:
    records = [
        make_record("resnet18", "fp32", [1.001, 0.999, 1.0]),
        make_record("vit_tiny", "fp32", [1.2, 0.9, 1.0]),
        make_record("bert_small", "fp32", status="oom", message="out of memory"),
    ]
    write_sweep(in_empty_folder / "runs", records, "noise-now")
    rows = {row[0]: row[1:] for row in noise.make_card(noise.read_noise("noise-now"))[1:]}
    assert rows["resnet18"] == ["1.0000", "0.9975 to 1.0025", "0.00 %", "0.10 %", "2"]
    assert rows["vit_tiny"][-1] == "more than 100"
    assert rows["bert_small"] == ["oom", "", "", "", ""]


def test_one_process_shows_no_spread() -> None:
    found = compute_noise(make_record(speedups=[1.0]))
    assert (found.spread_between, found.processes_needed) == (None, None)
    assert noise.make_card([found])[1][-1] == ""
