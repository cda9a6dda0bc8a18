"""`sweeper` and `python -m sweeper`: the command line, and bad configuration as a few lines and
exit 2.

`sweeper report ...` is `python -m sweeper.report ...`, and so are the other commands.
Try: `python -m sweeper --help`, `python -m sweeper -m model=resnet18,vit_tiny dry_run=true`
"""

import os
import runpy
import sys
import traceback
import warnings
from collections.abc import Sequence

from sweeper.core.system import interrupts
from sweeper.core.system.exit_codes import BAD_INPUT, OK
from sweeper.core.system.pipes import run_until_closed


def main() -> int:
    """Run the command line of this process; the exit code."""
    interrupts.install()  # before anything that takes longer to import
    return run_until_closed(_run)


def _run() -> int:
    from sweeper.config.reference import COMMANDS
    from sweeper.core.errors import ConfigError
    from sweeper.core.system.command_line import split_at_dashes
    from sweeper.core.text import clean_text

    arguments, _ = split_at_dashes(sys.argv[1:])
    if arguments and arguments[0] in COMMANDS:  # as `python -m sweeper.NAME`
        interrupts.release()
        del sys.argv[1]
        runpy.run_module(f"sweeper.{arguments[0]}", run_name="__main__", alter_sys=True)
        return OK
    try:
        answer = _answer(arguments)
    except ConfigError as error:
        print(f"sweeper: {error}", file=sys.stderr)
        return BAD_INPUT
    if answer is not None:
        print(clean_text(answer))
        return OK

    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra's own handling prints tracebacks and exits with 1
    # Hydra warns that our launcher has the name of hydra-ray-launcher's, which it replaces.
    warnings.filterwarnings(
        "ignore", r"\n'hydra/launcher/ray' is validated against ConfigStore schema", UserWarning
    )
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from sweeper.config.error_messages import explain
    from sweeper.config.overrides import normalise
    from sweeper.sweep.hydra_app import job

    expected = (ConfigError, HydraException, OmegaConfBaseException, YAMLError)
    try:
        sys.argv[1:] = normalise(sys.argv[1:])
        job()
    except (*expected, ValueError) as error:  # Hydra raises plain ones too
        frames = traceback.walk_tb(error.__traceback__)
        modules = [frame.f_globals.get("__name__") for frame, _ in frames]
        # raised below it: then Hydra had read the command line already
        if not isinstance(error, expected) and "sweeper.sweep.hydra_app" in modules:
            raise
        print(f"sweeper: {explain(error)}", file=sys.stderr)
        return BAD_INPUT
    return OK


def _answer(arguments: Sequence[str]) -> str | None:
    """Answer what needs no Hydra: help, versions, the shell's question for completions. None for
    everything else.
    """
    if "--version" in arguments:
        from sweeper.config.help import describe_versions

        return describe_versions()
    if "--help" in arguments or "-h" in arguments:
        from sweeper.config.help import write_help
        from sweeper.config.overrides import is_script, parse

        parsed = parse(arguments)
        topics = [word for word in parsed.overrides if "=" not in word and not is_script(word)]
        return write_help(topics, parsed.config_dir)
    if "-sc" in arguments and "COMP_LINE" in os.environ:
        from sweeper.config.completion import complete

        line = os.environ["COMP_LINE"]
        return "\n".join(complete(line[: int(os.environ.get("COMP_POINT") or len(line))]))
    return None


if __name__ == "__main__":
    sys.exit(main())
