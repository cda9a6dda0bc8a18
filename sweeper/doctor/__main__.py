"""`python -m sweeper.doctor`: what this machine can do, and how far its clock can be trusted.

Versions, the state of GPU and host, and every backend of torch.compile tried out in a process of its own. With
`--noise` it also measures eager against eager. Nothing of torch is imported here.

Exit codes: 0 a training step compiled by Inductor works on the device; 1 it does not, or the noise could not be
measured; 2 bad arguments; 130 interrupted.
Try: `python -m sweeper.doctor --device cpu --json doctor.json`
"""

from __future__ import annotations

import argparse
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

from sweeper.core import gpus, host
from sweeper.core.backends import GONE
from sweeper.core.errors import ConfigError
from sweeper.core.gpus import Device, GpuReading
from sweeper.core.host import Host, Part
from sweeper.core.paths import write_text
from sweeper.core.protocol import Software, Verdict
from sweeper.core.serialization import from_json, to_json
from sweeper.doctor import noise, probes
from sweeper.doctor.noise import Noise

OK, NOT_OK, BAD_ARGUMENTS, INTERRUPTED = 0, 1, 2, 130
MODES = ("reduce-overhead", "max-autotune")  # of Inductor, beside the default; on a GPU
MAX_LOAD_PER_CORE = 0.25
MAX_MEMORY_UNEXPLAINED_BYTES = 2**30  # an idle GPU has some hundred MiB in use
MAX_AT_ONCE = 4
FEW_PROCESSES = 10  # the 95 % interval of a standard deviation reaches from 0.7 to 1.8 times its estimate from 10 on
COLOURS = {"ok": "green", "missing": "yellow", "broken": "red"}
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


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m sweeper.doctor",
        description="Say what this machine can do: versions, backends of torch.compile, state of GPU and host, noise.",
        epilog="exit code: 0 a compiled training step works, 1 it does not, 2 bad arguments",
    )
    parser.add_argument("--device", type=_device, metavar="cpu|cuda|cuda:N", help="default: the GPU, if there is one")
    parser.add_argument("--noise", action="store_true", help="measure eager against eager on three models: minutes")
    parser.add_argument("--processes", type=_processes, default=5, metavar="N", help="of each model, for --noise")
    parser.add_argument("--timeout-s", type=_seconds, default=300.0, metavar="S", help="for each probe; default 300")
    parser.add_argument("--json", type=_file, metavar="FILE", help="write everything there too")
    return parser.parse_args(arguments)


def _device(text: str) -> str:
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"{text}: give cpu, cuda or cuda:N")
    return text


def _processes(text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text}: give a number from 2 on, one process shows no spread")
    return int(text)


def _seconds(text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", text) or float(text) == 0:
        raise argparse.ArgumentTypeError(f"{text}: give seconds, more than 0")
    return float(text)


def _file(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text}: no file can be written there")
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Look, print, write; the exit code."""
    options = parse(arguments)
    try:
        device = gpus.resolve(options.device, gpus.visible_gpus())[0]
    except ConfigError as error:
        print(f"sweeper.doctor: {error}", file=sys.stderr)
        return BAD_ARGUMENTS
    console = Console(highlight=False, soft_wrap=True)
    try:
        findings = examine(device, options, console)
    except KeyboardInterrupt:
        print("sweeper.doctor: interrupted", file=sys.stderr)
        return INTERRUPTED
    if options.json:
        write_text(options.json, json.dumps(to_json(findings), indent=1) + "\n")
    return exit_code(findings)


def exit_code(findings: Findings) -> int:
    trains = any((item.backend, item.mode, item.verdict) == ("inductor", "default", "ok") for item in findings.verdicts)
    if findings.noise is None:
        return OK if trains else NOT_OK
    measured = len(findings.noise) == len(noise.MODELS) and all(item.status == "ok" for item in findings.noise)
    return OK if trains and measured else NOT_OK


def examine(device: Device, options: argparse.Namespace, console: Console) -> Findings:
    """Find everything out and print it as it comes."""
    machine = host.read()  # before anything of ours runs
    gpu = gpus.read(device.gpu) if device.gpu else None
    warnings = tuple(what_disturbs(machine, gpu))
    _print("device", [*describe_gpu(device, gpu), *describe_host(machine)], console)
    for warning in warnings:
        console.print(f"  [bold yellow]figures taken now would not hold:[/] {escape(warning)}")
    software = with_parts_of_host(ask_software(device, options.timeout_s), gpu)
    _print("software", map(describe_part, software.parts), console)
    _print("AMP", [("bf16", describe_bfloat16(device, machine, software))], console)
    verdicts = probe(questions(software, device), device, at_once(gpu), options.timeout_s, console)
    verdicts += no_more(software, console)
    wobble = measure_noise(device, options.processes, console) if options.noise else None
    return Findings(device, machine, gpu, software, warnings, verdicts, wobble)


def what_disturbs(machine: Host, gpu: GpuReading | None) -> Iterator[str]:
    """What would make figures that are taken now untrue, a line each."""
    if machine.load_per_core is not None and machine.load_per_core > MAX_LOAD_PER_CORE:
        yield f"load {machine.load:.2f} on {machine.cores} cores; stop what runs beside, or wait"
    if gpu is None:
        return
    if gpu.processes:
        yield f"{gpu.processes} other process{'es' if gpu.processes > 1 else ''} on the GPU; stop them, or take another"
    elif (gpu.memory_used_bytes or 0) > MAX_MEMORY_UNEXPLAINED_BYTES:
        yield "memory of the GPU is in use by processes that cannot be seen from here; take another"
    if slow := [reason for reason in gpu.lowered_clocks or () if "thermal" in reason or "hardware" in reason]:
        yield f"the GPU lowers its clock: {', '.join(slow)}"


def describe_gpu(device: Device, gpu: GpuReading | None) -> Iterator[tuple[str, str]]:
    """What is known of the GPU; what it does not tell is left out."""
    if device.gpu is None or gpu is None:
        return
    yield "GPU", f"{device.gpu.name}, {device.gpu.uuid}"
    if gpu.memory_used_bytes is not None and gpu.memory_total_bytes is not None:
        yield "memory", f"{gpu.memory_used_bytes / GIB:.1f} of {gpu.memory_total_bytes / GIB:.1f} GiB in use"
    if gpu.processes is not None:
        yield "processes", f"{gpu.processes or 'none seen'} beside this one"
    if gpu.compute_mode is not None:
        yield "compute mode", gpu.compute_mode
    if gpu.persistence_mode is not None:
        yield "persistence", "on" if gpu.persistence_mode else "off; the first use of an idle GPU takes seconds"
    if gpu.clock_mhz is not None:
        yield "SM clock", f"{gpu.clock_mhz}{f' of {gpu.max_clock_mhz}' if gpu.max_clock_mhz else ''} MHz"
    if gpu.power_w is not None:
        yield "power", f"{gpu.power_w:.0f}{f' of {gpu.power_limit_w:.0f}' if gpu.power_limit_w else ''} W"
    if gpu.temperature_c is not None:
        yield "temperature", f"{gpu.temperature_c} °C"
    if gpu.lowered_clocks:
        yield "clock lowered", ", ".join(gpu.lowered_clocks)


def describe_host(machine: Host) -> Iterator[tuple[str, str]]:
    yield "CPU", machine.cpu
    usable = "" if machine.usable_cores == machine.cores else f", {machine.usable_cores} usable here"
    yield "cores", f"{machine.cores}{usable}"
    if machine.quota_cores is not None:
        yield "quota", f"{machine.quota_cores:g} cores, by the cgroup"
    if machine.load is not None:
        yield "load", f"{machine.load:.2f}, the average of a minute"
    if machine.governor is not None:
        yield "governor", machine.governor


def describe_part(part: Part) -> tuple[str, str]:
    return part.name, "; ".join(text for text in (part.version or "none", part.note) if text)


def describe_bfloat16(device: Device, machine: Host, software: Software) -> str:
    native = machine.bfloat16_native if device.gpu is None else software.bfloat16_native
    if native is None:
        return "not known whether the device computes in bfloat16"
    if native:
        return "native: autocast to bfloat16 can pay"
    emulated = "the device emulates bfloat16"
    return f"{emulated}; precision=amp takes float16" if device.gpu else f"{emulated}: autocast to it is slow"


def ask_software(device: Device, timeout_s: float) -> Software:
    """What the probe says; where it says nothing, that is what is wrong with torch."""
    answer = probes.ask(["versions", device.type], device, timeout_s)
    if answer.problem is not None:
        return Software((Part("torch", None, answer.problem),), (), torch_works=False)
    return from_json(Software, answer.data)


def with_parts_of_host(software: Software, gpu: GpuReading | None) -> Software:
    driver = [Part("NVIDIA driver", gpu.driver)] if gpu else []
    return replace(software, parts=(*software.parts, *driver, host.cpp_compiler()))


def questions(software: Software, device: Device) -> list[tuple[str, str]]:
    """Backends and modes to probe, those of conf/backend first; none without a torch that works.

    Names that are no more need no process to say so, unless this torch has one of them after all.
    """
    if not software.torch_works:
        return []
    from sweeper.config.schema import conf_folder

    own = sorted({path.stem for path in (conf_folder() / "backend").glob("*.yaml")} - GONE.keys())
    modes = MODES if device.gpu else ()
    backends = [name for name in dict.fromkeys([*own, *software.backends]) if name != "inductor"]
    return [("inductor", "default"), *(("inductor", mode) for mode in modes), *((name, "default") for name in backends)]


def at_once(gpu: GpuReading | None) -> int:
    """How many probes run side by side: one where the GPU takes a single process."""
    exclusive = gpu is not None and (gpu.compute_mode or "").startswith("exclusive")
    return 1 if exclusive else min(MAX_AT_ONCE, len(os.sched_getaffinity(0)))


def probe(
    asked: Sequence[tuple[str, str]], device: Device, num_at_once: int, timeout_s: float, console: Console
) -> tuple[Verdict, ...]:
    """Try every backend and mode, and print each verdict when it and those before it are there."""
    console.print("\n[bold]backends: a compiled training step[/]")
    if not asked:
        console.print("  [red]none can be tried without a torch that works[/]")
    names = [backend if mode == "default" else f"{backend} {mode}" for backend, mode in asked]
    commands = [["backend", backend, device.type, "--mode", mode] for backend, mode in asked]
    verdicts: list[Verdict] = []
    with closing(probes.ask_all(commands, device, timeout_s, num_at_once)) as answers:
        for (backend, mode), name, answer in zip(asked, names, answers, strict=True):
            if answer.problem is None:
                verdict = from_json(Verdict, answer.data)
            else:
                verdict = Verdict(backend, mode, "broken", answer.problem)
            verdicts.append(verdict)
            console.print(_verdict_line(name.ljust(max(map(len, names))), verdict))
    return tuple(verdicts)


def no_more(software: Software, console: Console) -> tuple[Verdict, ...]:
    """The names of PyTorch 2.0 that this torch does not have, each with what to take instead; printed."""
    if not software.torch_works:
        return ()
    gone = {name: why for name, why in GONE.items() if name not in software.backends}
    verdicts = tuple(Verdict(name, "default", "missing", f"backend {name} {why}") for name, why in gone.items())
    for verdict in verdicts:
        console.print(_verdict_line(verdict.backend.ljust(max(map(len, gone))), verdict))
    return verdicts


def _verdict_line(name: str, verdict: Verdict) -> str:
    took = f"first step {verdict.first_step_s:.1f} s" if verdict.first_step_s is not None else ""
    word = f"[{COLOURS[verdict.verdict]}]{verdict.verdict.ljust(len('missing'))}[/]"
    return f"  {escape(name)}  {word}  {escape(verdict.reason or took)}".rstrip()


def measure_noise(device: Device, processes: int, console: Console) -> tuple[Noise, ...]:
    """Run the sweep and print the noise card; empty when there is nothing to read."""
    console.print("\n[bold]noise: eager against eager[/]")
    name = noise.sweep_name()
    code = noise.run_sweep(name, device, processes)
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    if code not in (OK, NOT_OK):
        console.print(f"  [red]the sweep {name} could not run[/]")
        return ()
    wobble = noise.read_sweep(name)
    if not wobble:
        console.print(f"  [red]the sweep {name} left no records[/]")
        return ()
    console.print("\n[bold]noise card[/]")
    rows = noise.card(wobble)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        console.print(f"  {escape('  '.join(cells))}".rstrip())
    if processes < FEW_PROCESSES:
        console.print(
            f"  From {processes} processes the spread between them is a rough guess, and so is the last column."
        )
    return wobble


def _print(title: str, lines: Iterable[tuple[str, str]], console: Console) -> None:
    """A heading and its lines, names aligned."""
    lines = list(lines)
    console.print(f"\n[bold]{title}[/]")
    for name, text in lines:
        console.print(f"  {escape(name.ljust(max(len(name) for name, _ in lines)))}  {escape(text)}".rstrip())


if __name__ == "__main__":
    sys.exit(main())
