"""docs/flags.md, made of the texts in `sweeper.analysis`: `make golden` writes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from checkout import ROOT

from sweeper.analysis.flags import FLAGS, RANKS
from sweeper.analysis.meanings import CAUSES, STATUSES, Meaning
from sweeper.core.files import write_text
from sweeper.report.columns.formats import sentence

FILE = ROOT / "docs" / "flags.md"
HEAD = """# Statuses, flags and causes

`python -m sweeper.explain NAME` prints the same texts. `flags.py` and `meanings.py` of
`sweeper/analysis/` have them, and `make golden` writes this page of them.
"""
FLAG_HEAD = """
A flag never changes a number. A trial has a flag of a process when any of its processes has it. A
flag is a doubt when it says that the speedup may be off, or is not the compiler's own. Beside each
mean stands the mean over its models without doubt. These are fewer and other models, so it does not
correct the mean over all. A recommendation names the doubts of the trial whose speedup it gives. A
flag that every trial has is said once, above the table; in `speedups.csv` each row has all its
flags. The page hides housekeeping flags until a row is opened.
"""


def text() -> str:
    parts = [HEAD, "## Statuses\n", *_table(STATUSES), "\n## Flags", FLAG_HEAD]
    for rank, meaning in RANKS.items():
        flags = {name: flag for name, flag in FLAGS.items() if flag.rank == rank}
        parts += [f"\n### {sentence(rank)[:-1]}\n", f"{sentence(meaning)}\n", *_table(flags)]
    parts += [
        "\n## Causes of lost time\n",
        "`host_bound` and `throttled` are causes too.\n",
        *_table(CAUSES),
    ]
    return "\n".join(parts).replace("\n\n\n", "\n\n")


def _table(meanings: Mapping[str, Meaning]) -> Iterator[str]:
    lines = ["| name | meaning | what to do |", "|---|---|---|"]
    for name, meaning in meanings.items():
        because = f"{sentence(FLAGS[name].why)}" if name in FLAGS and meanings is not CAUSES else ""
        said = " ".join(filter(None, (sentence(meaning.says), meaning.more, because)))
        lines.append(f"| `{name}` | {said} | {meaning.todo} |")
    yield "\n".join(lines) + "\n"


if __name__ == "__main__":
    write_text(FILE, text())
