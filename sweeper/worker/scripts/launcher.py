"""Runs the launcher of a script that trains in several processes: `python -m
sweeper.worker.scripts.launcher trial.json RUN --answer-fd N`.

It is torchrun, or what else the user's command has before the script, with the user's options. In
the script's place it gets `python -m sweeper.worker.scripts`, which runs the script in each rank. A
thread here hears what the ranks say, gives each what all share, and answers for them with one
outcome: that of rank 0, or of the rank that failed first. When it has answered, this process ends,
and the kernel ends the ranks with it, so that no rank waits for one that has died.
"""

from __future__ import annotations

import math
import os
import runpy
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait

from sweeper.core.protocol import Job, Message, Outcome, Phase, decode
from sweeper.core.serialization import parse_json
from sweeper.worker.children import open_answer
from sweeper.worker.failures import describe_error
from sweeper.worker.parent_death import die_with_parent

from .runs import explain_end, make_parser
from .watch.last_line import describe_last_line, measure_log

MAX_DELAY_S = 1.0  # from the death of a rank until it is seen
END_S = 10.0  # after the first rank has ended, for the others and for the launcher
POLL_S = 0.2
# a free port of our own on this host, whatever the options say; torchrun reads these
OPTIONS = {"PET_STANDALONE": "1", "PET_LOCAL_ADDR": "127.0.0.1"}
SHARED = b'{"at"'  # begins what all ranks get; all else are messages of the protocol
PEER = struct.Struct("3i")  # process, user, group: SO_PEERCRED of unix(7)


@dataclass(eq=False)
class Rank:
    """What one rank has said so far."""

    number: int
    session: int
    connection: Connection
    phase: str = "starting"
    note: str = ""
    shared: bytes = b""  # while it waits for the others
    outcome: Outcome | None = None
    ended: float = math.inf  # when it has given its outcome, or died
    last_line: str = ""  # of the log, when it died


class Hub:
    """Hears all ranks of a script."""

    def __init__(self, size: int, say: Callable[[Message], None], deadline: float) -> None:
        self._size, self._say, self._deadline = size, say, deadline
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind("")  # unix(7): the kernel chooses a name that is no file
        self._listener.listen(size)
        self._begin = measure_log()
        self._ranks: dict[int, Rank] = {}
        self._end_by = deadline
        self.codes: Mapping[int, int] = {}  # of ranks that failed, from the launcher
        self.failure = ""  # of the launcher itself
        self.is_over = threading.Event()  # the launcher has ended

    @property
    def address(self) -> str:
        name: bytes = self._listener.getsockname()
        return name[1:].decode()

    def serve(self) -> Outcome:
        """Hear the ranks until they have ended, or one has and the others do not follow."""
        while not self.is_over.is_set() or self._find_running():
            if time.monotonic() >= self._end_by:
                break
            speaking = [rank for rank in self._in_order() if not rank.connection.closed]
            ready = wait([self._listener, *(rank.connection for rank in speaking)], POLL_S)
            if self._listener in ready:
                self._accept()
            for rank in speaking:
                if rank.connection in ready:
                    self._read(rank)
        return self._conclude()

    def _accept(self) -> None:
        joined, _ = self._listener.accept()
        _, user, _ = PEER.unpack(
            joined.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
        )
        connection = Connection(joined.detach())
        if user != os.getuid():
            connection.close()
            return
        number, size, session = parse_json(connection.recv_bytes().decode())
        if number in self._ranks:  # the launcher starts all anew
            connection.close()
            return
        if size != self._size:
            started = f"the launcher started {size} processes"
            self.failure = f"{started}, and model.launch says {self._size}"
            self._end_by = 0.0
        self._ranks[number] = Rank(number, session, connection)
        if len(self._ranks) == self._size:
            sessions = ",".join(str(one.session) for one in self._ranks.values())
            self._send(self._in_order(), sessions.encode())

    def _read(self, rank: Rank) -> None:
        try:
            said = rank.connection.recv_bytes()
        except (EOFError, OSError):  # it has ended, or died and has not read all
            rank.connection.close()
            if rank.outcome is None:
                rank.last_line = describe_last_line(self._begin)
                self._end(rank)
        else:
            self._hear(rank, said)
        waiting = [one for one in self._in_order() if one.shared]
        if len(waiting) == self._size:
            self._send(waiting, b",".join(one.shared for one in waiting))
        elif len(self._find_running()) < len(self._ranks):
            self._send(waiting, b"")

    def _hear(self, rank: Rank, said: bytes) -> None:
        if said.startswith(SHARED):
            rank.shared = said
            return
        message = decode(said)
        if isinstance(message, Outcome):
            rank.outcome = message
            self._end(rank)
        elif isinstance(message, Phase):
            rank.phase, rank.note = message.name, message.note
            if message.note:
                self._say(replace(message, note=f"rank {rank.number}: {message.note}"))
            elif rank.number == 0:
                self._say(message)

    def _end(self, rank: Rank) -> None:
        rank.ended = time.monotonic()
        self._end_by = min(self._end_by, rank.ended + END_S)

    def _find_cause_s(self, rank: Rank) -> float:
        """When a rank has ended, or earlier where it died by itself: the others may have said that
        they miss it before that was seen.
        """
        died = rank.outcome is None and rank.number in self.codes
        return rank.ended - (MAX_DELAY_S if died else 0.0)

    def _find_running(self) -> list[Rank]:
        return [rank for rank in self._in_order() if rank.ended == math.inf]

    def _send(self, ranks: Iterable[Rank], values: bytes) -> None:
        """Answer some ranks with a list in JSON."""
        for rank in ranks:
            rank.shared = b""
            with suppress(OSError):  # it has just ended
                rank.connection.send_bytes(b"[%b]" % values)

    def _in_order(self) -> list[Rank]:
        return [self._ranks[number] for number in sorted(self._ranks)]

    def _conclude(self) -> Outcome:
        ranks, running = self._in_order(), self._find_running()
        if unheard := sorted(self.codes.keys() - self._ranks.keys()):
            why = f"rank {unheard[0]} ended before it could run the script"
            return Outcome("eager_error", "starting", f"{why}{describe_last_line(self._begin)}")
        for rank in sorted(ranks, key=self._find_cause_s):
            if rank in running:
                break
            code = self.codes.get(rank.number)
            found = rank.outcome or explain_end(code, rank.phase, rank.last_line)
            if found.status != "ok":
                ends = [(one.outcome.status, one.outcome.message) for one in ranks if one.outcome]
                message = found.message
                if ends != [(found.status, message)] * self._size:  # not all fail alike
                    message = f"rank {rank.number}: {message}"
                first = ranks[0].outcome or found  # with what was measured
                return replace(first, status=found.status, phase=found.phase, message=message)
        if len(ranks) == self._size and not running:
            assert ranks[0].outcome is not None
            return ranks[0].outcome
        phase = ranks[0].phase if ranks else "starting"
        if time.monotonic() >= self._deadline:
            notes = [f"rank {rank.number}: {rank.note}" for rank in ranks if rank.note]
            return Outcome("timeout", phase, "; ".join(["measure.timeout_s was over", *notes]))
        if self.failure:
            return Outcome("eager_error", phase, self.failure)
        late = " and ".join(str(rank.number) for rank in running)
        why = f"rank {late} went on for {END_S:g} s after another one had ended"
        return Outcome("crashed", phase, why)


def main() -> None:
    parser = make_parser("sweeper.worker.scripts.launcher")
    parser.add_argument("--timeout-s", type=float, required=True)
    given = parser.parse_args()
    say = open_answer(given.answer_fd)
    die_with_parent()
    launch = Job.loads(given.trial.read_text()).trial.launch
    assert launch is not None, "the trial has one process"
    hub = Hub(launch.processes, say, time.monotonic() + given.timeout_s)

    def serve() -> None:
        try:
            say(hub.serve())
        except Exception:  # noqa: BLE001  # no rank must go on without it
            traceback.print_exc()
        os._exit(0)

    thread = threading.Thread(target=serve)
    thread.start()
    os.environ |= OPTIONS
    script = ["-m", __package__, str(given.trial), given.which, "--known", given.known]
    sys.argv = [launch.module, *launch.options, *script, "--ranks", hub.address]
    _run(launch.module, hub)
    hub.is_over.set()
    thread.join()


def _run(module: str, hub: Hub) -> None:
    """Run the launcher to its end; the hub hears how it ended."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except ChildFailedError as error:
        hub.codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
    except SystemExit as error:  # an option that it does not know
        hub.failure = f"{module} ended with exit code {error.code}{describe_last_line(0)}"
    except Exception as error:  # noqa: BLE001  # whatever a launcher raises is the result
        traceback.print_exception(error)
        hub.failure = f"{module}: {describe_error(error)}"


if __name__ == "__main__":
    main()
