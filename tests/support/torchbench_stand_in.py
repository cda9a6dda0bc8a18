"""A TorchBench of a few tiny models, with the interface of the real one as far as a trial sees it.

The real one has `torchbenchmark/models/<name>/__init__.py` with a class `Model(test, device,
batch_size, extra_args)` that says `NotImplementedError` to what it cannot do, and replaces
`torch.manual_seed` while it makes a model (https://github.com/pytorch/benchmark,
torchbenchmark/util/model.py).
"""

from __future__ import annotations

from pathlib import Path

BASE = """
import torch

class BenchmarkModel:
    ALLOW_CUSTOMIZE_BSIZE = True

    def __init__(self, test, device, batch_size=None, extra_args=[]):
        own = self.DEFAULT_TRAIN_BSIZE if test == "train" else self.DEFAULT_EVAL_BSIZE
        if not self.ALLOW_CUSTOMIZE_BSIZE and batch_size not in (None, own):
            raise NotImplementedError("Model doesn't support customizing batch size.")
        self.test, self.device, self.batch_size = test, device, batch_size or own
        torch.manual_seed = lambda seed: None
        self.model = torch.nn.Linear(4, 2).to(device)

    def get_module(self):
        return self.model, (torch.ones(self.batch_size, 4, device=self.device) * torch.arange(4.0),)
"""
MODEL = """
from torchbenchmark.util.model import BenchmarkModel

class Model(BenchmarkModel):
    DEFAULT_TRAIN_BSIZE = 8
    DEFAULT_EVAL_BSIZE = 2
"""
FIXED = f"{MODEL}    ALLOW_CUSTOMIZE_BSIZE = False\n"
WITH_DICT = (
    f"{MODEL}\n    def get_module(self):\n        module, (values,) = super().get_module()\n"
    "        return module, {'input': values}\n"
)
WITHOUT_TRAINING = (
    f"{MODEL}\n    def __init__(self, test, **arguments):\n        if test == 'train':\n"
    "            raise NotImplementedError('Train test is not implemented.')\n"
    "        super().__init__(test, **arguments)\n"
)
MODELS = {
    "plain": MODEL,
    "fixed": FIXED,
    "with_dict": WITH_DICT,
    "without_training": WITHOUT_TRAINING,
    "needs_more": "import a_package_that_is_not_there\n",
}


def install(folder: Path) -> None:
    """Write the package into a folder of the import path."""
    root = folder / "torchbenchmark"
    files = {"__init__.py": "", "util/__init__.py": "", "util/model.py": BASE}
    files |= {f"models/{name}/__init__.py": text for name, text in MODELS.items()}
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
