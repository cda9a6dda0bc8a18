"""The tables of keys in docs/formats.md, made of the dataclasses' own comments: `make golden`
writes them.

A table stands between two markers, and the rest of the page is written by hand.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import ModuleType, NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from checkout import ROOT

from sweeper.core import record, settings, trial
from sweeper.core.files import write_text

FILE = ROOT / "docs" / "formats.md"
BEGIN, END = "<!-- {}: `make golden` writes this part -->\n", "<!-- end of {} -->\n"
PARTS: Mapping[str, ModuleType] = {"settings": settings, "trial": trial, "record": record}
WORDS = {
    bool: ("true or false", "truth values"),
    float: ("number", "numbers"),
    int: ("whole number", "whole numbers"),
    str: ("text", "texts"),
}


def text() -> str:
    """The page, with each generated part as the code has it now."""
    page = FILE.read_text(encoding="utf-8")
    for name, module in PARTS.items():
        begin, end = BEGIN.format(name), END.format(name)
        head, _, rest = page.partition(begin)
        _, found, tail = rest.partition(end)
        assert found, f"{FILE.name} has no part {name}"
        page = f"{head}{begin}{''.join(_tables(module))}\n{end}{tail}"
    return page


def read_comments(source: str) -> dict[tuple[str, str], str]:
    """The comment of each field, by class and field: the lines above it, and the end of its
    line.
    """
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    found = {token.start[0]: token for token in tokens if token.type == tokenize.COMMENT}
    comments = {}
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ClassDef):
            continue
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                lines = _comment_lines(found, field.lineno)
                comments[node.name, field.target.id] = " ".join(lines)
    return comments


def _comment_lines(found: Mapping[int, tokenize.TokenInfo], number: int) -> Iterator[str]:
    first = number
    while first - 1 in found and found[first - 1].line.lstrip().startswith("#"):
        first -= 1
    for line in range(first, number + 1):
        if line in found:
            yield found[line].string.lstrip("# ")


def _tables(module: ModuleType) -> Iterator[str]:
    """Each dataclass of a module. The last one holds the others, so it comes first."""
    comments = read_comments(inspect.getsource(module))
    for name, kind in reversed(vars(module).items()):
        if not is_dataclass(kind) or kind.__module__ != module.__name__:
            continue
        about = " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split())
        yield f"\n### {name}\n\n{_as_json(about)}\n\n| key | value | meaning |\n|---|---|---|\n"
        types = get_type_hints(kind)
        for field in fields(kind):
            value, meaning = show_type(types[field.name]), comments[name, field.name]
            yield f"| `{field.name}` | {value} | {_as_json(meaning)} |\n"


def _as_json(comment: str) -> str:
    words = re.sub(r"\bNone\b", "null", comment)
    return re.sub(r"\b(True|False)\b", lambda found: found[0].lower(), words)


def show_type(kind: Any, number: int = 0) -> str:
    """A type as JSON has it; `number` 1 gives the plural."""
    if kind in WORDS:
        return WORDS[kind][number]
    if is_dataclass(kind):
        name = getattr(kind, "__name__", "")
        return f"[{name}](#{name.lower()})"
    origin, args = get_origin(kind), get_args(kind)
    if set(WORDS) <= set(args):
        return ("any value", "any values")[number]
    if origin in (Union, UnionType):
        others = [show_type(one, number) for one in args if one is not NoneType]
        return " or ".join([*others, "null"])
    if issubclass(origin, Mapping):
        return f"object of {show_type(args[1], 1)}"
    return f"list of {show_type(args[0], 1)}"


if __name__ == "__main__":
    write_text(FILE, text())
