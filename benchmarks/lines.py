"""Lines of code of a package: Python without blanks, comments and docstrings.

    python benchmarks/lines.py [FOLDER]

FOLDER is `sweeper` unless given. Templates, scripts and styles of our own are counted apart, without blank lines, so
that code gains nothing by moving there. A file that others wrote (its name has `.min.`) does not count.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

PAGE_FILES = (".js", ".css", ".html", ".j2")
NOT_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def python_lines(text: str) -> int:
    """Lines that hold a token, without those of comments and of the docstrings of modules, classes and functions."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {line for token in tokens if token.type not in NOT_CODE for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            lines -= set(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    return len(lines)


def main() -> None:
    top = Path(sys.argv[1] if len(sys.argv) > 1 else "sweeper")
    counts: Counter[str] = Counter()
    page_lines = 0
    for file in sorted(top.rglob("*")):
        parts = file.relative_to(top).parts
        if file.suffix == ".py":
            counts["/".join(parts[:-1][:2]) or "."] += python_lines(file.read_text(encoding="utf-8"))
        elif file.suffix in PAGE_FILES and ".min." not in file.name:
            page_lines += sum(bool(line.strip()) for line in file.read_text(encoding="utf-8").splitlines())
    for name, count in sorted(counts.items()):
        print(f"{count:7,}  {name}")
    print(f"{counts.total():7,}  Python\n{page_lines:7,}  templates, scripts and styles")


if __name__ == "__main__":
    main()
