"""Planted on a real engine: what must never be is seen, and what the engine forgot is ended."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos.ends import Ends
from chaos.hands import Hands, exec_hangs, set_frozen
from chaos.noise import Doing, Threads
from chaos.oracle import Oracle
from chaos.outages import START_SECONDS
from chaos.watch import Watch
from chaos.wire import Refused, Silent, Wire
from ground import image
from ground.engine import Engine


@pytest.fixture(scope="module")
def engine(can_run_engines: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine of its own: it is killed here."""
    folder = tmp_path_factory.mktemp("watch")
    with Engine(folder / "e", "hook", live_restore=True) as started:
        image.load_tiny(started.client)
        yield started


@pytest.fixture
def wire(engine: Engine) -> Iterator[Wire]:
    yield Wire(engine.socket)
    engine.remove_containers()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def run(wire: Wire, card: str, **labels: str) -> str:
    """A container by hand on a card; with labels it says it is a hub's."""
    request = {"Driver": "nvidia", "DeviceIDs": [card], "Capabilities": [["gpu"]]}
    body: dict[str, Any] = {
        "Image": image.TINY,
        "Cmd": ["sleep", "3600"],
        "Labels": {f"gpuspawner.{key}": value for key, value in labels.items()},
        "HostConfig": {"DeviceRequests": [request]},
    }
    identity: str = wire.ask("POST", "/containers/create", body=body)["Id"]
    wire.ask("POST", f"/containers/{identity}/start")
    return identity


def test_what_is_planted_is_seen(engine: Engine, wire: Wire) -> None:
    first, second, _, _ = engine.uuids
    oracle = Oracle(engine.uuids, grace_seconds=30)
    with Watch(wire, oracle):
        run(wire, first, hub="h0", user="ada", devices=first)
        run(wire, second, hub="h0", user="ben", devices=second)
        until(lambda: len(oracle.granted) == 2)
        assert oracle.violations == []
        engine.kill()
        engine.start_daemon(START_SECONDS)
        run(wire, first, hub="h1", user="ada", devices=first)
        until(lambda: oracle.violations)
        # An outsider may force a way in; a hub may not follow one.
        run(wire, second)
        until(lambda: oracle.counts["cards taken by force from outside"])
        # Events are read again after the engine was away.
        seen = oracle.counts["containers"]
        wire.ask("DELETE", f"/containers/{run(wire, first)}", force=1)
        until(lambda: oracle.counts["containers"] > seen)
    [violation] = oracle.violations
    assert violation.kind == "double grant"
    assert "(ada/ of hub h1) was started on" in violation.text
    assert any("of hub h0) runs" in line for line in violation.story)


def test_a_container_that_dockerd_forgot_is_ended(engine: Engine, wire: Wire) -> None:
    kept, forgotten = run(wire, engine.uuids[0]), run(wire, engine.uuids[1])
    engine.kill()
    shutil.rmtree(engine.folder / "data" / "containers" / forgotten)
    engine.start_daemon(START_SECONDS)
    assert [row["Id"] for row in wire.containers()] == [kept]
    oracle = Oracle(engine.uuids, grace_seconds=30)
    ends = Ends(engine, [], wire, oracle, deadline_seconds=START_SECONDS)
    assert {kept, forgotten} == set(ends._shims())
    ends.end_forgotten()
    until(lambda: set(ends._shims()) == {kept})
    assert oracle.counts["containers that dockerd forgot"] == 1
    assert [row["State"] for row in wire.containers()] == ["running"]


class Dumb(Wire):
    """To an engine that answers nothing more."""

    def ask(self, *_: object, **__: object) -> Any:
        raise Silent


def test_a_container_that_froze_with_an_exec_inside_is_thawed(engine: Engine, wire: Wire) -> None:
    identity = run(wire, engine.uuids[0])
    doing = Doing(Oracle([], 0), threading.Event())
    hands = Hands(engine, image.TINY, Dumb(engine.socket), doing, 1)
    set_frozen(identity, frozen=True)
    # An engine may be silent for other reasons.
    hands._unpause(identity)
    assert is_frozen(identity)
    words = ["runc", "-c", "import time; time.sleep(600)", "exec", identity]
    with subprocess.Popen(words, executable=sys.executable) as caught:
        until(lambda: exec_hangs(identity))
        hands._unpause(identity)
        caught.kill()
    until(lambda: not is_frozen(identity))


def is_frozen(identity: str) -> bool:
    folders = Path("/sys/fs/cgroup").rglob(f"*{identity}*")
    return any(
        (folder / name).exists() and (folder / name).read_text().strip() not in ("THAWED", "0")
        for folder in folders
        for name in ("freezer.state", "cgroup.freeze")
    )


def test_what_a_pause_left_is_undone(engine: Engine, wire: Wire) -> None:
    identity = run(wire, engine.uuids[0])
    hands = Hands(engine, image.TINY, wire, Doing(Oracle([], 0), threading.Event()), 1)
    wire.ask("POST", f"/containers/{identity}/pause")
    assert hands.undo()
    until(lambda: not hands.undo())


def test_an_order_that_is_refused_is_told(wire: Wire) -> None:
    with pytest.raises(Refused, match="No such container"):
        wire.ask("POST", "/containers/none/start")
    assert wire.inspect("none") is None


def test_a_work_that_fails_ends_the_noise_and_is_told() -> None:
    def fails() -> None:
        raise ValueError("planted")

    ended = threading.Event()
    with pytest.raises(ValueError, match="planted"), Threads([fails, ended.wait], ended):
        assert ended.wait(120)
