"""An interpreter for `worker.python` whose workers measure nothing and answer within a fraction of
a second.

`write(path, body)` makes the program; `body` is what a worker does between its first phase and its
outcome, and `check` what the check of the models does before it answers, in a line.
"""

from __future__ import annotations

import sys
from pathlib import Path

PROGRAM = """#!{python}
import argparse, json, os, random, sys, time
sys.path[:0] = os.environ["PYTHONPATH"].split(os.pathsep)
from sweeper.core.protocol import Outcome, Phase, LeaseRequest, encode
from sweeper.core.record import Accuracy, Process, Round

if "--check" in sys.argv:
    answer = sys.argv[-1]
    {check}
    open(answer, "w").write(json.dumps({{"problems": [], "notes": []}}))
    sys.exit()
parser = argparse.ArgumentParser()
parser.add_argument("-m")
parser.add_argument("trial")
parser.add_argument("--slot", default='{{"index": 0, "draw": 0, "cold": true}}')
parser.add_argument("--inspect")
parser.add_argument("--answer-fd", type=int)
options = parser.parse_args()
vars(options).update(json.loads(options.slot))
trial = json.load(open(options.trial))["trial"]
answer = os.fdopen(options.answer_fd, "w")


def say(message):
    answer.write(encode(message))
    answer.flush()


def take(wants):
    say(LeaseRequest(wants))
    if wants != "nothing":
        sys.stdin.readline()


def process(speedup=2.0):
    rounds = (Round("AB", 0.002, 0.002 / speedup),)
    return Process(options.index, options.draw, options.cold, compile_s=0.001,
                   steps_per_block=2, rounds=rounds)


say(Phase("building"))
{body}
say(Outcome("ok", process=process()))
"""


def write(path: Path, body: str = "", check: str = "pass") -> Path:
    path.write_text(PROGRAM.format(python=sys.executable, body=body, check=check))
    path.chmod(0o755)
    return path
