"""A trial under test: built and compiled as a worker does it, judged by the real check, run in fp64
for comparison.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from mutation.graphs import CAPTURE
from sweeper.core.protocol import Job
from sweeper.core.record import Accuracy
from sweeper.core.settings import Measure
from sweeper.core.trial import Trial
from sweeper.worker import models
from sweeper.worker.accuracy.check import AccuracyCheck
from sweeper.worker.accuracy.mismatch import describe_mismatch
from sweeper.worker.accuracy.states import BUILT, MOVED, States
from sweeper.worker.compilation.counters import CompileCounters
from sweeper.worker.failures import MismatchError, describe_error
from sweeper.worker.lease import Lease
from sweeper.worker.measurement.capture import Changes, capture_step
from sweeper.worker.model_subject import ModelSubject
from sweeper.worker.models.batches import map_tensors
from sweeper.worker.monitoring.round_monitor import RoundMonitor

FIRST_STEPS = 2
EFFECT = 1e-2  # relative root mean square of a difference that makes a mutant effective
ZERO = 1e-6  # of the size of all tensors of a kind: smaller ones are zero but for rounding
SQUARES = "exp_avg_sq"  # of Adam, of gradients
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Answer:
    """What the check says of a compiled step."""

    outcome: str  # passed, killed, unverified or crashed
    text: str

    @property
    def killed(self) -> bool:
        return self.outcome == "killed"


@dataclass(frozen=True)
class Effect:
    """The largest difference that a mutant makes in fp64, as a share of the size of the tensor."""

    difference: float
    tensor: str
    state: str

    @property
    def is_effective(self) -> bool:
        return not self.difference <= EFFECT


def check_compiled(check: AccuracyCheck) -> Accuracy:
    """Have the real check judge the compiled step. Raises MismatchError, and whatever the step
    raises.
    """
    return check.judge(lambda _phase: nullcontext())


class Subject:
    """A trial whose compiled step runs the graphs of `CAPTURE`."""

    def __init__(self, trial: Trial) -> None:
        use_plain_attention()
        CAPTURE.clear()
        device = torch.device(trial.device)
        models.builder(trial.model.library).load(trial.model)
        self.setup = ModelSubject(Job(trial, Measure()), device, RoundMonitor(device), Lease())
        self.check = AccuracyCheck(self.setup)
        self._states = States(self.setup.built.module, self.setup.measure.seed)
        self.setup.bench.run(self.setup.eager, FIRST_STEPS)
        self._counters: CompileCounters | None = None

    def compile(self) -> None:
        """Compile the step, anew if it has been; `CAPTURE` has its graphs afterwards."""
        CAPTURE.graphs.clear()
        self._counters = CompileCounters()
        self.setup.compile_arm(self._counters)
        self.check.restore()
        self.setup.bench.run(self.setup.compiled, FIRST_STEPS)
        self.check.restore()

    def judge(self) -> Answer:
        """Ask the check; the state is afterwards as the model was built."""
        try:
            accuracy = check_compiled(self.check)
        except MismatchError as error:
            return Answer("killed", describe_error(error))
        except Exception as error:  # noqa: BLE001  # a mutant may raise anything, which is nothing that the check found
            return Answer("crashed", describe_error(error))
        finally:
            self.check.restore()
        if accuracy.passed is None:
            return Answer("unverified", accuracy.unverified or "")
        if accuracy.passed:
            return Answer(
                "passed", f"{accuracy.worst} is the nearest to its bound ({accuracy.case})"
            )
        return Answer("killed", f"{describe_mismatch(accuracy)} ({accuracy.case})")

    def run_exactly(self) -> dict[str, Tensors]:
        """The tensors of the compiled step, run in fp64, by state: as built, and where no branch is
        dead.
        """
        found = {}
        self._states.move(1.0)
        for state in (BUILT, MOVED):
            self._states.restore(self.setup.optimizers, self.setup.measure.seed, state)
            try:
                with CAPTURE.exactly():
                    found[state] = self._capture()
            finally:
                self.check.restore()
        return found

    def _capture(self) -> Tensors:
        """What the check compares, by the names that it has there."""
        setup, module = self.setup, self.setup.built.module
        batch = map_tensors(setup.built.unseen, torch.clone)
        optimizer = setup.compiled_optimizer(setup.compiled)
        changes = Changes(module, self._states.attributes, batch, optimizer)
        run, factor = (lambda: setup.bench.run_on(setup.compiled, batch)), setup.gradient_factor()
        given = capture_step(run, setup.capture, changes, setup.trial, factor)
        return {name: tensor.detach().double().clone() for name, tensor in given}


def use_plain_attention() -> None:
    """Have attention written out as products and a softmax, in both arms: no fused kernel of a GPU
    takes fp64.
    """
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)


def largest_effect(mutant: Mapping[str, Tensors], unmutated: Mapping[str, Tensors]) -> Effect:
    """The largest difference of any tensor in any state."""
    effects = [
        Effect(difference, name, state)
        for state, tensors in unmutated.items()
        for name, difference in _differences(mutant[state], tensors)
    ]
    return max(
        effects, key=lambda effect: math.inf if math.isnan(effect.difference) else effect.difference
    )


def _differences(mutant: Tensors, unmutated: Tensors) -> Iterator[tuple[str, float]]:
    """By tensor, over the numbers that are finite without the fault.

    A tensor that is zero but for rounding is compared with the largest of its kind.
    """
    if mutant.keys() != unmutated.keys():
        yield "the set of tensors", math.inf
    finite = {name: torch.isfinite(tensor) for name, tensor in unmutated.items()}
    sizes = {
        name: _size(torch.where(finite[name], tensor, 0.0)) for name, tensor in unmutated.items()
    }
    largest: dict[str, float] = defaultdict(float)
    for name, size in sizes.items():
        largest[_kind(name)] = max(largest[_kind(name)], size)
    for name in [name for name in unmutated if name in mutant]:
        kind = _kind(name)
        is_zero = sizes[name] <= (ZERO**2 if kind.startswith(SQUARES) else ZERO) * largest[kind]
        difference = _size(torch.where(finite[name], mutant[name] - unmutated[name], 0.0))
        size = largest[kind] if is_zero else sizes[name]
        yield name, 0.0 if difference == 0 else difference / size if size else math.inf


def _kind(name: str) -> str:
    """The name without that of the parameter or buffer."""
    return name.rpartition(" ")[0] or name


def _size(tensor: torch.Tensor) -> float:
    return math.sqrt(float(tensor.square().sum()) / max(tensor.numel(), 1))
