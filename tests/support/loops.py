"""Training loops that are watched in this process, as that of a script is."""

from __future__ import annotations

from collections.abc import Callable

from sweeper.worker.measurement.bench import Steps
from sweeper.worker.scripts.watch.loop import Loop, OnEnd
from sweeper.worker.scripts.watch.patches import Patches


def begin_loop(lead: Callable[[Loop], Steps[None]], on_end: OnEnd = lambda _: None) -> Loop:
    """Watch the loop that runs from now on, until `loop.stop()` or the end of the lead."""
    loop = Loop(Patches())
    loop.begin(lead(loop), on_end)
    return loop
