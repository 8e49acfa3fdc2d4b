"""A ``docker.APIClient`` of a fake engine: the part of that class that the product uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import requests
from docker.errors import APIError, create_api_error_from_http_exception
from docker.types import HostConfig

from .answers import api_error, response
from .docker_machine import FakeMachine


class FakeClient:
    """A ``docker.APIClient`` of a FakeMachine."""

    def __init__(self, machine: FakeMachine) -> None:
        self.machine = machine

    def _url(self, path: str) -> str:
        return f"http://fake/v1.41{path}"

    def _get(
        self, url: str, params: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> requests.Response:
        path = url.removeprefix("http://fake/v1.41")
        machine = self.machine

        def answer(operation: str, effect: Callable[[], Any], subject: Any = None) -> Any:
            # The client raises only in _raise_for_status, as the real one does.
            try:
                return response(200, machine.call(operation, effect, subject), machine.now)
            except APIError as error:
                return error.response

        result: requests.Response
        if path == "/containers/json":
            assert params == {"all": 1}
            result = answer("list", machine.rows)
        elif path == "/info":
            result = answer("info", lambda: dict(machine.info))
        elif path.startswith("/containers/") and path.endswith("/json"):
            identity = path.split("/")[2]
            result = answer("inspect", lambda: machine.inspect(identity, timeout), identity)
        else:
            raise AssertionError(f"the fake engine has no GET {path}")
        return result

    def _raise_for_status(self, answer: requests.Response) -> None:
        try:
            answer.raise_for_status()
        except requests.exceptions.HTTPError as error:
            raise create_api_error_from_http_exception(error) from error

    def create_host_config(self, **kwargs: Any) -> dict[str, Any]:
        return dict(HostConfig(version="1.41", **kwargs))

    def create_container(
        self,
        image: str,
        name: str = "",
        labels: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        host_config: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        env = [f"{key}={value}" for key, value in (environment or {}).items()]

        def effect() -> dict[str, Any]:
            with self.machine.changed:
                made = self.machine.make(
                    image, name, dict(labels or {}), env, dict(host_config or {})
                )
                return {"Id": made.id, "Warnings": []}

        subject = {"image": image, "name": name, "labels": labels, **kwargs}
        answer: dict[str, Any] = self.machine.call("create", effect, subject)
        return answer

    def start(self, container: str) -> None:
        self.machine.call("start", lambda: self.machine.start(container), container)

    def stop(self, container: str, timeout: float | None = None) -> None:
        def effect() -> None:
            with self.machine.changed:
                one = self.machine.wait_started(container, timeout)
                if one.live:
                    self.machine.end(one)

        self.machine.call("stop", effect, container)

    def remove_container(self, container: str, v: bool = False, force: bool = False) -> None:
        self.machine.call("remove", lambda: self.machine.remove(container, force), container)

    def inspect_container(self, container: str) -> dict[str, Any]:
        answer: dict[str, Any] = self.machine.call(
            "inspect", lambda: self.machine.inspect(container), container
        )
        return answer

    def inspect_image(self, image: str) -> dict[str, Any]:
        with self.machine.lock:
            if image not in self.machine.images:
                raise api_error(404, f"No such image: {image}")
            return dict(self.machine.images[image])

    def put_archive(self, container: str, path: str, data: bytes) -> bool:
        def effect() -> bool:
            with self.machine.lock:
                self.machine.find(container).files.append((path, data))
            return True

        return bool(self.machine.call("archive", effect, container))

    def get_archive(self, container: str, path: str) -> tuple[Iterator[bytes], dict[str, Any]]:
        with self.machine.lock:
            for stored, data in reversed(self.machine.find(container).files):
                if stored == path:
                    return iter([data]), {"name": path, "size": len(data)}
        raise api_error(404, f"Could not find the file {path} in container {container}")

    def pull(self, repository: str, tag: str | None = None, **kwargs: Any) -> list[Any]:
        name = f"{repository}:{tag}" if tag else repository
        self.machine.call("pull", lambda: self.machine.add_image(name), name)
        return [{"status": f"Downloaded {name}"}]

    def info(self) -> dict[str, Any]:
        return dict(self.machine.call("info", lambda: dict(self.machine.info)))

    def port(self, container: str, private_port: int) -> list[dict[str, str]]:
        with self.machine.lock:
            self.machine.find(container)
        return [{"HostIp": "127.0.0.1", "HostPort": str(private_port)}]
