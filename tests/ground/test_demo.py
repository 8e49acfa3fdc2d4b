"""``script/server``, as a person tries it: started, used, ended with Ctrl-C, or killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import requests

from ground import demo
from ground.leftovers import engine_processes, mounts_below
from ground.machine import free_ports
from ground.student import Student

REPOSITORY = Path(__file__).resolve().parents[2]


class Demo:
    """One run of the demo in a folder of its own."""

    runs: ClassVar[list[Demo]] = []

    def __init__(self, state: Path, port: int) -> None:
        self.state = state
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "ground.demo", "--port", str(port), "--state", str(state)]
        env = {**os.environ, "PYTHONPATH": f"{REPOSITORY}/script:{REPOSITORY}"}
        self.process = subprocess.Popen(
            command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.runs.append(self)

    def read_until(self, words: str) -> str:
        """All that it prints up to these words; ends when it ends."""
        assert self.process.stdout is not None
        seen = ""
        for line in self.process.stdout:
            seen += line
            if words in line:
                return seen
        _, err = self.process.communicate()
        raise AssertionError(f"ended with {self.process.returncode} before {words!r}: {err}")

    def end(self, number: signal.Signals) -> tuple[int, str, str]:
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=90)
        return self.process.returncode, out, err


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "server"
    yield folder
    for run in Demo.runs:
        if run.process.poll() is None:
            run.end(signal.SIGINT)
    Demo.runs.clear()
    demo._end_leftovers(folder)


@pytest.mark.usefixtures("can_run_engines")
@pytest.mark.skipif(demo._DRIVER.exists(), reason="with real cards it uses the machine's engine")
def test_a_student_logs_in_and_ctrl_c_leaves_nothing(state: Path) -> None:
    (port,) = free_ports(1)
    first = Demo(state, port)
    printed = first.read_until("Ctrl-C ends it")
    assert "4 simulated cards" in printed
    assert f"DOCKER_HOST=unix://{state}/engine/docker.sock" in printed

    student = Student(first.url, "alice")
    student.login(demo.PASSWORD)
    form = student.get_form()
    assert "4 of 4 GPUs free" in form.text
    assert "simulated" in form.text
    settings = json.loads((state / "demo.json").read_text())
    for address in ("0.0.0.0", "127.0.0.1"):
        # The hub's own port is for containers only: with this password it must not be on the net.
        with socket.socket() as probe:
            assert probe.connect_ex((address, settings["hub_port"]))

    # Killed, it cannot clear up; the next run in the folder does, and starts.
    first.process.kill()
    first.process.communicate()
    second = Demo(state, port)
    printed = second.read_until("Ctrl-C ends it")
    assert "Ctrl-C ends it" in printed
    assert student.post_form({"profile": "two-gpus"}).status_code == 302
    assert list(student.progress())[-1]["ready"]

    # The command that it prints works as it stands, from any folder.
    [command] = [line for line in printed.splitlines() if "Who holds which card: " in line]
    told = subprocess.run(
        ["sh", "-c", command.partition("card: ")[2] + " --json"],
        cwd="/",
        env={key: value for key, value in os.environ.items() if key != "DOCKER_HOST"},
        capture_output=True,
        text=True,
        check=True,
    )
    [lease] = json.loads(told.stdout)["leases"]
    assert (lease["user"], lease["whose"], len(lease["devices"])) == ("alice", "this hub", 2)
    status, out, err = second.end(signal.SIGINT)
    student.http.close()

    assert status == 0, err
    assert "nothing is left running" in out
    assert engine_processes(state / "engine") == set()
    assert mounts_below(state / "engine") == []
    with pytest.raises(requests.ConnectionError):
        requests.get(second.url, timeout=5)


def test_a_port_in_use_is_told_with_the_way_out(state: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = Demo(state, port)
        _, err = run.process.communicate(timeout=60)
    assert run.process.returncode == 1
    assert f"port {port} on 127.0.0.1 cannot be used" in err
    assert f"--port {port + 1}" in err


def test_two_runs_in_one_folder_are_refused(state: Path) -> None:
    state.mkdir()
    with demo._alone(state):
        run = Demo(state, free_ports(1)[0])
        _, err = run.process.communicate(timeout=60)
    assert run.process.returncode == 1
    assert "another script/server is running" in err


@pytest.mark.parametrize("port", ["80000", "0", "-1", "http"])
def test_what_is_no_port_is_said_in_words(state: Path, port: str) -> None:
    command = [sys.executable, "-m", "ground.demo", f"--port={port}", "--state", str(state)]
    env = {**os.environ, "PYTHONPATH": f"{REPOSITORY}/script:{REPOSITORY}"}
    told = subprocess.run(command, env=env, text=True, capture_output=True, check=False)
    assert told.returncode == 2
    assert f"{port!r} is no port; use a number from 1 to 65535" in told.stderr
    assert not state.exists()
