"""Mutants of a trial: chosen from a seed, planted one after the other, each judged by the check and
run in fp64.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial

import torch

from mutation.faults import FAULTS, FORMAT, Site
from mutation.graphs import AOT, CAPTURE, INDUCTOR
from mutation.subject import Answer, Effect, Subject, largest_effect
from sweeper.core.trial import Trial
from sweeper.worker.failures import describe_error

FORMAT_EFFECT = Effect(math.inf, "output", "as built")


@dataclass(frozen=True)
class Plan:
    """Which mutants to make of a trial."""

    trial: Trial
    faults: tuple[str, ...]
    mutants: int
    seed: int

    @property
    def backend(self) -> str:
        return str(self.trial.backend)


@dataclass(frozen=True)
class Mutant:
    """One planted fault and what became of it."""

    model: str
    precision: str
    backend: str
    fault: str
    place: str  # graph and node
    effect: Effect | None = None  # None: it does not run in fp64
    answer: Answer | None = None
    recompiled: bool = False  # in the check, which then ran code without the fault as well

    @property
    def is_effective(self) -> bool:
        runs = self.answer is not None and self.answer.outcome != "crashed"
        return runs and self.effect is not None and self.effect.is_effective

    @property
    def is_killed(self) -> bool:
        return self.answer is not None and self.answer.killed


@dataclass(frozen=True)
class Scored:
    """A trial with its mutants; unless the check passes the trial itself, they prove nothing."""

    model: str
    precision: str
    backend: str
    unmutated: Answer
    mutants: list[Mutant] = field(default_factory=list)
    took_s: float = 0.0

    def to_json(self) -> dict:
        return asdict(self)


def score(plan: Plan) -> Scored:
    """Build and compile a trial, and plant its faults."""
    torch.set_num_threads(1)  # the models are tiny
    start, labels = time.perf_counter(), plan.trial.labels
    scored = Scored(labels.model, labels.precision, plan.backend, Answer("crashed", ""))
    try:
        subject = Subject(plan.trial)
        with _compile_anew() if plan.backend == INDUCTOR else nullcontext():
            subject.compile()
            scored = replace(scored, unmutated=subject.judge())
            plant = _plant_and_recompile if plan.backend == INDUCTOR else _plant
            mutants = list(plant(subject, plan)) if scored.unmutated.outcome == "passed" else []
    except Exception as error:  # noqa: BLE001  # one trial that cannot be built leaves the others
        return replace(scored, unmutated=Answer("crashed", describe_error(error)))
    return replace(scored, mutants=mutants, took_s=time.perf_counter() - start)


def _compile_anew() -> AbstractContextManager[None]:
    """Have Inductor compile whatever it is given, in this process."""
    return torch._inductor.config.patch(force_disable_caches=True, compile_threads=1)


def choose_sites(plan: Plan) -> Iterator[tuple[str, int, Site]]:
    """Classes in turn, one site of each after the other, at random; a class without further sites
    is left out.
    """
    shuffle = random.Random(f"{plan.seed} {plan.trial.labels.model}").shuffle
    left: dict[str, list[tuple[int, Site]]] = {}
    for fault in plan.faults:
        graphs = (
            (index, item) for index, item in enumerate(CAPTURE.graphs) if item.has_fixed_shapes
        )
        left[fault] = [
            (index, site) for index, captured in graphs for site in FAULTS[fault].sites(captured)
        ]
        shuffle(left[fault])
    order = list(left)
    shuffle(order)
    chosen = 0
    while chosen < plan.mutants and any(left.values()):
        for fault in [name for name in order if left[name]][: plan.mutants - chosen]:
            chosen += 1
            yield fault, *left[fault].pop()


def _plant(subject: Subject, plan: Plan) -> Iterator[Mutant]:
    """Plant in the captured graphs, which compiles nothing."""
    unmutated = subject.run_exactly()
    for fault, index, site in list(choose_sites(plan)):
        captured, graphs = CAPTURE.graphs[index], len(CAPTURE.graphs)
        mutant = _describe(plan, fault, index, site)
        captured.plant(partial(FAULTS[fault].plant, site=site))
        try:
            answer = subject.judge()
            recompiled = len(CAPTURE.graphs) > graphs
            effect = _effect(subject, unmutated) if fault != FORMAT else FORMAT_EFFECT
            yield replace(mutant, answer=answer, effect=effect, recompiled=recompiled)
        finally:
            captured.uproot()


def _plant_and_recompile(subject: Subject, plan: Plan) -> Iterator[Mutant]:
    """Plant in the graphs that reach Inductor, which compiles the step anew for each mutant."""
    unmutated = subject.run_exactly()
    sites = list(choose_sites(plan))
    # before a mutant that does not run leaves fewer graphs
    mutants = [_describe(plan, *site) for site in sites]
    for mutant, (fault, index, site) in zip(mutants, sites, strict=True):
        CAPTURE.plants[index] = partial(FAULTS[fault].plant, site=site)
        try:
            subject.compile()
            yield replace(mutant, answer=subject.judge(), effect=_effect(subject, unmutated))
        except Exception as error:  # noqa: BLE001  # Inductor may refuse a mutant
            yield replace(mutant, answer=Answer("crashed", describe_error(error)))
        finally:
            CAPTURE.plants.clear()


def _describe(plan: Plan, fault: str, index: int, site: Site) -> Mutant:
    captured, labels = CAPTURE.graphs[index], plan.trial.labels
    nodes: Sequence[torch.fx.Node] = list(captured.graph.graph.nodes)
    node = nodes[site.node]
    part = f" {site.detail}" if node.op == "output" or site.detail else ""
    reader = f", read by {nodes[site.other].name}" if fault == "stale read" else ""
    place = f"{captured.name}: {node.name}{part}{reader}"
    return Mutant(labels.model, labels.precision, plan.backend, fault, place)


def _effect(subject: Subject, unmutated: dict) -> Effect | None:
    try:
        return largest_effect(subject.run_exactly(), unmutated)
    except Exception:  # noqa: BLE001  # a mutant may raise anything
        return None


def through_inductor(trial: Trial) -> Trial:
    assert trial.backend == AOT
    return replace(trial, backend=INDUCTOR)
