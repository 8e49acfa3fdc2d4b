"""Where a server's uid, gid and groups come from, on a real engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpu_hub import containers, gpu_hub, inside
from ground.engine import Engine
from ground.hub import Hub
from orders import CONFIG, order

pytestmark = pytest.mark.parametrize("engine", ["hook"], indirect=True)

CPU = {"profile": "cpu"}
AUTH_STATE = """
from jupyterhub.auth import DummyAuthenticator

class Directory(DummyAuthenticator):
    async def authenticate(self, handler, data):
        name = await super().authenticate(handler, data)
        numbers = {"uidNumber": ["20001"], "gidNumber": "20002", "groups": [4000, 4001]}
        state = {} if name == "blank" else {"person": numbers}
        return name and {"name": name, "auth_state": state}

c.JupyterHub.authenticator_class = Directory
c.Directory.password = c.DummyAuthenticator.password
c.Authenticator.enable_auth_state = True
c.CryptKeeper.keys = ["11" * 32]
"""
FROM_STATE = {
    "auth_state": {
        "uid": "person.uidNumber",
        "gid": "person.gidNumber",
        "supplemental_gids": "person.groups",
    }
}


@pytest.fixture(scope="module")
def shared_hub(
    engine: Engine, tiny_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("identity")
    with gpu_hub(folder, engine, tiny_image, CONFIG + AUTH_STATE) as hub:
        yield hub


@pytest.fixture
def hub(shared_hub: Hub, engine: Engine) -> Iterator[Hub]:
    yield shared_hub
    for row in containers(engine):
        shared_hub.stop_server(row["Labels"]["gpuspawner.user"])
    shared_hub.wait(lambda: not containers(engine), "no container left")


def numbers(hub: Hub, user: str) -> tuple[int, int, set[int]]:
    """uid, gid and further groups of the server's own process."""
    hub.start_server(user, CPU)
    hub.wait_ready(user)
    seen = inside(hub, user)
    return seen["uid"], seen["gid"], set(seen["groups"]) - {seen["gid"]}


def test_settings_and_callables(hub: Hub) -> None:
    user = order(
        hub,
        "callable",
        python={
            "uid": "lambda spawner: 20000 + len(spawner.user.name)",
            "gid": "lambda spawner: __import__('asyncio').sleep(0.01, 3000)",
            "supplemental_gids": "lambda spawner: [4000, 4001]",
        },
    )
    assert numbers(hub, user) == (20008, 3000, {4000, 4001})
    env = inside(hub, user)["env"]
    assert (env["NB_UID"], env["NB_GID"]) == ("20008", "3000")


def test_auth_state(hub: Hub) -> None:
    user = order(hub, "state", identity_from=FROM_STATE)
    hub.login(user)
    assert numbers(hub, user) == (20001, 20002, {4000, 4001})


def test_passwd(hub: Hub) -> None:
    # Any Debian or Ubuntu has this user, with a group of its own.
    assert numbers(hub, order(hub, "games", identity_from="passwd"))[:2] == (5, 60)


@pytest.mark.parametrize(
    ("user", "settings", "cause"),
    [
        ("root-uid", {"uid": 0}, "GPUSpawner.uid is 0, which is root"),
        ("root-gid", {"gid": 0}, "GPUSpawner.gid has group 0"),
        ("root-more", {"supplemental_gids": [0]}, "GPUSpawner.supplemental_gids has group 0"),
        ("root", {"identity_from": "passwd"}, "GPUSpawner.uid is 0 (from passwd)"),
        ("nobody-here", {"identity_from": "passwd"}, "has no user 'nobody-here'"),
        ("blank", {"identity_from": FROM_STATE}, "the user's auth_state has no 'person' there"),
        ("stranger", {"identity_from": FROM_STATE}, "this user has no auth_state"),
        ("text", {"python": {"uid": "lambda spawner: 'many'"}}, "GPUSpawner.uid is 'many'"),
    ],
)
def test_no_identity_no_server(
    hub: Hub, engine: Engine, user: str, settings: dict[str, object], cause: str
) -> None:
    order(hub, user, **settings)
    if user == "blank":
        hub.login(user)
    begun = len(hub.log)
    answer = hub.start_server(user, CPU, check=False)
    assert answer.status_code == 503
    assert "could not be started" in answer.json()["message"]
    log = hub.log[begun:]
    assert cause in log
    assert "Traceback" not in log
    assert not containers(engine)


def test_root_where_the_admin_allows_it(hub: Hub) -> None:
    assert numbers(hub, order(hub, "allowed", uid=0, gid=0, allow_root=True))[:2] == (0, 0)
