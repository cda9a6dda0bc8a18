"""A grid of overrides to configurations: groups are composed option by option, plain values are set
on copies.

Hydra composes one configuration in some 80 ms, so a grid of a thousand points would take minutes.
An option usually fills only the node of its own group, whatever is chosen elsewhere. So every
option is composed once, together with the first option of the other groups, and the points of the
grid are put together from the nodes. Where that could give another result (options that reach into
each other's nodes, or have defaults lists of their own), Hydra composes every point.
"""

import functools
import itertools
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import IConfigRepository
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import MISSING, DictConfig, OmegaConf, open_dict, read_write


@dataclass(frozen=True)
class OverrideAxis:
    """One key of the command line with an override for each of its values; a key with one value is
    constant.
    """

    key: str
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class Composed:
    """A configuration without its `hydra` node, the options chosen in it, and the overrides that
    give it.
    """

    config: DictConfig
    choices: Mapping[str, Any]
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class _Changes:
    """What an option changes against the first of its group: top-level nodes by key, choices by
    group.
    """

    nodes: Mapping[str, Any]
    choices: Mapping[str, Any]


class Composer:
    """Composes the configurations that `loader` gives for a command whose own configuration is
    `master`.
    """

    def __init__(self, loader: ConfigLoaderImpl, master: DictConfig) -> None:
        self._loader, self._master = loader, master
        self.repository = make_repository(loader, master.hydra)
        self._parse = functools.cache(OverridesParser.create(loader).parse_override)
        # whether an override chooses an option of a group; otherwise it sets a plain value
        self._is_option = functools.cache(
            lambda override: self.repository.group_exists(self._parse(override).key_or_group)
        )

    def points(self, axes: Sequence[OverrideAxis]) -> Iterator[Composed]:
        """Every point of a grid, the last axis changing fastest. Raises what Hydra raises for a bad
        override.
        """
        groups = [axis for axis in axes if self._is_option(axis.overrides[0])]
        first = self.compose([axis.overrides[0] for axis in groups])
        changes = self._find_changes(groups, first)
        points = itertools.product(*(axis.overrides for axis in axes))
        if changes is None:
            yield from map(self.compose, points)
            return
        pickled = pickle.dumps(first.config)
        for overrides in points:
            config = pickle.loads(pickled)  # noqa: S301  # several times as fast as copy.deepcopy
            choices = dict(first.choices)
            with open_dict(config):
                for change in filter(None, map(changes.get, overrides)):
                    choices |= change.choices
                    config.update(change.nodes)
            values = [self._parse(word) for word in overrides if not self._is_option(word)]
            ConfigLoaderImpl._apply_overrides_to_config(values, config)
            yield Composed(config, choices, overrides)

    def compose(self, overrides: Sequence[str]) -> Composed:
        """One configuration, composed by Hydra from beginning to end."""
        return split_off_hydra(
            self._loader.load_sweep_config(self._master, list(overrides)), overrides
        )

    def _find_changes(
        self, groups: Sequence[OverrideAxis], first: Composed
    ) -> dict[str, _Changes] | None:
        """What each override of a group changes against `first`; None where one option depends on
        another.
        """
        files = [f"{group.partition('@')[0]}/{option}" for group, option in first.choices.items()]
        for file in (self._master.hydra.job.config_name, *files):
            if any("${" in entry for entry in self._defaults(file)):
                return None
        changes = {}
        taken: set[str] = set()
        before: Any = OmegaConf.to_container(first.config, resolve=False)
        for axis in groups:
            if len(axis.overrides) == 1:
                continue
            constant = [group.overrides[0] for group in groups if group is not axis]
            options = [first.choices.get(axis.key)]
            reached: set[str] = set()
            for override in axis.overrides[1:]:
                other = self.compose([*constant, override])
                after: Any = OmegaConf.to_container(other.config, resolve=False)
                nodes, choices = {}, {}
                for key, node in after.items():
                    if node != before.get(key, MISSING):
                        nodes[key] = other.config._get_node(key)
                for group, option in other.choices.items():
                    if option != first.choices.get(group):
                        choices[group] = option
                changes[override] = _Changes(nodes, choices)
                options.append(choices.get(axis.key))
                reached |= nodes.keys()
            if reached & taken or any(self._defaults(f"{axis.key}/{name}") for name in options):
                return None
            taken |= reached
        return changes

    def _defaults(self, file: str) -> list[str]:
        """The entries of a file's defaults list, without `_self_`."""
        found = self.repository.load_config(file)
        entries = found.defaults_list if found else None
        return [str(entry) for entry in entries or () if not entry.is_self()]


def split_off_hydra(config: DictConfig, overrides: Sequence[str]) -> Composed:
    """Take the `hydra` node out of a configuration that was composed from `overrides`."""
    choices = dict(config.hydra.runtime.choices)
    with read_write(config), open_dict(config):
        del config["hydra"]
    return Composed(config, choices, tuple(overrides))


def make_repository(loader: Any, hydra_cfg: Any) -> IConfigRepository:
    """The files of options, with those in folders that a `hydra.searchpath` on the command line
    adds.
    """
    name, overrides = hydra_cfg.job.config_name, list(hydra_cfg.overrides.hydra)
    return cast(
        IConfigRepository, loader._parse_overrides_and_create_caching_repo(name, overrides)[1]
    )
