from __future__ import annotations

from importlib.metadata import version

from sweeper.core.backends import WITHOUT_MEMORY_BUDGET, WITHOUT_MODE
from sweeper.core.libraries import has_texts, library_packages, read_versions


def test_versions_are_those_of_the_installed_packages_alone() -> None:
    assert read_versions(["pytest", "no-such-package"]) == {"pytest": version("pytest")}


def test_packages_of_the_libraries_come_once_each() -> None:
    assert library_packages() == ["torchvision", "timm", "transformers", "diffusers"]


def test_texts_are_for_libraries_whose_inputs_have_a_length() -> None:
    assert has_texts("transformers")
    assert not has_texts("timm")
    assert not has_texts("custom")


def test_a_memory_budget_is_heeded_by_aot_eager_which_has_no_modes() -> None:
    assert "aot_eager" in WITHOUT_MODE
    assert "aot_eager" not in WITHOUT_MEMORY_BUDGET
    assert not WITHOUT_MODE & {"inductor"}
