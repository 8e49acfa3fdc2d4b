"""Setting a spawner's traits from a profile's ``spawner_override``."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

from traitlets import HasTraits

from .errors import ConfigError

#: Packages whose traits that are no settings are theirs alone: the user, the hub, the handler…
_THEIRS = ("gpuspawner", "dockerspawner", "jupyterhub", "traitlets")
#: Settings that are callables themselves: set as they are, for those who call them later.
_CALLED_LATER = frozenset({"pre_spawn_hook", "progress_ready_hook", "format_volume_name"})


def settable(spawner_class: type[HasTraits]) -> frozenset[str]:
    """Names that a profile may set: settings, and any trait of an admin's own subclass."""
    return frozenset(
        name
        for name, trait in spawner_class.class_traits().items()
        if trait.metadata.get("config") or _own(trait)
    )


def _own(trait: Any) -> bool:
    return str(trait.this_class.__module__).partition(".")[0] not in _THEIRS


async def set_overrides(
    spawner: Any, overrides: Iterable[Mapping[str, Any]], before: dict[str, Any]
) -> None:
    """Set what a profile and its options say, in their order. A value may be made by a callable.

    Args:
        before: is given the value that each setting had before.

    Raises:
        ConfigError: a value can't be made, or does not fit its setting.
    """
    for override in overrides:
        for key, given in override.items():
            await _set_made(spawner, key, given, before)


async def _set_made(spawner: Any, key: str, given: Any, before: dict[str, Any]) -> None:
    try:
        before.setdefault(key, getattr(spawner, key))
        value = given(spawner) if callable(given) and key not in _CALLED_LATER else given
        if inspect.isawaitable(value):
            value = await value
        set_override(spawner, key, value)
    except Exception as error:  # an admin's callable, or a trait's own way to fail
        raise ConfigError(f"{key}: {type(error).__name__}: {error}") from error


def set_override(spawner: Any, key: str, value: Any) -> None:
    """Set a trait; a dict is merged into what is there.

    Raises:
        TraitError: the value does not fit. The traits of some settings raise others, too.
    """
    current = getattr(spawner, key)
    if isinstance(value, Mapping) and isinstance(current, Mapping):
        value = merged(current, value)
    setattr(spawner, key, value if callable(value) else deepcopy(value))


def merged(current: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """A new dict: ``current`` with ``extra`` merged in, dicts within dicts too; None removes."""
    result = deepcopy(dict(current))
    for key, value in extra.items():
        old = result.get(key)
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            result[key] = merged(old if isinstance(old, Mapping) else {}, value)
        else:
            result[key] = deepcopy(value)
    return result
