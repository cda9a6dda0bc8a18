"""The parent death signal: this process ends with the one that started it, however that one
ends.
"""

import ctypes
import signal

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies; a model that holds the GIL would stop
    a thread.

    A parent that has died before this call is not noticed.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
