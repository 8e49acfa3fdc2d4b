"""What a command needs of the hub's configuration: the file, and a pool to look through."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path

from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

from .config import check
from .config_sections import Sections, is_set, spawner_class_of
from .errors import ConfigError
from .hubid import find_hub_id
from .pool import GPUPool
from .wiring import hub_id_path, make_engine, pool_options

#: JupyterHub's own default for ``c.JupyterHub.db_url``.
_DATABASE = "sqlite:///jupyterhub.sqlite"


def load_config(path: Path) -> Config:
    """Run a ``jupyterhub_config.py`` and return its ``c``. No hub is started.

    Raises:
        ConfigError: there is no such file, or it fails; the text names the line.
    """
    if not path.is_file():
        raise ConfigError(f"there is no file {str(path)!r}; give the hub's configuration with -f")
    loader = PyFileConfigLoader(path.name, path=str(path.resolve().parent))
    try:
        return loader.load_config()
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except Exception as error:
        # It is the admin's own code: anything may come out of it.
        raise ConfigError(f"{path}{_line(error, path)}: {type(error).__name__}: {error}") from error


def _line(error: Exception, path: Path) -> str:
    """Where in the file an exception began, such as ``, line 12``."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if Path(f.filename).name == path.name]
    return f", line {lines[-1]}" if lines else ""


def open_pool(config: Config, folder: Path, log: logging.Logger) -> GPUPool:
    """A pool that only looks, on the engine and the devices that the hub would use.

    Args:
        config: the hub's configuration.
        folder: of the configuration file, where the hub's id may be.
        log: for what the pool has to say beside its errors.

    Raises:
        ConfigError: the configuration can't be used.
    """
    spawner_class = spawner_class_of(config)
    check(config, spawner_class)
    spawner = Sections(config, spawner_class).spawner()
    options = pool_options(config)
    engine = make_engine(
        spawner.tls_config,
        spawner.client_kwargs,
        threads=options.engine_threads,
        observers=options.observers,
    )
    hub = config.JupyterHub
    database = str(hub.db_url) if is_set(hub, "db_url") else _DATABASE
    hub_id = _hub_id(hub_id_path(options.hub_id_file, database), folder)
    return GPUPool(engine, hub_id, config=config, log=log)


def _hub_id(path: Path, folder: Path) -> str:
    """The hub's id, from its working folder or beside its configuration; empty if not found."""
    for candidate in (path, folder / path.name):
        found = find_hub_id(candidate)
        if found:
            return found
    return ""
