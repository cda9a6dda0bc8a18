"""A SLURM cluster of one node on loopback: munged, slurmctld and slurmd of our own, away from any
that runs here.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "sinfo")
CONFIGURATION = """
ClusterName=local
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=2
MailProg=/bin/true
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=500 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


def missing() -> str | None:
    """Why there can be no cluster here."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
    absent = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
    if absent:
        return f"SLURM is not installed: no {', '.join(absent)}; apt-get install slurm-wlm munge"
    return None if os.geteuid() == 0 else "a SLURM cluster of our own needs root"


@contextmanager
def cluster(folder: Path) -> Iterator[Mapping[str, str]]:
    """Environment variables with which SLURM's commands find the cluster."""
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    configuration = folder / "slurm.conf"
    configuration.write_text(
        CONFIGURATION.format(
            host=socket.gethostname().partition(".")[0],
            folder=folder,
            cpus=os.cpu_count(),
            controller_port=free_port(),
            node_port=free_port(),
        )
    )
    environment = {
        **os.environ,
        "SLURM_CONF": str(configuration),
        "PATH": f"{os.environ['PATH']}:/usr/sbin",
    }
    commands = (
        ["munged", "--foreground", "--force", f"--key-file={folder}/munge.key",
        f"--socket={folder}/munge.socket",
         f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log",
         f"--seed-file={folder}/munge.seed"],
        ["slurmctld", "-D", "-c"],
        ["slurmd", "-D", "-c"],
    )  # fmt: skip
    servers = []
    try:
        for command in commands:
            with (folder / f"{command[0]}.out").open("wb") as output:
                servers.append(
                    subprocess.Popen(
                        command, env=environment, stdout=output, stderr=subprocess.STDOUT
                    )
                )
            time.sleep(0.5)
        wait_until_idle(environment, folder)
        yield {"SLURM_CONF": str(configuration)}
    finally:
        for server in reversed(servers):
            server.terminate()
            server.wait(30)


def wait_until_idle(environment: Mapping[str, str], folder: Path, within_s: float = 60.0) -> None:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        said = subprocess.run(
            ["sinfo", "-h", "-o", "%T"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if said.stdout.strip() == "idle":
            return
        time.sleep(0.5)
    logs = "\n".join(
        path.read_text(errors="replace")[-1500:] for path in sorted(folder.glob("*.out"))
    )
    raise TimeoutError(f"no idle node after {within_s} s: {said.stdout} {said.stderr}\n{logs}")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
