"""Reading an admin's ``c``: which sections count for the spawner, and what is set in them."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import Any

from traitlets import TraitError
from traitlets.config import Config
from traitlets.config.loader import LazyConfigValue
from traitlets.utils.importstring import import_item

from .errors import ConfigError
from .spawner import GPUSpawner


class BadConfigError(ConfigError, TraitError):
    """A ConfigError that JupyterHub prints without a traceback before it exits with status 1.

    JupyterHub does so for traitlets' own error only, so it is one of those too.
    """


@dataclass(frozen=True)
class Setting:
    """One line of the configuration."""

    section: str
    key: str
    value: Any

    @property
    def line(self) -> str:
        """As the admin wrote it: ``c.DockerSpawner.environment``."""
        return f"c.{self.section}.{self.key}"

    @property
    def added(self) -> bool:
        """True for ``c.X.y.update(…)``, ``.append(…)`` and the like."""
        return isinstance(self.value, LazyConfigValue)

    @property
    def plain(self) -> Any:
        """The value; for ``c.X.y.update(…)`` or ``.append(…)`` what is added."""
        if not self.added:
            return self.value
        # Not get_value(): it keeps its answer, and later lines would be lost.
        parts = self.value.to_dict()
        if "update" in parts:
            return parts["update"]
        inserted = [item for _, item in parts.get("inserts", ())]
        return [*parts.get("prepend", ()), *inserted, *parts.get("extend", ())]


def is_set(section: Config, key: str) -> bool:
    """True if the section has a value for the key; merely reading ``c.X.y`` is no value."""
    if not dict.__contains__(section, key):
        return False
    value = dict.__getitem__(section, key)
    return not (isinstance(value, LazyConfigValue) and not value.to_dict())


def settings(c: Config, section: str) -> Iterator[Setting]:
    """What is set in a section."""
    if not dict.__contains__(c, section):
        return
    found = dict.__getitem__(c, section)
    if isinstance(found, Config):
        for key in sorted(found):
            if is_set(found, key):
                yield Setting(section, key, dict.__getitem__(found, key))


class Sections:
    """The sections that a spawner class reads, the most general first.

    Args:
        spawner_class: GPUSpawner or an admin's subclass of it.
    """

    def __init__(self, c: Config, spawner_class: type[GPUSpawner]) -> None:
        self.spawner_class = spawner_class
        self.names: tuple[str, ...] = tuple(spawner_class.section_names())
        self._c = c

    def __iter__(self) -> Iterator[Setting]:
        for name in self.names:
            yield from settings(self._c, name)

    def of(self, key: str) -> list[Setting]:
        """Every line that sets this key; the last one counts."""
        return [setting for setting in self if setting.key == key]

    def line(self, key: str) -> str:
        """The line that counts for a key, or where it would be written."""
        lines = [setting.line for setting in self.of(key)]
        return lines[-1] if lines else f"c.GPUSpawner.{key}"

    def spawner(self) -> GPUSpawner:
        """A spawner of nobody's, with the settings as traitlets would merge them.

        Raises:
            TraitError: a value is of the wrong type.
        """
        merged = Config()
        known = GPUSpawner.class_trait_names(config=True)
        for name in self.names:
            section = Config(
                {s.key: deepcopy(s.value) for s in settings(self._c, name) if s.key in known}
            )
            merged.merge(Config({"GPUSpawner": section}))
        return spawner_of_nobody(merged)


def spawner_of_nobody(config: Config) -> GPUSpawner:
    """A spawner to check settings with.

    It has a user's name, since DockerSpawner renders the container's name as soon as an image is
    set.
    """
    return GPUSpawner(config=config, user=SimpleNamespace(name="nobody"))


def spawner_class_of(c: Config) -> type[GPUSpawner]:
    """The class that ``c.JupyterHub.spawner_class`` names, GPUSpawner where it names none.

    Raises:
        BadConfigError: it names something else.
    """
    if not is_set(c.JupyterHub, "spawner_class"):
        return GPUSpawner
    value = c.JupyterHub.spawner_class
    line = f"c.JupyterHub.spawner_class = {value!r}"
    if value == "gpu":
        return GPUSpawner
    found = _load(value, line) if isinstance(value, str) else value
    if isinstance(found, type) and issubclass(found, GPUSpawner):
        return found
    raise BadConfigError(
        f"{line}: this is not a GPUSpawner, so it can't give out GPUs; remove the line, or name "
        "a subclass of gpuspawner.GPUSpawner. Everything that DockerSpawner can be set to works "
        "on GPUSpawner too, also as c.DockerSpawner"
    )


def _load(name: str, line: str) -> Any:
    for entry in entry_points(group="jupyterhub.spawners"):
        if entry.name.lower() == name.lower():
            return entry.load()
    try:
        return import_item(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadConfigError(
            f"{line}: it can't be imported ({error}); remove the line for gpuspawner's own class, "
            "or write the subclass itself, or its full name, such as 'mymodule.MySpawner'"
        ) from error
