"""Both arms of a script: its modules called as they are, and compiled.

Where the script compiles nothing by itself, its outermost modules get a compiled form, as `module.compile()` gives
them, and each call takes the form of the arm that runs. Where it calls `torch.compile`, that is the compiled arm, and
torch's stance turns it off in eager. The stance is the whole process's, so what libraries compile is eager there too.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from sweeper.core.trial import Trial
from sweeper.worker.compilation.compiler import compile_function
from sweeper.worker.compilation.counters import CompileCounters
from sweeper.worker.failures import NotCompiledError
from sweeper.worker.scripts.compile_calls import CompileCalls, Compiled

Function = Callable[..., Any]
CALLED_FIRST = "_compiled_call_impl"  # of a module: `Module.__call__` prefers it


def call_eager(module: torch.nn.Module, *arguments: Any, **options: Any) -> Any:
    """Call a module and its hooks, past the compiled form that it may have; what Dynamo compiles is a frame of ours."""
    return module._call_impl(*arguments, **options)  # type: ignore[no-untyped-call]


class Form:
    """What is called in place of a module: its eager form, or its compiled one.

    `caller` is what the script calls: the module, or what `torch.compile` gave for it.
    """

    def __init__(
        self, module: torch.nn.Module, compiled: Function, eager: Function, caller: torch.nn.Module | None = None
    ) -> None:
        self.module, self.compiled, self._eager = module, compiled, eager
        self.caller = module if caller is None else caller
        self._before = self.caller.__dict__.get(CALLED_FIRST)
        self.chosen: Function = eager
        self.shapes: Counter[tuple[object, ...]] = Counter()
        self.caller.__dict__[CALLED_FIRST] = self  # a copy of the module has none

    @staticmethod
    def compile(module: torch.nn.Module, trial: Trial, counters: CompileCounters) -> Form:
        """Make the forms of a module that the script does not compile."""

        def forward(*arguments: Any, **options: Any) -> Any:  # a frame of ours: Dynamo leaves some of torch's alone
            return call_eager(module, *arguments, **options)

        return Form(module, compile_function(forward, trial, counters), module._call_impl)

    @staticmethod
    def of_script(item: Compiled) -> Form | None:
        """Make the form of what the script has compiled, which the stance turns off; None for functions."""
        if item.module is None:
            return None
        caller = item.result if isinstance(item.result, torch.nn.Module) else item.module
        called: Function = caller.__dict__.get(CALLED_FIRST) or caller._call_impl
        return Form(item.module, called, called, caller)

    def choose(self, arm: str) -> None:
        self.chosen = self.compiled if arm == "compiled" else self._eager

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if torch.is_grad_enabled():
            values = (*arguments, *options.values())
            self.shapes[tuple(value.shape for value in values if isinstance(value, torch.Tensor))] += 1
        return self.chosen(*arguments, **options)

    def remove(self) -> None:
        self.caller.__dict__.pop(CALLED_FIRST, None)
        if self._before is not None:
            self.caller.__dict__[CALLED_FIRST] = self._before


class Arms:
    """The arms of a script; eager runs until `prepare`."""

    def __init__(self, trial: Trial, calls: CompileCalls) -> None:
        self._trial, self._calls = trial, calls
        self.counters = CompileCounters()
        self.forms: list[Form] = []
        torch.compiler.set_stance("force_eager")

    @property
    def is_own(self) -> bool:
        """Whether the script's own compiled code is the compiled arm."""
        return bool(self._calls.own)

    def prepare(self, modules: Sequence[torch.nn.Module]) -> None:
        """Make the compiled arm. Raises NotCompiledError where there is nothing to compile."""
        if self.is_own:
            last = {id(item.module): item for item in self._calls.compiled}.values()
            self.forms = [form for form in map(Form.of_script, last) if form]
            return
        if not modules:
            raise NotCompiledError(
                "no module with parameters to train is called in a step, so there is none to compile"
            )
        compiled = {id(form.module) for form in self.forms}
        self.forms += [
            Form.compile(module, self._trial, self.counters) for module in modules if id(module) not in compiled
        ]

    def compile(self, module: torch.nn.Module) -> None:
        """Compile a module, and run it compiled from now on."""
        self.forms.append(Form.compile(module, self._trial, self.counters))
        self.forms[-1].choose("compiled")

    def switch(self, arm: str) -> None:
        """Run an arm from the next step on; to be called at the end of a step, with no backward pass pending."""
        compiled = arm == "compiled" and self._trial.mode != "eager"
        torch.compiler.set_stance("default" if compiled else "force_eager")
        for form in self.forms:
            form.choose(arm)

    def compiled_forms(self) -> list[tuple[torch.nn.Module, Function]]:
        """Each module with its compiled form; of what the script compiles by itself, modules alone."""
        if not self.is_own:
            return [(form.module, form.compiled) for form in self.forms]
        own = [(item.module, item) for item in self._calls.compiled]
        return [(module, item) for module, item in own if module is not None]

    def require_compiled(self) -> None:
        """Raise NotCompiledError where the compiled arm has run nothing compiled."""
        if self._trial.mode == "eager":
            return
        if (reason := self.counters.explain_not_compiled()) is None:
            return
        if not self.is_own:
            raise NotCompiledError(reason)
        where = ", ".join(call.where for call in self._calls.own)
        if torch._dynamo.config.disable or os.environ.get("TORCHDYNAMO_DISABLE") == "1":
            reason = "TORCH_COMPILE_DISABLE, TORCHDYNAMO_DISABLE or torch._dynamo.config.disable turns the compiler off"
        raise NotCompiledError(f"the script calls torch.compile ({where}), and runs nothing compiled: {reason}")

    def stop(self) -> None:
        """Leave the modules as they were; what the script still does runs in eager, and compiles nothing."""
        torch.compiler.set_stance("force_eager")
        for form in self.forms:
            form.remove()
