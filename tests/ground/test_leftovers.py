"""When a process that was killed has really let go of what it held."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ground.leftovers import clear_engine, engine_processes, has_ended

#: Its first thread ends by itself, as under SIGKILL, while a second keeps the port.
PROGRAM = """
import ctypes, socket, threading, time
listener = socket.create_server(("127.0.0.1", 0))
def serve():
    while open("/proc/self/stat").read().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    print(listener.getsockname()[1], flush=True)
    time.sleep(600)
threading.Thread(target=serve).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.fixture
def headless(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process called dockerd, of an engine in ``tmp_path``, and the port it listens on."""
    program = tmp_path / "dockerd"
    program.symlink_to(sys.executable)
    process = subprocess.Popen(
        [program, "-c", PROGRAM, f"{tmp_path}/daemon.json"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    yield process, int(process.stdout.readline())
    process.kill()
    process.communicate()


def test_a_process_without_its_first_thread_still_holds_its_port(
    headless: tuple[subprocess.Popen[str], int],
) -> None:
    process, port = headless
    assert not has_ended(process.pid)
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        pass
    process.kill()
    process.wait()
    assert has_ended(process.pid)


def test_a_killed_process_that_waits_to_be_reaped_has_ended() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        assert not has_ended(process.pid)
        process.kill()
        while not has_ended(process.pid):
            pass
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        assert state == "Z"


def test_a_daemon_without_its_first_thread_is_cleared(
    headless: tuple[subprocess.Popen[str], int], tmp_path: Path
) -> None:
    process, _ = headless
    assert engine_processes(tmp_path) == {process.pid}
    clear_engine(tmp_path)
    assert engine_processes(tmp_path) == set()
    assert has_ended(process.pid)
