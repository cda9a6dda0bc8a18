"""Models that compute something else when they are compiled, in one way each; `trial` makes a trial
of one.

What is wrong is a gradient, a buffer, an input or one of several batches; the check has to see it.
"""

from __future__ import annotations

import numpy
import torch
from torch import nn

WIDTH = 16


def scale_gradient(tensor, factor):
    """The same values, with `factor` times the gradient, where this is compiled."""
    if not torch.compiler.is_compiling():
        return tensor
    # nothing is added, whatever it is rounded to
    return tensor + (tensor - tensor.detach()) * (factor - 1)


def square_mean(output):
    return output.float().square().mean()


class Branch(nn.Module):
    """A residual branch with a factor; wrong by `fault`, a factor of its gradients."""

    def __init__(self, scale, fault):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.scale = nn.Parameter(torch.full((WIDTH,), scale))
        self.fault = fault

    def forward(self, x):
        return x + self.scale * scale_gradient(self.inner(x), self.fault)


def _branches(batch_size, device, scale, fault):
    module = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), *(Branch(scale, fault) for _ in range(3)), nn.Linear(WIDTH, 4)
    )
    return module.to(device), (torch.randn(batch_size, WIDTH, device=device),), square_mean


def zero_init(batch_size, device):
    return _branches(batch_size, device, 0.0, 30.0)


def right_zero_init(batch_size, device):
    return _branches(batch_size, device, 0.0, 1.0)


def layer_scale(batch_size, device):
    return _branches(batch_size, device, 1e-6, 5.0)


def right_layer_scale(batch_size, device):
    return _branches(batch_size, device, 1e-6, 1.0)


def _masked(batch_size, device, fault):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)

        def forward(self, x, mask):
            return scale_gradient(self.head((self.layer(x) + mask).softmax(-1)), fault)

    mask = torch.zeros(batch_size, WIDTH, device=device)
    mask[:, WIDTH // 2 :] = float("-inf")
    return Masked().to(device), (torch.randn(batch_size, WIDTH, device=device), mask), square_mean


def mask_of_infinity(batch_size, device):
    return _masked(batch_size, device, -5.0)


def right_mask_of_infinity(batch_size, device):
    return _masked(batch_size, device, 1.0)


def _hooked(batch_size, device, fault):
    class Hooked(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)
            self.first.weight.register_hook(lambda gradient: 2 * gradient)

        def forward(self, x):
            weight = scale_gradient(self.first.weight, fault)
            return self.second(nn.functional.linear(x, weight, self.first.bias).tanh())

    return Hooked().to(device), (torch.randn(batch_size, WIDTH, device=device),), square_mean


def hook_on_a_parameter(batch_size, device):
    return _hooked(batch_size, device, -1.0)


def right_hook_on_a_parameter(batch_size, device):
    return _hooked(batch_size, device, 1.0)


def buffer_not_updated(batch_size, device):
    """BatchNorm whose statistics stay where they were."""

    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm, self.head = (
                nn.Linear(WIDTH, WIDTH),
                nn.BatchNorm1d(WIDTH),
                nn.Linear(WIDTH, 4),
            )

        def forward(self, x):
            x = self.layer(x)
            if torch.compiler.is_compiling():
                x = nn.functional.batch_norm(
                    x, None, None, self.norm.weight, self.norm.bias, training=True
                )
            else:
                x = self.norm(x)
            return self.head(x)

    return Frozen().to(device), (torch.randn(batch_size, WIDTH, device=device),), square_mean


def input_not_written(batch_size, device):
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, 4)

        def forward(self, x):
            return self.layer(x.clamp(-1, 1) if torch.compiler.is_compiling() else x.clamp_(-1, 1))

    return Writes().to(device), (torch.randn(batch_size, WIDTH, device=device),), square_mean


def second_batch_alone(batch_size, device):
    """The mark of the second batch is where rolling moves it; the check's own batch has none."""

    class Marked(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, 4)

        def forward(self, x):
            y = self.layer(x)
            return y * torch.where(x[1, 0] == 5.0, 3.0, 1.0) if torch.compiler.is_compiling() else y

    x = torch.randn(batch_size, WIDTH, device=device)
    x[0, 0] = 5.0
    return Marked().to(device), (x,), square_mean


def largest_size_alone_is_right(batch_size, device):
    class Sized(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, 4)
            self.largest = batch_size

        def forward(self, x):
            y = self.layer(x)
            return y * 3.0 if torch.compiler.is_compiling() and x.shape[0] < self.largest else y

    return Sized().to(device), (torch.randn(batch_size, WIDTH, device=device),), square_mean


def _deep_norms(batch_size, device, fault):
    """So many BatchNorms that in bfloat16 the first gradients are further off than a third of their
    length.

    The fault is in these alone.
    """

    def layers(count, width):
        blocks = (
            (nn.Conv2d(width if i == 0 else 16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
            for i in range(count)
        )
        return nn.Sequential(*(layer for block in blocks for layer in block))

    class Faulty(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.then = layers(3, 3), layers(20, 16)
            self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))

        def forward(self, x):
            return self.head(self.then(scale_gradient(self.first(x), fault)))

    return Faulty().to(device), (torch.randn(batch_size, 3, 16, 16, device=device),), square_mean


def deep_norms_tripled(batch_size, device):
    return _deep_norms(batch_size, device, 3.0)


def right_deep_norms(batch_size, device):
    return _deep_norms(batch_size, device, 1.0)


def changes_later(batch_size, device):
    """Compiled once more when a test sets `late`."""
    return _changes_later(batch_size, device, lambda x: x)


def _changes_later(batch_size, device, change):
    class Later(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, 4)
            self.late = False
            self.fault = 1.0

        def forward(self, x):
            y = change(self.layer(x))
            return y * self.fault if torch.compiler.is_compiling() and self.late else y

    return Later().to(device), (torch.randn(batch_size, WIDTH, device=device),), square_mean


def _with_module_hook(batch_size, device, hook):
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4))
    module[0].register_forward_hook(hook)
    return module.to(device), (torch.randn(batch_size, WIDTH, device=device),), square_mean


def hook_that_counts(batch_size, device):
    """Each call is scaled by another number, which nothing restores."""
    calls = []

    def hook(_module, _inputs, output):
        calls.append(1)
        return output * (1.0 + 0.1 * (len(calls) % 7))

    return _with_module_hook(batch_size, device, torch.compiler.disable(hook))


def hook_that_draws(batch_size, device):
    def hook(_module, _inputs, output):
        return output * torch.rand(1, device=output.device)

    return _with_module_hook(batch_size, device, hook)


@torch.library.custom_op("wrong_models::shake", mutates_args=(), schema="(Tensor x) -> Tensor")
def shake(x):
    """Noise of which no generator knows, as of sums whose order changes: the longer the number
    format, the less.
    """
    noise = torch.from_numpy(numpy.random.default_rng().standard_normal(x.shape))
    return x * (1.0 + 1e5 * torch.finfo(x.dtype).eps * noise).to(x)


shake.register_fake(torch.empty_like)
shake.register_autograd(lambda _context, gradient: gradient)


def _two_layers(batch_size, device, between):
    """`between` gets what the first layer gives, and whether the model trains."""

    class TwoLayers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)

        def forward(self, x):
            return self.head(between(self.layer(x), self.training))

    return TwoLayers().to(device), (torch.randn(batch_size, WIDTH, device=device),), square_mean


def _shakes(batch_size, device, compiled):
    def between(x, _trains):
        return compiled(x) if torch.compiler.is_compiling() else shake(x)

    return _two_layers(batch_size, device, between)


def shakes_and_changes_later(batch_size, device):
    return _changes_later(batch_size, device, shake)


def right_shakes(batch_size, device):
    return _shakes(batch_size, device, shake)


def right_steadies(batch_size, device):
    return _shakes(batch_size, device, lambda x: x)


def shakes_and_scales(batch_size, device):
    return _shakes(batch_size, device, lambda x: 1.05 * shake(x))


def steadies_and_scales(batch_size, device):
    return _shakes(batch_size, device, lambda x: 1.05 * x)


def _drops(batch_size, device, compiled_rate):
    """Dropout at a rate of 0.1 that no rule knows, at another one where it is compiled."""

    def between(x, trains):
        rate = compiled_rate if torch.compiler.is_compiling() else 0.1
        return nn.functional.dropout(x, rate, trains)

    return _two_layers(batch_size, device, between)


def functional_dropout(batch_size, device):
    return _drops(batch_size, device, 0.1)


def wrong_functional_dropout(batch_size, device):
    return _drops(batch_size, device, 0.3)


def dropout_lost_in_a_dead_branch(batch_size, device):
    """As built, nothing shows whether the branch drops anything."""

    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.branch = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.scale = nn.Parameter(torch.full((WIDTH,), 1e-6))

        def forward(self, x):
            h = self.first(x)
            b = self.branch(h)
            return h + self.scale * (
                b if torch.compiler.is_compiling() else nn.functional.dropout(b, 0.3)
            )

    return Hidden().to(device), (torch.randn(batch_size, WIDTH, device=device),)


class Doubled(nn.Module):
    """A layer whose gradients are doubled when it is compiled; it gives its loss if asked."""

    def __init__(self, gives_loss=False):
        super().__init__()
        self.layer = nn.Linear(WIDTH, 4)
        self.gives_loss = gives_loss

    def forward(self, x):
        output = scale_gradient(self.layer(x), 2.0)
        return {"loss": square_mean(output), "logits": output} if self.gives_loss else output


def one_tensor(batch_size, device):
    return Doubled().to(device), torch.randn(batch_size, WIDTH, device=device), None


def list_of_batches(batch_size, device):
    batches = [(torch.randn(batch_size, WIDTH, device=device),) for _ in range(3)]
    return Doubled().to(device), batches, square_mean


def own_loss(batch_size, device):
    return Doubled(True).to(device), {"x": torch.randn(batch_size, WIDTH, device=device)}
