"""A LightningModule, whose trainer runs forward and backward in a closure of the optimizer's step."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

lightning.seed_everything(0)
torch.set_num_threads(1)


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 10))

    def training_step(self, batch, _index):
        inputs, labels = batch
        return nn.functional.cross_entropy(self.net(inputs), labels)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


loader = DataLoader(
    TensorDataset(torch.randn(4096, 64), torch.randint(10, (4096,))), batch_size=32, drop_last=True
)
lightning.Trainer(
    max_epochs=100, logger=False, enable_checkpointing=False, enable_progress_bar=False
).fit(Classifier(), loader)
