"""What makes the compiled arm: `torch.compile` with the arguments of a trial, or one of torch's
older ways.

Torch refuses `mode` together with `options`; which backends take neither is in
`sweeper.core.backends`. With `compile.scope=blocks` a model's repeated blocks are compiled, each by
itself, and the rest is left eager. Blocks of one class share what is compiled for them, so
compiling takes a fraction of the time
(https://docs.pytorch.org/tutorials/recipes/regional_compilation.html). With
`compile.scope=optimizer` or `loss` that part of the training step is compiled alone.

The older ways, without Dynamo, are `torch.jit.trace`, `torch.jit.script` and
`torch.fx.symbolic_trace`. A trace holds what its first inputs did, whatever the code says;
scripting and symbolic tracing refuse what they cannot read. With `backend=graphed` nothing is
compiled: `graphed` records the model's kernels as CUDA graphs.
"""

import functools
import subprocess
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import torch
import torch._functorch.config
from torch._dynamo.callback import CallbackArgs, callback_handler
from torch.optim import Optimizer

from sweeper.core.backends import (
    AUTOTUNE,
    CALL_CONVOLUTIONS,
    GRAPHED,
    HOLD_WEIGHTS,
    WITHOUT_DYNAMO,
)
from sweeper.core.serialization import Json
from sweeper.core.trial import Trial
from sweeper.worker.failures import NotCompiledError, UnavailableError

from .counters import CompileCounters
from .flat_module import FlatModule, Structure
from .graphed import GraphedModule
from .lease_breaks import COMPILES
from .start import begin_start, compile_ahead

Function = Callable[..., Any]
LISTS = (torch.nn.ModuleList, torch.nn.Sequential)


def compile_arguments(trial: Trial) -> dict[str, Any]:
    """Keyword arguments for `torch.compile`. With options, the mode is spelled out as options and
    they win.
    """
    chosen = trial.compile
    arguments: dict[str, Any] = {
        "backend": trial.backend,
        "dynamic": chosen.dynamic,
        "fullgraph": chosen.fullgraph,
    }
    if options := chosen.read_settings("options"):
        arguments["options"] = {**torch._inductor.list_mode_options(trial.mode), **options}
    elif trial.mode != "default":
        arguments["mode"] = trial.mode
    return arguments


def compile_function(function: Function, trial: Trial, counters: CompileCounters) -> Function:
    """Compile `function` as the trial says, in its first call; give it back as it is with
    mode=eager.
    """
    if trial.mode == "eager":
        return function
    if trial.backend in WITHOUT_DYNAMO:
        # the plan has left out every scope but the model's
        assert isinstance(function, torch.nn.Module)
        counters.expects_graphs = False
        if trial.backend == GRAPHED:
            return GraphedModule(function)
        return LegacyModule(function, trial.backend)
    counters.scope = trial.compile.scope
    # Dynamo reads some before a compilation begins
    for key, value in trial.compile.read_settings("dynamo").items():
        setattr(torch._dynamo.config, key, value)
    set_while_compiling(trial.compile.read_settings("functorch"))
    begin_start(trial.compile.start)
    arguments = compile_arguments(trial) | {"backend": counters.wrap_backend(str(trial.backend))}
    if trial.compile.start == "aot_compile":
        assert isinstance(function, torch.nn.Module)
        counters.expects_graphs = False  # a file that was loaded has none
        return compile_ahead(function, arguments | {"fullgraph": True})
    compile_: Callable[[Function], Function] = functools.partial(torch.compile, **arguments)
    if trial.compile.scope != "blocks":
        return compile_(function)
    assert isinstance(function, torch.nn.Module)
    return compile_blocks(function, compile_)


def compile_update(optimizer: Optimizer | None, trial: Trial, counters: CompileCounters) -> None:
    """Compile the step of an optimizer, in its first call; whoever calls `step`, a gradient scaler
    too, then runs that.

    A function that calls the step is compiled, as in
    https://docs.pytorch.org/tutorials/recipes/compiling_optimizer.html. Raises NotCompiledError
    where there is no optimizer.
    """
    if optimizer is None:
        raise NotCompiledError(
            "the model has no parameters to train, so there is no optimizer to compile"
        )

    def update() -> object:
        return type(optimizer).step(optimizer)

    setattr(optimizer, "step", compile_function(update, trial, counters))  # noqa: B010  # of this one alone


def set_while_compiling(settings: Mapping[str, Json]) -> None:
    """Have AOTAutograd work with these settings of torch/_functorch/config.py in what is compiled
    from now on; `torch._dynamo.reset` ends this.

    Outside of compilations torch keeps its own, since eager may compile as well.
    """
    if not settings:
        return
    config: Any = torch._functorch.config
    changed = ExitStack()

    def start(call: CallbackArgs) -> None:
        # another module of a script may have set them
        is_set = settings.items() <= config.get_config_copy().items()
        if call.callback_trigger in COMPILES and not is_set:
            changed.enter_context(config.patch(settings))

    def end(_: CallbackArgs) -> None:
        changed.close()

    callback_handler.register_start_callback(start)
    callback_handler.register_end_callback(end)


def find_repeated(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The outermost modules of classes that the model's library lists as blocks, where it has
    several of one; else those of which one list or sequence has several, by class. Layers without
    parts are left out.

    Of a ResNet these are the residual blocks of each stage, of a transformer its layers. Libraries
    with such lists are diffusers and transformers.
    """
    listed = list_blocks(module)

    def walk(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
        children = [child for child in module.children() if list(child.children())]
        counts = Counter(map(type, children))
        for child in children:
            is_repeated = isinstance(module, LISTS) and counts[type(child)] > 1
            if listed:
                is_repeated = type(child).__name__ in listed
            if is_repeated and not isinstance(child, LISTS):
                yield child
            else:
                yield from walk(child)

    return list(dict.fromkeys(walk(module)))


def list_blocks(module: torch.nn.Module) -> set[str]:
    """List the names of the classes that a model has several of, and its library calls its blocks:
    those that are compiled one by one, or else those that one device holds whole.
    """
    counts = Counter(type(part).__name__ for part in module.modules())
    for attribute in ("_repeated_blocks", "_no_split_modules"):
        found: set[str] = set()
        for part in module.modules():
            found.update(getattr(part, attribute, None) or ())
        if found := {name for name in found if counts[name] > 1}:
            return found
    return set()


def compile_blocks(module: torch.nn.Module, compile_: Callable[[Function], Function]) -> Function:
    """Compile the blocks of `module`, for calls through what this gives. Raises UnavailableError
    when it has none.

    Called directly the module stays as it is, without the way through the compiler's wrapper, so
    that eager is eager.
    """
    pairs = [(block, compile_(block._call_impl)) for block in find_repeated(module)]
    if not pairs:
        raise UnavailableError("the model has no repeated blocks; use compile.scope=model")

    def call(*arguments: Any, **options: Any) -> Any:
        try:
            for block, implementation in pairs:
                block.__dict__["_compiled_call_impl"] = implementation
            return module(*arguments, **options)
        finally:
            for block, _ in pairs:
                block.__dict__["_compiled_call_impl"] = None

    return call


class LegacyModule:
    """A module that `backend` converts at its first call, with the inputs and in the contexts of
    that call.
    """

    def __init__(self, module: torch.nn.Module, backend: str) -> None:
        self._module, self._backend = module, backend
        self._converted: Function | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._converted is None:
            cached = torch.is_autocast_cache_enabled()
            # a trace would keep the cached casts as constants
            torch.set_autocast_cache_enabled(False)
            try:
                with warnings.catch_warnings():
                    # a FutureWarning from torch 2.15 on
                    warnings.filterwarnings("ignore", message="`torch.jit")
                    self._converted = CONVERTERS[self._backend](self._module, args, kwargs)
            finally:
                torch.set_autocast_cache_enabled(cached)
        return self._converted(*args, **kwargs)


def _trace(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Function:
    """Trace a module. Torch does not check it, on the same inputs again: sweeper's own check takes
    others.
    """
    flat = FlatModule(module, args, kwargs)
    traced = torch.jit.trace(flat, flat.inputs.tensors, check_trace=False)  # type: ignore[no-untyped-call]
    structure = flat.output

    def run(*args: Any, **kwargs: Any) -> Any:
        output = traced(*Structure((args, kwargs)).tensors)
        return structure.fill(output if isinstance(output, tuple) else (output,))

    return run


CONVERTERS: Mapping[str, Callable[..., Function]] = {
    "jit_trace": _trace,
    "jit_script": lambda module, _args, _kwargs: torch.jit.script(module),
    "fx": lambda module, _args, _kwargs: torch.fx.symbolic_trace(module),
}


def end_compile_workers() -> None:
    """End the processes in which Inductor compiles; the next compilation, if there is one, starts
    new ones.

    They are killed first, because one that has not finished importing torch would be waited for.
    """
    from torch._inductor import async_compile

    for pool in async_compile._pool_set:
        if isinstance(sidecar := getattr(pool, "process", None), subprocess.Popen):
            sidecar.kill()
    async_compile.shutdown_compile_workers()


def holds_weights(trial: Trial) -> bool:
    """Whether weights become constants of the program, which then does not follow when they
    change.
    """
    return trial.backend in HOLD_WEIGHTS or (
        trial.workload != "train" and bool(trial.compile.options.get("freezing"))
    )


def uses_cuda_graphs(trial: Trial, device: torch.device) -> bool:
    """Whether replays of recorded graphs are asked for, which need each step to be marked."""
    if device.type != "cuda" or trial.mode == "eager":
        return False
    return trial.backend == "cudagraphs" or (
        trial.backend == "inductor" and bool(_list_options(trial).get("triton.cudagraphs"))
    )


def calls_convolutions(trial: Trial, device: torch.device) -> bool:
    """Whether the program calls torch's own convolutions anew in each step: no graph replays them,
    and Inductor has no kernels of its own for them.
    """
    if trial.mode == "eager":
        return True
    if trial.backend not in CALL_CONVOLUTIONS or uses_cuda_graphs(trial, device):
        return False
    return not any(map(_list_options(trial).get, AUTOTUNE))


def _list_options(trial: Trial) -> dict[str, Any]:
    """List the options of Inductor: of its configuration, which the environment sets too, the mode
    and the trial.
    """
    configured = torch._inductor.config.get_config_copy()
    return {**configured, **torch._inductor.list_mode_options(trial.mode), **trial.compile.options}
