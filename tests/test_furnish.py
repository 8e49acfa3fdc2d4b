"""How often the engine is asked who owns a home, which costs it a mount of the container."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gpuspawner import furnish
from gpuspawner.furnish import Home
from gpuspawner.home import HomeMount, Owner
from gpuspawner.identity import Identity

ROOTS = Owner(0, 0, 0o755)
VOLUME = HomeMount("volume", "home-student", "/home/jovyan")


class Client:
    def __init__(self) -> None:
        self.put: list[tuple[str, str]] = []

    def put_archive(self, container: str, path: str, data: bytes) -> None:
        self.put.append((container, path))


class Ticket:
    """The part of a ticket that furnishing uses."""

    def __init__(self, container_id: str) -> None:
        self.container_id = container_id

    async def call(self, work: Callable[[], Any]) -> Any:
        return work()


class Engine:
    def __init__(self) -> None:
        self.client = Client()
        self.connection = SimpleNamespace(client=lambda: self.client)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Containers whose home was asked for; all belong to root."""
    containers: list[str] = []

    def owner_of(engine: Any, container_id: str, path: str) -> Owner:
        containers.append(container_id)
        return ROOTS

    monkeypatch.setattr(furnish, "owner_of", owner_of)
    monkeypatch.setattr(furnish, "_in_images", {})
    return containers


async def start(engine: Engine, container: str, image: str, mount: HomeMount | None) -> None:
    identity = Identity(uid=1000, gid=100)
    home = Home(mount, fresh=False)
    await furnish.furnish(
        engine,  # type: ignore[arg-type]
        Ticket(container),  # type: ignore[arg-type]
        identity,
        home,
        image_id=image,
        with_hook=False,
    )


async def test_a_home_in_the_image_is_asked_for_once_and_made_right_each_time(
    asked: list[str],
) -> None:
    engine = Engine()
    await start(engine, "first", "sha256:a", None)
    await start(engine, "second", "sha256:a", None)
    await start(engine, "other", "sha256:b", None)
    assert asked == ["first", "other"]
    assert engine.client.put == [("first", "/home"), ("second", "/home"), ("other", "/home")]


async def test_a_home_on_a_volume_is_asked_for_each_time(asked: list[str]) -> None:
    engine = Engine()
    await start(engine, "first", "sha256:a", VOLUME)
    await start(engine, "second", "sha256:a", VOLUME)
    assert asked == ["first", "second"]
