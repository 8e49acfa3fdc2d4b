"""Every fault of the engine at every call of a start and a stop: the real spawner, a real engine.

Between them stands the injector. The oracle reads the engine past it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from gpuspawner import furnish, removal
from gpuspawner.pool import GPUPool
from gpuspawner.refusal import GPURefusal
from ground import image
from ground.engine import Engine
from ground.injector import Injector
from ground.injector_faults import Kind
from real_spawner import ONE, RealHub

pytestmark = pytest.mark.parametrize("engine", ["hook"], indirect=True)

#: A fault in the test itself, never a measure.
STUCK_SECONDS = 120.0

#: The calls of a start, in their order, as far as all of them are made each time.
START = (
    "list",
    "info",
    "image",
    "create",
    "inspect",
    "archive-get",
    "start",
    "exec-create",
    "exec-start",
)
STOP = ("list", "stop", "remove")
SHARP: tuple[Kind, ...] = (
    "500-json",
    "500-html",
    "500-empty",
    "200-list",
    "reset",
    "cut",
    "torn",
    "garbled",
)


@pytest.fixture
def injector(clean_engine: Engine, tmp_path: Path) -> Iterator[Injector]:
    with Injector(tmp_path / "i", clean_engine.socket) as made:
        yield made


@pytest.fixture
async def hub(
    injector: Injector, tiny_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RealHub]:
    # Its rounds would take the faults that are meant for the start.
    monkeypatch.setattr(GPUPool, "start_cleaner", lambda _: None)
    # A create that was reset is waited for as long as its container may come.
    made = RealHub(tmp_path, url=injector.url, image=tiny_image, created_grace_seconds=1)
    yield made
    made.close()


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition, asked in a thread: it may ask the engine."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + STUCK_SECONDS
    while not await asyncio.to_thread(condition):
        assert loop.time() < deadline, f"never: {what}"
        await asyncio.sleep(0.05)


async def nothing_left(hub: RealHub, engine: Engine) -> None:
    """No container, no reservation, and every card can be had."""
    await until(lambda: hub.idle, "nothing in flight")
    assert not await asyncio.to_thread(engine.client.containers, all=True)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + STUCK_SECONDS
    # A card whose holder has just ended is offered once the driver was asked again.
    while True:
        cards = hub.pool.cards(await hub.pool.view(probe_age_seconds=0))
        if not any(card.load or card.unavailable for card in cards):
            return
        assert loop.time() < deadline, f"never free: {cards}"
        await asyncio.sleep(0.05)


def forget(hub: RealHub) -> None:
    """Have the hub ask again for what it remembers of engine and image."""
    hub.pool.engine._info_at = -math.inf
    furnish._in_images.clear()


def in_words(refusal: GPURefusal) -> None:
    text = refusal.jupyterhub_message
    assert 5 < len(text.split()) < 40
    assert "docker" not in text.lower()


# -- sharp faults -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SHARP)
async def test_a_fault_at_any_call_leaves_nothing_and_holds_nothing(
    hub: RealHub, injector: Injector, engine: Engine, kind: Kind
) -> None:
    for operation in START:
        forget(hub)
        with injector.fault(operation, kind, times=1) as fault:
            try:
                await hub.start("ada")
            except GPURefusal as refusal:
                in_words(refusal)
            assert fault.met, operation
        await hub.stop("ada")
        await nothing_left(hub, engine)
    await hub.start("ada")
    for operation in STOP:
        await hub.start("ben")
        with injector.fault(operation, kind, times=1) as fault:
            await hub.stop("ben")
            await until(lambda met=fault.met: met, operation)  # type: ignore[misc]
        await until(lambda: hub.idle, "it has stopped")
        assert await hub.poll("ada") is None
    await hub.stop("ada")
    await nothing_left(hub, engine)


async def test_no_fault_ends_a_live_server(hub: RealHub, injector: Injector) -> None:
    ada = await hub.start("ada")
    devices = ada.devices
    for operation in ("list", "inspect", "*"):
        for kind in SHARP:
            with injector.fault(operation, kind):
                assert await hub.poll("ada") is None
    with injector.down():
        assert await hub.poll("ada") is None
        with pytest.raises(GPURefusal) as refused:
            await hub.start("ben")
        in_words(refused.value)
    assert await hub.poll("ada") is None
    assert hub.spawner("ada").devices == devices
    await hub.start("ben")
    assert set(hub.spawner("ben").devices).isdisjoint(devices)
    await hub.stop("ada")
    await hub.stop("ben")


# -- slow and silent ----------------------------------------------------------------------------


async def test_the_hub_goes_on_while_any_call_is_slow(
    hub: RealHub, injector: Injector, engine: Engine
) -> None:
    """Released by the event loop itself: one that waited for a call would wait for ever."""
    for operation in ("version", *START):
        forget(hub)
        with injector.fault(operation, "slow", times=1, seconds=STUCK_SECONDS) as fault:
            starting = hub.begin_start("ada")
            await asyncio.to_thread(fault.wait_met, timeout_seconds=STUCK_SECONDS)
            fault.release()
            # Only the look at a container's cards, and a question, may be given up for silence.
            with contextlib.suppress(GPURefusal):
                await starting
            assert not fault.expired, operation
        await hub.stop("ada")
        await until(lambda: hub.idle, "it has stopped")
    for operation in STOP:
        await hub.start("ada")
        with injector.fault(operation, "slow", times=1, seconds=STUCK_SECONDS) as fault:
            stopping = asyncio.ensure_future(hub.stop("ada"))
            await asyncio.to_thread(fault.wait_met, timeout_seconds=STUCK_SECONDS)
            fault.release()
            await stopping
            assert not fault.expired, operation
        await until(lambda: hub.idle, "it has stopped")
    await nothing_left(hub, engine)


@pytest.mark.parametrize("kind", ["hang", "mute"])
@pytest.mark.parametrize("operation", ["image", "create", "archive-get", "start", "inspect"])
async def test_a_start_that_is_cancelled_while_a_call_hangs_leaves_nothing(
    hub: RealHub, injector: Injector, engine: Engine, operation: str, kind: Kind
) -> None:
    forget(hub)
    with injector.fault(operation, kind) as fault:
        starting = hub.begin_start("ada")
        await asyncio.to_thread(fault.wait_met, timeout_seconds=STUCK_SECONDS)
        await hub.stop("ada")
        with pytest.raises((asyncio.CancelledError, GPURefusal)):
            await starting  # a refusal where it was not admitted yet
        # Somebody else's card, whatever may still come of the first.
        if operation not in ("image", "inspect"):
            assert len(hub.pool.attempts) == 1
    await nothing_left(hub, engine)
    await hub.start("ada")
    await hub.stop("ada")


async def test_an_engine_that_is_frozen_in_mid_stop(
    hub: RealHub, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's stop is over; the card is not free before the engine has said so."""
    monkeypatch.setattr("gpuspawner.standing.STOP_SECONDS", 0.2)
    for name in ("ada", "ben", "cleo", "dan"):
        await hub.start(name)
    freed = set(hub.spawner("ada").devices)
    engine.freeze()
    try:
        hub.pool.engine._list_timeout_seconds = 0.2
        assert await hub.poll("ben") is None
        await hub.stop("ada")
        assert hub.spawner("ada").server is None
        assert not hub.idle
        with pytest.raises(GPURefusal) as refused:
            await hub.start("eve")
        in_words(refused.value)
    finally:
        engine.thaw()
        hub.pool.engine._list_timeout_seconds = 10
    await until(lambda: hub.idle, "it has stopped")
    eve = await hub.start("eve")
    assert set(eve.devices) == freed
    for name in ("ben", "cleo", "dan", "eve"):
        assert await hub.poll(name) is None
        await hub.stop(name)


async def test_a_removal_that_hangs_holds_up_nobody_else_and_is_told(
    hub: RealHub,
    injector: Injector,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("gpuspawner.standing.STOP_SECONDS", 0.2)
    monkeypatch.setattr(removal, "STUCK_SECONDS", 0.5)
    hub.pool.log.propagate = True
    ada = await hub.start("ada")
    container, devices = ada.object_id, set(ada.devices)
    await hub.start("ben")
    with injector.fault("remove", "hang", when=lambda call: container in call.path) as fault:
        await hub.stop("ada")
        await asyncio.to_thread(fault.wait_met, timeout_seconds=STUCK_SECONDS)
        await hub.stop("ben")
        await until(lambda: len(engine.client.containers(all=True)) == 1, "ben's is gone")
        for name in ("cleo", "dan", "eve"):
            assert devices.isdisjoint((await hub.start(name)).devices)
        with pytest.raises(GPURefusal, match="in use"):
            await hub.start("fay")
        for name in ("cleo", "dan", "eve"):
            await hub.stop(name)
        await until(lambda: "can't be removed" in caplog.text, "it is told")
    await nothing_left(hub, engine)


# -- the engine itself goes ---------------------------------------------------------------------


async def test_a_stop_while_the_engine_is_away_holds(
    hub: RealHub, injector: Injector, engine: Engine
) -> None:
    await hub.start("ada")
    with injector.down():
        await hub.stop("ada")
        assert hub.spawner("ada").server is None
        assert len(engine.client.containers()) == 1
        assert not hub.idle
    await nothing_left(hub, engine)


async def test_an_engine_that_restarts_ends_servers_and_frees_their_cards(
    hub: RealHub, engine: Engine
) -> None:
    for name in ("ada", "ben"):
        await hub.start(name)
    engine.stop_daemon()
    try:
        assert await hub.poll("ada") is None
        with pytest.raises(GPURefusal):
            await hub.start("cleo")
    finally:
        engine.start_daemon()
    for name in ("ada", "ben"):
        assert await hub.poll(name) is not None
        assert hub.spawner(name).server is None
    await nothing_left(hub, engine)
    await hub.start("ada")
    await hub.stop("ada")


@pytest.mark.parametrize("crash", [False, True], ids=["restarted", "killed"])
async def test_with_live_restore_servers_and_cards_outlive_the_engine(
    live_engine: Engine, tmp_path: Path, crash: bool
) -> None:
    hub = RealHub(tmp_path, url=live_engine.url, image=image.TINY)
    try:
        before = {name: (await hub.start(name)).devices for name in ("ada", "ben")}
        ids = {row["Id"] for row in live_engine.client.containers()}
        if crash:
            live_engine.kill()
        else:
            live_engine.stop_daemon()
        assert await hub.poll("ada") is None
        live_engine.start_daemon()
        for name, devices in before.items():
            assert await hub.poll(name) is None
            assert hub.spawner(name).devices == devices
        assert {row["Id"] for row in live_engine.client.containers()} == ids
        for name in ("cleo", "dan"):
            await hub.start(name)
        with pytest.raises(GPURefusal, match="in use"):
            await hub.start("eve", ONE)
        for name in ("ada", "ben", "cleo", "dan"):
            await hub.stop(name)
        await nothing_left(hub, live_engine)
    finally:
        hub.close()


@pytest.fixture(scope="module")
def live_engine(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine of its own whose containers outlive it."""
    with Engine(tmp_path_factory.mktemp("live"), engine.kind, live_restore=True) as made:
        image.load_tiny(made.client)
        yield made
