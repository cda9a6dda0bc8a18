"""The report that tlparse makes of a trace, where there is a trace and a tlparse."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeper.worker.inspection.trace import write_report


def test_process_without_a_trace_has_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = "sweeper.worker.inspection.trace.find_tlparse"
    monkeypatch.setattr(find, lambda: "tlparse")
    assert write_report(tmp_path, tmp_path / "report") == "torch traced nothing"
    monkeypatch.setattr(find, lambda: None)
    assert "pip install tlparse" in str(write_report(tmp_path, tmp_path / "report"))
