"""The C++ compiler that Inductor would use on this machine."""

import os
import shutil
import subprocess
import sys

from sweeper.core.protocol import Package


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
