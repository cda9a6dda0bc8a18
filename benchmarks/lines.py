"""Size of the program: tokens, lines and dense expressions of each package, and its longest
function.

    python benchmarks/lines.py [FOLDER ...]

FOLDER is `sweeper hydra_plugins` unless given. Tokens measure what there is to read, whatever the
line width. Comments, docstrings and line structure are no tokens. Comprehensions (with generator
expressions) and conditional expressions are counted per 100 statements. Templates, scripts and
styles of our own are counted apart, in lines without blanks. A file of other authors (its name has
`.min.`) does not count.

Needs Python 3.12 or later, whose `tokenize` splits f-strings.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

FOLDERS = ("sweeper", "hydra_plugins")
PAGE_FILES = (".js", ".css", ".html", ".j2")
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (ast.Module, ast.ClassDef, *FUNCTIONS)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass
class Size:
    """What a package has; `longest` is the length of its longest function in lines, and where that
    is.
    """

    tokens: int = 0
    lines: int = 0
    statements: int = 0
    comprehensions: int = 0
    conditionals: int = 0
    longest: tuple[int, str] = (0, "")

    def add(self, other: Size) -> None:
        self.tokens += other.tokens
        self.lines += other.lines
        self.statements += other.statements
        self.comprehensions += other.comprehensions
        self.conditionals += other.conditionals
        self.longest = max(self.longest, other.longest)

    def show(self, name: str) -> str:
        hundreds = max(self.statements, 1) / 100
        rates = f"{self.comprehensions / hundreds:8.1f}{self.conditionals / hundreds:8.1f}"
        return (
            f"{self.tokens:9,}{self.lines:9,}{rates}{self.longest[0]:9}  {name} ({self.longest[1]})"
        )


def measure(file: Path) -> Size:
    """Measure a Python file."""
    text = file.read_text(encoding="utf-8")
    tree = ast.parse(text)
    docstrings = find_docstrings(tree)
    size = Size()
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT and token.start[0] not in docstrings:
            size.tokens += 1
            lines.update(range(token.start[0], token.end[0] + 1))
    size.lines = len(lines)
    for node in ast.walk(tree):
        size.statements += isinstance(node, ast.stmt)
        size.comprehensions += isinstance(node, COMPREHENSIONS)
        size.conditionals += isinstance(node, ast.IfExp)
        if isinstance(node, FUNCTIONS):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            size.longest = max(size.longest, (length, f"{file.name}:{node.name}"))
    return size


def find_docstrings(tree: ast.Module) -> set[int]:
    """Find the lines of the docstrings of modules, classes and functions."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            lines.update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    return lines


def count_page_lines(folder: Path) -> int:
    """Count the lines, without blanks, of templates, scripts and styles."""
    files = [
        file for file in folder.rglob("*") if file.suffix in PAGE_FILES and ".min." not in file.name
    ]
    return sum(
        bool(line.strip()) for file in files for line in file.read_text("utf-8").splitlines()
    )


def main() -> None:
    if sys.version_info < (3, 12):
        sys.exit(
            "python benchmarks/lines.py: needs Python 3.12 or later, whose tokenize splits "
            "f-strings"
        )
    folders = [Path(name) for name in sys.argv[1:] or FOLDERS]
    packages: dict[str, Size] = {}
    total, page_lines, files = Size(), Counter[str](), 0
    for folder in folders:
        for file in sorted(folder.rglob("*.py")):
            package = file.parent.relative_to(folder.parent).parts[:3]
            size = measure(file)
            packages.setdefault("/".join(package), Size()).add(size)
            total.add(size)
            files += 1
        page_lines["lines"] += count_page_lines(folder)
    print("   tokens    lines   compr.   cond.  longest  package (its longest function)")
    print("                     per 100 statements")
    for name, size in sorted(packages.items()):
        print(size.show(name))
    print(total.show(f"all {files} files"))
    print(f"{page_lines.total():18,}  templates, scripts and styles")


if __name__ == "__main__":
    main()
