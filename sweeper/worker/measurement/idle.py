"""Wait until a device has done the work of other processes.

A process that was stopped while it shared the device may have launched work for a second or more.
As long as it has work there, a tiny kernel waits for its turn on the device: on an H200 2.4 ms
beside long kernels and 0.4 ms beside short ones, in place of 0.01 ms.
"""

from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import torch

BUSY_S = 0.0002  # a launch that takes longer may have waited for another process
IN_A_ROW = 20
PATIENCE_S = 60.0  # more than a process can have launched; it is another user's work then


class IdleWait:
    """Waits until no launch on a device waits for another process."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._patience_s = PATIENCE_S

    def wait(self) -> None:
        """Wait for at most `PATIENCE_S`, and if that was in vain never again."""
        # in a thread of its own: in the middle of compiling, torch makes tensors without data
        with ThreadPoolExecutor(1) as thread:
            if not thread.submit(self._becomes_idle).result():
                self._patience_s = 0.0

    def _becomes_idle(self) -> bool:
        tiny = torch.zeros(1, device=self._device)
        end_s = perf_counter() + self._patience_s
        num_fast = 0
        while num_fast < IN_A_ROW:
            launched_s = perf_counter()
            if launched_s > end_s:
                return False
            tiny.zero_()
            torch.cuda.synchronize(self._device)
            num_fast = num_fast + 1 if perf_counter() - launched_s < BUSY_S else 0
        return True
