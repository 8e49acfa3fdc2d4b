"""``script/server``: a hub to try by hand, on real cards or on four simulated ones."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker

from .binaries import current_binaries
from .engine import Engine
from .image import NOTEBOOK, load_notebook
from .leftovers import has_ended
from .machine import GroundError, free_ports
from .proxy import proxy_command

PASSWORD = "gpuspawner"
SIMULATED_CARDS = 4

_REPOSITORY = Path(__file__).resolve().parents[2]
_HUB_PID = "hub.pid"
_PROXY_PID = "jupyterhub-proxy.pid"
_DRIVER = Path("/proc/driver/nvidia/version")
_TAIL_CHARS = 3000


@dataclass(frozen=True)
class Ground:
    """What the demo's hub stands on.

    Attributes:
        gateway: the host's address as containers see it.
        simulated: how many simulated cards; 0 with real ones.
        docker_host: of an engine of our own, empty for the machine's.
    """

    gateway: str
    simulated: int = 0
    docker_host: str = ""


def main() -> int:
    """Run the demo until Ctrl-C; returns the exit status."""
    parser = argparse.ArgumentParser(prog="script/server", description=__doc__)
    parser.add_argument("--port", type=_port, default=8000, help="on 127.0.0.1 (default: 8000)")
    parser.add_argument(
        "--state",
        type=Path,
        default=_REPOSITORY / ".server",
        help="folder for its database, log and engine (default: .server)",
    )
    arguments = parser.parse_args()
    # A closed terminal and a service manager end it as Ctrl-C does.
    # SIGINT too: a shell that starts it in the background has it ignored.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        arguments.state.mkdir(parents=True, exist_ok=True)
        with _alone(arguments.state):
            _serve(arguments.port, arguments.state.resolve())
    except GroundError as error:
        print(f"script/server: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; nothing is left running.")
    return 0


def _port(text: str) -> int:
    """A port number; other words are refused by argparse, with ours."""
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; use a number from 1 to 65535")
    return int(text)


def _serve(port: int, state: Path) -> None:
    _end_leftovers(state)
    _check_port(port)
    with _ground(state) as ground:
        hub_port, proxy_port = free_ports(2)
        url = f"http://127.0.0.1:{port}"
        settings = {
            "url": url,
            "hub_port": hub_port,
            "proxy_port": proxy_port,
            "gateway": ground.gateway,
            "proxy": proxy_command(),
            "password": PASSWORD,
            "image": NOTEBOOK,
            "simulated": ground.simulated,
            "docker_host": ground.docker_host,
        }
        path = state / "demo.json"
        path.write_text(json.dumps(settings, indent=1))
        env = {**os.environ, "GPUSPAWNER_DEMO": str(path)}
        if ground.docker_host:
            env["DOCKER_HOST"] = ground.docker_host
        log = state / "hub.log"
        if log.exists():
            log.replace(log.with_suffix(".log.1"))  # of the run before, to read after a crash
        with log.open("wb") as output:
            hub = subprocess.Popen(
                [sys.executable, "-m", "jupyterhub", "-f", _REPOSITORY / "script/demo_config.py"],
                cwd=state,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Ctrl-C is for us: we end the hub, then the engine.
                start_new_session=True,
            )
        (state / _HUB_PID).write_text(str(hub.pid))
        try:
            _wait_up(hub, port, log)
            _welcome(url, ground, log, path)
            if hub.wait():
                raise GroundError(
                    f"the hub ended with {hub.returncode}, and with it the demo: its servers and "
                    f"its engine are ended too. Start script/server again.\n{_tail(log)}"
                )
        finally:
            with _undisturbed():
                _stop(hub, state)


@contextlib.contextmanager
def _ground(state: Path) -> Iterator[Ground]:
    if _DRIVER.exists():
        yield _machine_engine()
        return
    say("no NVIDIA driver here: simulating cards on a Docker engine of our own")
    engine = Engine(state / "engine", _kind(), keep_data=True)
    try:
        engine.start()
        say("loading the notebook image (where there is none yet it is built, in a few minutes)")
        load_notebook(engine.client)
        yield Ground(engine.gateway, SIMULATED_CARDS, engine.url)
    finally:
        with _undisturbed():
            engine.stop()


def _kind() -> Any:
    """CDI where an engine for it can be had, since that is what new installations use."""
    try:
        current_binaries()
    except GroundError as error:
        say(f"no engine with CDI ({error}); using the machine's programs")
        return "hook"
    return "cdi"


def _machine_engine() -> Ground:
    """The machine's own engine, for real cards.

    Raises:
        GroundError: it does not answer.
    """
    try:
        kwargs = docker.utils.kwargs_from_env()
        client = docker.APIClient(**kwargs)
        client.ping()
    except (docker.errors.DockerException, OSError) as error:
        raise GroundError(
            "this machine has an NVIDIA driver, so its own Docker engine is used, and that does "
            f"not answer ({error}). Start it (systemctl start docker), and install NVIDIA's "
            "container toolkit"
        ) from error
    say("loading the notebook image (where there is none yet it is built, in a few minutes)")
    load_notebook(client)
    gateway = client.inspect_network("bridge")["IPAM"]["Config"][0]["Gateway"]
    client.close()
    return Ground(gateway)


def _welcome(url: str, ground: Ground, log: Path, settings: Path) -> None:
    cards = f"{ground.simulated} simulated cards" if ground.simulated else "this machine's cards"
    lines = [
        "",
        f"  JupyterHub with {cards}: {url}",
        f"  Log in with any name and the password {PASSWORD!r}; 'admin' is an admin.",
        f"  Log: {log}",
        f"  Who holds which card: {_command(settings, 'leases')}",
        f"  How each card stands: {_command(settings, 'devices')}",
    ]
    if ground.docker_host:
        lines.append(f"  To look at its engine: export DOCKER_HOST={ground.docker_host}")
    print("\n".join([*lines, "  Ctrl-C ends it.", ""]), flush=True)


def _command(settings: Path, name: str) -> str:
    """What to type for a command of gpuspawner on the demo, from anywhere."""
    elsewhere = settings != _REPOSITORY / ".server" / settings.name
    before = f"GPUSPAWNER_DEMO={settings} " if elsewhere else ""
    command = Path(sys.executable).parent / "gpuspawner"
    return f"{before}{command} {name} -f {_REPOSITORY / 'script/demo_config.py'}"


def _check_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise GroundError(
                f"port {port} on 127.0.0.1 cannot be used ({error.strerror}). End what uses it "
                f"(ss -ltnp 'sport = :{port}'), or choose another: script/server --port {port + 1}"
            ) from error


def _wait_up(hub: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 90
    while True:
        if hub.poll() is not None:
            raise GroundError(f"the hub ended with {hub.returncode}:\n{_tail(log)}")
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0 and "now running at" in log.read_text():
                return
        if time.monotonic() > deadline:
            raise GroundError(f"the hub does not get ready:\n{_tail(log)}")
        time.sleep(0.1)


def _stop(hub: subprocess.Popen[bytes], state: Path) -> None:
    if hub.poll() is None:
        say("stopping")
        hub.terminate()
        try:
            hub.wait(30)
        except subprocess.TimeoutExpired:
            hub.kill()
            hub.wait()
    # A hub that did not end in order leaves its proxy.
    _end_leftovers(state)


@contextlib.contextmanager
def _alone(state: Path) -> Iterator[None]:
    """Be the only one in this folder; whatever else is found in it belongs to a dead run."""
    with (state / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise GroundError(
                f"another script/server is running in {state}; end it first"
            ) from error
        yield


def _end_leftovers(state: Path) -> None:
    """End a hub and a proxy whose script/server was killed."""
    for name in (_HUB_PID, _PROXY_PID):
        path = state / name
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
            pid = int(path.read_text())
            # After a reboot the number may be anybody's.
            if b"jupyterhub" in _command_line(pid) or b"configurable-http" in _command_line(pid):
                os.kill(pid, signal.SIGKILL)
                _wait_gone(pid)
        path.unlink(missing_ok=True)


def _command_line(pid: int) -> bytes:
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return b""


def _wait_gone(pid: int, timeout_seconds: float = 60) -> None:
    deadline = time.monotonic() + timeout_seconds
    while not has_ended(pid) and time.monotonic() < deadline:
        time.sleep(0.02)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Let no second Ctrl-C cut the clean-up short."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)


def _tail(log: Path) -> str:
    text = log.read_text(errors="replace")
    # From the beginning of a line.
    return text if len(text) <= _TAIL_CHARS else text[-_TAIL_CHARS:].partition("\n")[2]


def say(text: str) -> None:
    """Tell the person at the terminal what takes time."""
    print(f"server: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
