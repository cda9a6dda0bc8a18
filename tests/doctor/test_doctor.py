"""The doctor: real probes of torch on the CPU, backends that misbehave, and the noise card by
hand.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from records import make_process, make_record, write_sweep
from rich.console import Console

from sweeper.core.protocol import Software, Verdict
from sweeper.core.record import Round
from sweeper.core.system import gpus
from sweeper.core.system.gpus import Device, GpuReading
from sweeper.core.system.host import Host
from sweeper.doctor import __main__, noise, probes
from sweeper.doctor.__main__ import Findings, decide_exit_code
from sweeper.doctor.noise import Noise, compute_noise, count_processes_needed

CPU = Device("cpu")
QUIET = Host("a processor", cores=4, usable_cores=4, load=0.2)
OWN_BACKENDS = """
import os, subprocess, time

def same_forward(graph, inputs):
    return graph.forward

def hidden_forward(graph, inputs):
    return lambda *arguments: graph.forward(*arguments)

def hangs(graph, inputs):
    child = subprocess.Popen(["sleep", "600"])
    with open(os.environ["PIDS"], "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    time.sleep(600)

def wrong(graph, inputs):
    from torch._dynamo.backends.common import aot_autograd

    def halved(traced, _inputs):
        def run(arguments):
            found = traced.forward(*arguments)
            return tuple(value / 2 if value is not None else None for value in found)
        run._boxed_call = True
        return run

    return aot_autograd(fw_compiler=halved)(graph, inputs)

def dies(graph, inputs):
    os.abort()
"""


@pytest.fixture
def own_backends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that registers backends as packages do, importable by the probes."""
    (tmp_path / "own_backends.py").write_text(OWN_BACKENDS)
    names = ("same_forward", "hidden_forward", "hangs", "wrong", "dies")
    information = tmp_path / "own_backends-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: own-backends\nVersion: 1.0\n"
    )
    lines = [f"{name} = own_backends:{name}" for name in (*names, "gone")]
    (information / "entry_points.txt").write_text(
        "[torch_dynamo_backends]\n" + "\n".join(lines) + "\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    return tmp_path


def probed(backend: str) -> Verdict:
    """As doctor asks, in a process of its own."""
    answer = probes.ask(["backend", backend, "cpu"], CPU, timeout_s=240)
    assert answer.problem is None, answer.problem
    return Verdict(**answer.data)  # type: ignore[arg-type]


@pytest.fixture
def verdict_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Verdict]:
    """The same without the process, for what does no harm in this one."""
    import torch

    from sweeper.worker.backend_check import check_backend

    # it is as it was after the test
    monkeypatch.setattr(torch._inductor.config.triton, "cudagraph_or_error", False)
    torch._dynamo.reset()
    return lambda backend: check_backend(backend, "cpu")


@pytest.mark.compile
def test_inductor_trains_on_the_cpu() -> None:
    verdict = probed("inductor")
    assert (verdict.verdict, verdict.reason) == ("ok", None)
    assert verdict.first_step_s is not None


@pytest.mark.compile
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "aot_ts", "jit_trace"])
def test_backends_of_torch_train_on_the_cpu(
    verdict_of: Callable[[str], Verdict], backend: str
) -> None:
    verdict = verdict_of(backend)
    assert (verdict.verdict, verdict.reason) == ("ok", None)
    assert verdict.first_step_s is not None


@pytest.mark.compile
@pytest.mark.parametrize("backend", ["eager_noexcept", "eager_debug"])
def test_backends_of_torch_that_compile_nothing_are_controls(
    verdict_of: Callable[[str], Verdict], backend: str
) -> None:
    verdict = verdict_of(backend)
    assert (verdict.verdict, verdict.reason and verdict.reason[:28]) == (
        "control",
        "compiles nothing, on purpose",
    )


@pytest.mark.compile
def test_a_backend_that_takes_more_than_torch_compile_gives_is_not_broken(
    verdict_of: Callable[[str], Verdict],
) -> None:
    verdict = verdict_of("aot_eager_decomp_partition_with_mode")
    assert verdict.verdict == "missing"
    assert "for callers in Python: torch.compile gives it too little" in str(verdict.reason)


@pytest.mark.compile
@pytest.mark.parametrize("backend", ["same_forward", "hidden_forward"])
def test_a_backend_that_runs_the_graph_as_it_came_is_told_on(
    own_backends: Path, backend: str
) -> None:
    verdict = probed(backend)
    assert (verdict.verdict, verdict.reason) == ("broken", "runs eager")


@pytest.mark.compile
def test_cudagraphs_on_a_cpu_is_missing_as_a_trial_is_unavailable(
    verdict_of: Callable[[str], Verdict],
) -> None:
    verdict = verdict_of("cudagraphs")
    assert (verdict.verdict, verdict.reason) == (
        "missing",
        "backend cudagraphs needs device=cuda, this is cpu",
    )


@pytest.mark.compile
def test_a_backend_that_computes_something_else_is_broken(own_backends: Path) -> None:
    verdict = probed("wrong")
    assert verdict.verdict == "broken"
    assert "wrong: differs from eager by up to" in str(verdict.reason)


@pytest.mark.compile
@pytest.mark.parametrize(
    ("backend", "advice"),
    [
        ("no_such_backend", "install the package that registers it; "),
        ("inductr", "nearest: inductor"),
        ("tvm", "needs tvm.relay"),
        ("onnxrt", "nothing to install"),
    ],
)
def test_a_backend_that_is_not_here_is_missing_with_what_to_install(
    verdict_of: Callable[[str], Verdict], backend: str, advice: str
) -> None:
    verdict = verdict_of(backend)
    assert verdict.verdict == "missing"
    assert advice in str(verdict.reason)


@pytest.mark.compile
def test_a_probe_that_hangs_ends_by_the_limit_and_leaves_no_process(own_backends: Path) -> None:
    assert (
        probes.ask(["backend", "hangs", "cpu"], CPU, timeout_s=30).problem
        == "no answer within 30 s"
    )
    pids = [int(pid) for pid in (own_backends / "pids").read_text().split()]
    assert len(pids) == 2
    wait_until_gone(pids)


@pytest.mark.compile
def test_closing_the_answers_ends_what_still_runs(own_backends: Path) -> None:
    answers = probes.ask_all(
        [["versions"], ["backend", "hangs", "cpu"]], CPU, timeout_s=240, at_once=2
    )
    next(answers)
    deadline = time.monotonic() + 60
    while not (own_backends / "pids").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    answers.close()
    wait_until_gone([int(pid) for pid in (own_backends / "pids").read_text().split()])


def wait_until_gone(pids: list[int]) -> None:
    """A killed grandchild is a zombie until init has reaped it."""
    deadline = time.monotonic() + 10
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline, f"still running: {pids}"
        time.sleep(0.1)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.compile
def test_a_backend_that_kills_the_process_is_one_broken_line(own_backends: Path) -> None:
    answer = probes.ask(["backend", "dies", "cpu"], CPU, timeout_s=240)
    assert str(answer.problem).startswith("the probe was killed by SIGABRT")


def test_a_broken_torch_is_a_line_with_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(
        "raise OSError('libcudart.so.12: cannot open shared object file')"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    software = __main__.ask_software(CPU, timeout_s=60)
    assert not software.torch_works
    torch = next(part for part in software.parts if part.name == "torch")
    assert (
        torch.note == "cannot be imported: OSError: libcudart.so.12: cannot open shared object file"
    )
    assert __main__.list_questions(software, CPU) == []


def test_backends_of_conf_come_first_and_modes_only_on_a_gpu() -> None:
    software = Software((), ("eager", "inductor", "ts", "zeta"), torch_works=True)
    gpu = Device("cuda", gpus.Gpu("0", "GPU-aaa", "NVIDIA H200"))
    asked = __main__.list_questions(software, CPU)
    assert asked[0] == ("inductor", "default")
    assert asked[-1] == ("zeta", "default")
    names = [backend for backend, _ in asked]
    assert {"inductor", "aot_eager", "cudagraphs", "eager", "ts", "jit_trace", "openvino"} <= set(
        names
    )
    assert len(names) == len(set(names))
    assert "nvfuser" not in names
    listed = __main__.list_questions(Software((), ("nvfuser",), torch_works=True), CPU)
    assert ("nvfuser", "default") in listed  # by this torch
    assert __main__.list_questions(software, gpu)[:3] == [
        ("inductor", "default"),
        ("inductor", "reduce-overhead"),
        ("inductor", "max-autotune"),
    ]


def test_names_that_are_no_more_are_told_without_a_process() -> None:
    output = StringIO()
    verdicts = __main__.report_removed_backends(
        Software((), ("onnxrt",), torch_works=True), Console(file=output, width=200)
    )
    found = {verdict.backend: verdict.reason for verdict in verdicts}
    assert "onnxrt" not in found  # this torch lists it
    assert str(found["aot_cudagraphs"]).endswith("take cudagraphs")
    assert len(output.getvalue().splitlines()) == len(found)


# Exit codes


def findings(verdict: str = "ok", wobble: tuple[Noise, ...] | None = None) -> Findings:
    verdicts = (
        Verdict("inductor", "default", verdict),
        Verdict("tvm", "default", "missing", "pip install"),
    )
    return Findings(CPU, QUIET, None, Software((), (), True), (), verdicts, wobble)


def test_exit_code_is_that_of_inductor_and_of_the_noise() -> None:
    good = tuple(Noise(model, "ok", 5) for model in noise.MODELS)
    assert decide_exit_code(findings()) == 0
    assert decide_exit_code(findings("broken")) == 1
    assert decide_exit_code(dataclasses.replace(findings(), verdicts=())) == 1
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
    assert "none can be tried without a torch that works" in result.stdout
    written = json.loads((tmp_path / "doctor.json").read_text())
    assert written["device"]["type"] == "cpu"
    assert written["software"]["parts"][0]["note"] == "no answer within 0.3 s"


def test_verdicts_are_printed_in_order_one_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    said = [
        Verdict("inductor", "default", "ok", None, 2.0),
        Verdict("tvm", "default", "missing", "pip install [it]"),
    ]

    def answers(*_arguments: object):
        yield probes.Answer(dataclasses.asdict(said[0]))
        yield probes.Answer(problem="no answer within 5 s")
        yield probes.Answer(dataclasses.asdict(said[1]))

    monkeypatch.setattr(probes, "ask_all", answers)
    console = Console(file=StringIO(), soft_wrap=True, highlight=False)
    asked = [("inductor", "default"), ("inductor", "max-autotune"), ("tvm", "default")]
    verdicts = __main__.probe_backends(asked, CPU, 1, 5, console)
    assert [verdict.verdict for verdict in verdicts] == ["ok", "broken", "missing"]
    assert console.file.getvalue().splitlines()[2:] == [  # type: ignore[attr-defined]
        "  inductor               ok       first step 2.0 s",
        "  inductor max-autotune  broken   no answer within 5 s",
        "  tvm                    missing  pip install [it]",
    ]


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
    described = dict(
        __main__.describe_gpu(Device("cuda", gpus.Gpu("0", "GPU-aaa", "A GPU")), reading)
    )
    assert described == {
        "GPU": "A GPU, GPU-aaa",
        "memory": "1.0 of 128.0 GiB in use",
        "processes": "none seen beside this one",
        "power": "72 W",
        "clock lowered": "idle, hardware_thermal",
    }


@pytest.mark.parametrize(("mode", "expected"), [("exclusive process", 1), ("default", 2)])
def test_an_exclusive_gpu_gets_one_probe_at_a_time(
    mode: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    assert __main__.count_parallel_probes(GpuReading(compute_mode=mode)) == expected


# Noise


def test_processes_needed_by_hand() -> None:
    # t(1), t(2), t(3), t(5), t(6) = 12.706, 4.303, 3.182, 2.571, 2.447
    assert count_processes_needed(0.0) == 2
    assert count_processes_needed(0.001) == 2  # 12.706 * 0.001 / 1.414 = 0.0090
    # 3: 4.303 * 0.005 / 1.732 = 0.0124; 4: 3.182 * 0.005 / 2 = 0.0080
    assert count_processes_needed(0.005) == 4
    # 6: 2.571 * 0.01 / 2.449 = 0.0105; 7: 2.447 * 0.01 / 2.646 = 0.0092
    assert count_processes_needed(0.01) == 7
    assert count_processes_needed(0.01, half_width=0.1) == 2
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
