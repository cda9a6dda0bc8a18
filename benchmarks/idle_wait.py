"""How well `IdleWait` knows when a GPU has done the work of a process that was stopped.

    python benchmarks/idle_wait.py

Another process queues matrix products, and is stopped (SIGSTOP) at once. Each row has the products,
the median of tiny launches beside them, the seconds from the first product to the end of the last
by the other process's CUDA events, and the seconds until `IdleWait` returned.
"""

import statistics
import subprocess
import sys
import time
from signal import SIGCONT, SIGSTOP

import torch

from sweeper.worker.measurement.idle import IdleWait

WORK = ((8192, "float32", 60), (8192, "float64", 40), (2048, "bfloat16", 900))
LAUNCHES = 50
OTHER = """
import sys, torch
x = torch.randn({size}, {size}, device="cuda", dtype=torch.{dtype})
begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
x @ x
torch.cuda.synchronize()
print("ready", flush=True)
sys.stdin.readline()
begin.record()
for _ in range({count}):
    x @ x
end.record()
print("queued", flush=True)
end.synchronize()
print(begin.elapsed_time(end) / 1e3, flush=True)
"""


def main() -> None:
    device = torch.device("cuda")
    idle_wait = IdleWait(device)
    launch_s(device)
    print(f"idle device: a launch takes {1e6 * launch_s(device):.0f} us")
    for size, dtype, count in WORK:
        code = OTHER.format(size=size, dtype=dtype, count=count)
        other = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        other.stdin.write("\n")
        other.stdin.flush()
        begin_s = time.monotonic()
        other.stdout.readline()
        other.send_signal(SIGSTOP)
        launch_us = 1e6 * launch_s(device)
        idle_wait.wait()
        waited_s = time.monotonic() - begin_s
        other.send_signal(SIGCONT)
        worked_s = float(other.stdout.readline())
        print(
            f"{count} products of {size} in {dtype}: a launch takes {launch_us:.0f} us, the work "
            f"{worked_s:.3f} s, IdleWait returned after {waited_s:.3f} s",
            flush=True,
        )
        other.wait()


def launch_s(device: torch.device) -> float:
    tiny, times_s = torch.zeros(1, device=device), []
    for _ in range(LAUNCHES):
        begin_s = time.perf_counter()
        tiny.zero_()
        torch.cuda.synchronize()
        times_s.append(time.perf_counter() - begin_s)
    return statistics.median(times_s)


if __name__ == "__main__":
    main()
