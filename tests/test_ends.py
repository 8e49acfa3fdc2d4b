"""However a start ends, no card stays held and no container is left behind."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import orders
from chaos.logs import faults
from gpu_hub import cards_in_use, containers, gpu_hub, inside
from ground.engine import Engine
from ground.hub import Hub
from orders import order

pytestmark = pytest.mark.parametrize("engine", ["hook"], indirect=True)

ONE = {"profile": "one-gpu"}
CPU = {"profile": "cpu"}


@pytest.fixture(scope="module")
def shared_hub(
    engine: Engine, tiny_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hub]:
    with gpu_hub(tmp_path_factory.mktemp("ends"), engine, tiny_image, orders.CONFIG) as hub:
        yield hub


@pytest.fixture
def hub(shared_hub: Hub, engine: Engine) -> Iterator[Hub]:
    yield shared_hub
    # The container is the lease: without one left, all cards can be had.
    shared_hub.wait(lambda: not containers(engine), "no container left")


def stop(hub: Hub, *users: str) -> None:
    for user in users:
        hub.stop_server(user)
    for user in users:
        hub.wait_stopped(user)


def nothing_left(hub: Hub, engine: Engine) -> None:
    """No container, and all four cards can be had."""
    hub.wait(lambda: not containers(engine), "no container left")
    users = [f"probe{time.monotonic_ns()}-{n}" for n in range(4)]
    hub.add_users(*users)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda user: hub.start_server(user, ONE, check=False), users))
    assert [a.status_code for a in answers] == [201] * 4, [a.text for a in answers]
    for user in users:
        hub.wait_ready(user)
    assert cards_in_use(engine) == dict.fromkeys(engine.uuids, 1)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda user: stop(hub, user), users))
    hub.wait(lambda: not containers(engine), "no container left")


@contextmanager
def log_of(hub: Hub) -> Iterator[list[str]]:
    """What the hub logs meanwhile, complete at the end."""
    before = len(hub.log)
    lines: list[str] = []
    yield lines
    lines.append(hub.log[before:])


@contextmanager
def held_starts(engine: Engine) -> Iterator[threading.Event]:
    """Starts of GPU containers stay inside the engine until the event is set, or to the end."""
    hook = engine.folder / "hook" / "bin" / "nvidia-container-runtime-hook"
    hold = engine.folder / "hook" / "hold"
    text = hook.read_text()
    hold.touch()
    waiting = f"while [ -e {hold} ]; do sleep 0.02; done\n"
    new = hook.with_suffix(".new")
    new.write_text(text.replace("set -e\n", f"set -e\ntouch {hold}.reached\n{waiting}"))
    new.chmod(0o755)
    new.replace(hook)
    released = threading.Event()
    released.set = lambda: hold.unlink(missing_ok=True)  # type: ignore[method-assign]
    try:
        yield released
    finally:
        released.set()
        Path(f"{hold}.reached").unlink(missing_ok=True)
        hook.write_text(text)


def start_reached(engine: Engine) -> bool:
    return (engine.folder / "hook" / "hold.reached").exists()


# -- cancels ------------------------------------------------------------------------------------


def test_cancels_at_any_moment_leave_nothing(hub: Hub, engine: Engine) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    users = [f"cancel{n}" for n in range(50)]
    hub.add_users(*users)
    delays = {user: chance.uniform(0, 1.5) for user in users}
    most: list[int] = []
    begun = len(hub.log)
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            most.append(max(cards_claimed(engine).values(), default=0))

    def come_and_go(user: str) -> int:
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(hub.start_server, user, ONE, check=False)
            over.wait(delays[user])
            hub.stop_server(user, check=False)
            asked.result()
        hub.wait(lambda: gone(hub, user), f"server of {user} gone")
        return asked.result().status_code

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with ThreadPoolExecutor(10) as pool:
            statuses = list(pool.map(come_and_go, users))
            print(f"answers: {sorted(set(statuses))}")
    finally:
        over.set()
        watcher.join()
    assert most
    assert max(most) <= 1
    # The hub tells of a cancelled POST with a traceback of its own, which ends in the cancel.
    assert not [fault.text for fault in faults(hub.log[begun:]) if fault.ours]


def gone(hub: Hub, user: str) -> bool:
    """True once the server is away; one that got ready before its cancel is stopped again."""
    server = hub.server(user)
    if server is not None and server["ready"]:
        hub.stop_server(user, check=False)
    return server is None


def cards_claimed(engine: Engine) -> dict[str, int]:
    """How many running containers have each card, by label alone: no inspection to be late."""
    count: dict[str, int] = {}
    for row in engine.client.containers():
        for uuid in (row["Labels"].get("gpuspawner.devices") or "").split(","):
            if uuid and row["State"] == "running":
                count[uuid] = count.get(uuid, 0) + 1
    return count


def test_cancel_while_the_engine_starts(hub: Hub, engine: Engine) -> None:
    user = order(hub, "canceller")
    with held_starts(engine) as held, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(hub.start_server, user, ONE, check=False)
        hub.wait(lambda: start_reached(engine), "the start is inside the engine")
        hub.stop_server(user, check=False)
        asked.result()
        hub.wait(lambda: hub.server(user) is None, "server gone")
        # The card stays taken while the engine may still start it: three others fit.
        users = [f"beside{n}" for n in range(4)]
        hub.add_users(*users)
        assert len(containers(engine)) == 1
        held.set()
    nothing_left(hub, engine)


# -- timeouts and errors ------------------------------------------------------------------------


def test_start_timeout_says_so_and_frees_the_card(hub: Hub, engine: Engine) -> None:
    user = order(hub, "slow-start", start_timeout=8)
    with held_starts(engine), log_of(hub) as log:
        answer = hub.start_server(user, ONE, check=False)
        page = unescape(hub.login(user).pending_page().text)
    assert answer.status_code == 503
    assert "took too long" in answer.json()["message"]
    assert "took too long" in page
    assert "start_timeout = 8 s" in log[0]
    assert "'Starting your server'" in log[0]
    assert "Traceback" not in log[0]


def test_a_server_that_never_answers_is_removed(hub: Hub, engine: Engine) -> None:
    user = order(hub, "mute", http_timeout=2, environment={"TINY_START_SECONDS": "600"})
    answer = hub.start_server(user, ONE, check=False)
    assert answer.status_code >= 500


def test_a_server_that_ends_at_once_is_removed(hub: Hub, engine: Engine) -> None:
    user = order(hub, "brief", http_timeout=3, environment={"TINY_EXIT": "3"})
    answer = hub.start_server(user, ONE, check=False)
    assert answer.status_code >= 500


def refused(hub: Hub, user: str, options: dict[str, str] = ONE) -> tuple[str, str]:
    """What user and admin read of a start that must be refused with 503."""
    with log_of(hub) as log:
        answer = hub.start_server(user, options, check=False)
    page = hub.login(user).pending_page()
    assert answer.status_code == 503, answer.text
    message = answer.json()["message"]
    assert message in unescape(page.text)
    assert len(message.split()) < 40
    assert "Traceback" not in log[0]
    assert "docker" not in message.lower()
    return message, log[0]


@pytest.mark.parametrize(
    ("engines_words", "users_words", "fix"),
    [
        (
            "nvidia-container-cli: device error: GPU-x: unknown device",
            "stopped working before your server could use it",
            "nvidia-smi -L",
        ),
        (
            "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=13.0",
            "needs CUDA 13.0",
            "Update the driver",
        ),
        ("nvidia-container-cli: initialization error", "could not be started", "nvidia-smi"),
    ],
)
def test_an_engine_error_at_start(
    hub: Hub, engine: Engine, engines_words: str, users_words: str, fix: str
) -> None:
    engine.fail_hook(engines_words)
    try:
        user = order(hub, f"err{abs(hash(fix)) % 10**8}")
        message, log = refused(hub, user)
    finally:
        engine.fail_hook("")
    assert users_words in message
    assert fix in log


@pytest.mark.parametrize(
    ("settings", "users_words", "fix"),
    [
        ({"image": "nowhere:1"}, "could not be found", "No such image"),
        ({"image": "127.0.0.1:9/x", "pull_policy": "ifnotpresent"}, "could not be found", "9/x"),
        ({"network_name": "no-such-net"}, "could not be started", "docker network create"),
        ({"volumes": {"/nowhere/at/all": "relative/path"}}, "could not be started", "mount"),
        ({"mem_limit": 1024}, "could not be started", "mem_limit"),
        ({"cmd": ["/no/such/program"]}, "could not be", "cmd"),
        ({"extra_host_config": {"privileged": True}}, "don't allow", "allow_privileged"),
        ({"uid": 0}, "could not be started", "allow_root"),
        ({"extra_host_config": {"binds": 3}}, "don't allow", "extra_host_config or"),
        (
            {"extra_host_config": {"network_mode": "none"}},
            "could not be started",
            "network_name is",
        ),
        ({"volumes": {"bad name!": "/data"}}, "could not be started", "volumes"),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else None,
)
def test_what_the_engine_refuses(
    hub: Hub, settings: dict[str, Any], users_words: str, fix: str
) -> None:
    user = order(
        hub, f"bad-{next(iter(settings)).replace('_', '-')}{len(str(settings))}", **settings
    )
    message, log = refused(hub, user)
    assert users_words in message
    assert fix in log


def test_the_admins_hook_failing_holds_nothing(hub: Hub) -> None:
    user = order(hub, "hooked", fail="no licence")
    assert hub.start_server(user, ONE, check=False).status_code == 500
    assert "no licence" in hub.log


def test_a_post_start_command_that_fails_does_not_hurt(hub: Hub) -> None:
    user = order(hub, "poster", post_start_cmd="/no/such/command")
    hub.start_server(user, ONE)
    hub.wait_ready(user)
    stop(hub, user)


def test_a_deleted_user_leaves_nothing(hub: Hub) -> None:
    user = order(hub, "leaver")
    hub.start_server(user, ONE)
    hub.wait_ready(user)
    hub.api("DELETE", f"users/{user}")


def test_a_foreign_container_of_the_same_name_is_left_alone(
    hub: Hub, engine: Engine, tiny_image: str
) -> None:
    user = order(hub, "namesake")
    foreign = engine.client.create_container(tiny_image, ["sleep", "600"], name="jupyter-namesake")
    engine.client.start(foreign["Id"])
    try:
        hub.start_server(user, ONE)
        hub.wait_ready(user)
        names = {name for row in containers(engine) for name in row["Names"]}
        assert inside(hub, user)["uid"] == 1000
        lease = next(
            row["Labels"]["gpuspawner.lease"]
            for row in containers(engine)
            if row["Labels"].get("gpuspawner.user") == user
        )
        assert names == {"/jupyter-namesake", f"/jupyter-namesake-{lease[:8]}"}
        stop(hub, user)
        hub.wait(lambda: len(containers(engine)) == 1, "ours gone")
        assert engine.client.inspect_container(foreign["Id"])["State"]["Running"]
    finally:
        engine.client.remove_container(foreign["Id"], force=True)
    # Back to the usual name once it is free.
    hub.start_server(user, CPU)
    hub.wait_ready(user)
    assert containers(engine)[0]["Names"] == ["/jupyter-namesake"]
    stop(hub, user)


# -- the engine away ----------------------------------------------------------------------------


def test_engine_away_is_said_at_all_doors_and_comes_back(hub: Hub, engine: Engine) -> None:
    user = order(hub, "patient")
    student = hub.login(user)
    engine.stop_daemon()
    try:
        answer = hub.start_server(user, ONE, check=False)
        assert answer.status_code == 503
        assert "can't reach the system that starts servers" in answer.json()["message"]
        form = student.get_form()
        assert form.status_code == 200
        assert "so nothing new can start" in unescape(form.text)
        assert "start without a GPU" not in unescape(form.text)
        page = student.refused_form(CPU)
        assert page.status_code == 503
        assert "can't reach the system that starts servers" in unescape(page.text)
        assert 'reason="gpu-engine"' in hub.api("GET", "../metrics").text
    finally:
        engine.start_daemon()
    assert hub.start_server(user, ONE).status_code == 201
    hub.wait_ready(user)
    stop(hub, user)


def test_a_frozen_engine_blocks_nothing_but_starts(hub: Hub, engine: Engine) -> None:
    user = order(hub, "frozen")
    engine.freeze()
    try:
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(hub.start_server, user, ONE, check=False)
            hub.wait(lambda: hub.server(user) is not None, "the start is pending")
            for _ in range(5):
                assert hub.api("GET", "info").ok
            assert not asked.done()
            assert asked.result().status_code == 503
    finally:
        engine.thaw()


def test_frozen_in_mid_start(hub: Hub, engine: Engine) -> None:
    """Frozen at some moment between create and start; whatever was begun is followed to its end."""
    users = [f"frost{n}" for n in range(3)]
    hub.add_users(*users)
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(hub.start_server, user, ONE, check=False) for user in users]
        hub.wait(lambda: containers(engine), "something is created")
        engine.freeze()
        try:
            for user in users:
                assert (
                    hub.stop_server(
                        user,
                        check=False,
                    ).status_code
                    < 600
                )
        finally:
            engine.thaw()
        for answer in asked:
            answer.result()
    for user in users:
        hub.wait(partial(gone, hub, user), f"server of {user} gone")


# -- pulls --------------------------------------------------------------------------------------


@pytest.fixture
def mute_registry() -> Iterator[int]:
    """Port of something that takes connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield listener.getsockname()[1]


def test_a_slow_pull_is_told(hub: Hub, mute_registry: int) -> None:
    image = f"127.0.0.1:{mute_registry}/x"
    user = order(hub, "waiting", image=image, pull_policy="ifnotpresent", pull_timeout=1)
    message, log = refused(hub, user)
    assert "still being fetched" in message
    assert "pull_timeout = 1 s" in log


def test_slow_pulls_hold_nobody_up(hub: Hub, mute_registry: int) -> None:
    users = [f"puller{n}" for n in range(16)]
    image = f"127.0.0.1:{mute_registry}/x"
    order(hub, *users, image=image, pull_policy="ifnotpresent", pull_timeout=600)
    hub.add_users("bystander")
    with ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(hub.start_server, user, ONE, check=False) for user in users]
        hub.wait(lambda: all(hub.server(u) for u in users), "all are pulling")
        hub.start_server("bystander", ONE)
        hub.wait_ready("bystander")
        stop(hub, "bystander")
        assert not any(a.done() for a in asked)
        for user in users:
            hub.stop_server(user)
        assert {a.result().status_code for a in asked} == {409}
    for user in users:
        hub.wait(partial(gone, hub, user), f"server of {user} gone")


# -- the hub's own end --------------------------------------------------------------------------


def test_sigterm_in_mid_start_leaves_no_container(
    engine: Engine, tiny_image: str, tmp_path: Path
) -> None:
    with (
        gpu_hub(tmp_path / "hub", engine, tiny_image, orders.CONFIG) as hub,
        held_starts(engine) as held,
    ):
        hub.add_users("ada")
        with ThreadPoolExecutor(1) as pool:
            pool.submit(hub.start_server, "ada", ONE, check=False)
            hub.wait(lambda: start_reached(engine), "the start is inside the engine")
            os.kill(hub.pid, signal.SIGTERM)
            held.set()
            hub.stop()
    assert hub.exit_code == 0
    assert not containers(engine)


def test_killed_in_mid_start_the_next_hub_clears_up(
    engine: Engine, tiny_image: str, tmp_path: Path
) -> None:
    users = [f"dead{n}" for n in range(4)]
    with gpu_hub(tmp_path / "hub", engine, tiny_image, orders.CONFIG) as hub:
        with held_starts(engine) as held, ThreadPoolExecutor(4) as pool:
            hub.add_users(*users)
            for user in users:
                pool.submit(hub.start_server, user, ONE, check=False)
            hub.wait(lambda: len(containers(engine)) == 4, "four are created")
            hub.wait(lambda: start_reached(engine), "a start is inside the engine")
            hub.kill()
            before = {row["Id"] for row in containers(engine)}
            held.set()
        hub.start()
        # Each of them is either served again or gone; nothing in between stays.
        hub.wait(lambda: settled(hub, engine, users), "settled")
        assert {row["Id"] for row in containers(engine)} <= before
        running = [user for user in users if hub.server(user)]
        for user in running:
            inside(hub, user)
        stop(hub, *running)
        nothing_left(hub, engine)


def test_what_a_killed_hub_created_is_cleaned_before_anybody_asks(
    engine: Engine, tiny_image: str, tmp_path: Path
) -> None:
    with gpu_hub(tmp_path / "hub", engine, tiny_image) as hub:
        hub.add_users("ada")
        hub.start_server("ada", ONE)
        hub.wait_ready("ada")
        [ours] = containers(engine)
        hub.kill()
        others = set(engine.uuids) - {ours["Labels"]["gpuspawner.devices"]}
        for n, uuid in enumerate(others):
            labels = ours["Labels"] | {
                "gpuspawner.user": f"gone{n}",
                "gpuspawner.lease": f"{n:032x}",
                "gpuspawner.devices": uuid,
            }
            engine.client.create_container(tiny_image, ["true"], labels=labels)
        hub.start()
        hub.wait(lambda: len(containers(engine)) == 1, "leftovers cleaned")
        assert hub.wait_ready("ada")
        stop(hub, "ada")


def settled(hub: Hub, engine: Engine, users: list[str]) -> bool:
    rows = containers(engine)
    owners = {row["Labels"]["gpuspawner.user"] for row in rows if row["State"] == "running"}
    served = {u for u in users if (s := hub.server(u)) and s["ready"]}
    return owners == served and len(rows) == len(owners)
