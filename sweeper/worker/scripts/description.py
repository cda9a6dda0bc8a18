"""What has been seen of a script, for its record: its parts, and the shapes that its modules are
called with.
"""

import math
from collections import Counter
from statistics import median

import torch

from sweeper.core.record import PerArm, Shapes, SizeCount
from sweeper.worker.process_log import ProcessLog
from sweeper.worker.source_lines import name_call, name_class

from .subject import ScriptSubject
from .watch.loop import Loop

MAX_SIZES = 500  # of the dimension that varies, that a record keeps


def note_seen(subject: ScriptSubject, log: ProcessLog) -> None:
    """Note what has been seen of the script so far."""
    loop = subject.loop
    # Of the module that gets the most different ones: shapes of several modules have nothing to do
    # with each other.
    shapes: Counter[tuple[torch.Size, ...]] = max(
        (form.shapes for form in subject.switch.forms), key=len, default=Counter()
    )
    sizes = count_sizes(shapes)
    spreads = {arm: median(values) for arm, values in subject.bench.spreads.items() if values}
    log.add_to_script(
        modules=tuple(map(name_class, loop.modules.modules)),
        called_at=tuple(loop.modules.modules.values()),
        entered=tuple(
            map(name_call, map(name_class, loop.modules.entered), loop.modules.entered.values())
        ),
        uncalled_share=find_uncalled_share(loop),
        optimizers=tuple(type(optimizer).__name__ for optimizer in loop.optimizers),
        autocast=" and ".join(sorted(loop.modules.autocasts)).replace("torch.", "") or "off",
        dropout=loop.modules.has_dropout,
        loader=", ".join(sorted(loop.loader.seen)) or None,
        read_ahead=loop.loader.num_ahead,
        watched=loop.watched,
        late=tuple(loop.late.values()),
        per_call=subject.bench.is_per_call,
        compile_calls=tuple(subject.switch.calls.calls),
        shapes=tuple(
            Shapes(", ".join(map(str, map(list, key))), count)
            for key, count in shapes.most_common(12)
        ),
        num_shapes=len(shapes),
        sizes=group_sizes(sizes),
        pad_to=choose_sizes(sizes),
        skipped_steps=loop.num_skipped,
        interval=loop.interruptions.interval,
        length=loop.length,
        rank_spread=PerArm(**spreads) if spreads else None,
        apart=subject.apart,
    )


def find_uncalled_share(loop: Loop) -> float:
    """Find which share of the parameters that the optimizers train, by their numbers, is in no
    module that is called.
    """
    inside = {item for module in loop.modules.modules for item in module.parameters()}
    groups = [group for optimizer in loop.optimizers for group in optimizer.param_groups]
    sizes: dict[torch.Tensor, int] = {
        item: item.numel() for group in groups for item in group["params"] if item.requires_grad
    }
    uncalled = sum(size for item, size in sizes.items() if item not in inside)
    return uncalled / max(sum(sizes.values()), 1)


def name_module(loop: Loop, module: torch.nn.Module) -> str:
    """Name a module that the script calls by its class, and the line that calls it."""
    return name_call(name_class(module), loop.modules.modules.get(module, ""))


def count_sizes(shapes: Counter[tuple[torch.Size, ...]]) -> Counter[int]:
    """The sizes of the dimension that varies, where one of the first tensor does; else empty."""
    found, keys = Counter[int](), list(filter(None, shapes))
    first = [key[0] for key in keys]
    if len(set(map(len, first))) != 1:
        return found
    varying = [sizes for sizes in zip(*first, strict=True) if len(set(sizes)) > 1]
    if len(varying) == 1:
        for key, size in zip(keys, *varying, strict=True):
            found[size] += shapes[key]
    return found


def group_sizes(sizes: Counter[int]) -> tuple[SizeCount, ...]:
    """Each size with its count; of very many, neighbours count as the largest of them."""
    per_group = max(math.ceil(len(sizes) / MAX_SIZES), 1)
    ordered = sorted(sizes)
    groups = [ordered[start : start + per_group] for start in range(0, len(ordered), per_group)]
    return tuple(SizeCount(group[-1], sum(sizes[size] for size in group)) for group in groups)


def choose_sizes(counts: Counter[int]) -> tuple[int, ...]:
    """The quartiles and the largest of some sizes."""
    sizes = sorted(counts.elements())
    if not sizes:
        return ()
    shares = (0.25, 0.5, 0.75, 1.0)
    return tuple(sorted({sizes[math.ceil(share * len(sizes)) - 1] for share in shares}))
