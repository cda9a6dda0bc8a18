"""Decoder language models with a static key-value cache: the model and the batches of
workload=prefill and decode.

A prefill is one forward of a prompt that writes the cache from its first row on, a decode one
forward of one token per sequence that writes the row after `decode.position`. Each step begins at
this fill level: the cache's counters are set back before it, outside of what is compiled. They are
tensors, so compiled code does not know the level.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch

from sweeper.core.trial import Trial
from sweeper.worker.failures import UnavailableError

from .batches import Batch


class CachedDecoder(torch.nn.Module):
    """A decoder with a static cache of its own; `forward` gives logits, [batch, 1, vocabulary], of
    the last token.

    A class that does not take `logits_to_keep` gives them of every token, [batch, length,
    vocabulary]. The tensors of the cache are buffers, so the accuracy check compares, restores and
    casts them. `fill` has to come before the first forward.
    """

    def __init__(
        self,
        decoder: torch.nn.Module,
        make_cache: Callable[[], Any],  # gives a `transformers.StaticCache`
        trial: Trial,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.decoder = decoder
        self.config: Any = decoder.config
        self._make_cache, self._batch_size, self._device = make_cache, trial.batch_size, device
        self._position = trial.decode_position or 0
        self._options: dict[str, object] = {"use_cache": True}
        if "logits_to_keep" in inspect.signature(decoder.forward).parameters:
            self._options["logits_to_keep"] = 1
        self._cache: Any = None
        self._counters: list[torch.Tensor] = []  # whole numbers that a step moves on, of all layers
        self._levels: list[torch.Tensor] = []  # their values before a step
        # Python's numbers: where they are, their values
        self._flags: list[tuple[dict[Any, Any], dict[Any, Any]]] = []

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        output = self.decoder(input_ids=input_ids, past_key_values=self._cache, **self._options)
        return output.logits  # type: ignore[no-any-return]

    def draw_tokens(self, length: int) -> Batch:
        """Random tokens, int64 [batch, length]."""
        vocabulary = self.config.get_text_config().vocab_size
        tokens = torch.randint(vocabulary, (self._batch_size, length), device=self._device)
        return Batch(kwargs={"input_ids": tokens})

    def fill(self) -> None:
        """Make the cache and fill it with a random prompt as long as the position, in the caller's
        autocast.

        Raises UnavailableError where the model has no static cache or cannot use it, and whatever
        its forward raises.
        """
        name = type(self.decoder).__name__
        try:
            self._cache = self._make_cache()
        except (AttributeError, KeyError, NotImplementedError, TypeError, ValueError) as error:
            raise UnavailableError(
                f"{name} has no static cache: {type(error).__name__}: {error}"
            ) from error
        if not self._cache.is_compileable:
            kinds = sorted(
                {type(layer).__name__ for layer in self._cache.layers if not layer.is_compileable}
            )
            raise UnavailableError(
                f"{name} has no static cache: {', '.join(kinds)} cannot be compiled"
            )
        try:
            with torch.no_grad():
                # the tensors are made in the first forward
                self(**self.draw_tokens(self._position or 1).kwargs)
        except RuntimeError as error:
            if not (torch.is_autocast_enabled(self._device.type) and "same dtype" in str(error)):
                raise
            reason = (
                "autocast gives it keys and values of two number formats, and a static cache "
                "has one"
            )
            raise UnavailableError(f"{name}: {reason}; take precision=bf16 or fp32") from error
        if not self._position:
            self._cache.reset()
        for index, layer in enumerate(self._cache.layers):
            self._adopt(layer, f"of_layer_{index}")
        if not self._counters:
            raise UnavailableError(f"{name} writes nothing to a static cache")
        self._levels = [counter.clone() for counter in self._counters]

    def _adopt(self, layer: Any, suffix: str) -> None:
        """Make a layer's tensors buffers, and remember its counters and flags; nothing of a layer
        that is not used.

        A layer has them as attributes or, with states of linear attention, in dicts that are its
        attributes.
        """
        places = [("", vars(layer))]
        places += [(f"{key}_", value) for key, value in vars(layer).items() if type(value) is dict]
        tensors = {}
        flags = []
        for prefix, place in places:
            numbers = {}
            for key, value in place.items():
                if isinstance(value, torch.Tensor):
                    tensors[f"{prefix}{key}_{suffix}"] = value
                elif type(value) in (bool, int):
                    numbers[key] = value
            flags.append((place, numbers))
        if not any(tensor.is_floating_point() for tensor in tensors.values()):
            return
        self._flags += flags
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)
            if not tensor.is_floating_point():
                self._counters.append(tensor)

    def set_back(self) -> None:
        """Set the counters back to the fill level, in place and by one kernel; the rows stay as
        they are.
        """
        torch._foreach_copy_(self._counters, self._levels)
        for place, values in self._flags:
            place.update(values)


def list_problems(trial: Trial, model_class: Any, config: Any) -> list[str]:
    """Why a class of transformers cannot be prefilled or decode, as far as the class and its
    configuration say.
    """
    read = inspect.signature(model_class.forward).parameters
    place = f"model.name={trial.model.name}: workload={trial.workload}"
    if (
        not model_class.can_generate()
        or "past_key_values" not in read
        or "decoder_input_ids" in read
    ):
        return [
            f"{place} is for decoder language models that keep keys and values, e.g. "
            "model.name=LlamaForCausalLM"
        ]
    decodes = trial.model.arguments.get("is_decoder", getattr(config, "is_decoder", True))
    # the decoders of BART and its kin say it themselves
    if not decodes and not config.is_encoder_decoder:
        return [
            f"{place}: this class is an encoder unless you add +model.arguments.is_decoder=true"
        ]
    return []
