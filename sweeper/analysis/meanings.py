"""What each status, each cause and each word of an answer means, and what to do about it; `flags`
says it of flags. The texts are in `meanings.toml` and `words.md`.

`python -m sweeper.explain WORD` and docs/flags.md show these texts, and the legend of the page and
its tooltips those of statuses and causes.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Meaning:
    """The texts of a status, a flag or a cause. `says` has no markup, the others may have names in
    backticks.
    """

    says: str  # one line
    more: str = ""  # how it is found, and where the details are
    todo: str = ""


TEXTS = tomllib.loads(Path(__file__).with_name("meanings.toml").read_text("utf-8"))
STATUSES = {name: Meaning(**texts) for name, texts in TEXTS["status"].items()}
# Causes of lost time that are no flags too.
CAUSES = {name: Meaning(**texts) for name, texts in TEXTS["cause"].items()}


def read_words() -> dict[str, Meaning]:
    """Read what the other words of answers and of `compare` mean; words of one meaning share a
    row, with commas between.
    """
    table = Path(__file__).with_name("words.md").read_text("utf-8")
    rows = [row.split(" | ") for row in table.splitlines()[2:]]
    return {names: Meaning(says) for names, says in rows}
