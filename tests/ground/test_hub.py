"""A stock DockerSpawner on a private engine, driven the way the product's own tests drive it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ground.engine import Engine
from ground.hub import Hub
from ground.machine import GroundError

MakeHub = Callable[..., Hub]


def test_student_gets_and_stops_a_server(
    clean_engine: Engine, tiny_image: str, make_hub: MakeHub
) -> None:
    hub = make_hub(engine=clean_engine, image=tiny_image)
    student = hub.login("alice")
    assert student.post_form().status_code == 302
    hub.wait_ready("alice")
    facts = hub.user_get("alice", "env").json()
    assert facts["env"]["JUPYTERHUB_USER"] == "alice"
    assert student.open_server("api").headers["X-JupyterHub-Version"]
    assert len(clean_engine.client.containers()) == 1

    hub.stop_server("alice")
    hub.wait_stopped("alice")
    assert clean_engine.client.containers(all=True) == []


def test_server_outlives_a_killed_hub(
    clean_engine: Engine, tiny_image: str, make_hub: MakeHub
) -> None:
    hub = make_hub(engine=clean_engine, image=tiny_image)
    hub.add_users("bob")
    hub.start_server("bob")
    events = list(hub.progress("bob"))
    assert events[-1]["ready"]

    hub.kill()
    assert hub.exit_code == -9
    hub.start()
    assert hub.wait_ready("bob")["ready"]
    assert hub.user_get("bob", "api").status_code == 200


def test_wrong_password_and_unknown_token_are_refused(make_hub: MakeHub) -> None:
    hub = make_hub("c.JupyterHub.spawner_class = 'simple'")
    with pytest.raises(GroundError, match="refused: 403"):
        hub.login("alice", "wrong")
    assert (
        hub.api("GET", "users", headers={"Authorization": "token no"}, check=False).status_code
        == 403
    )
