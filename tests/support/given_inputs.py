"""Factories for the tests of what a user gives a model: inputs with structure, several batches, and
losses.
"""

from __future__ import annotations

import itertools

import torch
from factories import WIDTH, make_inputs, make_mlp
from torch import nn


class _Bags(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags, self.head = nn.EmbeddingBag(50, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, words, offsets):
        return self.head(self.bags(words, offsets))


def bags_with_offsets(batch_size, device):
    """The first offset has to be 0."""
    offsets = torch.arange(batch_size, device=device) * 3
    words = torch.randint(50, (3 * batch_size,), device=device)
    return _Bags().to(device), (words, offsets), lambda output: output.square().mean()


class _Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, 4)

    def forward(self, nodes, edge_index):
        source, target = edge_index
        messages = self.layer(nodes)[source]
        return messages.new_zeros(3, 4).index_add(0, target, messages)


def graph_with_edges(batch_size, device):
    """Edges [2, E] from any number of nodes to three others: the other way round they lead
    nowhere.
    """
    source = torch.arange(5 * batch_size, device=device)
    nodes = torch.randn(5 * batch_size, WIDTH, device=device)
    return _Graph().to(device), {"nodes": nodes, "edge_index": torch.stack([source, source % 3])}


class _Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.rnn = nn.Linear(WIDTH, WIDTH), nn.GRU(WIDTH, 4, batch_first=True)

    def forward(self, x, lengths):
        x = self.layer(x).sin()  # Dynamo leaves a recurrent network to eager
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return self.rnn(packed)[1]


def sorted_lengths(batch_size, device):
    """Lengths in descending order, on the host, as `pack_padded_sequence` wants them."""
    lengths = torch.arange(batch_size, 0, -1)
    return _Packed().to(device), (
        torch.randn(batch_size, batch_size, WIDTH, device=device),
        lengths,
    )


class _Segments(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, 4)

    def forward(self, x, cu_seqlens):
        ends = cu_seqlens.tolist()
        return torch.stack([self.layer(x[a:b]).mean(0) for a, b in itertools.pairwise(ends)])


def cumulative_lengths(batch_size, device):
    """Sequences end to end; a slice between ends in another order is empty, and its mean NaN."""
    cu_seqlens = torch.arange(batch_size + 1, dtype=torch.int32, device=device) * 2
    return _Segments().to(device), (torch.randn(2 * batch_size, WIDTH, device=device), cu_seqlens)


class _Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, mask):
        x = self.layer(x)
        return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)


def mask_of_infinities(batch_size, device):
    """Causal: in another order, queries would see what comes after them."""
    mask = torch.full((batch_size, batch_size), -torch.inf, device=device).triu(1)
    return _Attends().to(device), (torch.randn(batch_size, WIDTH, device=device), mask)


def words_only(batch_size, device):
    module = nn.Sequential(nn.Embedding(50, WIDTH), nn.Flatten(), nn.Linear(3 * WIDTH, 4))
    return (
        module.to(device),
        (torch.randint(50, (batch_size, 3), device=device),),
        lambda out: out.square().mean(),
    )


def two_batches(batch_size, device):
    return make_mlp().to(device), [make_inputs(batch_size, device) for _ in range(2)]


def four_batches(batch_size, device):
    """The number in a batch is its place."""
    module = nn.Linear(WIDTH, 4).to(device)
    return module, [
        {"input": torch.full((batch_size, WIDTH), float(place), device=device)}
        for place in range(4)
    ]


def batches_of_two_shapes(batch_size, device):
    return make_mlp().to(device), [
        make_inputs(batch_size, device),
        make_inputs(batch_size + 1, device),
    ]


def batches_of_two_formats(batch_size, device):
    (first,) = make_inputs(batch_size, device)
    return make_mlp().to(device), [{"x": first}, {"x": first.double()}]


def batches_of_two_structures(batch_size, device):
    (first,) = make_inputs(batch_size, device)
    return make_mlp().to(device), [{"x": first}, {"x": first, "y": first}]


def list_of_tensors(batch_size, device):
    """The arguments of one batch, no matter that they are in a list."""
    return nn.Bilinear(WIDTH, WIDTH, 4).to(device), [
        *make_inputs(batch_size, device),
        *make_inputs(batch_size, device),
    ]


class WithLoss(nn.Module):
    """A model that computes its own loss, as those of transformers do; with `times` it gives
    several.
    """

    def __init__(self, times=1):
        super().__init__()
        self.times = times
        self.layer = nn.Linear(WIDTH, 4)

    def forward(self, x):
        output = self.layer(x)
        return {"loss": output.square().mean().expand(self.times), "logits": output}


def dict_with_a_loss(batch_size, device):
    return WithLoss().to(device), make_inputs(batch_size, device)


def dict_with_losses(batch_size, device):
    """One loss per sample, which is no loss to train on."""
    return WithLoss(2).to(device), make_inputs(batch_size, device)


def bert_with_labels(batch_size, device):
    """A model of transformers that is given labels, so that it computes its loss; the second text
    is padded.
    """
    inputs = bert_without_labels(batch_size, device)
    return inputs[0], inputs[1] | {"labels": torch.arange(batch_size, device=device) % 2}


def bert_without_labels(batch_size, device):
    import transformers

    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    config = transformers.BertConfig(vocab_size=20, max_position_embeddings=8, **sizes)
    mask = torch.ones(batch_size, 8, dtype=torch.long, device=device)
    mask[1:, 5:] = 0
    tokens = torch.randint(20, (batch_size, 8), device=device) * mask
    model = transformers.BertForSequenceClassification(config).to(device)
    return model, {"input_ids": tokens, "attention_mask": mask}


def needs_torchvision(batch_size, device):
    import torchvision

    return torchvision.models.squeezenet1_1(num_classes=4).to(device), (
        torch.randn(batch_size, 3, 32, 32, device=device),
    )
