from __future__ import annotations

import errno
import json

import pytest

from sweeper.core.errors import explain_unreadable, nearest


def test_names_like_the_one_given_come_first_whatever_its_case() -> None:
    names = ["reduce-overhead", "default", "max-autotune", "max-autotune-no-cudagraphs"]
    assert nearest("MAX-AUTOTUN", names) == "nearest: max-autotune, max-autotune-no-cudagraphs"
    assert nearest("Defaults", ["Default"]) == "nearest: Default"


@pytest.mark.parametrize(("count", "end"), [(3, "c"), (12, "l"), (13, "l, ...")])
def test_without_a_name_like_it_the_first_twelve_are_listed(count: int, end: str) -> None:
    said = nearest("12345", "abcdefghijklm"[:count])
    assert said.startswith("allowed: a, b, c")
    assert said.endswith(f", {end}")


def test_why_a_file_cannot_be_read_is_said_in_words() -> None:
    with pytest.raises(json.JSONDecodeError) as error:
        json.loads("{")
    assert explain_unreadable(error.value).startswith("not JSON, or cut short (")
    assert (
        explain_unreadable(PermissionError(errno.EACCES, "Permission denied"))
        == "Permission denied"
    )
    assert explain_unreadable(OSError("no reason")) == "no reason"
    assert explain_unreadable(ValueError("too deep")) == "cannot be read (too deep)"
