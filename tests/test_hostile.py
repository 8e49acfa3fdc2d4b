"""Hostile ``user_options`` at every door of a real hub on a real engine.

Whatever is sent, the answer is the server or a refusal in words, never a 500; and every container
that comes to be is one that a good choice of the same profile makes. What JupyterHub itself trips
over before it asks a spawner is left out: bytes that are no UTF-8 in a form or a link.

A long run: ``GPUSPAWNER_HOSTILE_EXAMPLES=3000 pytest tests/test_hostile.py
--hypothesis-show-statistics``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import requests
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from gpu_hub import containers, gpu_hub
from ground.engine import Engine
from ground.hub import Hub
from ground.image import TINY_ALL
from ground.student import Student

pytestmark = pytest.mark.parametrize("engine", ["hook"], indirect=True)

EXAMPLES = int(os.environ.get("GPUSPAWNER_HOSTILE_EXAMPLES", "30"))
USER = "mallory"
NAMES = ["", "", "", "two", "a b", "..", "x" * 300, "ü", "{username}"]

PROFILES = """
c.GPUSpawner.profile_list = [
    {"display_name": "One GPU", "slug": "one-gpu", "gpu": {"count": 1}},
    {
        "display_name": "CPU",
        "slug": "cpu",
        "default": True,
        "profile_options": {
            "size": {
                "choices": {
                    "s": {"spawner_override": {"mem_limit": "64M"}},
                    "l": {"spawner_override": {"mem_limit": "128M"}},
                },
            },
            "course": {
                "unlisted_choice": {
                    "enabled": True,
                    "spawner_override": {"environment": {"COURSE": "{value}"}},
                },
            },
        },
    },
    {
        "display_name": "Own image",
        "slug": "own",
        "spawner_override": {"image": c.DockerSpawner.image},
    },
    {"display_name": "Teachers", "slug": "teachers", "gpu": {"count": 2}, "groups": ["teachers"]},
]
c.DockerSpawner.allowed_images = {"Tiny": c.DockerSpawner.image, "All": "TINY_ALL"}
c.JupyterHub.named_server_limit_per_user = 3
c.Spawner.consecutive_failure_limit = 3
# Every answer is the last word, however busy the machine is.
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 120}
""".replace("TINY_ALL", TINY_ALL)


@pytest.fixture(scope="module", params=["hub6", "hub5"])
def hub(
    request: pytest.FixtureRequest,
    engine: Engine,
    tiny_image: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Hub]:
    other = {"python": request.getfixturevalue("python5")} if request.param == "hub5" else {}
    folder = tmp_path_factory.mktemp("hostile")
    with gpu_hub(folder, engine, tiny_image, PROFILES, **other) as hub:
        hub.add_users(USER)
        yield hub


# -- what is allowed -------------------------------------------------------------------------------


class Whitelist:
    """What a good choice of each profile makes, seen on the engine."""

    def __init__(self, hub: Hub, engine: Engine, images: set[str]) -> None:
        self.hub, self.engine = hub, engine
        self.images = images
        self.made: dict[str, dict[str, Any]] = {}
        good = {"profile": "cpu", "size": "l", "course--unlisted-choice": "ml"}
        for options in ({"profile": "one-gpu"}, good, {"profile": "own"}):
            hub.start_server(USER, options)
            [found] = self.inspections()
            self.made[options["profile"]] = found
            self.end()

    def inspections(self) -> list[dict[str, Any]]:
        client = self.engine.client
        return [dict(client.inspect_container(row["Id"])) for row in containers(self.engine)]

    def check(self) -> int:
        """Look at every container that there is, and end it; how many there were."""
        found = self.inspections()
        for one in found:
            self._check(one)
        if found:
            self.end()
        return len(found)

    def _check(self, one: dict[str, Any]) -> None:
        labels = one["Config"]["Labels"]
        good = self.made[labels["gpuspawner.profile"]]
        assert one["Config"]["Image"] in self.images
        if labels["gpuspawner.profile"] == "own":
            assert one["Config"]["Image"] == good["Config"]["Image"]
        assert one["Config"]["User"] == good["Config"]["User"] == "1000:100"
        assert _host(one) == _host(good)
        assert not one["HostConfig"]["Privileged"]
        assert not one["Mounts"]
        cards = [d for d in labels["gpuspawner.devices"].split(",") if d]
        assert len(cards) == (1 if labels["gpuspawner.profile"] == "one-gpu" else 0)
        mine, theirs = _env(one), _env(good)
        # The text of an option is optional, and what is in it is the user's.
        assert set(mine) | {"COURSE"} == set(theirs) | {"COURSE"}
        assert mine["NVIDIA_VISIBLE_DEVICES"] == (",".join(cards) or "void")
        for key in ("NB_UID", "NB_GID", "NB_USER", "HOME"):
            assert mine.get(key) == theirs.get(key)

    def end(self) -> None:
        """Stop all servers of the user, and wait until their containers are gone."""
        model = self.hub.api("GET", f"users/{USER}").json()
        for name in model["servers"]:
            self.hub.stop_server(USER, quote(name))
        self.hub.wait(lambda: not containers(self.engine), "no container left")
        for name in model["servers"]:
            self.hub.wait_stopped(USER, name)


def _host(inspection: dict[str, Any]) -> dict[str, Any]:
    """What the container may do to its host, without what differs from start to start."""
    host = dict(inspection["HostConfig"])
    del host["Memory"], host["MemorySwap"], host["ShmSize"]  # the option "size" sets them
    host["DeviceRequests"] = [
        {**request, "DeviceIDs": len(request["DeviceIDs"])}
        for request in host["DeviceRequests"] or ()
    ]
    return host


def _env(inspection: dict[str, Any]) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in inspection["Config"]["Env"])


@pytest.fixture(scope="module")
def whitelist(hub: Hub, engine: Engine, tiny_image: str, tiny_image_all: str) -> Whitelist:
    return Whitelist(hub, engine, {tiny_image, tiny_image_all})


@pytest.fixture(scope="module")
def student(hub: Hub) -> Student:
    return hub.login(USER)


def check_answer(hub: Hub, answer: requests.Response) -> None:
    event(f"status {answer.status_code}")
    assert hub.running, hub.log[-3000:]
    # 503 and 429 are our refusals for a shortage, on JupyterHub 6 and 5.
    assert answer.status_code < 500 or answer.status_code == 503, (
        f"{answer.status_code}: {answer.text[:300]}\n{hub.log[-3000:]}"
    )
    assert "Traceback" not in answer.text


# -- what is sent ----------------------------------------------------------------------------------

GOOD = [
    "profile", "one-gpu", "cpu", "own", "teachers", "size", "s", "l", "image", "Tiny", "All",
    "course--unlisted-choice", "ml",
]  # fmt: skip
EVIL = [
    "NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "DOCKER_RESOURCE_NVIDIA-GPU", "all",
    "device_requests", "devices", "runtime", "nvidia", "privileged", "uid", "gid", "user", "root",
    "volumes", "/:/host:rw", "environment", "extra_host_config", "spawner_override", "cmd",
    "__class__", "__jupyterhub_bytes__", "data", "user_options", "display_name", "name", "next",
    "{spawner.api_token}", "{0.__class__}", "%(x)s", "$(id)", "../../etc", "unlisted-choice",
    "size--unlisted-choice", "image--unlisted-choice", "profile-option-cpu--size", "opt-profile",
    "evil/image:latest", "tiny", TINY_ALL, "", " ", "\0", "\n", "cpu\n", "CPU", "cpu\0", "\u202e",
    "\ud800", "🎓", "ⅽpu", "0", "-1", "true", "null", "x" * 5_000,
]  # fmt: skip
words = st.sampled_from(GOOD) | st.sampled_from(EVIL) | st.text(max_size=20)
numbers = st.integers() | st.floats() | st.sampled_from([10**400, -1, 0, 1e308])
values = st.recursive(
    words | numbers | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
likely = st.fixed_dictionaries(
    {},
    optional={
        "profile": st.sampled_from(["one-gpu", "cpu", "own", "teachers"]) | words,
        "size": st.sampled_from(["s", "l"]) | values,
        "image": st.sampled_from(["Tiny", "All", "evil:1"]) | values,
        "course--unlisted-choice": words,
    },
)
options = likely | st.dictionaries(words, values, max_size=4) | values


@st.composite
def with_an_extra(draw: st.DrawFn) -> Any:
    """A good choice with one thing too many: what an attacker would try first."""
    base: dict[str, Any] = dict(
        draw(st.sampled_from([{"profile": "cpu"}, {"profile": "one-gpu"}, {}]))
    )
    base[draw(words)] = draw(values)
    return base


def _doubled(pairs: list[tuple[str, Any]]) -> bytes:
    """JSON in which keys may come twice."""
    return b"{%s}" % b", ".join(f"{json.dumps(k)}: {json.dumps(v)}".encode() for k, v in pairs)


sent = options | with_an_extra()
bodies = st.one_of(
    sent.map(lambda o: json.dumps(o).encode()),
    sent.map(lambda o: json.dumps({"user_options": o}).encode()),
    sent.map(lambda o: json.dumps({"user_options": o, "display_name": "x"}).encode()),
    st.lists(st.tuples(st.sampled_from(GOOD + EVIL), values), max_size=4).map(_doubled),
    st.sampled_from([10, 100, 900, 2_000, 100_000]).map(lambda n: b"[" * n + b"]" * n),
    st.sampled_from([10, 100, 300, 2_000]).map(
        lambda n: b'{"profile": ' + b'{"a":' * n + b"1" + b"}" * (n + 1)
    ),
    st.binary(max_size=40),
    st.just(b"") | st.just(b"\xef\xbb\xbf{}") | st.just(b"profile=cpu"),
)
kinds = st.sampled_from(
    ["application/json", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data",
     "application/json; charset=utf-16", ""]
)  # fmt: skip

hostile = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@hostile
@given(body=bodies, kind=kinds, name=st.sampled_from(NAMES))
@example(body=b'{"profile": "cpu", "course--unlisted-choice": "x"}', kind="text/plain", name="")
@example(body=b'{"profile": "one-gpu", "image": "All"}', kind="application/json", name="two")
@example(body=b'{"image": "All"}', kind="application/json", name="")
@example(body=b'{"profile": "teachers", "profile": "cpu"}', kind="application/json", name="")
def test_rest(hub: Hub, whitelist: Whitelist, body: bytes, kind: str, name: str) -> None:
    answer = hub.api(
        "POST", _path(name), check=False, data=body, headers={"Content-Type": kind}, timeout=180
    )
    check_answer(hub, answer)
    assert whitelist.check() == (answer.status_code == 201)


@settings(hostile, max_examples=EXAMPLES // 2)
@given(body=sent, name=st.sampled_from(NAMES), method=st.sampled_from(["PATCH", "PUT"]))
@example(body={"profile": "teachers"}, name="", method="PATCH")
@example(body={"profile": "one-gpu", "image": "All"}, name="", method="PATCH")
@example(body={"uid": 0}, name="two", method="PUT")
def test_stored(hub: Hub, whitelist: Whitelist, body: Any, name: str, method: str) -> None:
    """What JupyterHub 6 stores unread is checked when a start names nothing."""
    if hub.api("GET", "info").json()["version"].startswith("5."):
        pytest.skip("JupyterHub 5 stores no options without a start")
    stored = hub.api(
        method, f"users/{USER}/servers/{quote(name, safe='')}", check=False,
        data=json.dumps({"user_options": body}),
    )  # fmt: skip
    check_answer(hub, stored)
    answer = hub.api("POST", _path(name), check=False, timeout=180)
    check_answer(hub, answer)
    assert whitelist.check() == (answer.status_code == 201)


fields = st.lists(
    st.tuples(
        words | st.sampled_from(["profile-option-cpu--size", "profile-option-own--image"]), words
    ),
    max_size=5,
)


@settings(hostile, max_examples=EXAMPLES // 2)
@given(
    pairs=fields | likely.map(lambda o: [(k, v) for k, v in o.items() if isinstance(v, str)]),
    door=st.sampled_from(["form", "multipart", "upload", "link"]),
    name=st.sampled_from(["", "two"]),
)
@example(pairs=[("profile", "cpu"), ("profile", "one-gpu")], door="form", name="")
@example(pairs=[("profile", "one-gpu"), ("image", "All")], door="multipart", name="")
@example(pairs=[("profile", "own"), ("image", "All")], door="form", name="two")
@example(pairs=[("opt-profile", "cpu"), ("profile", "teachers")], door="link", name="")
def test_pages(
    hub: Hub,
    whitelist: Whitelist,
    student: Student,
    pairs: list[tuple[str, str]],
    door: str,
    name: str,
) -> None:
    pairs = [(_plain(key), _plain(value)) for key, value in pairs]
    path = f"/hub/spawn/{USER}/{name}".rstrip("/")
    if door == "link":
        answer = student.get(f"{path}?{urlencode(pairs)}", allow_redirects=False)
    else:
        own: dict[str, Any] = {"data": urlencode(pairs).encode()}
        if door == "multipart":
            own = {"files": [(key, (None, value)) for key, value in pairs]}
        elif door == "upload":
            own = {"files": [(key, ("file.txt", value)) for key, value in pairs]}
        if door == "form":
            own["headers"] = {"Content-Type": "application/x-www-form-urlencoded"}
        answer = student.http.post(
            f"{hub.url}{path}", params={"_xsrf": student.xsrf}, allow_redirects=False,
            timeout=180, **own,
        )  # fmt: skip
    check_answer(hub, answer)
    hub.wait(lambda: _settled(hub, name), "the start has ended")
    assert whitelist.check() <= (answer.status_code == 302)


def test_afterwards_all_is_well(hub: Hub, whitelist: Whitelist) -> None:
    """A start like any other; and refusals don't end a hub with a limit on failures."""
    assert hub.start_server(USER, {"profile": "one-gpu", "image": "Tiny"}).status_code == 201
    assert whitelist.check() == 1
    for _ in range(5):
        assert hub.start_server(USER, {"profile": "teachers"}, check=False).status_code == 403
    assert hub.running


def _path(name: str) -> str:
    return f"users/{USER}/servers/{quote(name, safe='')}" if name else f"users/{USER}/server"


def _plain(text: str) -> str:
    """Without what no UTF-8 can carry."""
    return text.encode(errors="ignore").decode()


def _settled(hub: Hub, name: str) -> bool:
    server = hub.server(USER, name)
    return server is None or server["ready"]
