"""Hub and engine lose sight of each other, while servers run on."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_hub import cards_in_use, containers, gpu_hub, inside
from ground.engine import Engine
from ground.injector import Injector

pytestmark = pytest.mark.parametrize("engine", ["hook"], indirect=True)

ONE = {"profile": "one-gpu"}
CONFIG = """
import gpuspawner
c.Spawner.http_timeout = 120
c.GPUPool.clean_interval_seconds = 0.5
c.GPUPool.orphan_grace_seconds = 3
gpuspawner.configure(c)
"""


def test_what_was_missed_while_the_engine_was_away_is_made_up_for(
    clean_engine: Engine, tiny_image: str, tmp_path: Path
) -> None:
    engine = clean_engine
    with (
        Injector(tmp_path / "i.sock", engine.socket) as injector,
        gpu_hub(
            tmp_path / "hub", engine, tiny_image, CONFIG, env={"DOCKER_HOST": injector.url}
        ) as hub,
    ):
        users = ("ada", "ben", "cleo", "dan")
        hub.add_users(*users)
        for user in users:
            hub.start_server(user, ONE)
        for user in users:
            hub.wait_ready(user)
        mine = {row["Labels"]["gpuspawner.user"]: row for row in containers(engine)}

        # A stop holds, though the engine does not hear of it yet.
        with injector.down():
            hub.stop_server("dan")
            hub.wait_stopped("dan")
            assert len(containers(engine)) == 4
            assert hub.start_server("dan", ONE, check=False).status_code == 503
        hub.wait(lambda: len(containers(engine)) == 3, "removed once the engine is back")

        # So does one of a hub that ends before the engine is back.
        with injector.down():
            hub.stop_server("cleo")
            hub.wait_stopped("cleo")
            hub.kill()
            hub.start()
            for user in ("ada", "ben"):
                hub.wait_ready(user)
                inside(hub, user)
            assert hub.server("cleo") is None
            engine.client.remove_container(mine["ben"]["Id"], force=True)
        hub.wait_stopped("ben")
        hub.wait(lambda: len(containers(engine)) == 1, "what nobody wants any more is swept")
        assert containers(engine)[0]["Id"] == mine["ada"]["Id"]
        uuid = inside(hub, "ada")["env"]["GPUSPAWNER_DEVICES"]
        assert uuid == mine["ada"]["Labels"]["gpuspawner.devices"]

        for user in users[1:]:
            hub.start_server(user, ONE)
        for user in users[1:]:
            hub.wait_ready(user)
        assert cards_in_use(engine) == dict.fromkeys(engine.uuids, 1)
