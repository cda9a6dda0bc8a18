"""Networks of diffusers that predict the noise in images or latents, with random weights.

`model.arguments` are the arguments of the class, e.g. of
https://huggingface.co/docs/diffusers/api/models/unet2d. Images and noise are random, and
diffusers' own DDPM schedule mixes them at random timesteps. The loss is the mean squared error of
the predicted noise.

Try: `python -m sweeper model=diffusers model.name=UNet2DModel model.image_size=32
model.arguments.block_out_channels=[32,32,64,64] batch_size=2`
"""

import importlib.util
import inspect
from typing import Any

import torch

from sweeper.core.trial import Model, Trial
from sweeper.worker.failures import UnavailableError

from . import WHILE_BUILDING, Built, Examined
from .batches import Batch, noise_error

KINDS = ("UNet", "Transformer", "DiT")  # the name of each network has one of them
CLASSES = ("num_class_embeds", "num_embeds_ada_norm")  # settings that give the number of labels


def names() -> list[str] | None:
    if not _is_installed():
        return None
    import diffusers

    found = [name for name in dir(diffusers) if name.endswith("Model")]
    return [name for name in found if any(kind in name for kind in KINDS)]


def examine(trial: Trial) -> Examined:
    """Run the model on the meta device, where nothing is computed."""
    model = trial.model
    if not _is_installed():
        return Examined()
    if model.pretrained:
        return Examined(["model.pretrained=true: models of diffusers have random weights here"])
    try:
        built = build(trial, torch.device("meta"))
        built.loss(built.module(**built.unseen.kwargs), built.unseen)
    except WHILE_BUILDING as error:
        given = f"model.image_size={model.image_size} and model.arguments {dict(model.arguments)}"
        fed = "sweeper gives it noisy images, timesteps, labels and texts"
        return Examined([f"model.name={model.name} with {given}: {error}; {fed}"])
    return Examined()


def load(model: Model) -> None:  # noqa: ARG001  # the same shape in every builder
    """Raise UnavailableError when diffusers is missing."""
    if not _is_installed():
        raise UnavailableError("diffusers is not installed: pip install diffusers")


def build(trial: Trial, device: torch.device) -> Built:
    import diffusers

    model = trial.model
    model_class = getattr(diffusers, model.name)
    arguments: dict[str, Any] = dict(model.arguments)
    if model.image_size:
        arguments["sample_size"] = model.image_size
    if model.num_classes:
        known = inspect.signature(model_class.__init__).parameters
        setting = next((name for name in CLASSES if name in known), "num_classes")
        arguments[setting] = model.num_classes
    with torch.device(device):
        module = model_class(**arguments)
    if module.config.get("sample_size") is None:
        raise ValueError(
            f"{model.name} has no image size of its own: give model.image_size, e.g. 32"
        )
    first, second, unseen = (_make_batch(module, trial.batch_size, device) for _ in range(3))
    return Built(module.to(device), (first, second), unseen, noise_error)


def _is_installed() -> bool:
    return importlib.util.find_spec("diffusers") is not None


def _make_batch(module: Any, batch_size: int, device: torch.device) -> Batch:
    """Make noisy images float32 [batch, channels, side, side], timesteps int64 [batch], and what
    else the network reads: labels int64 [batch], texts float32 [batch, tokens, width].
    """
    import diffusers

    schedule = diffusers.DDPMScheduler()
    config, reads = module.config, inspect.signature(module.forward).parameters
    shape = (batch_size, config.in_channels, config.sample_size, config.sample_size)
    images, noise = torch.randn(shape, device=device), torch.randn(shape, device=device)
    timesteps = torch.randint(len(schedule), (batch_size,), device=device)
    inputs = {
        next(iter(reads)): schedule.add_noise(images, noise, timesteps),
        "timestep": timesteps,
    }
    classes = _find_setting(config, CLASSES)
    if classes and "class_labels" in reads:
        inputs["class_labels"] = torch.randint(classes, (batch_size,), device=device)
    width = _find_setting(
        config, ("cross_attention_dim", "joint_attention_dim", "caption_channels")
    )
    if width and "encoder_hidden_states" in reads:
        # CLIP's texts, which Stable Diffusion reads, have 77 tokens: https://arxiv.org/abs/2112.10752
        inputs["encoder_hidden_states"] = torch.randn(batch_size, 77, width, device=device)
    return Batch(kwargs=inputs, target=noise)


def _find_setting(config: Any, names: tuple[str, ...]) -> int | None:
    """The first of some settings that a network has."""
    return next((config[name] for name in names if config.get(name)), None)
