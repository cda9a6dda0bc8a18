"""A program that stands in for a worker: it runs `PRELUDE` and then what a test has it do."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from sweeper.core.trial import Trial

PRELUDE = """
import json, os, signal, subprocess, sys, time, argparse
from dataclasses import replace
from sweeper.core.protocol import LeaseNews, Outcome, Phase, LeaseRequest, encode
from sweeper.core.record import Accuracy, PerArm, Process, Round
parser = argparse.ArgumentParser()
parser.add_argument("trial"); parser.add_argument("--slot")
parser.add_argument("--answer-fd", type=int)
parser.add_argument("--inspect")
a = parser.parse_args()
vars(a).update(json.loads(a.slot))
answer = os.fdopen(a.answer_fd, "w")
def say(message):
    answer.write(encode(message)); answer.flush()
def ask(wants="device"):
    say(LeaseRequest(wants, time.monotonic()))
    return LeaseNews.loads(sys.stdin.readline()).grant
def process():
    speedups = os.environ.get("SPEEDUPS", "2").split()
    speedup = float(speedups[a.index % len(speedups)])
    rounds = (Round("AB", 0.002, 0.002 / speedup),)
    seen = os.environ.get("DEVICE_SPEEDUPS", "").split()
    seen = PerArm(0.001, 0.001 / float(seen[a.index % len(seen)])) if seen else None
    return Process(a.index, a.draw, a.cold, compile_s=0.001, first_steps_s=(0.001,),
                   steps_per_block=2, rounds=rounds, device_step_s=seen)
"""
GOOD = 'say(Phase("building")); say(Outcome("ok", process=process()))'


def folder(trial: Trial) -> Path:
    return Path("runs/s") / f"{trial.label}-{trial.id}"


def set_when_there(file: Path) -> threading.Event:
    """An event that a worker sets by writing the file."""
    stop = threading.Event()

    def wait() -> None:
        wait_for(file)
        stop.set()

    threading.Thread(target=wait).start()
    return stop


def wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(0.05)
