"""The part of Docker's HTTP API that the product uses, on a fake machine.

``serve`` answers one request, for the in-process client and for the server on a socket alike.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

from docker.errors import APIError

from .answers import api_error
from .docker_machine import FakeMachine
from .parts import FakeExec

API_VERSION = "1.41"


@dataclass(frozen=True)
class Request:
    """One HTTP request, as far as it matters here.

    Attributes:
        upgrade: the client asks to take the connection over.
        timeout: after how many seconds the client will give up; None if it will not.
    """

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    timeout: float | None = None
    upgrade: bool = False

    @property
    def json(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.body or b"{}") or {}
        return told

    def flag(self, name: str) -> bool:
        return self.params.get(name, "").lower() in ("1", "true")


@dataclass(frozen=True)
class Reply:
    """One HTTP answer; ``raw`` is what a connection that was taken over carries."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None


Handler = Callable[[FakeMachine, Request, str], Any]
_ROUTES: list[tuple[str, re.Pattern[str], str, Handler]] = []


def route(method: str, path: str, operation: str) -> Callable[[Handler], Handler]:
    """Register the effect of an operation."""
    pattern = re.compile(path.replace("{id}", "([^/]+)").replace("{name}", "(.+)"))

    def register(handler: Handler) -> Handler:
        _ROUTES.append((method, pattern, operation, handler))
        return handler

    return register


def serve(machine: FakeMachine, request: Request) -> Reply:
    """Answer a request.

    Raises:
        requests.RequestException: a fault is due by which the client gets no answer.
    """
    path = re.sub(r"^/v\d+\.\d+", "", request.path)
    operation, handler, subject = _find(request.method, path)
    try:
        told = machine.call(
            operation,
            lambda: handler(machine, request, subject or ""),
            _subject_of_create(request) if operation == "create" else subject,
        )
    except APIError as error:
        answer: Any = error.response
        return Reply(answer.status_code, answer.content, _headers(machine))
    if isinstance(told, Reply):
        return Reply(told.status, told.body, {**_headers(machine), **told.headers}, told.raw)
    if told is None:
        return Reply(204, b"", _headers(machine))
    status = 201 if operation in ("create", "exec-create") else 200
    return Reply(status, json.dumps(told).encode(), _headers(machine))


def _find(method: str, path: str) -> tuple[str, Handler, str | None]:
    for verb, pattern, operation, handler in _ROUTES:
        match = pattern.fullmatch(path)
        if match and verb == method:
            return operation, handler, match[1] if match.groups() else None
    raise AssertionError(f"the fake engine has no {method} {path}")


def _headers(machine: FakeMachine) -> dict[str, str]:
    return {
        "Api-Version": API_VERSION,
        "Content-Type": "application/json",
        "Date": formatdate(machine.now, usegmt=True),
    }


def _subject_of_create(request: Request) -> dict[str, Any]:
    told = request.json
    return {
        "image": told.get("Image"),
        "name": request.params.get("name", ""),
        "labels": told.get("Labels") or {},
    }


@route("GET", "/version", "version")
def _version(machine: FakeMachine, request: Request, _: str) -> Any:
    return {"ApiVersion": API_VERSION, "Version": machine.info["ServerVersion"]}


@route("GET", "/_ping", "ping")
def _ping(machine: FakeMachine, request: Request, _: str) -> Any:
    return Reply(200, b"OK", {"Content-Type": "text/plain"})


@route("GET", "/info", "info")
def _info(machine: FakeMachine, request: Request, _: str) -> Any:
    return dict(machine.info)


@route("GET", "/containers/json", "list")
def _list(machine: FakeMachine, request: Request, _: str) -> Any:
    assert request.flag("all"), "the product lists what does not run, too"
    return machine.rows()


@route("GET", "/containers/{id}/json", "inspect")
def _inspect(machine: FakeMachine, request: Request, container: str) -> Any:
    return machine.inspect(container, request.timeout)


@route("POST", "/containers/create", "create")
def _create(machine: FakeMachine, request: Request, _: str) -> Any:
    told = request.json
    with machine.changed:
        made = machine.make(
            str(told.get("Image")),
            request.params.get("name", ""),
            dict(told.get("Labels") or {}),
            list(told.get("Env") or []),
            dict(told.get("HostConfig") or {}),
        )
        return {"Id": made.id, "Warnings": []}


@route("POST", "/containers/{id}/start", "start")
def _start(machine: FakeMachine, request: Request, container: str) -> Any:
    machine.start(container)


@route("POST", "/containers/{id}/stop", "stop")
def _stop(machine: FakeMachine, request: Request, container: str) -> Any:
    machine.stop(container, request.timeout)


@route("POST", "/containers/{id}/restart", "restart")
def _restart(machine: FakeMachine, request: Request, container: str) -> Any:
    machine.restart(container)


@route("POST", "/containers/{id}/kill", "kill")
def _kill(machine: FakeMachine, request: Request, container: str) -> Any:
    machine.kill(container)


@route("POST", "/containers/{id}/pause", "pause")
def _pause(machine: FakeMachine, request: Request, container: str) -> Any:
    machine.pause(container, paused=True)


@route("POST", "/containers/{id}/unpause", "unpause")
def _unpause(machine: FakeMachine, request: Request, container: str) -> Any:
    machine.pause(container, paused=False)


@route("POST", "/containers/{id}/rename", "rename")
def _rename(machine: FakeMachine, request: Request, container: str) -> Any:
    machine.rename(container, request.params["name"])


@route("POST", "/containers/{id}/update", "update")
def _update(machine: FakeMachine, request: Request, container: str) -> Any:
    machine.update(container, request.json)
    return {"Warnings": None}


@route("GET", "/containers/{id}/top", "top")
def _top(machine: FakeMachine, request: Request, container: str) -> Any:
    with machine.lock:
        one = machine.find_live(container)
        return {
            "Titles": ["UID", "PID", "CMD"],
            "Processes": [["1000", str(pid), "server"] for pid in one.pids],
        }


@route("DELETE", "/containers/{id}", "remove")
def _remove(machine: FakeMachine, request: Request, container: str) -> Any:
    machine.remove(container, request.flag("force"))


@route("GET", "/images/{name}/json", "image")
def _image(machine: FakeMachine, request: Request, name: str) -> Any:
    with machine.lock:
        known = machine.images.get(name) or machine.images.get(name.removesuffix(":latest"))
        if known is None:
            raise api_error(404, f"No such image: {name}")
        return dict(known)


@route("POST", "/images/create", "pull")
def _pull(machine: FakeMachine, request: Request, _: str) -> Any:
    tag = request.params.get("tag")
    name = request.params["fromImage"] + (f":{tag}" if tag else "")
    machine.add_image(name)
    return {"status": f"Downloaded {name}"}


@route("GET", "/volumes/{id}", "volume")
def _volume(machine: FakeMachine, request: Request, name: str) -> Any:
    with machine.lock:
        if name not in machine.volumes:
            raise api_error(404, f"get {name}: no such volume")
        return {"Name": name}


@route("PUT", "/containers/{id}/archive", "archive")
def _put_archive(machine: FakeMachine, request: Request, container: str) -> Any:
    with machine.lock:
        machine.find(container).files.append((request.params["path"], request.body))
    return Reply(200)


@route("GET", "/containers/{id}/archive", "read-archive")
def _get_archive(machine: FakeMachine, request: Request, container: str) -> Any:
    with machine.lock:
        for stored, data in reversed(machine.find(container).files):
            if stored == request.params["path"]:
                return Reply(200, data, {"Content-Type": "application/x-tar"})
    raise api_error(404, f"Could not find the file {request.params['path']} in {container}")


@route("POST", "/containers/{id}/exec", "exec-create")
def _exec_create(machine: FakeMachine, request: Request, container: str) -> Any:
    with machine.lock:
        one = machine.find_live(container)
        identity = machine.fresh_id("exec")
        machine.execs[identity] = FakeExec(one.id, [str(word) for word in request.json["Cmd"]])
        return {"Id": identity}


@route("POST", "/exec/{id}/start", "exec-start")
def _exec_start(machine: FakeMachine, request: Request, identity: str) -> Any:
    with machine.lock:
        command = _exec(machine, identity)
        one = machine.find_live(command.container)
        command.exit_code, output = one.inside(command.command)
    frame = struct.pack(">BxxxL", 1, len(output)) + output if output else b""
    if not request.upgrade:
        return Reply(200, frame, {"Content-Type": "application/vnd.docker.raw-stream"})
    return Reply(101, headers={"Connection": "Upgrade", "Upgrade": "tcp"}, raw=frame)


@route("GET", "/exec/{id}/json", "exec-inspect")
def _exec_inspect(machine: FakeMachine, request: Request, identity: str) -> Any:
    with machine.lock:
        command = _exec(machine, identity)
        return {
            "ID": identity,
            "ContainerID": command.container,
            "Running": False,
            "ExitCode": command.exit_code,
        }


def _exec(machine: FakeMachine, identity: str) -> FakeExec:
    if identity not in machine.execs:
        raise api_error(404, f"No such exec instance: {identity}")
    return machine.execs[identity]
