"""What a record says of the machine and of the versions on it."""

from __future__ import annotations

import warnings

import pytest

from sweeper.worker.monitoring import environment


def test_settings_that_torch_is_to_remove_are_read_without_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch 2.15 has two of them, and each worker's log would begin with what its user neither set
    nor can change.
    """
    from torch._inductor import config

    monkeypatch.setattr(config, "epilogue_fusion", False)
    entry = config._config["epilogue_fusion"]  # type: ignore[attr-defined]
    monkeypatch.setattr(entry, "deprecated", True, raising=False)
    monkeypatch.setattr(entry, "_deprecation_warned", False, raising=False)
    with warnings.catch_warnings(action="error"):
        assert "epilogue_fusion=False" in environment.describe()["inductor_config"]
