"""Weights from the hub of a library, and what it means when the hub cannot be reached.

Builders construct a pretrained model in `load` already, so that its weights are here before the
trial takes the device.

Try: `python -m sweeper model=resnet18 model.pretrained=true batch_size=8`
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import HTTPError, URLError

from sweeper.core.trial import Model
from sweeper.worker.failures import UnavailableError


@contextmanager
def report_unreachable_hub(model: Model) -> Iterator[None]:
    """Raise UnavailableError where the library could not get to its hub and has no copy of the
    weights here.

    A hub that answers, and has no such weights, is the library's own error.
    """
    try:
        yield
    except OSError as error:
        if (reason := _explain_unreachable(error)) is None:
            raise
        weights = model.checkpoint or model.name
        raise UnavailableError(
            f"the weights of {model.library}'s {weights} cannot be fetched and are not on this "
            f"machine: {reason}; "
            "model.pretrained=false (random weights, the default) needs no network"
        ) from error


def _explain_unreachable(error: BaseException) -> str | None:
    """What the host said when it was asked for the hub, from the innermost error; None for any
    other kind of error.

    torchvision (and timm, for weights at an address of their own) raises `URLError`;
    huggingface_hub raises `LocalEntryNotFoundError`, which transformers wraps in an `OSError`.
    """
    hub = sys.modules.get("huggingface_hub.errors")  # not there: torchvision does without it
    missing = hub.LocalEntryNotFoundError if hub else ()
    chain = [error]
    while (inner := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(inner)
    for item in chain:
        if isinstance(item, missing) or (
            isinstance(item, URLError) and not isinstance(item, HTTPError)
        ):
            return (str(chain[-1]).strip().splitlines() or [type(chain[-1]).__name__])[0]
    return None
