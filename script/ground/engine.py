"""A private Docker engine with simulated cards: own data, socket, bridge; nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import docker

from . import cards, registry
from .binaries import Binaries, current_binaries, machine_binaries
from .bridge import Bridge
from .leftovers import all_stopped, clear_engine
from .machine import GroundError

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

Kind = Literal["hook", "cdi"]

_SOCKET_PATH_MAX = 100


@dataclass(frozen=True)
class HookCall:
    """What the engine handed to the stand-in hook: its arguments, and the state on stdin."""

    arguments: tuple[str, ...]
    state: Mapping[str, Any]


class Engine:
    """One private dockerd with its own containerd.

    Attributes:
        folder: all its files; ``dockerd.log`` and ``containerd.log`` among them.
        uuids: the simulated cards' ids.
    """

    def __init__(
        self,
        folder: Path,
        kind: Kind,
        *,
        uuids: Sequence[str] | None = None,
        live_restore: bool = False,
        default_runtime: Literal["runc", "nvidia"] = "runc",
        keep_data: bool = False,
        binaries: Binaries | None = None,
    ) -> None:
        """Describe an engine; :meth:`start` starts it.

        Args:
            folder: made if it is not there; on a disk that carries overlayfs.
            kind: ``hook`` for the machine's dockerd with the stand-in for NVIDIA's hook, ``cdi``
                for one that reads CDI specifications. One that reads them has both set up.
            uuids: ids of the cards, by default the product's four simulated ones.
            live_restore: containers outlive their daemon.
            default_runtime: ``nvidia`` makes the stand-in runtime the engine's default.
            keep_data: keep images and volumes at :meth:`stop`.
            binaries: programs to use instead of those of ``kind``.
        """
        self.folder = folder.resolve()
        self.kind = kind
        self.uuids = tuple(cards.simulated_uuids() if uuids is None else uuids)
        self.live_restore = live_restore
        self.default_runtime = default_runtime
        self.keep_data = keep_data
        self._binaries = binaries
        self._bridge: Bridge | None = None
        self._dockerd: subprocess.Popen[bytes] | None = None
        self._containerd: subprocess.Popen[bytes] | None = None
        self._client: docker.APIClient | None = None

    # -- what it is -----------------------------------------------------------------------------

    @property
    def socket(self) -> Path:
        return self.folder / "docker.sock"

    @property
    def run_folder(self) -> Path:
        """What the daemons keep while they run."""
        return registry.run_folder(self.bridge.name)

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def bridge(self) -> Bridge:
        if self._bridge is None:
            raise GroundError("the engine is not started: it has no bridge yet")
        return self._bridge

    @property
    def gateway(self) -> str:
        """Address of the host as containers see it."""
        return self.bridge.gateway

    @property
    def binaries(self) -> Binaries:
        if self._binaries is None:
            self._binaries = current_binaries() if self.kind == "cdi" else machine_binaries()
        return self._binaries

    @property
    def version(self) -> str:
        return self.binaries.version

    @property
    def has_cdi(self) -> bool:
        return self.binaries.has_cdi

    @property
    def cdi_folder(self) -> Path:
        return self.folder / "cdi"

    @property
    def client(self) -> docker.APIClient:
        """A docker-py client of this engine, one for the engine's life."""
        if self._client is None:
            self._client = docker.APIClient(base_url=self.url, timeout=60)
        return self._client

    @property
    def running(self) -> bool:
        return self._dockerd is not None and self._dockerd.poll() is None

    # -- life -----------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start it and wait until it answers; a failed start leaves nothing behind.

        Raises:
            GroundError: not root, a program is missing, or a daemon ended; with its log's end.
        """
        if os.geteuid() != 0:
            raise GroundError("a private Docker engine needs root: it makes a bridge and mounts")
        if len(str(self.socket)) > _SOCKET_PATH_MAX:
            raise GroundError(f"{self.folder} is too long a path for the engine's socket")
        self.binaries  # noqa: B018 - a missing program is reported before anything is made
        self.folder.mkdir(parents=True, exist_ok=True)
        self._bridge = registry.claim_bridge(self.folder)
        try:
            self._write_files()
            self._start_containerd()
            self.start_daemon()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Remove all containers, end the daemons, take away bridge, mounts and (mostly) data."""
        self.thaw()
        if self.running:
            with contextlib.suppress(docker.errors.DockerException, OSError):
                self.remove_containers()
        if self._client is not None:
            self._client.close()
            self._client = None
        for process in (self._dockerd, self._containerd):
            _end(process)
        self._dockerd = self._containerd = None
        if self._bridge is not None:
            registry.release(self._bridge.name)
            self._bridge = None
        self._remove_files()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start_daemon(self, timeout_seconds: float = 60) -> None:
        """Start dockerd, after :meth:`stop_daemon` or :meth:`kill`, and wait until it answers."""
        # A killed daemon leaves its pid file; another process may have that number by now.
        (self.folder / "dockerd.pid").unlink(missing_ok=True)
        self._dockerd = self._spawn(
            [self.binaries.dockerd, "--config-file", str(self.folder / "daemon.json")], "dockerd"
        )
        self._wait_for("dockerd", self._dockerd, self._answers, timeout_seconds)

    def stop_daemon(self) -> None:
        """End dockerd as an admin's ``systemctl stop`` would; containerd stays."""
        _end(self._dockerd)

    def kill(self) -> None:
        """End dockerd with SIGKILL; containers and containerd go on."""
        if self._dockerd is not None:
            self._dockerd.kill()
            self._dockerd.wait()

    def restart(self) -> None:
        """Stop and start dockerd; with ``live_restore`` the containers run on."""
        self.stop_daemon()
        self.start_daemon()

    def power_off(self) -> None:
        """As when the machine loses power: every process ends, and what is kept in /run is gone."""
        clear_engine(self.folder, self.run_folder)
        for process in (self._dockerd, self._containerd):
            if process is not None:
                process.wait()
        shutil.rmtree(self.run_folder)
        self.run_folder.mkdir()

    def power_on(self) -> None:
        """Boot after :meth:`power_off`: the daemons find their containers dead."""
        self.socket.unlink(missing_ok=True)
        self._start_containerd()
        self.start_daemon()

    def freeze(self) -> None:
        """Stop dockerd from answering, with SIGSTOP; its socket still accepts."""
        if self._dockerd is not None:
            self._dockerd.send_signal(signal.SIGSTOP)
            # Its threads stop one by one; until the last has, it may still answer.
            while not all_stopped(self._dockerd.pid):
                time.sleep(0.005)

    def thaw(self) -> None:
        """Undo :meth:`freeze`."""
        if self._dockerd is not None:
            self._dockerd.send_signal(signal.SIGCONT)

    def remove_containers(self) -> None:
        """Kill and remove every container, several at a time."""
        found = self.client.containers(all=True)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(self._remove_container, [each["Id"] for each in found]))

    # -- cards ----------------------------------------------------------------------------------

    def set_cards(self, uuids: Sequence[str]) -> None:
        """Give the engine other cards; it re-reads its CDI folder by itself."""
        self.uuids = tuple(uuids)
        cards.write_cdi(self.cdi_folder, self.uuids)

    def hook_calls(self) -> list[HookCall]:
        """Every call of the stand-in hook so far, the oldest first."""
        return [
            HookCall(
                tuple((call / "args").read_text().split("\n")[:-1]),
                json.loads((call / "stdin").read_text()),
            )
            for call in sorted(
                (self.folder / "hook" / "records").glob("call.*"),
                key=lambda call: (call / "args").stat().st_mtime_ns,
            )
        ]

    def fail_hook(self, message: str) -> None:
        """Let the stand-in hook fail with ``message`` from now on; empty lets it work again."""
        (self.folder / "hook" / "fail").write_text(message)

    def runtime_calls(self) -> list[Mapping[str, Any]]:
        """OCI configuration of every container made by the stand-in ``nvidia`` runtime so far."""
        records = (self.folder / "hook" / "records").glob("runtime.*")
        return [json.loads(path.read_text()) for path in sorted(records)]

    # -- inside ---------------------------------------------------------------------------------

    @property
    def _containerd_socket(self) -> Path:
        return self.run_folder / "containerd.sock"

    def _write_files(self) -> None:
        hook = self.folder / "hook"
        cards.write_hook(hook)
        runtime = cards.write_runtime(hook, self.binaries.runc)
        (self.folder / "containerd.toml").write_text(
            'version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
        )
        config: dict[str, Any] = {
            "data-root": str(self.folder / "data"),
            "exec-root": str(self.run_folder / "docker"),
            "pidfile": str(self.folder / "dockerd.pid"),
            "hosts": [self.url],
            # A running containerd of the machine would be taken otherwise, with its containers.
            "containerd": str(self._containerd_socket),
            "bridge": self.bridge.name,
            "iptables": False,
            "ip6tables": False,
            "live-restore": self.live_restore,
            "shutdown-timeout": 5,
            "runtimes": {"nvidia": {"path": str(runtime)}},
            "default-runtime": self.default_runtime,
        }
        if self.has_cdi:
            cards.write_cdi(self.cdi_folder, self.uuids)
            config["features"] = {"cdi": True}
            config["cdi-spec-dirs"] = [str(self.cdi_folder)]
        (self.folder / "daemon.json").write_text(json.dumps(config, indent=1))

    def _start_containerd(self) -> None:
        command = [self.binaries.containerd, "--config", str(self.folder / "containerd.toml")]
        command += ["--root", str(self.folder / "containerd")]
        command += ["--state", str(self.run_folder / "containerd")]
        command += ["--address", str(self._containerd_socket)]
        self._containerd = self._spawn(command, "containerd")
        self._wait_for("containerd", self._containerd, self._containerd_socket.exists)

    def _spawn(self, command: list[str], name: str) -> subprocess.Popen[bytes]:
        env = {key: value for key, value in os.environ.items() if not key.startswith("DOCKER_")}
        env["PATH"] = f"{self.folder / 'hook' / 'bin'}:{self.binaries.path}"
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C in the terminal is for the owner, who then stops the engine in order.
                start_new_session=True,
            )

    def _wait_for(
        self,
        name: str,
        process: subprocess.Popen[bytes],
        ready: Any,
        timeout_seconds: float = 60,
    ) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not ready():
            ended = process.poll() is not None
            if ended or time.monotonic() > deadline:
                log = (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]
                what = f"ended with {process.returncode}" if ended else "does not answer"
                raise GroundError(f"{name} {self.version} {what}:\n{log}")
            time.sleep(0.02)

    def _answers(self) -> bool:
        # By hand: a docker-py client made before the daemon answers fails half-made.
        with socket.socket(socket.AF_UNIX) as asked:
            asked.settimeout(5)
            try:
                asked.connect(str(self.socket))
                asked.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
                return b" 200 " in asked.recv(64)
            except OSError:
                return False

    def _remove_container(self, container: str) -> None:
        try:
            self.client.remove_container(container, force=True, v=True)
        except docker.errors.APIError as error:
            # Gone, or being removed by someone else: both are what is wanted.
            if error.status_code not in (404, 409):
                raise

    def _remove_files(self) -> None:
        kept = {"data", "containerd"} if self.keep_data else set()
        for path in list(self.folder.iterdir()) if self.folder.exists() else ():
            if path.name in kept or path.suffix == ".log":
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def _end(process: subprocess.Popen[bytes] | None, timeout_seconds: float = 20) -> None:
    """SIGTERM, then SIGKILL for one that does not end (a frozen one cannot)."""
    if process is None or process.poll() is not None:
        return
    process.send_signal(signal.SIGCONT)
    process.terminate()
    try:
        process.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
