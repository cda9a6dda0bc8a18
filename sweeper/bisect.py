"""`python -m sweeper.bisect SWEEP TRIAL` finds the part of the compiler that breaks a trial.

Each probe is a fresh worker process that runs the trial with a part of the compiler left out, and
checks it as a sweep does. Backends come first, each with one stage more than the one before. With
the first wrong one, settings of the trial are left out, options are set, and parts that are applied
many times are switched off in torch's way, by variables and by files in the probe's cache folder
(`CompilerBisector` in torch/_inductor/compiler_bisector.py). The record is not changed.
"""

import argparse
import math
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template

from sweeper.core.backends import STAGES
from sweeper.core.errors import ConfigError, explain_unreadable
from sweeper.core.files import MAX_JSON_BYTES, make_way, read_text, write_text
from sweeper.core.libraries import CUSTOM
from sweeper.core.paths import SweepPaths
from sweeper.core.protocol import Job, Outcome, ProtocolError
from sweeper.core.record import FAULTS, Record, say_while
from sweeper.core.serialization import Json, flatten, show_value, to_json
from sweeper.core.system.exit_codes import BAD_INPUT, NOT_OK, OK
from sweeper.core.system.leftovers import make_temporary
from sweeper.core.system.pipes import run_until_closed
from sweeper.core.trial import OPEN_SETTINGS, SPELLED_OUT, Compile
from sweeper.execution import processes
from sweeper.execution.device_lease import DeviceLease
from sweeper.execution.worker_channel import start_worker
from sweeper.loading.sources import find_sweep

# Parts of a backend as torch names them, in torch's order. None: it is applied many times, and one
# application is to be found; else a value of an option that switches it off.
PARTS: Mapping[str, Mapping[str, bool | None]] = {
    "aot_eager_decomp_partition": {"decomposition": None},
    "inductor": {
        "pre_grad_passes": None,
        "joint_graph_passes": None,
        "post_grad_passes": None,
        "fallback_random": True,
        "emulate_precision_casts": True,
        "layout_optimization": False,
        "comprehensive_padding": False,
        "cudagraphs": None,
        "lowerings": None,
    },
}
# Fields of `Compile` that are left out before parts are switched off.
LEFT_OUT = (*OPEN_SETTINGS, *SPELLED_OUT, "start")
SHOWN = {  # axes that `FAULT_SCRIPT` heeds, or that change no gradient
    "model.library", "model.name", "model.dropout", "batch_size", "workload",
    "precision.autocast", "precision.grad_scaler", "optimizer",
    "optimizer_impl", "backend", "device", "python", "compile.dynamic", "compile.fullgraph",
    "compile.memory_budget",
}  # fmt: skip
FAULT_SCRIPT = Template('''\
"""$fault

Compares a compiled step with eager, without sweeper: outputs, and in training loss and gradients.
"""

import sys

import torch
from torch.utils._pytree import tree_leaves

sys.path.insert(0, $folder)
from $module import $function  # noqa: E402

DEVICE, TRAINS = torch.device("$device"), $trains
has_bf16 = DEVICE.type == "cpu" or torch.cuda.is_bf16_supported(including_emulation=False)
AUTOCAST = $autocast


def run(backend: str | None) -> dict[str, torch.Tensor]:
    torch.manual_seed($seed)
    model, inputs, *loss_function = $function($batch_size, DEVICE)
    step = model.train(TRAINS)
    for part in model.modules() if not $dropout else ():
        for name, value in vars(part).items():
            is_rate = "drop" in name or (name == "p" and "Dropout" in type(part).__name__)
            if is_rate and isinstance(value, float):
                setattr(part, name, 0.0)
    if isinstance(inputs, list) and all(isinstance(item, tuple | dict) for item in inputs):
        inputs = inputs[0]
    inputs = (inputs,) if torch.is_tensor(inputs) else inputs
    if backend is not None:
        torch._dynamo.reset()
        torch._functorch.config.activation_memory_budget = $budget
        step = torch.compile(model, backend=backend, dynamic=$dynamic, fullgraph=$fullgraph)
    torch.manual_seed($seed)
    with torch.inference_mode(not TRAINS), torch.autocast(DEVICE.type, AUTOCAST, bool(AUTOCAST)):
        output = step(**inputs) if isinstance(inputs, dict) else step(*inputs)
        floats = [x for x in tree_leaves(output) if torch.is_tensor(x) and x.is_floating_point()]
        found = {f"output {number}": x.detach() for number, x in enumerate(floats)}
        if TRAINS:
            loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
            if loss_function and loss_function[0]:
                loss = loss_function[0](output)
            elif loss is None:
                loss = torch.stack([x.float().mean() for x in floats]).mean()
    if TRAINS:
        (loss * (2.0**16 if AUTOCAST is torch.float16 and $grad_scaler else 1.0)).backward()
        found["loss"] = loss.detach()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                found[f"gradient of {name}"] = parameter.grad
    return found


eager, compiled = run(None), run("$backend")
for name, value in eager.items():
    error = (compiled[name] - value).abs().double().norm() / value.abs().double().norm()
    print(f"off by {float(error):.1%}: {name}")
''')


class BisectionError(Exception):
    """The fault does not repeat, or a probe tells neither good from bad."""


@dataclass(frozen=True)
class Finding:
    """What breaks a trial, and the smallest setting that mends it."""

    part: str
    mend: str

    def describe(self) -> str:
        return f"broken by {self.part}\nmended by {self.mend}"


class Probes:
    """Runs a trial again and again, in a fresh process each time."""

    def __init__(self, job: Job, folder: Path, limit_s: float) -> None:
        """The logs go to `folder`; `limit_s` is of one probe."""
        limits = replace(job.measure, timeout_s=limit_s, phase_timeouts_s={})
        self.job, self._folder = replace(job, measure=limits), folder
        self._count = 0
        self.high = 0  # the number of the last application of the part that was counted
        self.names: dict[str, str] = {}  # of applications, by their numbers

    def is_good(self, what: str, job: Job, part: str = "", **files: str) -> bool:
        """Whether a probe is ok; `files` tell torch what of `part` to leave out.

        Raises BisectionError where a probe ended in another way than by a fault of the compiler,
        and ProtocolError as `WorkerChannel.read` does.
        """
        self._count += 1
        trial, log = self._folder / "trial.json", self._folder / f"probe-{self._count}.log"
        make_way(trial)
        write_text(trial, job.dumps())
        python, backend = job.trial.python, str(job.trial.backend)
        with make_temporary() as cache, processes.expose_package(python) as variables:
            environment = {**variables, **processes.make_cache_variables(cache)}
            if part:
                environment |= {"TORCH_BISECT_BACKEND": backend, "TORCH_BISECT_SUBSYSTEM": part}
            state = cache / "inductor" / "bisect" / backend
            state.mkdir(parents=True)
            for name, text in files.items():
                (state / f"{part}_{name}.txt").write_text(text)
            command = [*processes.make_command(python, "sweeper.worker"), str(trial)]
            with start_worker(
                command, environment, log, job.measure, DeviceLease(), lambda _: None
            ) as (process, channel):
                exceeded = channel.read(process, threading.Event())
            self._read(state)
        ended = "timeout" if exceeded else "crashed"
        message = f"{ended}{say_while(channel.phase)}"
        outcome = channel.outcome or Outcome(ended, message=message)
        print(f"probe {self._count}, {what}: {outcome.status}", flush=True)
        if outcome.status not in ("ok", *FAULTS):
            raise BisectionError(f"a probe has no verdict: {outcome.message}; see {log}")
        return outcome.status == "ok"

    def _read(self, state: Path) -> None:
        """Read what torch wrote: lines `high=NUMBER` and `NUMBER=NAME`."""
        for file in state.glob("*_bisect_range.txt"):
            self.high = int(file.read_text().rpartition("=")[2])
        for file in state.glob("*_debug_info.txt"):
            for line in file.read_text().splitlines():
                number, _, name = line.partition("=")
                self.names[number] = name


def bisect(probes: Probes) -> Finding:
    """Find the first backend that is wrong, then its part, then which application of that."""
    good, last = "mode=eager", probes.job.trial.backend
    for backend, stage in STAGES.items():
        job = _replace_backend(probes.job, backend)
        if not probes.is_good(f"backend={backend}", job):
            return _find_part(probes, job, Finding(stage, good))
        good = f"backend={backend}"
        if backend == last:
            break
    raise BisectionError(f"the fault does not repeat: a probe with {good} is ok")


def _replace_backend(job: Job, backend: str) -> Job:
    """Replace the backend; only Inductor takes modes, options and ways to start."""
    trial = replace(job.trial, backend=backend)
    if backend == "inductor":
        return replace(job, trial=trial)
    job = replace(job, trial=replace(trial, mode="default"))
    return _change(job, options={}, precision_casts=False, start="local_cache")


def _change(job: Job, **changes: object) -> Job:
    """Change settings of `compile`."""
    compiling = replace(job.trial.compile, **changes)  # type: ignore[arg-type]
    return replace(job, trial=replace(job.trial, compile=compiling))


def _find_part(probes: Probes, job: Job, whole: Finding) -> Finding:
    """Find the part of a backend; `whole` names the backend and the one before."""
    usual = Compile()
    for name in LEFT_OUT:
        changed = _change(job, **{name: getattr(usual, name)})
        without = f"leaving out compile.{name}"
        if changed != job and probes.is_good(without, changed):
            return replace(whole, mend=without)
    for part, value in PARTS.get(str(job.trial.backend), {}).items():
        if value is not None:
            if mend := _set_option(probes, job, part, value):
                return Finding(f"{whole.part}: what {part} changes", mend)
        elif probes.is_good(f"no {part}", job, part, run_state="test_disable"):
            name = _find_application(probes, job, part)
            found = Finding(f"{whole.part}: {part}, {name}", whole.mend)
            if part.endswith("_passes"):
                pass_name = name.partition(": ")[2]
                if mend := _set_option(probes, job, "disabled_passes", pass_name):
                    return replace(found, mend=mend)
            return found
    return whole


def _set_option(probes: Probes, job: Job, option: str, value: Json) -> str | None:
    """Set an option of Inductor; how a user types it, where that mends the trial."""
    mend = f"compile.options.{option}={show_value(value)}"
    options = {**job.trial.compile.options, option: value}
    return mend if probes.is_good(mend, _change(job, options=options)) else None


def _find_application(probes: Probes, job: Job, part: str) -> str:
    """Find the first application of a part with which the trial is wrong, by halving; its number
    and name.
    """
    if probes.is_good(f"all {part}", job, part, run_state="find_max_bounds"):
        raise BisectionError(f"the fault does not repeat: with all {part} a probe is ok")
    low, high = 0, probes.high
    print(f"{part}: {high + 1} in all, at most {high.bit_length() + 1} more probes")
    while low < high or str(low) not in probes.names:
        middle = (low + high) // 2
        limits = f"low={middle}\nhigh={middle + 1}\n"
        what = f"{part} up to number {middle}"
        is_good = probes.is_good(what, job, part, run_state="bisect", bisect_range=limits)
        if low == high:
            break
        if is_good:
            low = middle + 1
        else:
            high = middle
    return f"number {low}: {probes.names.get(str(low), 'no name')}"


def write_script(job: Job, finding: Finding, path: Path) -> None:
    """Write a script that shows the fault without sweeper, or say why there is none."""
    trial = job.trial
    if hidden := flatten(trial.axes()).keys() - SHOWN:
        print(f"no script without sweeper: it could not show {', '.join(sorted(hidden))}")
        return
    module, _, function = trial.model.name.rpartition(":")
    formats = {None: "None", "auto": "torch.bfloat16 if has_bf16 else torch.float16"}
    values = to_json(trial)
    for part in (trial.model, trial.precision, trial.compile):
        values |= to_json(part)
    text = FAULT_SCRIPT.substitute(
        values,
        fault=finding.describe().replace("\\", "/").replace('"', "'"),
        folder=repr(str(Path.cwd())),
        module=module,
        function=function,
        autocast=formats.get(trial.precision.autocast, f"torch.{trial.precision.autocast}"),
        budget=trial.compile.memory_budget or 1.0,
        seed=job.measure.seed,
        trains=trial.workload == "train",
    )
    make_way(path)
    write_text(path, text)
    print(f"without sweeper: {trial.python or 'python'} {path}")


def read_job(sweep: str, trial_id: str) -> tuple[Job, Path]:
    """Read the job of a trial that the compiler broke, with the least to measure, and its folder.

    Raises ConfigError for a trial that is not there, or that bisection does not know.
    """
    folder = find_sweep(sweep)
    trials = SweepPaths(folder).trials()
    if trial_id not in trials:
        raise ConfigError(f"{folder} has no trial {trial_id}; it has: {', '.join(trials)}")
    paths = trials[trial_id]
    record = Record.read(paths.record)
    if record.status not in FAULTS:
        raise ConfigError(f"{trial_id} is {record.status}; allowed are {', '.join(FAULTS)}")
    if record.trial.has_loop or record.trial.backend not in STAGES:
        raise ConfigError(
            f"{trial_id}: allowed are models in one process with backend={', '.join(STAGES)}"
        )
    try:
        job = Job.loads(read_text(paths.trial, MAX_JSON_BYTES))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{paths.trial}: {explain_unreadable(error)}") from error
    measure = replace(job.measure, rounds=1, block_steps=1, warmup_s=0.1, energy=False)
    return replace(job, measure=measure), paths.bisection


def main() -> int:
    """Return the exit code: 0 a part is named, 1 none, 2 bad input."""
    parser = argparse.ArgumentParser(
        "python -m sweeper.bisect",
        description="Find the part of the compiler that breaks a trial.",
        allow_abbrev=False,
    )
    parser.add_argument("sweep", help="its name in runs/, or its folder")
    parser.add_argument("trial", help=f"the id of a trial that is {', '.join(FAULTS)}")
    parser.add_argument("--limit-s", type=float, default=600, help="maximum seconds of a probe")
    options = parser.parse_args()
    if not 0 < options.limit_s < math.inf:
        parser.error(f"--limit-s {options.limit_s}: give seconds above 0, e.g. 600")
    try:
        job, folder = read_job(options.sweep, options.trial)
        print(f"up to about 30 probes, each a process of at most {options.limit_s:g} s", flush=True)
        finding = bisect(Probes(job, folder, options.limit_s))
    except (BisectionError, ProtocolError) as error:
        print(error)
        return NOT_OK
    except ValueError as error:  # also of a file that is no record
        print(f"sweeper: {error}", file=sys.stderr)
        return BAD_INPUT
    print(finding.describe())
    if job.trial.model.library == CUSTOM:
        write_script(job, finding, folder / "show.py")
    return OK


if __name__ == "__main__":
    sys.exit(run_until_closed(main))
