"""A Ray cluster of two nodes on this machine, away from any that runs here: one task a node, as
each has one "GPU".

The GPUs are numbers that Ray counts down and up; trials run on the CPU. As a program it keeps the
cluster up until its standard input closes: Ray's own processes stay out of the process that tests.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def apart() -> Iterator[Mapping[str, str]]:
    """Environment variables with which Ray finds no cluster but one of ours, and leaves nothing
    behind.
    """
    # a socket's path is short
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        yield {
            "RAY_TMPDIR": folder,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }


@contextmanager
def cluster(variables: Mapping[str, str]) -> Iterator[str]:
    """The address of a running cluster."""
    with subprocess.Popen(
        [sys.executable, __file__],
        env={**os.environ, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            *_, address = process.stdout.readline().split()
            yield address
        finally:
            process.stdin.close()
            process.wait(60)


def main() -> None:
    from ray.cluster_utils import Cluster

    nodes = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "num_gpus": 1, "include_dashboard": False},
    )
    nodes.add_node(num_cpus=1, num_gpus=1)
    nodes.wait_for_nodes()
    print("address", nodes.address, flush=True)
    sys.stdin.read()
    nodes.shutdown()


if __name__ == "__main__":
    main()
