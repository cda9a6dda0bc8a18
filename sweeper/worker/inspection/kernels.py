"""What is in the code that Inductor generates: which kernels are launched, and what each of them
fuses.

With `trace.provenance_tracking_level` each launch has a comment with its name and number in front
of it, the same on every device.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from sweeper.worker.compilation.artifacts import KERNEL_DEFINITION
from sweeper.worker.inspection.torch_trace import Part

LAUNCH = re.compile(r"^\s*(?:#|//) \[Provenance debug handles\] (\S+):(\d+)$", re.MULTILINE)
# names of kernels that are defined elsewhere, as with `cpp_wrapper`
OF_INDUCTOR = re.compile(r"(cpp|triton)_")
ATEN_CALL = re.compile(r'^\s+(\w+)(?:: "[^"]*")? = torch\.ops\.', re.MULTILINE)
COUNTED = re.compile(r"_\d+$")  # the numbers that make names different
FRAME = re.compile(r'File "([^"]+)", line (\d+)')


@dataclass(frozen=True)
class Kernel:
    """A kernel, or a function of a library, that the code launches."""

    name: str
    launches: int
    generated: bool  # by Inductor; else a library's
    # operations of the graph, how often; empty where torch does not say
    fuses: tuple[tuple[str, int], ...]
    places: tuple[str, ...]  # file:line of the user's code

    @property
    def num_operations(self) -> int:
        return sum(count for _, count in self.fuses)


def find_kernels(part: Part, others: Mapping[str, list[str]]) -> tuple[Kernel, ...]:
    """Find what the part's code launches, in order; kernels that do the same under other numbers
    are put together.

    `others`: nodes by launch where the trace has none, see `run`.
    """
    code = part.output_code or ""
    defined = {name for name, _ in KERNEL_DEFINITION.findall(code)}
    launched: dict[tuple[str, bool], list[str]] = {}
    for name, number in LAUNCH.findall(code):
        generated = name in defined or OF_INDUCTOR.match(name) is not None
        key = (COUNTED.sub("", name) if generated else name, generated)
        launched.setdefault(key, []).append(f"{name}:{number}")
    nodes, operations = part.nodes or others, find_operations(part.post_grad_graph or "")
    kernels = []
    for (name, generated), launches in launched.items():
        fused = (
            node for launch in launches for node in nodes.get(launch, ()) if node in operations
        )
        fuses = Counter(COUNTED.sub("", node) for node in fused).most_common()
        stacks = (
            FRAME.findall(stack) for launch in launches for stack in part.stacks.get(launch, ())
        )
        # the innermost of each stack
        places = dict.fromkeys(":".join(frames[-1]) for frames in stacks if frames)
        kernels.append(Kernel(name, len(launches), generated, tuple(fuses), tuple(places)))
    return tuple(kernels)


def find_operations(graph: str) -> frozenset[str]:
    """Names of the calls in a graph as torch prints it; inputs, outputs and picking from tuples are
    none.
    """
    return frozenset(ATEN_CALL.findall(graph))


def count_scheduled(ir: str) -> int:
    """Count the nodes in a dump of Inductor's scheduler, which are three line ends apart."""
    return sum(1 for node in ir.split("\n\n\n") if node.strip())
