"""The ranks of a training in several processes, and how they agree on its steps.

Each rank runs the phases by itself. They decide by times and counts: when the watch ends, how long
a block is, whether another round begins. So what a decision depends on is shared before, and each
rank gets the values of all. From equal values follow equal decisions, at the same step. To share is
also the barrier before and after a block, and none is inside. A block takes as long as the slowest
rank.

The values go through a socket of `launcher`, the process that starts the ranks: a collective of
ours would come between those of the script, and would wait forever for a rank that has died.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from dataclasses import is_dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from sweeper.core.protocol import Message, encode
from sweeper.core.serialization import from_json, to_json
from sweeper.worker.failures import Failure

T = TypeVar("T")


class Ranks:
    """The only rank of a script that runs in one process."""

    size = 1

    def share(self, what: str, value: T) -> list[T]:  # noqa: ARG002  # with nobody
        """Give the values of all ranks, in their order, when all have come here; `what` names the
        place. A value is a dataclass, or becomes JSON.
        """
        return [value]


ALONE = Ranks()


class ApartError(Failure):
    """The ranks are not at the same step."""

    status = "runtime_error"


class LaunchedRanks(Ranks):
    """The ranks that a launcher has started, from one of them."""

    def __init__(self, address: str) -> None:
        """Raises KeyError where the launcher has not named the rank."""
        self.number, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        joined = socket.socket(socket.AF_UNIX)
        joined.connect(f"\0{address}")
        self._hub, self._lock = Connection(joined.detach()), threading.Lock()
        os.register_at_fork(after_in_child=self._hub.close)  # or nobody sees the end
        self._send(json.dumps([self.number, self.size, os.getsid(0)]))
        # processes of other ranks are none of others
        self.sessions: list[int] = json.loads(self._hub.recv_bytes())

    def say(self, message: Message) -> None:
        self._send(encode(message))

    def share(self, what: str, value: T) -> list[T]:
        self._send(json.dumps({"at": what, "value": to_json(value)}))
        shared: list[dict[str, Any]] = json.loads(self._hub.recv_bytes())
        if len(shared) < self.size:
            raise ApartError(f"another rank has ended before this one ({what})")
        if places := {item["at"] for item in shared} - {what}:
            raise ApartError(f"the ranks are apart: {what} here, {', '.join(places)} elsewhere")
        kind, values = type(value), [item["value"] for item in shared]
        return [from_json(kind, one) for one in values] if is_dataclass(kind) else values

    def _send(self, text: str) -> None:
        with self._lock:  # a thread that says where the script is may come between
            self._hub.send_bytes(text.encode())
