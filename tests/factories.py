"""Models that misbehave in one way each, for `model=custom model.factory=factories:NAME`."""

from __future__ import annotations

import atexit
import dataclasses
import os
import signal
import sys
import time
from pathlib import Path

import backends  # noqa: F401  # registers them, so that a trial may name one
import torch
from torch import nn

WIDTH = 16


def _inputs(batch_size, device):
    return (torch.randn(batch_size, WIDTH, device=device),)


def _mlp():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 4))


def mlp(batch_size, device):
    return _mlp().to(device), _inputs(batch_size, device)


def dict_and_loss(batch_size, device):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, 4)

        def forward(self, x, scale):
            return {"logits": self.layer(x) * scale}

    inputs = {"x": torch.randn(batch_size, WIDTH, device=device), "scale": torch.ones(1, device=device)}
    return Named().to(device), inputs, lambda output: output["logits"].square().mean()


class _Special(nn.Module):
    """An MLP whose forward first does `act`; the factory itself is harmless, as the check calls it."""

    def __init__(self, act):
        super().__init__()
        self.mlp = _mlp()
        self.act = act

    def forward(self, x):
        self.act()
        return self.mlp(x)


def killed(batch_size, device):
    return _Special(lambda: os.kill(os.getpid(), signal.SIGKILL)).to(device), _inputs(batch_size, device)


def hangs(batch_size, device):
    return _Special(lambda: time.sleep(3600)).to(device), _inputs(batch_size, device)


def exits(batch_size, device):
    return _Special(lambda: os._exit(0)).to(device), _inputs(batch_size, device)


def raises(batch_size, device):
    def act():
        raise ZeroDivisionError("this model divides by zero")

    return _Special(act).to(device), _inputs(batch_size, device)


def out_of_memory(batch_size, device):
    def act():
        raise torch.OutOfMemoryError("out of memory, says the test")

    return _Special(act).to(device), _inputs(batch_size, device)


def gives_nan(batch_size, device):
    class Nan(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, 4)

        def forward(self, x):
            return self.layer(x) * float("nan")

    return Nan().to(device), _inputs(batch_size, device)


def breaks_once(batch_size, device):
    class Breaks(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)

        def forward(self, x):
            x = self.first(x)
            torch._dynamo.graph_break()
            return self.second(x)

    return Breaks().to(device), _inputs(batch_size, device)


def only_compiled_raises(batch_size, device):
    class CompilerHater(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, 4)

        def forward(self, x):
            if torch.compiler.is_compiling():
                x = x.reshape(-1, WIDTH + 1)
            return self.layer(x)

    return CompilerHater().to(device), _inputs(batch_size, device)


def never_captured(batch_size, device):
    class Disabled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, 4)

        @torch.compiler.disable
        def forward(self, x):
            return self.layer(x)

    return Disabled().to(device), _inputs(batch_size, device)


def recompiles_each_time(batch_size, device):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, 4)
            self.calls = 0

        def forward(self, x):
            self.calls += 1  # a guard on a Python number, which is another one each time
            return self.layer(x) * (1.0 + 1e-3 * (self.calls % 64))

    return Counting().to(device), _inputs(batch_size, device)


def returns_a_list(batch_size, device):
    return [_mlp(), _inputs(batch_size, device)]


def returns_no_tensor(batch_size, device):
    return _mlp(), ("x",)


def fails_to_build(batch_size, device):
    raise RuntimeError("no such dataset")


def waits_for_a_file(batch_size, device):
    def act():
        if not Path(os.environ["GO"]).exists():
            Path("waiting").touch()
            time.sleep(3600)

    return _Special(act).to(device), _inputs(batch_size, device)


def transformer_layer(batch_size, device):
    return nn.TransformerEncoderLayer(WIDTH, 2, WIDTH).to(device), (torch.randn(batch_size, 3, WIDTH, device=device),)


def turns_nan(batch_size, device):
    """A loss that is finite while it is timed and NaN afterwards: `measure_rounds` is over when `poisoned` is set."""

    class TurnsNan(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, 4)
            self.register_buffer("poison", torch.zeros(()))

        def forward(self, x):
            return self.layer(x) + self.poison

    module = TurnsNan().to(device)
    poisoned.append(module)
    return module, _inputs(batch_size, device)


poisoned = []


def compiles_itself(batch_size, device):
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.compile(_mlp(), backend="aot_eager")

        def forward(self, x):
            return self.inner(x)

    return Wrapper().to(device), _inputs(batch_size, device)


def masks_with_infinity(batch_size, device):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, 4)

        def forward(self, x):
            return self.layer(x).masked_fill(torch.eye(4, device=x.device, dtype=torch.bool)[0], float("-inf"))

    return Masked().to(device), _inputs(batch_size, device)


def leaves(batch_size, device):
    sys.exit(0)


def chatters(batch_size, device):
    atexit.register(print, "good bye")
    print("hello")
    return mlp(batch_size, device)


def killed_while_built(batch_size, device):
    os.kill(os.getpid(), signal.SIGKILL)


def random_each_time(batch_size, device):
    class Random(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, 4)

        def forward(self, x):
            return self.layer(x * torch.rand_like(x))

    return Random().to(device), _inputs(batch_size, device)


@dataclasses.dataclass
class Answer:
    logits: torch.Tensor
    aside: dict[str, torch.Tensor]


def _answering(answer):
    class Answers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, 4)

        def forward(self, x):
            return answer(self.layer(x))

    return Answers()


def gives_tuple(batch_size, device):
    return _answering(lambda x: (x, (x.sin(), None))).to(device), _inputs(batch_size, device)


def gives_dict(batch_size, device):
    return _answering(lambda x: {"logits": x, "more": [x.sin()]}).to(device), _inputs(batch_size, device)


def gives_dataclass(batch_size, device):
    return _answering(lambda x: Answer(x, {"sin": x.sin()})).to(device), _inputs(batch_size, device)


def noisy_cnn(batch_size, device):
    """Biases before batch normalisation: their gradients are zero but for rounding, noise in both arms."""
    layers = []
    for width_in, width_out in ((3, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(width_in, width_out, 3, padding=1, bias=True), nn.BatchNorm2d(width_out), nn.ReLU()]
    module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return module.to(device), (torch.randn(batch_size, 3, 24, 24, device=device),), lambda out: out.square().mean()


def refuses_fp64(batch_size, device):
    class OnlyFp32(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, 4)

        def forward(self, x):
            if x.dtype == torch.float64:
                raise TypeError("no float64 here")
            return self.layer(x)

    return OnlyFp32().to(device), _inputs(batch_size, device)


def wide_mlp(batch_size, device):
    layers = [nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 8)]
    inputs = (torch.randn(batch_size, 1024, device=device),)
    return nn.Sequential(*layers).to(device), inputs, lambda output: output.square().mean()


def changes_its_input(batch_size, device):
    """An input that is written to, which the replay of a CUDA graph would not do."""

    class Changes(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, 4)

        def forward(self, x):
            return self.layer(x.clamp_(-1, 1))

    return Changes().to(device), _inputs(batch_size, device)


def long_on_the_device(batch_size, device):
    class Long(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8192, 8192)

        def forward(self, x):
            for _ in range(8):
                x = self.layer(x).tanh()
            return x

    return Long().to(device), (torch.randn(8192, 8192, device=device),)
