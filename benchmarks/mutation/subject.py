"""A trial under test: built and compiled as a worker does it, judged by the real check, run in fp64 for comparison."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from mutation.graphs import CAPTURE
from sweeper.core.protocol import Job
from sweeper.core.record import Accuracy
from sweeper.core.settings import Measure
from sweeper.core.trial import Trial
from sweeper.worker import models
from sweeper.worker.accuracy.check import AccuracyCheck
from sweeper.worker.compilation.counters import CompileCounters
from sweeper.worker.failures import MismatchError, describe_error
from sweeper.worker.measurement.capture import GRADIENT, capture_step
from sweeper.worker.monitoring.round_monitor import RoundMonitor
from sweeper.worker.setup import TrialSetup

FIRST_STEPS = 2
EFFECT = 1e-2  # relative root mean square of a difference that makes a mutant effective
ZERO = 1e-6  # of the size of all tensors of a kind: smaller ones are zero but for rounding
BUFFER, CHANGE = "buffer ", "change of "  # of a parameter
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


def check_compiled(_setup: TrialSetup, check: AccuracyCheck) -> Accuracy:
    """Have the real check judge the compiled step. Raises MismatchError, and whatever the step raises."""
    check.take_reference()
    return check.judge()


class Subject:
    """A trial whose compiled step runs the graphs of `CAPTURE`."""

    def __init__(self, trial: Trial) -> None:
        use_plain_attention()
        CAPTURE.clear()
        device = torch.device(trial.device)
        models.builder(trial.model.library).load(trial.model)
        self.setup = TrialSetup(Job(trial, Measure()), device, RoundMonitor(device), time.perf_counter)
        self.check = AccuracyCheck(self.setup)
        self.setup.bench.run(self.setup.eager, FIRST_STEPS)
        self._counters: CompileCounters | None = None

    def compile(self) -> None:
        """Compile the step, anew if it has been; `CAPTURE` has its graphs afterwards."""
        CAPTURE.graphs.clear()
        self._counters = CompileCounters()
        self.setup.compile(self._counters)
        self.check.restore()
        self.setup.bench.run(self.setup.compiled, FIRST_STEPS)
        self.check.restore()

    def judge(self) -> Answer:
        """Ask the check; the state is afterwards as the model was built."""
        try:
            accuracy = check_compiled(self.setup, self.check)
        except MismatchError as error:
            return Answer("killed", describe_error(error))
        except Exception as error:  # noqa: BLE001  # a mutant may raise anything, which is nothing that the check found
            return Answer("crashed", describe_error(error))
        finally:
            self.check.restore()
        if accuracy.passed is None:
            return Answer("unverified", accuracy.unverified or "")
        found = f"{accuracy.worst}: off by {accuracy.compiled_error}, allowed {accuracy.bound}"
        return Answer("passed" if accuracy.passed else "killed", found)

    def run_exactly(self) -> dict[str, Tensors]:
        """The tensors of the compiled step, run in fp64, by state: as built, and where no branch is dead."""
        found = {}
        for state in ("as built", "moved"):
            try:
                self.check.restore()
                if state == "moved":
                    move(self.setup.built.module, self.setup.measure.seed)
                with CAPTURE.exactly():
                    found[state] = self._capture()
            finally:
                self.check.restore()
        return found

    def _capture(self) -> Tensors:
        setup, module = self.setup, self.setup.built.module
        before = {name: tensor.detach().double() for name, tensor in module.named_parameters()}
        run, factor = (lambda: setup.bench.run_on(setup.compiled, setup.built.unseen)), setup.gradient_factor()
        tensors = {
            name: t.double().clone() for name, t in capture_step(run, setup.capture, module, setup.trial, factor)
        }
        tensors |= {f"{BUFFER}{name}": tensor.double() for name, tensor in module.named_buffers()}
        if setup.trial.compile.scope == "step":
            changes = ((name, tensor.detach().double() - before[name]) for name, tensor in module.named_parameters())
            tensors |= {f"{CHANGE}{name}": change for name, change in changes}
        return tensors


def use_plain_attention() -> None:
    """Have attention written out as products and a softmax, in both arms: no fused kernel of a GPU takes fp64."""
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)


def move(module: torch.nn.Module, seed: int) -> None:
    """Draw anew the parameters that are one small constant, and move every bias, so that no branch is dead."""
    generator = torch.Generator().manual_seed(seed)

    def normal(tensor: torch.Tensor, mean: float, deviation: float) -> torch.Tensor:
        return (mean + deviation * torch.randn(tensor.shape, generator=generator)).to(tensor)

    with torch.no_grad():
        for name, tensor in module.named_parameters():
            constant = bool((tensor == tensor.flatten()[0]).all()) and abs(float(tensor.flatten()[0])) < 0.1
            if name.endswith("bias"):
                tensor += normal(tensor, 0.0, 0.02)
            elif constant:
                tensor.copy_(normal(tensor, 1.0, 0.1) if tensor.dim() == 1 else normal(tensor, 0.0, 0.02))


def largest_effect(mutant: Mapping[str, Tensors], unmutated: Mapping[str, Tensors]) -> Effect:
    """The largest difference of any tensor in any state."""
    effects = [
        Effect(difference, name, state)
        for state, tensors in unmutated.items()
        for name, difference in _differences(mutant[state], tensors)
    ]
    return max(effects, key=lambda effect: math.inf if math.isnan(effect.difference) else effect.difference)


def _differences(mutant: Tensors, unmutated: Tensors) -> Iterator[tuple[str, float]]:
    """By tensor; one that is zero but for rounding is compared with the size of all of its kind."""
    sizes = {name: _size(tensor) for name, tensor in unmutated.items()}
    kinds = {
        name: max(size for other, size in sizes.items() if _kind(other) == _kind(name)) for name, size in sizes.items()
    }
    if mutant.keys() != unmutated.keys():
        yield "the set of tensors", math.inf
    for name, tensor in unmutated.items():
        size = sizes[name] if sizes[name] > ZERO * kinds[name] else kinds[name]
        if name in mutant:
            finite = torch.isfinite(tensor)
            difference = _size(torch.where(finite, mutant[name] - tensor, 0.0))
            yield name, 0.0 if difference == 0 else difference / size if size else math.inf


def _kind(name: str) -> str:
    return next((kind for kind in (GRADIENT, BUFFER, CHANGE) if name.startswith(kind)), name)


def _size(tensor: torch.Tensor) -> float:
    finite = tensor[torch.isfinite(tensor)] if not torch.isfinite(tensor).all() else tensor
    return math.sqrt(float(finite.square().mean())) if finite.numel() else 0.0
