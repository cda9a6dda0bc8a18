"""What a script saves with `torch.save`, as far as its text tells: names of constants, paths and
f-strings, and defaults of argparse. What is bound twice is not known.
"""

import ast
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from sweeper.core.trial import Model, find_script

# calls with the parts of a path; what is in memory has none
PATH_CALLS = ("Path", "pathlib.Path", "os.path.join", "str", "io.BytesIO", "BytesIO")
Values = Mapping[str, ast.expr]  # of names, and of attributes of anything with a dot before them


def describe_saved(script: str, model: Model) -> Iterator[str]:
    """Say which files that are there each run overwrites, and which lines may overwrite others."""
    folder = Path(str(model.arguments.get("cwd", ".")))
    # what is wrong with the file, the check before the sweep tells
    with suppress(OSError, SyntaxError, ValueError):
        tree = ast.parse((find_script(model) or folder).read_bytes())
        values = _read_values(tree, str(model.arguments.get("args")))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.save":
                options = {item.arg: item.value for item in node.keywords}
                try:
                    name = Path(_resolve(options.get("f") or node.args[1], values))
                    if (folder / name).is_file():
                        yield f"{script}:{node.lineno} overwrites {name} in each run"
                except (LookupError, RecursionError):
                    yield (
                        f"{script}:{node.lineno} saves to a file whose name is not known before it "
                        "runs"
                    )


def _read_values(tree: ast.AST, arguments: str) -> Values:
    values, bound = dict[str, ast.expr](), list[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Assign([target], value):
                values[_name(target)] = value
            case ast.Name(ctx=ast.Store()) | ast.Attribute(ctx=ast.Store()):
                bound.append(_name(node))
            case ast.arg(name):
                bound.append(name)
            case ast.Call(ast.Attribute(_, "add_argument"), [*_, ast.Constant(str(option))]):
                name = "." + option.lstrip("-").replace("-", "_")
                bound += [name] * (1 + arguments.count(option))
                for item in node.keywords:
                    if item.arg == "default":
                        values[name] = item.value
    return {name: value for name, value in values.items() if bound.count(name) == 1}


def _name(node: ast.expr) -> str:
    return "".join(ast.unparse(node).rpartition(".")[1:])


def _resolve(node: ast.expr, values: Values) -> str:
    """The value of an expression as text. Raises LookupError where it is not known."""
    separator = "/"
    match node:
        case ast.Constant(value) if value is not None:
            return str(value)
        case ast.Name() | ast.Attribute():
            parts = [values[_name(node)]]
        case ast.FormattedValue(part, _, None):
            parts = [part]
        case ast.JoinedStr(parts):
            separator = ""
        case ast.BinOp(left, ast.Div(), right):
            parts = [left, right]
        case ast.Call(function, parts) if ast.unparse(function) in PATH_CALLS:
            pass
        case _:
            raise LookupError
    return separator.join(_resolve(part, values) for part in parts)
