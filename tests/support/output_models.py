"""Models whose outputs and states are of every kind, right and with one fault where they are
compiled.

`NAME` of `OUTPUTS` and `STATES` is right, and `NAME_wrong` is not.
"""

from __future__ import annotations

import copy
from collections import UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

WIDTH = 16
Pair = namedtuple("Pair", "left right")


class Slotted:
    __slots__ = ("__inner", "hidden")

    def __init__(self, hidden: Any, inner: Any) -> None:
        self.hidden, self.__inner = hidden, inner


class Listed(list):
    """A list with an attribute of its own."""


class Marked(torch.Tensor):
    """A subclass without an operation of its own."""


class Named(dict):
    def __getattr__(self, name):
        return self[name]


@dataclass
class Spectrum:
    hidden: torch.Tensor
    waves: torch.Tensor
    kind: str = "fourier"


def give_slots(x, wrong):
    return Slotted(x, [{"a": x.sin()}, [x.cos() if wrong else x.sin().square()]])


def give_user_dict(x, wrong):
    return UserDict({"hidden": x} if wrong else {"hidden": x, "more": x.sin()})


def give_exchanged(x, wrong):
    left, right = x.sin(), x.cos()
    return Named(hidden=x, pair=Pair(right, left) if wrong else Pair(left, right))


def give_complex_field(x, wrong):
    waves = torch.complex(x.sin(), x.cos())
    # conj() itself is lazy
    return Spectrum(x, torch.complex(waves.real, -waves.imag) if wrong else waves)


def give_attribute_of_a_list(x, wrong):
    found = Listed([x])
    found.extra = x.cos() if wrong else x.sin()
    return found


def give_text(x, wrong):
    return Spectrum(x, x.sin(), "other" if wrong else "fourier")


def give_python_number(x, wrong):
    return {
        "hidden": x,
        "count": 8 if wrong else 7,
        "share": 0.5,
        "names": {"a", "b"},
        "none": None,
    }


def give_shorter_format(x, wrong):
    # every value is exact in both
    return {"hidden": x, "signs": x.sign().half() if wrong else x.sign()}


def give_subclass(x, wrong):
    rows = x.detach().sin()
    return {"hidden": x, "rows": rows if wrong else rows.as_subclass(Marked)}


def give_wider_whole_numbers(x, wrong):
    codes = (4 * x).round().clamp(-9, 9)
    return {"hidden": x, "codes": codes.to(torch.int64 if wrong else torch.int8)}


def give_mask(x, wrong):
    return {"hidden": x, "mask": x < 0 if wrong else x > 0}


def give_tokens(x, wrong):
    ids = torch.arange(50_000, 50_004)
    return {"hidden": x, "ids": ids + 1 if wrong else ids.clone()}


def give_largest(x, wrong):
    """The second largest where it is wrong."""
    return {"hidden": x, "ids": x.topk(2, -1).indices[..., int(wrong)]}


def give_alias(x, wrong):
    return {"hidden": x, "same": x if not wrong else x.flip(0)}


OUTPUTS = {
    name.removeprefix("give_"): give for name, give in globals().items() if name.startswith("give_")
}


class Answering(nn.Module):
    """A layer, and an output of any kind that has its values in it; the loss reads no other."""

    def __init__(self, answer, fault) -> None:
        super().__init__()
        self.layer, self.answer, self.fault = nn.Linear(WIDTH, WIDTH), answer, fault

    def forward(self, x):
        return self.answer(self.layer(x), self.fault and torch.compiler.is_compiling())


def read_hidden(output):
    if isinstance(output, list):
        hidden = output[0]
    else:
        hidden = output["hidden"] if hasattr(output, "keys") else output.hidden
    return hidden.square().mean()


class Student(nn.Module):
    """A layer, and a state that each forward pass changes; in some other place by its kind."""

    def __init__(self, kind, fault) -> None:
        super().__init__()
        self.layer, self.kind, self.fault = nn.Linear(WIDTH, WIDTH), kind, fault
        teacher = copy.deepcopy(self.layer).requires_grad_(False)
        self.register_buffer("mean", torch.zeros(WIDTH), persistent=False)
        self.bank = {"rows": [torch.zeros(4, WIDTH)]}
        self.teacher, self.hidden = (teacher, None) if kind == "teacher" else (None, [teacher])

    def forward(self, x):
        output = self.layer(x)
        if not (self.fault and torch.compiler.is_compiling()):
            with torch.no_grad():
                self.change(output.detach())
        return output

    def change(self, output):
        if self.kind == "buffer":
            self.mean.lerp_(output.mean(0), 0.1)
        elif self.kind == "attribute":
            self.bank["rows"][0].lerp_(output[:1], 0.1)
        elif self.kind == "replaced":
            self.last = output.mean(0)
        elif self.kind == "normalised":
            self.layer.weight.mul_(1.0 / self.layer.weight.norm())
        else:
            teacher = self.teacher or self.hidden[0]
            for mean, parameter in zip(teacher.parameters(), self.layer.parameters(), strict=True):
                mean.mul_(0.99).add_(parameter, alpha=0.01)


STATES = ("buffer", "attribute", "replaced", "normalised", "teacher", "hidden_teacher")


def __getattr__(name):
    kind, fault = name.removesuffix("_wrong"), name.endswith("_wrong")
    if kind not in (*OUTPUTS, *STATES):
        raise AttributeError(name)

    def build(batch_size, device):
        module = Student(kind, fault) if kind in STATES else Answering(OUTPUTS[kind], fault)
        loss = (lambda output: output.square().mean()) if kind in STATES else read_hidden
        return module.to(device), (torch.randn(batch_size, WIDTH, device=device),), loss

    return build


class Ties(nn.Module):
    """An argmax of numbers that are equal in pairs but for rounding, which compiling changes."""

    def __init__(self, shows, fault) -> None:
        super().__init__()
        self.layer, self.shows, self.fault = nn.Linear(WIDTH, WIDTH), shows, fault

    def forward(self, x):
        logits = self.layer(x).repeat(1, 2)
        if torch.compiler.is_compiling():
            logits[:, WIDTH:] *= 1 + torch.finfo(logits.dtype).eps
        ids = logits.argmax(-1)
        if self.fault and torch.compiler.is_compiling():
            ids = (ids + 1) % WIDTH
        return {"hidden": self.layer(x), "ids": ids, "logits": logits if self.shows else None}


def shown_ties(batch_size, device):
    return Ties(True, False).to(device), (torch.randn(batch_size, WIDTH),), read_hidden


def shown_ties_with_a_fault(batch_size, device):
    return Ties(True, True).to(device), (torch.randn(batch_size, WIDTH),), read_hidden


class Later(nn.Module):
    """Wrong from the twentieth call on, by a count that the compiled program itself reads."""

    def __init__(self, rate=0.0) -> None:
        super().__init__()
        self.layer, self.rate = nn.Linear(WIDTH, 4), rate
        nn.init.ones_(self.layer.bias)  # the loss is too far from zero for dropout to move it much
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        y = self.layer(nn.functional.dropout(x, self.rate, self.rate > 0))
        if torch.compiler.is_compiling():
            y = y * torch.where(self.calls > 20, 1.25, 1.0)
        self.calls += 1
        return y


def wrong_later(batch_size, device):
    return Later().to(device), (torch.randn(batch_size, WIDTH, device=device),)


def wrong_later_and_random(batch_size, device):
    return Later(0.1).to(device), (torch.randn(batch_size, WIDTH, device=device),)


class OwnGenerator(nn.Module):
    """A dropout by a generator of its own; compiled code breaks at it."""

    def __init__(self, rate) -> None:
        super().__init__()
        self.layer, self.head, self.rate = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4), rate
        self.state = {"generator": torch.Generator().manual_seed(3)}

    @torch.compiler.disable
    def draw(self, x, rate):
        return torch.rand(x.shape, generator=self.state["generator"]) > rate

    def forward(self, x):
        x = self.layer(x)
        rate = self.rate if torch.compiler.is_compiling() else 0.1
        return self.head(x * self.draw(x, rate) / (1 - rate))


def own_generator(batch_size, device):
    return OwnGenerator(0.1), (torch.randn(batch_size, WIDTH),)


class Counted(nn.Module):
    """A mask that is given as a count alone, beside an output of a dropout."""

    def __init__(self, other_rate) -> None:
        super().__init__()
        self.layer, self.other_rate = nn.Linear(WIDTH, WIDTH), other_rate

    def forward(self, x):
        rate = 0.4 if self.other_rate and torch.compiler.is_compiling() else 0.2
        hidden = nn.functional.dropout(self.layer(x), 0.1, True)
        return {"hidden": hidden, "count": (torch.rand_like(x) > rate).sum(1)}


def random_counts(batch_size, device):
    return Counted(False), (torch.randn(batch_size, WIDTH),), read_hidden


def random_counts_at_another_rate(batch_size, device):
    return Counted(True), (torch.randn(batch_size, WIDTH),), read_hidden


def own_generator_at_another_rate(batch_size, device):
    return OwnGenerator(0.5), (torch.randn(batch_size, WIDTH),)


def not_looked_into(batch_size, device):
    return (
        Answering(lambda x, _wrong: {"hidden": x, "next": iter([x])}, False),
        (torch.randn(batch_size, WIDTH),),
        read_hidden,
    )


class Masked(nn.Module):
    """A dropout, and whole numbers beside it that no seed changes."""

    def __init__(self, fault) -> None:
        super().__init__()
        self.layer, self.fault = nn.Linear(WIDTH, WIDTH), fault

    def forward(self, x):
        kept = nn.functional.dropout(self.layer(x), 0.1, True)
        ids = torch.arange(x.shape[0])
        if self.fault and torch.compiler.is_compiling():
            ids = ids.flip(0)
        return {"hidden": kept, "ids": ids, "kept": kept != 0}


def random_with_ids(batch_size, device):
    return Masked(False), (torch.randn(batch_size, WIDTH),), read_hidden


def random_with_wrong_ids(batch_size, device):
    return Masked(True), (torch.randn(batch_size, WIDTH),), read_hidden
