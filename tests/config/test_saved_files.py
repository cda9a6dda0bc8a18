"""Files that a script saves, by its text."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeper.config.saved_files import describe_saved
from sweeper.core.libraries import SCRIPT
from sweeper.core.trial import Model

OPTION = "parser.add_argument('-d', '--out-dir', default='out')\nargs = parser.parse_args()\n"
FILE = "out/last.pt"
OVERWRITES = f"overwrites {FILE} in each run"
UNKNOWN = "saves to a file whose name is not known before it runs"


@pytest.fixture
def folder(in_empty_folder: Path) -> Path:
    (in_empty_folder / "out").mkdir()
    (in_empty_folder / FILE).touch()
    return in_empty_folder


def describe(text: str, arguments: str = "") -> list[str]:
    Path("train.py").write_text(text)
    return list(
        describe_saved("train.py", Model(SCRIPT, "train.py", arguments={"args": arguments}))
    )


@pytest.mark.parametrize(
    ("before", "call"),
    [
        ("", "torch.save(net, 'out/last.pt')"),
        ("", "torch.save(f='out/last.pt', obj=net)"),
        ("", "torch.save(net, Path('out') / 'last.pt')"),
        ("", "torch.save(net, os.path.join('out/', 'last.pt'))"),
        ("NAME = 'last'\n", "torch.save(net, f'out/{NAME}.pt')"),
        ("self.path = Path('out', 'last.pt')\n", "torch.save(net, self.path)"),
        (OPTION, "torch.save(net, f'{args.out_dir}/last.pt')"),
        (OPTION + "OUT = Path(args.out_dir)\n", "torch.save(net, str(OUT / 'last.pt'))"),
    ],
)
def test_a_file_that_is_there_is_named_with_the_line(folder: Path, before: str, call: str) -> None:
    assert folder
    line = before.count("\n") + 2
    assert describe(f"{before}def save():\n    {call}\n") == [f"train.py:{line} {OVERWRITES}"]
    (folder / FILE).unlink()
    assert describe(before + call) == []


@pytest.mark.parametrize(
    "text",
    [
        "def save(path): torch.save(net, path)",
        "path = 'out/last.pt'; path = 'out/best.pt'; torch.save(net, path)",
        "path = 'out/last.pt'; path += '.gz'; torch.save(net, path)",
        "path = path / 'last.pt'; torch.save(net, path / make_name())",
        "for step in range(9): torch.save(net, f'{step:03d}.pt')",
        "p.add_argument('--out', default=None); torch.save(net, args.out)",
        "with open('out/last.pt', 'wb') as file: torch.save(net, file)",
        "args.out = 'out/last.pt'; p.add_argument('--out', default='x'); torch.save(net, args.out)",
    ],
)
def test_a_line_that_saves_elsewhere_is_named(folder: Path, text: str) -> None:
    assert folder
    assert describe(text) == [f"train.py:1 {UNKNOWN}"]


def test_a_default_counts_unless_the_option_is_given(folder: Path) -> None:
    assert folder
    text = OPTION + "torch.save(net, Path(args.out_dir) / 'last.pt')"
    assert describe(text, "--lr=1") == [f"train.py:3 {OVERWRITES}"]
    assert describe(text, "--out-dir other") == [f"train.py:3 {UNKNOWN}"]


def test_what_stays_in_memory_is_no_file(folder: Path) -> None:
    assert folder
    assert describe("buffer = io.BytesIO(); torch.save(net, buffer)") == []
