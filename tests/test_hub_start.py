"""Cleaning begins with the hub, whoever comes or does not come."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from dockerspawner import DockerSpawner
from traitlets.config import Config

from fakes.rows import HUB
from gpu_hub import CONFIG, containers
from gpuspawner import GPUSpawner, hub_start
from gpuspawner.wiring import SETTING
from ground.engine import Engine
from ground.hub import Hub
from ground.machine import GroundError

CONFIGURE = CONFIG + "\nimport gpuspawner\ngpuspawner.configure(c)\n"


@pytest.mark.parametrize("engine", ["hook"], indirect=True)
@pytest.mark.parametrize("version", [5, 6])
def test_a_hub_without_users_cleans_what_an_earlier_one_left(
    clean_engine: Engine,
    tiny_image: str,
    make_hub: Callable[..., Hub],
    python5: str,
    version: int,
) -> None:
    python = python5 if version == 5 else sys.executable
    hub = make_hub(CONFIGURE, start=False, engine=clean_engine, image=tiny_image, python=python)
    (hub.folder / "gpuspawner_hub_id").write_text(f"{HUB}\n")
    labels = {
        "gpuspawner.hub": HUB,
        "gpuspawner.image": clean_engine.client.inspect_image(tiny_image)["Id"],
        "gpuspawner.lease": "0" * 32,
        "gpuspawner.devices": clean_engine.uuids[0],
        "gpuspawner.user": "ada",
        "gpuspawner.server": "",
    }
    clean_engine.client.create_container(tiny_image, ["true"], labels=labels)
    hub.start()
    hub.wait(lambda: not containers(clean_engine), "cleaned, though nobody came")
    assert f"Running JupyterHub version {version}." in hub.log
    assert hub.log.count("The list of GPUs comes from") == 1


def test_a_hub_whose_id_is_unreadable_does_not_start(make_hub: Callable[..., Hub]) -> None:
    hub = make_hub(CONFIGURE.replace("c.DockerSpawner.image", "'img'"), start=False)
    (hub.folder / "gpuspawner_hub_id").write_text("not an id\n")
    with pytest.raises(GroundError, match=r"The GPU pool can't begin: the hub's id file .* holds"):
        hub.start()
    assert hub.exit_code == 1
    assert "Traceback" not in hub.log


# -- what it leaves alone -------------------------------------------------------------------------


def told(spawner_class: Any, **settings: Any) -> dict[str, Any]:
    """The hub's settings after it has told of them."""
    app = SimpleNamespace(
        spawner_class=spawner_class,
        config=Config(),
        db=None,
        log=logging.getLogger("hub"),
        extra_handlers=[],
    )
    made = {"app": app, **settings}
    hub_start._settings_made(SimpleNamespace(owner=app, new=made))
    return made


def test_the_admins_own_settings_are_not_the_hubs() -> None:
    assert SETTING not in told(GPUSpawner, app=None)


def test_a_spawner_that_a_later_line_set_is_left_alone() -> None:
    assert SETTING not in told(DockerSpawner)


def test_there_is_one_pool() -> None:
    assert told(GPUSpawner, **{SETTING: "there"})[SETTING] == "there"


def test_a_subclass_that_needs_a_real_user_begins_with_its_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Picky(GPUSpawner):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            raise LookupError(self.user.groups)

    assert SETTING not in told(Picky)
    assert "begins with the first server" in caplog.text


def test_without_a_hub_in_the_process_nothing_happens() -> None:
    hub_start.install()
