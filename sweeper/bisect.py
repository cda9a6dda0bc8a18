"""`python -m sweeper.bisect SWEEP TRIAL` finds the part of the compiler that breaks a trial.

Each probe is a fresh worker process that runs the trial with a part of the compiler left out, and
checks it as a sweep does. Backends come first, each with one stage more than the one before. Parts
of the first wrong one are then switched off in torch's way, by variables and by files in the
probe's cache folder (`CompilerBisector` in torch/_inductor/compiler_bisector.py). The record is not
changed.
"""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template

from sweeper.core.errors import ConfigError
from sweeper.core.files import make_way, read_last_lines, write_text
from sweeper.core.libraries import SCRIPT
from sweeper.core.paths import SweepPaths
from sweeper.core.protocol import Job, Outcome, decode
from sweeper.core.record import FAULTS, Record
from sweeper.core.system.exit_codes import BAD_INPUT, NOT_OK, OK
from sweeper.core.system.leftovers import make_temporary
from sweeper.core.system.pipes import run_until_closed
from sweeper.core.trial import Compile
from sweeper.execution import processes

STAGES = {  # backends, and what each adds to the one before
    "eager": "Dynamo",
    "aot_eager_default_partitioner": "AOTAutograd",
    "aot_eager": "the partitioner, which chooses what is saved for backward",
    "aot_eager_decomp_partition": "decompositions",
    "inductor": "Inductor",
}
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
FAULT_SCRIPT = Template('''\
"""$fault

Compares the gradients of a compiled step with those of eager, without sweeper.
"""

import sys

import torch
import torch._functorch.config

sys.path.insert(0, "$folder")
from $module import $function  # noqa: E402

BUDGET = $budget  # of memory for activations


def run(backend: str | None) -> dict[str, torch.Tensor]:
    torch.manual_seed($seed)
    model, inputs, *loss_function = $function($batch_size, "$device")
    step = model
    if backend is not None:
        torch._dynamo.reset()
        if BUDGET is not None:
            torch._functorch.config.activation_memory_budget = BUDGET
        step = torch.compile(model, backend=backend)
    torch.manual_seed($seed)
    with torch.autocast("$device", torch.bfloat16, enabled=$casts):
        output = step(**inputs) if isinstance(inputs, dict) else step(*inputs)
        loss = loss_function[0](output) if loss_function else output.float().mean()
    found = {"loss": loss.detach()}
    if $trains:
        loss.backward()
        for name, parameter in model.named_parameters():
            found[f"gradient of {name}"] = parameter.grad
    return found


eager, compiled = run(None), run("$backend")
for name, value in eager.items():
    if value is not None:
        error = (compiled[name] - value).norm() / value.norm()
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
        self.job, self._folder, self._limit_s = job, folder, limit_s
        self._count = 0
        self.high = 0  # the number of the last application of the part that was counted
        self.names: dict[str, str] = {}  # of applications, by their numbers

    def is_good(self, what: str, job: Job, part: str = "", **files: str) -> bool:
        """Whether a probe is ok; `files` tell torch what of `part` to leave out.

        Raises BisectionError where a probe ended in another way than by a fault of the compiler.
        """
        self._count += 1
        trial, log = self._folder / "trial.json", self._folder / f"probe-{self._count}.log"
        make_way(trial)
        write_text(trial, job.dumps())
        python, backend = job.trial.python, str(job.trial.backend)
        with make_temporary() as cache, processes.expose_package(python) as variables:
            environment = {**variables, **processes.make_cache_variables(cache)}
            state = cache / "inductor" / "bisect" / backend
            state.mkdir(parents=True)
            for name, text in files.items():
                (state / f"{part}_{name}.txt").write_text(text)
            if part:
                environment |= {"TORCH_BISECT_BACKEND": backend, "TORCH_BISECT_SUBSYSTEM": part}
            command = [*processes.make_command(python, "sweeper.worker"), str(trial), "--cold"]
            process = processes.start_group(command, environment, log)
            processes.wait_for_end(process, self._limit_s)
            self._read(state)
        outcome = _read_outcome(log)
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


def _read_outcome(log: Path) -> Outcome:
    """Read the last line of a log; a probe that was ended has no outcome there."""
    for line in read_last_lines(log.parent, log.name, 1):
        if line.startswith("{"):
            message = decode(line.encode())
            if isinstance(message, Outcome):
                return message
    return Outcome("timeout", message="it gave no answer")


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
    """Replace the backend; only Inductor takes modes and options."""
    trial = replace(job.trial, backend=backend)
    if backend != "inductor":
        asked = Compile(trial.compile.dynamic, trial.compile.fullgraph, trial.compile.scope)
        asked = replace(asked, memory_budget=trial.compile.memory_budget)
        trial = replace(trial, mode="default", compile=asked)
    return replace(job, trial=trial)


def _change(job: Job, **changes: object) -> Job:
    """Change settings of `compile`."""
    compiling = replace(job.trial.compile, **changes)  # type: ignore[arg-type]
    return replace(job, trial=replace(job.trial, compile=compiling))


def _find_part(probes: Probes, job: Job, whole: Finding) -> Finding:
    """Find the part of a backend; `whole` names the backend and the one before."""
    backend, asked = str(job.trial.backend), job.trial.compile
    if asked.memory_budget is not None:
        without = "no compile.memory_budget"
        if probes.is_good(without, _change(job, memory_budget=None)):
            return replace(whole, mend=without)
    for part, value in PARTS.get(backend, {}).items():
        if value is None:
            if probes.is_good(f"no {part}", job, part, run_state="test_disable"):
                name = _find_application(probes, job, part)
                found = Finding(f"{whole.part}: {part}, {name}", whole.mend)
                if not part.endswith("_passes"):
                    return found
                passes = {"disabled_passes": name.partition(": ")[2]}
                mend = f"compile.options.disabled_passes={passes['disabled_passes']}"
                if probes.is_good(mend, _change(job, options={**asked.options, **passes})):
                    return replace(found, mend=mend)
                return found
        else:
            mend = f"compile.options.{part}={str(value).lower()}"
            if probes.is_good(mend, job, f"{backend}_{part}", config=f"{part}={value}\n"):
                return Finding(f"{whole.part}: what {part} changes", mend)
    return whole


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
    """Write a script that shows the fault without sweeper; it compiles in the default mode."""
    trial = job.trial
    module, _, function = trial.model.name.rpartition(":")
    text = FAULT_SCRIPT.substitute(
        fault=finding.describe().replace("\\", "/").replace('"', "'"),
        folder=Path.cwd(),
        module=module,
        function=function,
        casts=trial.precision.autocast is not None,
        budget=trial.compile.memory_budget,
        seed=job.measure.seed,
        batch_size=trial.batch_size,
        device=trial.device,
        trains=trial.workload == "train",
        backend=trial.backend,
    )
    make_way(path)
    write_text(path, text)
    print(f"without sweeper: python {path}")


def read_job(sweep: str, trial_id: str) -> tuple[Job, Path]:
    """Read the job of a trial that the compiler broke, with the least to measure, and its folder.

    Raises ConfigError for a trial that is not there, or that bisection does not know.
    """
    folder = Path(sweep)
    if not folder.is_dir():
        folder = SweepPaths.of(sweep).folder
    trials = SweepPaths(folder).trials()
    if trial_id not in trials:
        raise ConfigError(f"{folder} has no trial {trial_id}; it has: {', '.join(trials)}")
    paths = trials[trial_id]
    record = Record.read(paths.record)
    if record.status not in FAULTS:
        raise ConfigError(f"{trial_id} is {record.status}; allowed are {', '.join(FAULTS)}")
    if record.trial.workload == SCRIPT or record.trial.backend not in STAGES:
        raise ConfigError(f"{trial_id}: allowed are models with backend={', '.join(STAGES)}")
    job = Job.loads(paths.trial.read_text())
    measure = replace(job.measure, rounds=1, block_steps=1, warmup_s=0.1, energy=False)
    return replace(job, measure=measure), paths.folder / "bisect"


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
    try:
        job, folder = read_job(options.sweep, options.trial)
        folder.mkdir(exist_ok=True)
        print(f"10 to 25 probes, each a process of at most {options.limit_s:g} s", flush=True)
        finding = bisect(Probes(job, folder, options.limit_s))
    except ValueError as error:  # also of a file that is no record
        print(f"sweeper: {error}", file=sys.stderr)
        return BAD_INPUT
    except BisectionError as error:
        print(error)
        return NOT_OK
    print(finding.describe())
    if job.trial.model.library == "custom":
        write_script(job, finding, folder / "show.py")
    return OK


if __name__ == "__main__":
    sys.exit(run_until_closed(main))
