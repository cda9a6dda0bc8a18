"""What earlier runs of a script have shown of its loop. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sweeper.core.record import ScriptRun
from sweeper.worker.source_lines import name_call


@dataclass(frozen=True)
class LoopFacts:
    """What earlier runs of the script have shown."""

    interval: int = 0  # steps from one evaluation or saved file to the next; 0: none was seen
    # that the eager loop was timed over, with so many events; 0: it was not timed yet
    steps: int = 0
    seconds: float = 0.0
    evaluations: int = 0
    saves: int = 0
    epochs: int = 0
    modules: Sequence[str] = ()  # those to compile, by class and line
    # whether the script's own calls of `torch.compile` are the compiled arm
    compiles_itself: bool = False

    @property
    def events(self) -> tuple[int, int, int]:
        """Of each of `KINDS`."""
        return self.evaluations, self.saves, self.epochs

    @staticmethod
    def of(script: ScriptRun) -> LoopFacts:
        known = LoopFacts(
            script.interval,
            modules=list(map(name_call, script.modules, script.called_at)),
            compiles_itself=any(call.is_arm for call in script.compile_calls),
        )
        if (run := script.loop_eager) is None:
            return known
        return replace(
            known,
            steps=run.steps,
            seconds=run.steps * run.step_s,
            evaluations=run.evaluations,
            saves=run.saves,
            epochs=run.epochs,
        )


NOTHING = LoopFacts()
