"""`python -m sweeper.doctor`: says what this machine can do, and how far its clock can be trusted.

It prints versions and the state of GPU and host, and tries every backend of torch.compile in a
process of its own. With `--noise` it also measures eager against eager. Nothing of torch is
imported here.

Exit codes: 0 a training step compiled by Inductor works on the device; 1 it does not, or the noise
could not be measured; 2 bad arguments; 130 interrupted. Try: `python -m sweeper.doctor --device cpu
--json doctor.json`
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from sweeper.core.backends import GONE
from sweeper.core.errors import ConfigError
from sweeper.core.files import write_text
from sweeper.core.protocol import Part, Software, Verdict
from sweeper.core.serialization import from_json, to_json
from sweeper.core.system import gpus, host
from sweeper.core.system.exit_codes import BAD_INPUT, INTERRUPTED, NOT_OK, OK
from sweeper.core.system.gpus import Device, GpuReading
from sweeper.core.system.host import Host
from sweeper.core.system.pipes import run_until_closed
from sweeper.doctor import noise, probes
from sweeper.doctor.cpp_compiler import find_cpp_compiler
from sweeper.doctor.noise import Noise
from sweeper.execution.disturbances import UNRELIABLE, discount_past_load, find_disturbances

MODES = ("reduce-overhead", "max-autotune")  # of Inductor, beside the default; on a GPU
MAX_PARALLEL_PROBES = 4
# from 10 on, a standard deviation is known to 0.7 to 1.8 times its estimate
MIN_PROCESSES_FOR_SPREAD = 10
COLOURS = {"ok": "green", "missing": "yellow", "broken": "red", "control": "cyan"}
GIB = 2**30


@dataclass(frozen=True)
class Findings:
    """Everything that was found out; what `--json` writes."""

    device: Device
    host: Host
    gpu: GpuReading | None
    software: Software
    warnings: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    noise: tuple[Noise, ...] | None = None


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    purpose = (
        "Say what this machine can do: versions, backends of torch.compile, state of GPU and "
        "host, noise."
    )
    codes = "exit code: 0 a compiled training step works, 1 it does not, 2 bad arguments"
    parser = argparse.ArgumentParser(
        "python -m sweeper.doctor", description=purpose, epilog=codes, allow_abbrev=False
    )
    device = functools.partial(_check_text, r"cpu|cuda(:\d+)?", "cpu, cuda or cuda:N")
    processes = functools.partial(
        _check_text, r"0*([2-9]|[1-9]\d+)", "a number from 2 on, one process shows no spread"
    )
    seconds = functools.partial(_check_text, r"(?=.*[1-9])\d+(\.\d+)?", "seconds, more than 0")
    parser.add_argument(
        "--device", type=device, metavar="cpu|cuda|cuda:N", help="default: the GPU, if there is one"
    )
    parser.add_argument(
        "--noise", action="store_true", help="measure eager against eager on three models: minutes"
    )
    parser.add_argument(
        "--processes", type=processes, default="5", metavar="N", help="of each model, for --noise"
    )
    parser.add_argument(
        "--timeout-s", type=seconds, default="300", metavar="S", help="for each probe; default 300"
    )
    parser.add_argument(
        "--json", type=_check_file, metavar="FILE", help="write everything there too"
    )
    return parser.parse_args(arguments)


def _check_text(pattern: str, hint: str, text: str) -> str:
    if not re.fullmatch(pattern, text):
        raise argparse.ArgumentTypeError(f"{text}: give {hint}")
    return text


def _check_file(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text}: no file can be written there")
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Examine this machine, print and write the findings; the exit code."""
    options = parse_arguments(arguments)
    try:
        device = gpus.resolve(options.device, gpus.visible_gpus())[0]
        findings = examine(device, options, Console(highlight=False, soft_wrap=True))
    except ConfigError as error:
        print(f"sweeper.doctor: {error}", file=sys.stderr)
        return BAD_INPUT
    if options.json:
        write_text(options.json, json.dumps(to_json(findings), indent=1) + "\n")
    return decide_exit_code(findings)


def decide_exit_code(findings: Findings) -> int:
    works = any(
        (item.backend, item.mode, item.verdict) == ("inductor", "default", "ok")
        for item in findings.verdicts
    )
    if findings.noise is not None:
        works &= [item.status for item in findings.noise] == ["ok"] * len(noise.MODELS)
    return OK if works else NOT_OK


def examine(device: Device, options: argparse.Namespace, console: Console) -> Findings:
    """Find everything out and print it as it comes."""
    machine = host.read()  # before anything of ours runs
    gpu = gpus.read(device.gpu) if device.gpu else None
    warnings, timeout_s = (
        tuple(find_disturbances(discount_past_load(machine), gpu)),
        float(options.timeout_s),
    )
    _print_section("device", [*describe_gpu(device, gpu), *describe_host(machine)], console)
    for warning in warnings:
        console.print(f"  [bold yellow]{UNRELIABLE}[/] {escape(warning)}")
    software = ask_software(device, timeout_s)
    driver = [Part("NVIDIA driver", gpu.driver)] if gpu else []
    software = replace(software, parts=(*software.parts, *driver, find_cpp_compiler()))
    parts = [
        (part.name, "; ".join(filter(None, [part.version or "none", part.note])))
        for part in software.parts
    ]
    _print_section("software", parts, console)
    _print_section("AMP", [("bf16", describe_bfloat16(device, machine, software))], console)
    verdicts = probe_backends(
        list_questions(software, device), device, count_parallel_probes(gpu), timeout_s, console
    )
    verdicts += report_removed_backends(software, console) if software.torch_works else ()
    measured = measure_noise(device, int(options.processes), console) if options.noise else None
    return Findings(device, machine, gpu, software, warnings, verdicts, measured)


def describe_gpu(device: Device, gpu: GpuReading | None) -> Iterator[tuple[str, str]]:
    """Describe what is known of the GPU; what it does not tell is left out."""
    if device.gpu is None or gpu is None:
        return
    yield "GPU", f"{device.gpu.name}, {device.gpu.uuid}"
    if gpu.memory_used_bytes is not None and gpu.memory_total_bytes is not None:
        yield (
            "memory",
            f"{gpu.memory_used_bytes / GIB:.1f} of {gpu.memory_total_bytes / GIB:.1f} GiB in use",
        )
    if gpu.pids is not None:
        yield "processes", f"{len(gpu.pids) or 'none seen'} beside this one"
    if gpu.compute_mode is not None:
        yield "compute mode", gpu.compute_mode
    if gpu.persistence_mode is not None:
        yield (
            "persistence",
            "on" if gpu.persistence_mode else "off; the first use of an idle GPU takes seconds",
        )
    if gpu.clock_mhz is not None:
        yield (
            "SM clock",
            f"{gpu.clock_mhz}{f' of {gpu.max_clock_mhz}' if gpu.max_clock_mhz else ''} MHz",
        )
    if gpu.power_w is not None:
        yield (
            "power",
            f"{gpu.power_w:.0f}{f' of {gpu.power_limit_w:.0f}' if gpu.power_limit_w else ''} W",
        )
    if gpu.temperature_c is not None:
        yield "temperature", f"{gpu.temperature_c} °C"
    if gpu.lowered_clocks:
        yield "clock lowered", ", ".join(gpu.lowered_clocks)


def describe_host(machine: Host) -> Iterator[tuple[str, str]]:
    yield "CPU", machine.cpu
    usable = (
        "" if machine.usable_cores == machine.cores else f", {machine.usable_cores} usable here"
    )
    yield "cores", f"{machine.cores}{usable}"
    if machine.quota_cores is not None:
        yield "quota", f"{machine.quota_cores:g} cores, by the cgroup"
    if machine.load is not None:
        yield "load", f"{machine.load:.2f}, the average of a minute"
    if machine.governor is not None:
        yield "governor", machine.governor


def describe_bfloat16(device: Device, machine: Host, software: Software) -> str:
    native = machine.bfloat16_native if device.gpu is None else software.bfloat16_native
    if native is None:
        return "not known whether the device computes in bfloat16"
    if native:
        return "native: autocast to bfloat16 can pay"
    emulated = "the device emulates bfloat16"
    return (
        f"{emulated}; precision=amp takes float16"
        if device.gpu
        else f"{emulated}: autocast to it is slow"
    )


def ask_software(device: Device, timeout_s: float) -> Software:
    """Ask a probe for versions; where it fails, report the failure as what is wrong with torch."""
    answer = probes.ask(["versions", device.type], device, timeout_s)
    if answer.problem is not None:
        return Software((Part("torch", None, answer.problem),), (), torch_works=False)
    return from_json(Software, answer.data)


def list_questions(software: Software, device: Device) -> list[tuple[str, str]]:
    """List the backends and modes to probe, those of conf/backend first; none without a torch that
    works.

    A backend that torch has removed needs no process to say so, unless this torch has it after all.
    """
    if not software.torch_works:
        return []
    from sweeper.config.schema import conf_folder

    own = sorted({path.stem for path in (conf_folder() / "backend").glob("*.yaml")} - GONE.keys())
    modes = ("default", *MODES) if device.gpu else ("default",)
    backends = [name for name in dict.fromkeys([*own, *software.backends]) if name != "inductor"]
    return [*(("inductor", mode) for mode in modes), *((name, "default") for name in backends)]


def count_parallel_probes(gpu: GpuReading | None) -> int:
    """Count the probes that run side by side: one where the GPU takes a single process."""
    exclusive = gpu is not None and (gpu.compute_mode or "").startswith("exclusive")
    return 1 if exclusive else min(MAX_PARALLEL_PROBES, len(os.sched_getaffinity(0)))


def probe_backends(
    questions: Sequence[tuple[str, str]],
    device: Device,
    at_once: int,
    timeout_s: float,
    console: Console,
) -> tuple[Verdict, ...]:
    """Try every backend and mode, and print each verdict when it and those before it are there."""
    console.print("\n[bold]backends: a compiled training step[/]")
    if not questions:
        console.print("  [red]none can be tried without a torch that works[/]")
    width = max((len(_name_question(*question)) for question in questions), default=0)
    commands = [["backend", backend, device.type, "--mode", mode] for backend, mode in questions]
    verdicts = []
    with closing(probes.ask_all(commands, device, timeout_s, at_once)) as answers:
        for (backend, mode), answer in zip(questions, answers, strict=True):
            broken = Verdict(backend, mode, "broken", answer.problem)
            verdicts.append(broken if answer.problem else from_json(Verdict, answer.data))
            _print_verdict(verdicts[-1], width, console)
    return tuple(verdicts)


def report_removed_backends(software: Software, console: Console) -> tuple[Verdict, ...]:
    """Print the names of PyTorch 2.0 that this torch does not have, each with what to take
    instead.
    """
    reasons = {
        name: f"backend {name} is no more: {why}"
        for name, why in GONE.items()
        if name not in software.backends
    }
    verdicts = tuple(
        Verdict(name, "default", "missing", reason) for name, reason in reasons.items()
    )
    for verdict in verdicts:
        _print_verdict(verdict, max(map(len, reasons)), console)
    return verdicts


def _name_question(backend: str, mode: str) -> str:
    return backend if mode == "default" else f"{backend} {mode}"


def _print_verdict(verdict: Verdict, width: int, console: Console) -> None:
    took = f"first step {verdict.first_step_s:.1f} s" if verdict.first_step_s is not None else ""
    word = f"[{COLOURS[verdict.verdict]}]{verdict.verdict.ljust(len('missing'))}[/]"
    name = escape(_name_question(verdict.backend, verdict.mode).ljust(width))
    console.print(f"  {name}  {word}  {escape(verdict.reason or took)}".rstrip())


def measure_noise(device: Device, processes: int, console: Console) -> tuple[Noise, ...]:
    """Run the sweep and print the noise card; empty when there is nothing to read."""
    console.print("\n[bold]noise: eager against eager[/]")
    name, code = noise.run_noise_sweep(device, processes)
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    measured = noise.read_noise(name)
    if not measured:
        console.print(f"  [red]the sweep {name} left no records[/]")
        return ()
    _print_section("noise card", noise.make_card(measured), console)
    if processes < MIN_PROCESSES_FOR_SPREAD:
        guess = "the spread between them is a rough guess, and so is the last column."
        console.print(f"  From {processes} processes {guess}")
    return measured


def _print_section(title: str, rows: Iterable[Sequence[str]], console: Console) -> None:
    """Print a heading and rows of cells, aligned."""
    console.print(f"\n[bold]{title}[/]")
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        console.print(f"  {escape('  '.join(cells))}".rstrip())


if __name__ == "__main__":
    sys.exit(run_until_closed(main))
