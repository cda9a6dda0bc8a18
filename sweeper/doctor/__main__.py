"""`python -m sweeper.doctor`: says what this machine can do, and how far its clock can be trusted.

It prints versions and the state of GPU and host, and the command that tries every backend of
torch.compile. With `--noise` it also measures eager against eager. Nothing of torch is imported
here.

Exit codes: 0 torch works on the device; 1 it does not, the CPU lacks a C++ compiler, or the noise
could not be measured; 2 bad arguments; 130 interrupted. Try: `python -m sweeper.doctor --device cpu
--json doctor.json`
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from sweeper.core.backends import GONE
from sweeper.core.errors import ConfigError
from sweeper.core.files import write_text
from sweeper.core.protocol import Package, Software
from sweeper.core.serialization import to_json
from sweeper.core.system import gpus, host
from sweeper.core.system.command_line import name_program
from sweeper.core.system.exit_codes import BAD_INPUT, INTERRUPTED, NOT_OK, OK
from sweeper.core.system.gpus import Device, Gpu, GpuReading
from sweeper.core.system.host import Host
from sweeper.core.system.pipes import run_until_closed
from sweeper.execution.disturbances import UNRELIABLE, find_on_gpu, find_on_host
from sweeper.report.text.terminal import Terminal

from . import noise
from .noise import Noise
from .software import ask_software, find_cpp_compiler

GIB = 2**30


@dataclass(frozen=True)
class Examination:
    """Everything that was found out; what `--json` writes."""

    device: Device
    host: Host
    gpu: GpuReading | None
    software: Software
    cpp_compiler: Package
    warnings: tuple[str, ...]
    noise: tuple[Noise, ...] | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Examine this machine, print and write the findings; the exit code."""
    parser = argparse.ArgumentParser(
        "python -m sweeper.doctor",
        description="Say what this machine can do: versions, state of GPU and host, noise, and how "
        "to try the backends of torch.compile.",
        epilog="exit code: 0 torch works on the device, 1 it does not, 2 bad arguments",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--device",
        type=_match(r"cpu|cuda(:\d+)?", "cpu, cuda or cuda:N"),
        metavar="cpu|cuda|cuda:N",
        help="default: the GPU, if there is one",
    )
    parser.add_argument(
        "--noise", action="store_true", help="measure eager against eager on three models: minutes"
    )
    parser.add_argument(
        "--processes",
        type=_match(r"0*([2-9]|[1-9]\d+)", "a number from 2 on, one process shows no spread"),
        default="5",
        metavar="N",
        help="of each model, for --noise",
    )
    parser.add_argument(
        "--timeout-s",
        type=_match(r"(?=.*[1-9])\d+(\.\d+)?", "seconds, more than 0"),
        default="300",
        metavar="S",
        help="for torch to answer; default 300",
    )
    parser.add_argument(
        "--json", type=_check_file, metavar="FILE", help="write everything there too"
    )
    options = parser.parse_args(arguments)
    try:
        device = gpus.resolve(options.device, gpus.visible_gpus())[0]
        findings = examine(device, options, Terminal(highlight=False, soft_wrap=True))
    except ConfigError as error:
        print(f"sweeper.doctor: {error}", file=sys.stderr)
        return BAD_INPUT
    if options.json:
        write_text(options.json, json.dumps(to_json(findings), indent=1) + "\n")
    return decide_exit_code(findings)


def _match(pattern: str, hint: str) -> Callable[[str], str]:
    """Return a type of argument: a text that matches a pattern."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise argparse.ArgumentTypeError(f"{text}: give {hint}")
        return text

    return check


def _check_file(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text}: no file can be written there")
    return path


def decide_exit_code(findings: Examination) -> int:
    if not findings.software.torch_works:
        return NOT_OK
    if findings.device.type == "cpu" and findings.cpp_compiler.version is None:
        return NOT_OK
    measured = findings.noise
    if measured is not None and [one.status for one in measured] != ["ok"] * len(noise.MODELS):
        return NOT_OK
    return OK


def examine(device: Device, options: argparse.Namespace, console: Console) -> Examination:
    """Find everything out and print it as it comes."""
    machine = host.read()  # before anything of ours runs
    gpu, driver = None, []
    rows, warnings = list(describe_host(machine)), list(find_on_host(machine))
    if device.gpu:
        gpu = gpus.read(device.gpu)
        driver = [Package("NVIDIA driver", gpu.driver)]
        rows = [*describe_gpu(device.gpu, gpu), *rows]
        warnings += find_on_gpu(gpu)
    _print_section("device", rows, console)
    for warning in warnings:
        console.print(f"  [bold yellow]{UNRELIABLE}[/] {escape(warning)}")
    software, cpp_compiler = ask_software(device, float(options.timeout_s)), find_cpp_compiler()
    parts = [
        (part.name, "; ".join(filter(None, [part.version or "none", part.note])))
        for part in (*software.parts, *driver, cpp_compiler)
    ]
    _print_section("software", parts, console)
    _print_section("AMP", [("bf16", describe_bfloat16(device, machine, software))], console)
    _print_section("backends that torch has removed", list(GONE.items()), console)
    _print_section("to try every backend", [[name_backend_sweep(device)]], console)
    measured = None
    if options.noise:
        measured = measure_noise(device, int(options.processes), console)
    return Examination(device, machine, gpu, software, cpp_compiler, tuple(warnings), measured)


def describe_gpu(gpu: Gpu, now: GpuReading) -> Iterator[tuple[str, str]]:
    """Describe what is known of the GPU; what it does not tell is left out."""
    yield "GPU", f"{gpu.name}, {gpu.uuid}"
    if now.memory_used_bytes is not None and now.memory_total_bytes is not None:
        used_gib, total_gib = now.memory_used_bytes / GIB, now.memory_total_bytes / GIB
        yield "memory", f"{used_gib:.1f} of {total_gib:.1f} GiB in use"
    if now.pids is not None:
        yield "processes", f"{len(now.pids) or 'none seen'} beside this one"
    if now.compute_mode is not None:
        yield "compute mode", now.compute_mode
    if now.persistence_mode is not None:
        idle = "off; the first use of an idle GPU takes seconds"
        yield "persistence", "on" if now.persistence_mode else idle
    for name, value, limit, unit in (
        ("SM clock", now.clock_mhz, now.max_clock_mhz, "MHz"),
        ("power", now.power_w, now.power_limit_w, "W"),
    ):
        if value is not None:
            of_limit = f" of {limit:.0f}" if limit else ""
            yield name, f"{value:.0f}{of_limit} {unit}"
    if now.temperature_c is not None:
        yield "temperature", f"{now.temperature_c} °C"
    if now.lowered_clocks:
        yield "clock lowered", ", ".join(now.lowered_clocks)


def describe_host(machine: Host) -> Iterator[tuple[str, str]]:
    yield "CPU", machine.cpu
    cores = str(machine.cores)
    if machine.usable_cores != machine.cores:
        cores += f", {machine.usable_cores} usable here"
    yield "cores", cores
    if machine.quota_cores is not None:
        yield "quota", f"{machine.quota_cores:g} cores, by the cgroup"
    if machine.load is not None:
        yield "load", f"{machine.load:.2f}, the average of a minute"
    if machine.governor is not None:
        yield "governor", machine.governor


def describe_bfloat16(device: Device, machine: Host, software: Software) -> str:
    native = machine.bfloat16_native
    if device.gpu:
        native = software.bfloat16_native
    if native is None:
        return "not known whether the device computes in bfloat16"
    if native:
        return "native: autocast to bfloat16 can pay"
    if device.gpu:
        return "the device emulates bfloat16; precision=amp takes float16"
    return "the device emulates bfloat16: autocast to it is slow"


def name_backend_sweep(device: Device) -> str:
    """Return the command that tries each backend, and the modes of Inductor on a GPU."""
    from sweeper.config.schema import conf_folder

    options = {path.stem for path in (conf_folder() / "backend").glob("*.yaml")}
    backends = ",".join(sorted(options - GONE.keys()))
    if device.gpu:
        backends += " mode=default,reduce-overhead,max-autotune"  # of Inductor
    return name_program(
        f"python -m sweeper -m model=pointwise backend={backends} measure=quick tracking=none "
        f"device={device.type}"
    )


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
    # from 10 on, a standard deviation is known to 0.7 to 1.8 times its estimate
    if processes < 10:
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
