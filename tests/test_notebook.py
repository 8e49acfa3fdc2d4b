"""A real notebook server: its login through the hub, and what code in a kernel is given."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from gpu_hub import containers, gpu_hub
from ground.engine import Engine
from ground.hub import Hub
from ground.student import Student

pytestmark = pytest.mark.parametrize("engine", ["hook"], indirect=True)

HALF = """
c.GPUSpawner.memory_fraction = 0.5
c.DockerSpawner.volumes = {"home-{username}": "/home/jovyan"}
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 0}
"""
FACTS = """
import json, os, pathlib, sys
home = pathlib.Path.home()
(home / "note.txt").write_text("kept")
print(json.dumps({
    "env": dict(os.environ),
    "ids": [os.getuid(), os.getgid()],
    "home": str(home),
    "note": (home / "note.txt").read_text(),
    "python": sys.executable,
}))
"""
#: A torch that only says that it was told something for the moment when CUDA begins.
TORCH = """
import pathlib, sys
pathlib.Path("torch.py").write_text(
    "class cuda:\\n    _lazy_call = staticmethod(lambda later: print('told'))"
)
sys.path.insert(0, "")
import torch
"""


class Kernel:
    """A kernel of a user's notebook server, by the interface that JupyterLab uses.

    Args:
        url: the server's, with a slash at the end.
        token: one that may use the server.
    """

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.headers = {"Authorization": f"token {token}"}
        self.id = requests.post(f"{url}api/kernels", headers=self.headers, timeout=60).json()["id"]

    async def run(self, code: str) -> str:
        """Run code; what it printed.

        Raises:
            AssertionError: it raised an error.
        """
        address = f"{self.url.replace('http', 'ws', 1)}api/kernels/{self.id}/channels"
        request = HTTPRequest(address, headers=self.headers, request_timeout=60)
        socket = await asyncio.wait_for(websocket_connect(request), 60)
        try:
            message = uuid.uuid4().hex
            await socket.write_message(json.dumps(_execute_request(message, code)))
            printed = ""
            while True:
                received: Any = socket.read_message()
                answer = json.loads(await asyncio.wait_for(received, 60) or "null")
                assert answer is not None, "the server closed the connection"
                if answer["parent_header"].get("msg_id") != message:
                    continue
                content = answer["content"]
                assert answer["msg_type"] != "error", content
                if answer["msg_type"] == "stream":
                    printed += content["text"]
                if (answer["msg_type"], content.get("execution_state")) == ("status", "idle"):
                    return printed
        finally:
            socket.close()
            # The client ends the connection only when it reads the server's farewell.
            while await asyncio.wait_for(socket.read_message(), 60) is not None:
                pass


def _execute_request(message: str, code: str) -> dict[str, Any]:
    header = {
        "msg_id": message,
        "msg_type": "execute_request",
        "username": "",
        "session": uuid.uuid4().hex,
        "date": "",
        "version": "5.3",
    }
    content = {"code": code, "silent": False, "store_history": False, "stop_on_error": True}
    return {
        "header": header,
        "parent_header": {},
        "metadata": {},
        "content": content,
        "channel": "shell",
        "buffers": [],
    }


@pytest.fixture(scope="module")
def hub(
    engine: Engine, notebook_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hub]:
    with gpu_hub(tmp_path_factory.mktemp("notebook"), engine, notebook_image, HALF) as hub:
        hub.add_users("student", "neighbour")
        yield hub
        hub.stop_server("student")
        hub.wait_stopped("student")
        hub.wait(lambda: not containers(engine), "no container left")


@pytest.fixture(scope="module")
def student(hub: Hub) -> Student:
    """Logged in, with a running server."""
    student = hub.login("student")
    answer = student.post_form({"profile": "one-gpu"})
    assert answer.status_code == 302
    events = list(student.progress())
    assert events[-1]["ready"], events
    return student


def test_the_own_server_opens_through_the_hubs_login(hub: Hub, student: Student) -> None:
    page = student.open_server("lab")
    assert page.status_code == 200
    assert page.url.startswith(f"{hub.url}/user/student/lab")
    assert "JupyterLab" in page.text


def test_nobody_else_opens_it(hub: Hub, student: Student) -> None:
    neighbour = hub.login("neighbour")
    page = neighbour.http.get(f"{hub.url}/user/student/lab", timeout=60)
    assert page.status_code == 403
    stranger = requests.get(f"{hub.url}/user/student/api/kernels", timeout=60)
    assert stranger.status_code == 403


async def test_a_kernel_has_its_card_its_user_and_its_budget(
    hub: Hub, engine: Engine, student: Student
) -> None:
    token = student.api("POST", "users/student/tokens", json={"note": "kernel"}).json()["token"]
    kernel = Kernel(f"{hub.url}/user/student/", token)
    facts = json.loads(await kernel.run(FACTS))
    env = facts["env"]
    assert env["GPUSPAWNER_DEVICES"] in engine.uuids
    assert env["NVIDIA_VISIBLE_DEVICES"] == env["GPUSPAWNER_DEVICES"]
    assert facts["ids"] == [1000, 100]
    assert (facts["home"], facts["note"]) == ("/home/jovyan", "kept")
    assert env["GPUSPAWNER_MEMORY_FRACTION"] == "0.5"
    assert env["GPUSPAWNER_MEMORY_LIMIT_MIB"] == "20480"
    assert env["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.5"
    assert env["CUPY_GPU_MEMORY_LIMIT"] == "50%"
    assert env["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    # The startup hook is in the kernel's own Python: it covers whatever torch is imported.
    assert await kernel.run(TORCH) == "told\n"


def test_shut_down_from_inside_frees_the_card(hub: Hub, engine: Engine, student: Student) -> None:
    """As JupyterLab's menu does it: the server ends by itself."""
    token = student.api("POST", "users/student/tokens", json={"note": "menu"}).json()["token"]
    [old] = containers(engine)
    answer = requests.post(
        f"{hub.url}/user/student/api/shutdown",
        headers={"Authorization": f"token {token}"},
        timeout=60,
    )
    assert answer.ok, answer.text
    hub.wait_stopped("student")
    hub.wait(lambda: not containers(engine), "its container is removed")
    assert 'id="start"' in student.get("/hub/home").text
    hub.start_server("student", {"profile": "one-gpu"})
    hub.wait_ready("student")
    [new] = containers(engine)
    assert new["Id"] != old["Id"]
    assert new["Labels"]["gpuspawner.devices"] in engine.uuids
