"""`--help` and `--version`: what can be typed, with the values that are allowed and a line about
each.

Try: `python -m sweeper --help`, `python -m sweeper --help models`, `python -m sweeper --help
backend`
"""

import platform
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from sweeper.core.backends import GONE
from sweeper.core.errors import ConfigError, nearest
from sweeper.core.libraries import read_versions

from .reference import (
    COMMANDS,
    PURPOSES,
    ConfigKey,
    list_default_options,
    list_options,
    read_keys,
)
from .schema import conf_folder

MAX_WIDTH = 120
INTRODUCTION = """\
sweeper measures how much faster torch.compile makes your model on your machine, and how certain the figure is.

  your script     sweeper train.py -- --batch-size 64   (a training script of yours, as it is)
                  sweeper train.py mode=default,reduce-overhead measure=quick -- --batch-size 64
  one trial       sweeper model=resnet18 batch_size=8
  a grid          sweeper -m model=resnet50,vit_b16 mode=default,reduce-overhead precision=fp32,amp
  the plan only   sweeper -m model=resnet50,vit_b16 dry_run=true
  resume          the same command with sweep=NAME runs the trials without an ok record
                  (retry=changed: also those measured with another measure; retry=all: every trial again)
  any model       model=timm model.name=convnext_tiny        model=torchvision model.name=densenet121
                  model=transformers model.name=ModernBertForMaskedLM
                  model=diffusers model.name=UNet2DModel model.image_size=32
                    model.arguments.block_out_channels=[32,32,64,64]
  a suite's model model=timm/dla102   model=transformers/T5Small   model=torchbench/hf_Bert
  a ladder        sweeper experiment=ladder model=resnet50   (what torch.compile gives beyond free one-liners)
  your model      model=custom model.factory=./my_model.py:build   (or your own YAML, with --config-dir)

`python -m sweeper ...` is the same as `sweeper ...`.
Exit codes: 0 every trial is ok, 1 some trial is not ok, 2 bad configuration (nothing ran), 130 interrupted,
141 nobody reads the output any more.
"""
FLAGS = """\
Flags:
  -m                  run a grid: several values of a group or key, separated by commas
  --help TOPIC        models, or a group or key of these, e.g. sweeper --help backend
  --cfg job           print the composed configuration of this command, and run nothing
  --config-dir DIR    a folder of your own YAML files, e.g. DIR/model/mine.yaml for model=mine
  -sc install=bash    print the code that completes sweeper's command lines in bash (zsh, fish); docs/cli.md
  --version           versions of sweeper, Python, torch and Hydra
  --hydra-help        the flags of Hydra"""


def describe_versions() -> str:
    """Describe the versions in one line, without an import of torch."""
    packages = ("sweeper", "torch", "hydra-core")
    found = read_versions(packages)
    parts = [f"{package} {found.get(package, 'is not installed')}" for package in packages]
    parts.insert(1, f"Python {platform.python_version()}")
    return ", ".join(parts)


def write_help(topics: Sequence[str], config_dir: str | None = None) -> str:
    """Write the help on topics, or on everything; `config_dir` has YAML files of the user.

    Raises ConfigError for an unknown topic.
    """
    folders = [conf_folder()]
    if config_dir:
        folders.append(Path(config_dir))
    lines: list[str] = []
    for topic in topics:
        lines += _describe_topic(topic, folders)
    if topics:
        return "\n".join(lines)
    lines += [INTRODUCTION, "Commands (each has --help):"]
    lines += map(_line, [f"sweeper {name}" for name in COMMANDS], COMMANDS.values())
    lines.append(
        "\nGroups: write GROUP=OPTION; with -m several, separated by commas; * is the default:"
    )
    for group in PURPOSES:
        lines.append(_summarise_group(group, folders))
    lines.append(
        "\nKeys: write KEY=VALUE; with -m several, separated by commas; each is shown with its "
        "default:"
    )
    for key in read_keys().values():
        if not key.has_keys:
            lines.append(_describe_key(key))
    return "\n".join([*lines, "", FLAGS])


def _describe_topic(topic: str, folders: Sequence[Path]) -> Iterator[str]:
    """Write the options of a group, a line each, and the keys of that name or below it."""
    keys = read_keys()
    group = {"models": "model", "launcher": "hydra/launcher"}.get(topic, topic)
    inside = [
        key for name, key in keys.items() if f"{name}.".startswith(f"{topic}.") and not key.has_keys
    ]
    if topic in COMMANDS:
        raise ConfigError(f"--help {topic}: {topic} is a command; write sweeper {topic} --help")
    if group not in PURPOSES and not inside:
        raise ConfigError(
            f"--help {topic}: no such group or key; {nearest(topic, [*PURPOSES, *keys, *COMMANDS])}"
        )
    if group in PURPOSES:
        default = list_default_options().get(group)
        yield f"{group}: {PURPOSES[group]}; write {group}=OPTION"
        for option, about in list_options(group, folders).items():
            mark = " *" if option == default else ""
            yield _line(f"{option}{mark}", about)
    for key in inside:
        yield _describe_key(key)


def _summarise_group(group: str, folders: Sequence[Path]) -> str:
    """Write what a group chooses and its options; of models those that need no folder, or none of
    them all.
    """
    options, default = list_options(group, folders), list_default_options().get(group)
    if group == "model":
        nested = [option for option in options if "/" in option]
        suites = sorted({option.partition("/")[0] for option in nested})
        text = (
            f"{len(options) - len(nested)} options (default {default}), and {len(nested)} in "
            f"{', '.join(suites)}: sweeper --help models"
        )
        return _line(group, f"{PURPOSES[group]}: {text}")
    shown, gone = [], []
    for option in options:
        if option in GONE:
            gone.append(option)
        elif option == default:
            shown.append(f"{option}*")
        else:
            shown.append(option)
    text = f"{PURPOSES[group]}: {', '.join(shown)}"
    if gone:
        text += f"; removed from torch: {', '.join(gone)}"
    return _line(group, text)


def _describe_key(key: ConfigKey) -> str:
    head = key.name
    if key.default is not None:
        head += f"={key.default}"
    return _line(head, f"[{key.takes}] {key.comment}".strip())


def _line(head: str, text: str) -> str:
    """Put a head of up to 30 characters and its text side by side, in lines as wide as the
    terminal.
    """
    width = min(shutil.get_terminal_size((MAX_WIDTH, 0)).columns, MAX_WIDTH)
    return textwrap.fill(
        f"  {head:<30} {text}".rstrip(),
        width,
        subsequent_indent=" " * 33,
        break_long_words=False,
        break_on_hyphens=False,
    )
