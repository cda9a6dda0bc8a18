"""Which modules of a model are its repeated blocks, and that compiling them leaves the module as it
is.
"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.compile


def test_blocks_of_a_resnet_and_of_transformers() -> None:
    import sweeper.worker.models.torchvision_without_cuda  # noqa: F401, I001  # before what imports torchvision
    import timm
    import torch
    import transformers

    from sweeper.worker.compilation.compiler import find_repeated

    with torch.device("meta"):
        bert = transformers.BertModel(transformers.BertConfig(num_hidden_layers=3))
        vit, resnet = timm.create_model("vit_tiny_patch16_224"), timm.create_model("resnet18")
        plain = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2))
    assert [type(block).__name__ for block in find_repeated(bert)] == ["BertLayer"] * 3
    assert [type(block).__name__ for block in find_repeated(vit)] == ["Block"] * 12
    assert [type(block).__name__ for block in find_repeated(resnet)] == ["BasicBlock"] * 8
    assert find_repeated(plain) == []


def test_the_lists_of_a_library_go_before_a_guess() -> None:
    import torch

    from sweeper.worker.compilation.compiler import find_repeated

    class Part(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.ReLU()

    class Other(Part):
        pass

    class Layer(Part):
        pass

    class Model(torch.nn.Module):
        def __init__(self, **lists: list[str] | None) -> None:
            super().__init__()
            # no list holds the parts that the library names
            self.one, self.two, self.alone = Part(), Part(), Other()
            self.stack = torch.nn.ModuleList([Layer(), Layer()])
            vars(self).update(lists)

    def name(**lists: list[str] | None) -> list[str]:
        blocks = find_repeated(torch.nn.Sequential(Model(**lists)))
        return [type(block).__name__ for block in blocks]

    guessed = ["Layer"] * 2
    assert name() == guessed
    assert name(_repeated_blocks=["Part"], _no_split_modules=["Layer"]) == ["Part"] * 2
    assert name(_repeated_blocks=None, _no_split_modules=["Part", "Other"]) == ["Part"] * 2
    assert name(_no_split_modules=["Other", "Gone"]) == guessed, "one Other is not repeated"


def test_module_is_compiled_only_through_what_was_made() -> None:
    import torch
    from factories import tower

    from sweeper.worker.compilation.compiler import compile_blocks

    calls: list[str] = []

    def compile_(function):
        def compiled(*arguments, **options):
            calls.append("compiled")
            return function(*arguments, **options)

        return compiled

    module, inputs = tower(2, torch.device("cpu"))
    call = compile_blocks(module, compile_)
    assert call is not None
    assert torch.equal(call(*inputs), module(*inputs))
    assert calls == ["compiled"] * 3
