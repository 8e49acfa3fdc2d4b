"""``gpuspawner.configure(c)``, the last line of ``jupyterhub_config.py``.

It fills in what is not set and checks all that is, so that a mistake stops the hub at its start
with the line to change, instead of a user at theirs.
"""

from __future__ import annotations

from traitlets.config import Config
from traitlets.log import get_logger

from . import config_checks as checks
from . import hub_pages, hub_start, profile_checks
from .config_sections import BadConfigError, Sections, is_set, settings, spawner_class_of
from .spawner import GPUSpawner


def configure(c: Config, *, swarm: bool = False) -> None:
    """Set the hub up for GPUs, and check its configuration.

    Sets ``c.JupyterHub.spawner_class`` (an admin's own subclass of GPUSpawner is kept) and
    ``c.JupyterHub.cleanup_servers = False``, since the hub's default stops every server when the
    hub stops. What is set already is never replaced. May be called twice.

    Args:
        c: the ``c`` of ``jupyterhub_config.py``.
        swarm: for Docker Swarm; not in this version.

    Raises:
        BadConfigError: the configuration can't be used. JupyterHub prints the text, which names the
            line and what to write instead, and exits with status 1.
    """
    if swarm:
        raise BadConfigError(
            "gpuspawner.configure(c, swarm=True): Docker Swarm is not in this version; "
            "use gpuspawner.configure(c)"
        )
    hub = c.JupyterHub
    spawner_class = spawner_class_of(c)
    if not is_set(hub, "spawner_class"):
        hub.spawner_class = GPUSpawner
    if not is_set(hub, "cleanup_servers"):
        hub.cleanup_servers = False
    paths = "additional_profile_form_template_paths"
    if "KubeSpawner" in c and is_set(c.KubeSpawner, paths) and not is_set(c.GPUSpawner, paths):
        c.GPUSpawner[paths] = c.KubeSpawner[paths]
    warnings = check(c, spawner_class)
    for warning in warnings:
        get_logger().warning("%s", warning)
    hub_start.install()
    hub_pages.add_pages(hub)


def check(c: Config, spawner_class: type[GPUSpawner]) -> list[str]:
    """Check a configuration without changing it.

    Returns:
        Warnings for the log.

    Raises:
        BadConfigError: naming the line and what is allowed.
    """
    sections = Sections(c, spawner_class)
    checks.check_names(c, sections)
    checks.check_types(sections)
    checks.check_pool(c)
    spawner = sections.spawner()
    checks.check_spawner(sections, spawner)
    checks.check_collisions(sections, spawner)
    booked = any(s.key == "bookings" and s.plain for s in settings(c, "GPUPool"))
    warnings = profile_checks.check_profiles(sections, spawner, booked=booked)
    if is_set(c.JupyterHub, "cleanup_servers") and c.JupyterHub.cleanup_servers:
        warnings.append(
            "c.JupyterHub.cleanup_servers is True: every stop or restart of the hub stops all "
            "servers. Remove the line to let them run on."
        )
    return warnings
