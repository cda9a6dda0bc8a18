"""What is installed: the software of the workers, as a process of its own says, since importing
torch may hang, crash or fail; and the C++ compiler that Inductor would use.
"""

import json
import os
import shutil
import subprocess
import sys

from sweeper.core.files import read_last_lines
from sweeper.core.protocol import Package, Software
from sweeper.core.serialization import from_json
from sweeper.core.system.gpus import Device
from sweeper.core.system.leftovers import make_temporary
from sweeper.core.system.process_group import describe_exit
from sweeper.execution import processes


def ask_software(device: Device, timeout_s: float) -> Software:
    """Ask `sweeper.worker.probe`; where it fails, report the failure as what is wrong with torch.

    It answers with one line of JSON on its standard output.
    """
    # a checkout that is not installed is found from the folder of `expose_package`
    with make_temporary() as folder, processes.expose_package(sys.executable) as variables:
        answer, log = folder / "answer", folder / "log"
        environment = {
            **device.environment(),
            **variables,
            **processes.make_cache_variables(folder),
        }
        command = [*processes.make_command(None, "sweeper.worker.probe"), device.type]
        with answer.open("wb") as output:
            process = processes.start_group(command, environment, log, stdout=output, cwd=folder)
        code = processes.wait_for_end(process, timeout_s)
        if code is None:
            return _blame_torch(f"no answer within {timeout_s:g} s")
        try:
            return from_json(Software, json.loads(answer.read_text(errors="replace")))
        except ValueError:
            how = f"the probe {describe_exit(code)}"
            return _blame_torch(": ".join([how, *read_last_lines(folder, log.name, 1)]))


def _blame_torch(problem: str) -> Software:
    return Software((Package("torch", None, problem),), torch_works=False)


def find_cpp_compiler() -> Package:
    """Find the compiler that Inductor takes, `CXX` or the platform's own, and ask for its
    version.
    """
    name = asked = "g++"
    if sys.platform == "darwin":
        name = asked = "clang++"
    origin = ""
    if named := os.environ.get("CXX"):
        name, asked, origin = named, f"CXX={named}", " (from CXX)"
    path = shutil.which(name)
    if path is None:
        hint = "install g++, e.g. apt-get install g++"
        if other := next(filter(shutil.which, ("g++", "clang++")), None):
            hint = f"set CXX={other}, which is here"
        return Package("C++ compiler", None, f"{asked} is not there; {hint}")
    try:
        said = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=30, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return Package("C++ compiler", None, f"{path} does not work: {error}")
    version = (said.splitlines() or ["of no version"])[0]
    return Package("C++ compiler", version + origin)
