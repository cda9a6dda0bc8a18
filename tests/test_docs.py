"""The documents: every relative link leads to a file, and to a heading where it names one."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import format_docs
import pytest

from sweeper.core import record
from sweeper.core.system import exit_codes

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")]
)
LINK = re.compile(r"\]\(([^()\s]+)\)")
CODE = re.compile(r"```.*?```", re.DOTALL)


@cache
def anchors(document: Path) -> set[str]:
    """The anchors that GitHub makes of headings: lower case, without punctuation, numbered where
    one comes again.
    """
    found: dict[str, int] = {}
    names = set()
    for heading in re.findall(
        r"^#+ (.+)$", CODE.sub("", document.read_text(encoding="utf-8")), re.MULTILINE
    ):
        name = (
            re.sub(r"[^\w\- ]", "", re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).lower())
            .strip()
            .replace(" ", "-")
        )
        names.add(f"{name}-{found[name]}" if name in found else name)
        found[name] = found.get(name, 0) + 1
    return names


def explain_broken(document: Path, link: str) -> str | None:
    """What is wrong with a link; None if nothing is, or if it leads out of the repository."""
    if re.match(r"[a-z]+:", link):
        return None
    path, _, anchor = link.partition("#")
    target = (document.parent / path).resolve() if path else document
    if not target.exists():
        return f"{link}: there is no such file"
    if anchor and target.suffix == ".md" and anchor not in anchors(target):
        return f"{link}: there is no such heading"
    return None


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    links = LINK.findall(CODE.sub("", document.read_text(encoding="utf-8")))
    assert [problem for link in links if (problem := explain_broken(document, link))] == []


@pytest.mark.parametrize(
    "link", ["no-such-file.md", "measuring.md#no-such-heading", "#no-such-heading"]
)
def test_broken_links_are_found(link: str) -> None:
    assert explain_broken(ROOT / "docs/design.md", link) is not None


def test_a_reader_finds_the_glossary() -> None:
    """From the first page, and from the page on measuring."""
    for document in ("README.md", "docs/measuring.md"):
        assert "reading-a-report.md" in (ROOT / document).read_text(encoding="utf-8")


def test_the_first_page_takes_three_minutes_to_read() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= 9_000


def test_formats_have_every_key_of_the_code() -> None:
    assert format_docs.FILE.read_text(encoding="utf-8") == format_docs.text(), "make golden"


def test_every_field_of_a_record_says_what_it_is() -> None:
    comments = format_docs.read_comments(Path(record.__file__).read_text(encoding="utf-8"))
    assert [name for name, comment in comments.items() if not comment] == []


def test_the_comment_of_a_field_is_read_above_it_and_beside_it() -> None:
    source = "class A:\n    # of one\n    # line\n    a: int  # and more\n    b: int\n"
    assert format_docs.read_comments(source) == {("A", "a"): "of one line and more", ("A", "b"): ""}


def test_every_exit_code_is_told() -> None:
    rows = re.findall(
        r"^\| (\d+) \|", (ROOT / "docs/cli.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    codes = [value for name, value in vars(exit_codes).items() if name.isupper()]
    assert [int(row) for row in rows] == sorted(codes)
