"""A real JupyterHub with the reference proxy, in a folder of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import requests

from .engine import Engine
from .machine import PATIENCE_SECONDS, GroundError, NotInTimeError, free_ports
from .proxy import proxy_command
from .student import Student, progress_events

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

PASSWORD = "gpuspawner"
_REPOSITORY = Path(__file__).resolve().parents[2]
#: What a hub need not import.
_LEAN = Path(__file__).with_name("lean")

_PRELUDE = """\
import contextlib, os
if "GROUND_COVERAGE" in os.environ:
    os.environ["COVERAGE_PROCESS_CONFIG"] = os.environ.pop("GROUND_COVERAGE")
    with contextlib.suppress(ImportError):
        import coverage
        coverage.process_startup()
c = get_config()  # noqa
c.JupyterHub.bind_url = {url!r}
c.JupyterHub.hub_port = {hub_port}
c.JupyterHub.hub_ip = {hub_ip!r}
c.JupyterHub.db_url = "sqlite:///hub.sqlite"
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = {password!r}
c.Authenticator.admin_users = {{"admin"}}
c.Authenticator.allow_all = True
c.ConfigurableHTTPProxy.command = {proxy!r}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{proxy_port}"
c.JupyterHub.services = [{{"name": "test", "api_token": {token!r}}}]
c.JupyterHub.load_roles = [
    {{
        "name": "test",
        "services": ["test"],
        "scopes": [
            "admin:users", "admin:servers", "admin:groups", "admin:auth_state", "access:servers",
            "tokens", "read:hub", "read:metrics", "proxy", "shutdown", "list:services",
        ],
    }}
]
"""

_ON_ENGINE = """\
c.JupyterHub.spawner_class = "docker"
c.DockerSpawner.image = {image!r}
c.DockerSpawner.pull_policy = "never"
c.DockerSpawner.use_internal_ip = True
c.DockerSpawner.network_name = "bridge"
c.DockerSpawner.remove = True
"""


class Hub:
    """One hub process, startable again on the same database.

    Attributes:
        url: of the proxy, without a slash at the end.
        token: of a service that may do all that an admin may.
        log_path: what hub and proxy printed.
    """

    def __init__(
        self,
        folder: Path,
        config: str = "",
        *,
        engine: Engine | None = None,
        image: str | None = None,
        env: Mapping[str, str] | None = None,
        python: str = sys.executable,
        password: str = PASSWORD,
    ) -> None:
        """Describe a hub; :meth:`start` starts it.

        Args:
            folder: for its database, cookies, log and configuration.
            engine: the users' servers run on it; the hub is told of it by ``DOCKER_HOST``.
            config: text after the built-in part, which sets ports, login (any name with
                ``password``; ``admin`` is an admin), the service token and, with an engine, a
                stock DockerSpawner on it.
            image: of the users' servers, with an engine.
            env: added to this process's environment.
            python: the interpreter whose jupyterhub runs.
            password: for every name.
        """
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.token = secrets.token_hex(16)
        self.password = password
        self.python = python
        port, hub_port, proxy_port = free_ports(3)
        self.url = f"http://127.0.0.1:{port}"
        text = _PRELUDE.format(
            url=self.url,
            hub_port=hub_port,
            proxy_port=proxy_port,
            hub_ip=engine.gateway if engine else "127.0.0.1",
            password=password,
            proxy=proxy_command(),
            token=self.token,
        )
        if engine is not None and image is not None:
            text += _ON_ENGINE.format(image=image)
        self.config_path = self.folder / "jupyterhub_config.py"
        self.set_config(config, prelude=text)
        self.log_path = self.folder / "hub.log"
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("DOCKER_", "JUPYTERHUB_"))},
            # The working tree comes first, also where the package is installed otherwise.
            "PYTHONPATH": f"{_REPOSITORY}:{_LEAN}:{os.environ.get('PYTHONPATH', '')}".rstrip(":"),
            **({"DOCKER_HOST": engine.url} if engine else {}),
            **(env or {}),
        }
        # Measured from its configuration on: what it imports before is not ours, and takes twice as
        # long when it is measured.
        if measured := self.env.pop("COVERAGE_PROCESS_CONFIG", None):
            self.env["GROUND_COVERAGE"] = measured
        self._process: subprocess.Popen[bytes] | None = None
        self._session = requests.Session()
        self._session.headers["Authorization"] = f"token {self.token}"
        # The proxy ends idle connections after some seconds: a request must not meet that moment.
        self._session.headers["Connection"] = "close"
        self._session.trust_env = False  # no proxy of the machine between test and hub
        self._students: list[Student] = []

    # -- life -----------------------------------------------------------------------------------

    def set_config(self, config: str, *, prelude: str | None = None) -> None:
        """Change the text after the built-in part; read at the next start."""
        if prelude is not None:
            self._prelude = prelude
        self.config_path.write_text(f"{self._prelude}\n{config}")

    def start(self, timeout_seconds: float = PATIENCE_SECONDS) -> Self:
        """Start it and wait until it answers.

        Raises:
            GroundError: it ended or does not answer; with its log's end.
        """
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [self.python, "-m", "jupyterhub", "-f", str(self.config_path)],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self.wait(self._up, "hub answers", timeout_seconds)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self, timeout_seconds: float = PATIENCE_SECONDS) -> None:
        """SIGTERM, as a service manager sends it; the proxy goes too."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                self.kill()
        self._end_proxy()
        # Closed sessions open again at their next request, with their cookies.
        self._session.close()
        for student in self._students:
            student.http.close()

    def kill(self) -> None:
        """SIGKILL for the hub alone; its proxy goes on, and the next start takes it over."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self) -> None:
        """Stop and start again on the same database."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        if self._process is None:
            raise GroundError("the hub was not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    @property
    def log(self) -> str:
        """All that hub and proxy printed so far."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    # -- REST -----------------------------------------------------------------------------------

    def api(
        self, method: str, path: str, *, check: bool = True, **kwargs: Any
    ) -> requests.Response:
        """Call ``/hub/api/<path>`` with the service token; ``check`` raises for an error status."""
        kwargs.setdefault("timeout", 60)
        url = f"{self.url}/hub/api/{path.lstrip('/')}"
        answer = self._session.request(method, url, **kwargs)
        if check and not answer.ok:
            raise requests.HTTPError(
                f"{method} {path}: {answer.status_code} {answer.text}", response=answer
            )
        return answer

    def add_users(self, *names: str) -> None:
        """Make users, so that REST can start their servers before they log in."""
        self.api("POST", "users", json={"usernames": list(names)})

    def server(self, user: str, name: str = "") -> dict[str, Any] | None:
        """The hub's model of a user's server; None if there is none."""
        model = self.api("GET", f"users/{user}", params={"include_stopped_servers": "1"}).json()
        found: dict[str, Any] | None = model["servers"].get(name)
        return found if found and (found["ready"] or found["pending"]) else None

    def start_server(
        self,
        user: str,
        options: Mapping[str, Any] | None = None,
        name: str = "",
        *,
        check: bool = True,
    ) -> requests.Response:
        """Ask by REST for a server, with ``user_options``; 201 started, 202 pending."""
        body = {} if options is None else {"json": dict(options)}
        return self.api("POST", f"users/{user}/{_server_path(name)}", check=check, **body)

    def stop_server(self, user: str, name: str = "", *, check: bool = True) -> requests.Response:
        """Ask by REST to stop a server; 204 stopped, 202 pending."""
        return self.api("DELETE", f"users/{user}/{_server_path(name)}", check=check)

    def wait_ready(
        self, user: str, name: str = "", timeout_seconds: float = PATIENCE_SECONDS
    ) -> dict[str, Any]:
        """Wait until a server is ready.

        Raises:
            GroundError: it failed, or did not get ready in time; with the log's end.
        """
        last: dict[str, Any] | None = {}

        def settled() -> bool:
            nonlocal last
            last = self.server(user, name)
            return last is None or last["ready"]

        self.wait(settled, f"server of {user} ready", timeout_seconds)
        if last is None:
            raise GroundError(f"the server of {user} failed:\n{self.log[-3000:]}")
        return last

    def wait_stopped(
        self, user: str, name: str = "", timeout_seconds: float = PATIENCE_SECONDS
    ) -> None:
        """Wait until a user's server is neither running nor pending."""
        self.wait(
            lambda: self.server(user, name) is None, f"server of {user} stopped", timeout_seconds
        )

    def progress(self, user: str, name: str = "") -> Iterator[dict[str, Any]]:
        """Events of a pending server's progress stream, until it ends."""
        url = f"{self.url}/hub/api/users/{user}/{_server_path(name)}/progress"
        return progress_events(self._session, url)

    def user_get(self, user: str, path: str, name: str = "") -> requests.Response:
        """GET below a user's server through the proxy, with the service token."""
        return self._below("GET", user, path, name)

    def user_answer(
        self, user: str, path: str, name: str = "", *, data: bytes | None = None
    ) -> requests.Response:
        """What a user's server itself answers to a GET, or with ``data`` to a POST.

        The proxy may first try a connection that it kept open to an earlier container of the same
        address, and answer 503: then the server was not asked, and is asked again.
        """
        answers: list[requests.Response] = []

        def answered() -> bool:
            answers.append(self._below("GET" if data is None else "POST", user, path, name, data))
            return answers[-1].status_code != 503

        self.wait(answered, f"server of {user} answers at {path}")
        return answers[-1]

    def exit_server(self, user: str, code: int = 0) -> None:
        """Have a tiny server end by itself."""
        assert self.user_answer(user, f"exit?code={code}").ok

    # -- people ---------------------------------------------------------------------------------

    def login(self, user: str, password: str | None = None) -> Student:
        """Log in over HTTP as a browser would.

        Raises:
            GroundError: the hub refused.
        """
        student = Student(self.url, user)
        self._students.append(student)
        student.login(self.password if password is None else password)
        return student

    def wait(
        self, condition: Callable[[], object], what: str, timeout_seconds: float = PATIENCE_SECONDS
    ) -> None:
        """Wait for a condition while the hub lives.

        Raises:
            GroundError: the hub ended; with the log's end.
            NotInTimeError: the time is over.
        """
        deadline = time.monotonic() + timeout_seconds
        while not condition():
            if not self.running:
                raise GroundError(f"the hub ended with {self.exit_code}:\n{self.log[-4000:]}")
            if time.monotonic() > deadline:
                raise NotInTimeError(f"not within {timeout_seconds} s: {what}\n{self.log[-4000:]}")
            time.sleep(0.05)

    # -- inside ---------------------------------------------------------------------------------

    def _below(
        self, method: str, user: str, path: str, name: str, data: bytes | None = None
    ) -> requests.Response:
        server = f"{user}/{name}" if name else user
        url = f"{self.url}/user/{server}/{path}"
        return self._session.request(method, url, data=data, timeout=60)

    def _up(self) -> bool:
        try:
            return self.api("GET", "info", check=False, timeout=5).ok
        except requests.RequestException:
            return False

    def _end_proxy(self) -> None:
        """A hub that was killed, or kept its proxy, leaves it running under this pid."""
        path = self.folder / "jupyterhub-proxy.pid"
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
            os.kill(int(path.read_text()), signal.SIGTERM)
            path.unlink()


def _server_path(name: str) -> str:
    return f"servers/{name}" if name else "server"
