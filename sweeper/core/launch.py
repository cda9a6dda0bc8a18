"""What stands before a script in a command of a user whose training runs in several processes, e.g.
`torchrun --nproc-per-node 2`: `model.launch`.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import NamedTuple, NoReturn

TORCHRUN, ACCELERATE = "torch.distributed.run", "accelerate.commands.launch"
PROGRAMS = {
    ("torchrun",): TORCHRUN,
    ("python", "-m", TORCHRUN): TORCHRUN,
    ("accelerate", "launch"): ACCELERATE,
    ("python", "-m", ACCELERATE): ACCELERATE,
}
COUNTS = {  # the options for the number of processes and of machines
    TORCHRUN: (("--nproc-per-node", "--nproc_per_node"), ("--nnodes",)),
    ACCELERATE: (("--num_processes", "--num-processes"), ("--num_machines", "--num-machines")),
}
OF_SCRIPT = ("-m", "--module", "--no-python", "--no_python", "--run-path", "--run_path")


class Launch(NamedTuple):
    """A launcher of torch's processes on one host."""

    module: str  # that the interpreter of the trial runs
    options: tuple[str, ...]  # as the user gave them
    processes: int

    @staticmethod
    def parse(text: str) -> Launch:
        """Read what the user gave. Raises ValueError for other launchers, for several machines and
        for a number of processes that only the launcher knows.
        """
        words = shlex.split(text)
        first = Path(words[0]).name if words else ""
        if first.startswith("python"):
            first = "python"
        for program, module in PROGRAMS.items():
            if (first, *words[1 : len(program)]) == program:
                options = tuple(words[len(program) :])
                return Launch(module, options, _count_processes(module, options))
        allowed = ", ".join(map(" ".join, PROGRAMS))
        raise ValueError(f"allowed are {allowed}, each with its options")


class _Options(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _count_processes(module: str, options: tuple[str, ...]) -> int:
    parser, (count, machines) = _Options(add_help=False), COUNTS[module]
    parser.add_argument(*count, dest="count", default="")
    parser.add_argument(*machines, dest="machines", default="1")
    parser.add_argument(*OF_SCRIPT, dest="of_script", action="store_true")
    found, others = parser.parse_known_args(options)
    if found.of_script or (others and others[-1].endswith(".py")):
        raise ValueError("give the script in model.path, e.g. train.py or '-m package.train'")
    if found.machines not in ("1", "1:1"):
        raise ValueError(
            f"{machines[0]}={found.machines}: sweeper measures on one host; leave it out"
        )
    if not found.count.isdecimal() or int(found.count) < 1:
        raise ValueError(f"give the number of processes, e.g. {count[0]} 2")
    return int(found.count)
