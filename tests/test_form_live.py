"""What an open form refreshes itself from, on real hubs: who may read it; it only reads."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from gpu_hub import containers, gpu_hub
from gpuspawner.form import TEMPLATE
from ground.engine import Engine
from ground.hub import Hub
from ground.student import Student

pytestmark = pytest.mark.parametrize("engine", ["hook"], indirect=True)

PROFILES = """
c.GPUSpawner.max_gpus_per_user = 4
c.GPUSpawner.profile_list = [
    {"display_name": "One GPU", "slug": "one-gpu", "gpu": {"count": 1}},
    {"display_name": "All GPUs", "slug": "all-gpus", "gpu": {"count": 4}, "groups": ["staff"]},
    {"display_name": "Secret", "slug": "secret", "users": ["boss"]},
    {"display_name": "CPU only", "slug": "cpu", "groups": ["class", "staff"]},
]
c.JupyterHub.template_paths = ["pages"]
c.JupyterHub.template_vars = {"faculty": "Physics & Co", "asks": lambda user: user and user.name}
c.JupyterHub.activity_resolution = 0
import gpuspawner
gpuspawner.configure(c)
"""
GIVES = "1 GPU · A100 · 40 GB"
OURS = '{% extends "templates/gpuspawner_form.html" %}'


@pytest.fixture(scope="module", params=[6, 5])
def hub(
    request: pytest.FixtureRequest,
    engine: Engine,
    tiny_image: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Hub]:
    python = request.getfixturevalue("python5") if request.param == 5 else sys.executable
    hub = gpu_hub(tmp_path_factory.mktemp("live"), engine, tiny_image, PROFILES, python=python)
    (hub.folder / "pages").mkdir()
    with hub:
        hub.add_users("holder", "ada", "ben")
        for group, user in (("staff", "holder"), ("class", "ada")):
            hub.api("POST", f"groups/{group}")
            hub.api("POST", f"groups/{group}/users", json={"users": [user]})
        yield hub
        hub.wait(lambda: not containers(engine), "no container left")


def live(student: Student, user: str, **kwargs: Any) -> Any:
    return student.get(f"/hub/gpuspawner/profiles/{user}", **kwargs)


def test_an_open_form_can_ask_how_things_stand(hub: Hub) -> None:
    ada = hub.login("ada")
    page = ada.get_form().text
    assert "extra_handlers is deprecated" not in hub.log
    [url] = re.findall(r'data-live="(.*?)"', page)
    answer = ada.get(url)
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Content-Type"].startswith("application/json")
    told = answer.json()
    assert set(told["profiles"]) == {"one-gpu", "cpu"}
    assert told["profiles"]["one-gpu"] == {
        "count": "4 of 4 GPUs free",
        "free": 4,
        "total": 4,
        "disabled": "",
        "advice": "",
        "gives": GIVES.replace(" GB", "~GB").replace(" ·", "~·").replace("~", "\N{NO-BREAK SPACE}"),
    }
    assert told["selected"] == "cpu"

    hub.start_server("holder", {"profile": "all-gpus"})
    hub.wait_ready("holder")
    taken = "All 4 GPUs are in use just now."
    hub.wait(lambda: ada.get(url).json()["profiles"]["one-gpu"]["disabled"] == taken, "all taken")

    hub.stop_server("holder")
    hub.wait_stopped("holder")
    hub.wait(lambda: ada.get(url).json()["profiles"]["one-gpu"]["free"] == 4, "all free again")

    # Open to the user and to admins, who see what that user would; to nobody else.
    admin = hub.login("admin")
    assert live(admin, "ada").json() == ada.get(url).json()
    assert live(ada, "holder").status_code in (403, 404)
    assert "staff" not in live(ada, "holder").text
    stranger = Student(hub.url, "nobody")
    assert live(stranger, "ada", allow_redirects=False).status_code == 403
    assert live(admin, "no-such-user").status_code == 404
    assert ada.post(url, {}).status_code == 405


def test_it_makes_no_server_and_is_no_activity(hub: Hub) -> None:
    ada, admin = hub.login("ada"), hub.login("admin")
    ada.get_form()

    def model() -> Any:
        return hub.api("GET", "users/ada", params={"include_stopped_servers": "1"}).json()

    before = model()
    assert live(ada, "ada").ok
    assert live(admin, "ada/never").status_code == 404
    assert model() == before  # with the time of the last activity
    ada.get_form()
    assert model()["last_activity"] > before["last_activity"]

    assert admin.get("/hub/spawn/ada/training").ok
    assert set(live(admin, "ada/training").json()["profiles"]) == {"one-gpu", "cpu"}
    assert hub.server("ada", "training") is None


def test_an_admin_starts_for_somebody_with_what_is_theirs(hub: Hub) -> None:
    admin = hub.login("admin")
    page = unescape(admin.get("/hub/spawn/ada").text)
    assert 'value="one-gpu"' in page
    assert 'value="cpu"' in page
    assert 'data-live="/hub/gpuspawner/profiles/ada"' in page
    assert page.count("Open to other groups only.") == 1  # "All GPUs"
    assert "Secret" not in page
    named = unescape(admin.get("/hub/spawn/holder/x").text)
    assert 'data-live="/hub/gpuspawner/profiles/holder/x"' in named
    assert "Open to other groups only." not in named
    # One profile only: nothing to choose, for an admin neither, and with named servers.
    assert "gpuspawner" not in admin.get("/hub/spawn/ben/one").text
    hub.wait_ready("ben", "one")
    hub.stop_server("ben", "one")
    hub.wait_stopped("ben", "one")


def test_an_admins_template_extends_ours(hub: Hub) -> None:
    own = Path(hub.folder) / "pages" / TEMPLATE
    own.write_text(
        OURS + "{% block before %}<p>{{ faculty }} for {{ asks }}</p>{% endblock %}"
        "{% block profile %}<hr>{{ super() }}{% endblock %}"
    )
    ada = hub.login("ada")
    page = ada.get_form().text
    assert "<p>Physics &amp; Co for ada</p>" in page
    assert page.count("<hr>") == 3
    assert 'value="one-gpu"' in page

    own.write_text(OURS + "{% block before %}{{ no_such_thing }}{% endblock %}")
    page = ada.get_form().text
    assert "What would you like to start?" in page
    assert "no_such_thing" not in page
    assert "<hr>" not in page
    assert "gpuspawner_form.html failed" in hub.log
    assert "'no_such_thing' is undefined" in hub.log
    own.unlink()
    assert "What would you like to start?" in ada.get_form().text
