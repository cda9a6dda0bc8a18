"""Both arms of a script: its modules called as they are, and compiled.

Where the script compiles nothing by itself, its outermost modules get a compiled form, as
`module.compile()` gives them, and each call takes the form of the arm that runs. Where it calls
`torch.compile`, that is the compiled arm, and torch's stance turns it off in eager. The stance is
the whole process's, so what libraries compile is eager there too.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MethodType
from typing import Any

import torch

from sweeper.core.trial import Trial
from sweeper.worker.compilation.compiler import Function, compile_function
from sweeper.worker.compilation.counters import CompileCounters
from sweeper.worker.failures import NotCompiledError
from sweeper.worker.source_lines import name_call, name_class

from .watch.compile_calls import CompileCalls
from .watch.loop import Calls
from .watch.modules import find_parts, find_script_line, is_called_to_train
from .watch.patches import Patches

CALLED_FIRST = "_compiled_call_impl"  # of a module: `Module.__call__` prefers it


def call_eager(module: torch.nn.Module, /, *arguments: Any, **options: Any) -> Any:
    """Call a module and its hooks, past the compiled form that it may have."""
    return module._call_impl(*arguments, **options)  # type: ignore[no-untyped-call]


class SwitchableModule:
    """What is called in place of a module: its eager form, or its compiled one.

    `caller` is what the script calls: the module, or what `torch.compile` gave for it.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        caller: torch.nn.Module,
        compiled: Function,
        eager: Function,
    ) -> None:
        self.module, self.caller = module, caller
        self.compiled, self._eager = compiled, eager
        self.chosen: Function = eager
        self.shapes: Counter[tuple[torch.Size, ...]] = Counter()
        self.num_untrained = 0  # calls without gradients

    @staticmethod
    def compile(
        module: torch.nn.Module, trial: Trial, counters: CompileCounters
    ) -> SwitchableModule:
        """Make the forms of a module that the script does not compile, from the code that
        `torch.compile(module)` compiles: `forward` of the script's own classes. Recompilations are
        counted per code.
        """
        eager: Function = module._call_impl

        # Dynamo leaves torch's own code alone, so all of torch's classes share this frame
        def forward(*arguments: Any, **options: Any) -> Any:
            return eager(*arguments, **options)

        is_method = isinstance(module.forward, MethodType)
        is_of_torch = is_method and torch._dynamo.trace_rules.check(module.forward)
        compiled = compile_function(forward if is_of_torch else eager, trial, counters)
        return SwitchableModule(module, module, compiled, eager)

    def choose(self, arm: str) -> None:
        self.chosen = self.compiled if arm == "compiled" else self._eager

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if torch.is_grad_enabled():
            values = (*arguments, *options.values())
            self.shapes[
                tuple(value.shape for value in values if isinstance(value, torch.Tensor))
            ] += 1
        else:
            self.num_untrained += 1
        return self.chosen(*arguments, **options)


class FirstCalls:
    """Reports each module before its first call for training, by its name in a record.

    It stands in for `Module.__call__` until all have come, and steps aside for each call, so that
    the compiler does not see it.
    """

    def __init__(
        self, names: Sequence[str], hear: Callable[[torch.nn.Module], None], patches: Patches
    ) -> None:
        self._missing, self._seen = list(names), set[torch.nn.Module]()
        self._hear, self._patches = hear, patches.part()

    def begin(self) -> None:
        """Stand in, unless all modules have come."""
        if not self._missing:
            return
        call = torch.nn.Module.__call__

        def stand_in(module: torch.nn.Module, /, *arguments: Any, **options: Any) -> Any:
            self._patches.undo()
            try:
                name = name_call(name_class(module), find_script_line())
                is_new = name in self._missing and module not in self._seen
                if is_new and is_called_to_train(module):
                    self._missing.remove(name)
                    self._seen.add(module)
                    self._hear(module)
                return call(module, *arguments, **options)
            finally:
                self.begin()

        self._patches.replace(torch.nn.Module, "__call__", stand_in)

    def end(self) -> list[str]:
        """Wait for no more modules; the names of those that have not come."""
        missing, self._missing = self._missing, []
        self._patches.undo()
        return missing


class ArmSwitch:
    """The arms of a script; eager runs until `prepare`, or `put_in_at_first_calls`."""

    def __init__(self, trial: Trial, patches: Patches) -> None:
        self._trial, self.patches, self.calls = trial, patches, CompileCalls()
        self.counters = CompileCounters()
        self.forms: list[SwitchableModule] = []
        self._put_in = patches.part()
        self._first_calls = FirstCalls((), lambda _module: None, patches)

    def begin(self) -> None:
        """Note what is compiled, and run everything in eager, what the script compiles by itself
        as well.
        """
        self.calls.begin(self._put_in)
        self.counters.begin()
        self.patches.own("callback of Dynamo", self.counters.end)
        torch.compiler.set_stance("force_eager")

    def prepare(self, modules: Iterable[torch.nn.Module]) -> None:
        """Make the compiled arm. Raises NotCompiledError without modules, or where one has not
        come.
        """
        if missing := self._first_calls.end():
            raise NotCompiledError(
                f"not called for training as in the script's first run: {', '.join(missing)}"
            )
        if self.calls.own:
            for module, result in self.calls.compiled.items():
                caller = result if isinstance(result, torch.nn.Module) else module
                called: Function = caller.__dict__.get(CALLED_FIRST) or caller._call_impl
                # the stance turns it off
                self._put(SwitchableModule(module, caller, called, called))
            return
        for module in modules:
            self._put_compiled(module)
        if not self.forms:
            raise NotCompiledError(
                "no module with parameters to train is called in a step, so there is none to "
                "compile; the script may call model.forward(...) in place of model(...)"
            )

    def put_in_at_first_calls(
        self, names: Sequence[str], arm: str, tell: Callable[[], None]
    ) -> None:
        """Have modules called in one arm from their first call for training on, until `prepare`;
        `tell` is called before each.
        """

        def put_in(module: torch.nn.Module) -> None:
            tell()
            self._put_compiled(module, arm)

        self._first_calls = FirstCalls(names, put_in, self.patches)
        self._first_calls.begin()

    def _put_compiled(self, module: torch.nn.Module, arm: str = "eager") -> None:
        """Compile the parts of a module that the script calls."""
        for part in find_parts(module, self._trial.compile.wrapper):
            form = SwitchableModule.compile(part, self._trial, self.counters)
            form.choose(arm)
            self._put(form)

    def _put(self, form: SwitchableModule) -> None:
        """Have a form called in place of its module; a copy of the module has none."""
        self.forms.append(form)
        self._put_in.replace(form.caller, CALLED_FIRST, form)

    def choose(self, arm: str) -> None:
        """Run an arm from the next step on; to be called before the script, or at the end of a
        step.
        """
        compiled = arm == "compiled" and self._trial.mode != "eager"
        torch.compiler.set_stance("default" if compiled else "force_eager")
        for form in self.forms:
            form.choose(arm)

    def call_compiled(self, module: torch.nn.Module, /, *arguments: Any, **options: Any) -> Any:
        """Call what the script calls, with the compiled form of each module in it; the stance has
        to allow it. Afterwards all are eager.
        """
        for form in self.forms:
            form.choose("compiled")
        try:
            return module(*arguments, **options)
        finally:
            for form in self.forms:
                form.choose("eager")

    def count_calls(self) -> Calls:
        trained = sum(form.shapes.total() for form in self.forms)
        untrained = sum(form.num_untrained for form in self.forms)
        return Calls(trained, untrained, len(self.counters.programs))

    def compiled_forms(self) -> Mapping[torch.nn.Module, Function]:
        """Each module with its compiled form; of what the script compiles by itself, modules
        alone.
        """
        if self.calls.own:
            return self.calls.compiled
        return {form.module: form.compiled for form in self.forms}

    def require_compiled(self) -> None:
        """Raise NotCompiledError where the compiled arm has run nothing compiled."""
        reason = self.counters.explain_not_compiled()
        if self._trial.mode == "eager" or reason is None:
            return
        if self.calls.own:
            where = ", ".join(call.where for call in self.calls.own)
            if torch._dynamo.config.disable or os.environ.get("TORCHDYNAMO_DISABLE") == "1":
                reason = (
                    "TORCH_COMPILE_DISABLE, TORCHDYNAMO_DISABLE or torch._dynamo.config.disable "
                    "turns the compiler off"
                )
            reason = (
                f"the script calls torch.compile ({where}), and runs nothing compiled: {reason}"
            )
        raise NotCompiledError(reason)

    def stop(self) -> None:
        """Leave the modules as they were; what the script still does runs in eager, and compiles
        nothing.
        """
        self._first_calls.end()
        torch.compiler.set_stance("force_eager")
        self._put_in.undo()
