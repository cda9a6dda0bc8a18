"""The factory of the README works as it stands, on a tiny checkpoint in place of the one that it
names.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.compile
ROOT = Path(__file__).parents[1]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A folder with a BERT of one layer and its tokenizer."""
    import sweeper.worker.models.torchvision_without_cuda  # noqa: F401, I001  # before what imports torchvision
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(
        ["a few words"], trainers.WordPieceTrainer(special_tokens=["[PAD]", "[UNK]"])
    )
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    folder = tmp_path / "checkpoint"
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(
        folder
    )
    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    transformers.BertForSequenceClassification(
        transformers.BertConfig(vocab_size=99, **sizes)
    ).save_pretrained(folder)
    return folder


def test_factory_of_the_readme_gives_padded_batches_and_trains_on_the_models_loss(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from sweeper.core.trial import Labels, Model, Trial
    from sweeper.worker import models
    from sweeper.worker.models import batches, custom_models

    (code,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    named = re.search(r'^CHECKPOINT = "(.*?)"', code, re.MULTILINE)
    assert named is not None
    (tmp_path / "my_model.py").write_text(code.replace(named[1], str(checkpoint)), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_model", raising=False)
    trial = Trial(Model("custom", "my_model:build"), 4, Labels("mine", "fp32"), device="cpu")
    assert custom_models.examine(trial) == models.Examined(loss="output.loss")
    built = models.build(trial, 0, torch.device("cpu"))
    assert (len(built.batches), built.unseen_origin) == (2, "given")
    given = (*built.batches, built.unseen)
    assert len({str(batch.kwargs["input_ids"].tolist()) for batch in given}) == 3
    for batch in given:
        mask = batch.kwargs["attention_mask"]
        assert mask.shape == batch.kwargs["input_ids"].shape == (4, 32)
        assert 0 < mask.sum() < mask.numel()
        output = built.module(**batch.kwargs)
        assert built.loss(output, batch) is output.loss
    assert batches.name_loss(built.loss) == "output.loss"
