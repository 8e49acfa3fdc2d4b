"""The fault injector: what passes through unharmed, and what each fault does to a call."""

from __future__ import annotations

import contextlib
import io
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import docker
import pytest
import requests
from docker.errors import APIError
from urllib3.exceptions import HTTPError

from ground.engine import Engine
from ground.injector import Injector
from ground.injector_faults import KINDS, UNSENT, Kind, read_call

real = pytest.mark.parametrize("engine", ["hook"], indirect=True)


@pytest.fixture
def injector(clean_engine: Engine, tmp_path: Path) -> Iterator[Injector]:
    with Injector(tmp_path / "i", clean_engine.socket) as made:
        yield made


@pytest.fixture
def client(injector: Injector) -> Iterator[docker.APIClient]:
    with closing(docker.APIClient(injector.url, timeout=60)) as made:
        yield made


@pytest.mark.parametrize(
    ("line", "operation"),
    [
        ("GET /v1.41/containers/json?all=1", "list"),
        ("GET /v1.41/containers/f00/json", "inspect"),
        ("POST /v1.41/containers/create?name=x", "create"),
        ("POST /v1.41/containers/f00/start", "start"),
        ("POST /v1.41/containers/f00/stop?t=10", "stop"),
        ("DELETE /v1.41/containers/f00?v=True", "remove"),
        ("GET /v1.41/containers/f00/archive?path=%2F", "archive-get"),
        ("PUT /v1.41/containers/f00/archive?path=%2F", "archive-put"),
        ("GET /v1.41/images/registry:5000/a/b:c/json", "image"),
        ("GET /version", "version"),
        ("GET /v1.41/info", "info"),
        ("POST /v1.41/containers/f00/exec", "exec-create"),
        ("POST /v1.41/exec/f00/start", "exec-start"),
        ("POST /v1.41/containers/f00/rename", "other"),
    ],
)
def test_calls_have_names(line: str, operation: str) -> None:
    method, _, target = line.partition(" ")
    assert read_call(method, target, b"").operation == operation


@real
def test_everything_passes_through(
    injector: Injector, client: docker.APIClient, tiny_image: str
) -> None:
    made = client.create_container(tiny_image, ["sleep", "600"])["Id"]
    client.put_archive(made, "/", _archive(b"x" * 300_000))
    client.start(made)
    stream, _ = client.get_archive(made, "/some")
    assert len(b"".join(stream)) > 300_000
    ran = client.exec_create(made, ["cat", "/some"])
    assert client.exec_start(ran["Id"]) == b"x" * 300_000
    with pytest.raises(APIError) as refused:
        client.remove_container(made)
    assert refused.value.status_code == 409
    events = client.events(decode=True)
    client.remove_container(made, force=True)
    assert next(iter(events))["Type"] == "container"
    events.close()
    assert injector.count("create") == 1
    assert {c.operation for c in injector.calls} >= {"version", "archive-put", "exec-start"}


@real
@pytest.mark.parametrize("kind", [k for k in KINDS if k not in ("slow", "hang", "mute")])
def test_a_fault_and_what_the_engine_saw_of_it(
    injector: Injector, client: docker.APIClient, clean_engine: Engine, tiny_image: str, kind: Kind
) -> None:
    with (
        injector.fault("create", kind, times=1) as fault,
        pytest.raises((APIError, requests.RequestException, TypeError)) as caught,
    ):
        client.create_container(tiny_image)["Id"]
    assert [call.operation for call in fault.met] == ["create"]
    if kind.startswith("500"):
        assert isinstance(caught.value, APIError)
    assert len(clean_engine.client.containers(all=True)) == (0 if kind in UNSENT else 1)
    client.create_container(tiny_image)


@real
@pytest.mark.parametrize("kind", ["hang", "mute", "slow"])
def test_a_held_call_goes_on_when_released(
    injector: Injector, client: docker.APIClient, clean_engine: Engine, tiny_image: str, kind: Kind
) -> None:
    with ThreadPoolExecutor(1) as pool, injector.fault("create", kind, seconds=3600) as fault:
        creating = pool.submit(client.create_container, tiny_image)
        fault.wait_met()
        assert client.info()
        fault.release()
        assert creating.result(60)["Id"]
    assert len(clean_engine.client.containers(all=True)) == 1


@real
def test_a_held_create_whose_client_has_gone_is_still_carried_out(
    injector: Injector, client: docker.APIClient, clean_engine: Engine, tiny_image: str
) -> None:
    with injector.fault("create", "hang"):
        client.timeout = 0.05
        with pytest.raises(requests.RequestException):
            client.create_container(tiny_image)
        assert not clean_engine.client.containers(all=True)
    deadline = time.monotonic() + 60
    while not clean_engine.client.containers(all=True):
        assert time.monotonic() < deadline, "it was not carried out"
        time.sleep(0.02)


@real
def test_down_is_refused_and_comes_back(injector: Injector, client: docker.APIClient) -> None:
    with injector.down(), pytest.raises(requests.ConnectionError):
        client.info()
    assert client.info()


@real
def test_a_client_that_goes_is_gone_for_the_engine(
    injector: Injector, client: docker.APIClient
) -> None:
    events = client.events()
    injector.drop_connections()
    with contextlib.suppress(HTTPError):
        assert not list(events), "the stream has ended"
    assert client.info()
    injector.stop()
    assert not injector._threads


def _archive(data: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo("some")
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()
