"""docs/flags.md, made of the texts in `sweeper.analysis`: `make golden` writes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from checkout import ROOT

from sweeper.analysis.flags import FLAGS, RANKS
from sweeper.analysis.meanings import CAUSES, STATUSES, Meaning, read_words
from sweeper.core.files import write_text
from sweeper.report.columns.formats import sentence

FILE = ROOT / "docs" / "flags.md"
HEAD = """# Statuses, flags, causes and words

`python -m sweeper.explain WORD` prints the same texts. `meanings.toml` and `words.md`
of `sweeper/analysis/` have them, and `make golden` writes this page of them.
"""
FLAG_HEAD = """
A flag never changes a number. A trial has a flag of a process when any of its processes has it. A
flag of the rank doubt says that the result is not verified, or that something disturbed the
measurement. A disturbance counts as a doubt where it may have moved the speedup by more than the
speedup's interval. Beside each mean stands the number of its undisturbed models. An answer says
what keeps it from being sure. A flag that every trial has is said once, above the table; in
`speedups.csv` each row has all its flags. The page hides housekeeping flags until a row is opened.
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
        "\n## Words of answers\n",
        "Answers, the sentences around them and `compare` use these words.\n",
        "| word | meaning |\n|---|---|",
        *(f"| {names} | {word.says} |" for names, word in read_words().items()),
        "",
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
