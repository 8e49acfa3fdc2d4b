"""Adds what gpuspawner tells users to the hub's own home page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from jupyterhub._data import DATA_FILES_PATH
from traitlets.config import Config
from traitlets.config.loader import LazyConfigValue

from .config_sections import is_set
from .notices import notices_for

#: Folder of the pages that extend the hub's.
TEMPLATES = str(Path(__file__).with_name("templates") / "hub")
#: Name of the variable that they read.
VARIABLE = "gpuspawner_notices"


def add_pages(hub: Config) -> None:
    """Add the page and its variable to ``c.JupyterHub``; an admin's own pages come first."""
    data = str(hub.data_files_path) if is_set(hub, "data_files_path") else DATA_FILES_PATH
    own = os.path.join(data, "templates")  # noqa: PTH118 - as JupyterHub writes it
    configured = hub.template_paths if is_set(hub, "template_paths") else []
    hub.template_paths = _with_ours(configured, own)
    if not is_set(hub, "template_vars"):
        hub.template_vars = {VARIABLE: notices_for}
    elif isinstance(hub.template_vars, LazyConfigValue):
        hub.template_vars.update({VARIABLE: notices_for})
    else:
        hub.template_vars = {**hub.template_vars, VARIABLE: notices_for}


def _with_ours(configured: Any, own: str) -> list[str]:
    """Our folder behind the admin's and before the hub's ``own``."""
    if isinstance(configured, LazyConfigValue):
        configured = configured.get_value([own])
    paths = [path for path in configured if path != TEMPLATES]
    place = paths.index(own) if own in paths else len(paths)
    return [*paths[:place], TEMPLATES, *paths[place:]]
