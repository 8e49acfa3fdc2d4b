"""The line about a faulty GPU on JupyterHub's own home page, of either version."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from jinja2 import ChoiceLoader, DictLoader, Environment, FileSystemLoader, PrefixLoader
from jupyterhub._data import DATA_FILES_PATH

from gpuspawner.hub_pages import TEMPLATES, VARIABLE
from gpuspawner.notices import Notice, notices_for

STUB = "{% block main %}{% endblock %}{% block script %}{% endblock %}"


@pytest.fixture(params=["this hub", "hub 5"])
def data(request: pytest.FixtureRequest) -> Path:
    """JupyterHub's own files."""
    if request.param == "this hub":
        return Path(DATA_FILES_PATH)
    python = Path(request.getfixturevalue("python5"))
    return python.parents[1] / "share/jupyterhub"


def test_the_home_page_is_the_hubs_own_with_a_line_more(data: Path) -> None:
    own = str(data / "templates")
    # As JupyterHub loads its pages, save for the frame around them.
    loader = ChoiceLoader(
        [
            DictLoader({"page.html": STUB}),
            PrefixLoader({"templates": FileSystemLoader([own])}, "/"),
            FileSystemLoader([TEMPLATES, own]),
        ]
    )
    page = Environment(loader=loader, autoescape=True).get_template("home.html")
    known = {"default_server": SimpleNamespace(active=True), "url": "/", "user": None}
    without = page.render(known)
    assert "Stop My Server" in without
    assert "alert" not in without
    notice = Notice("<b>training", "It has reported a fault.")
    told = page.render({**known, VARIABLE: [notice, Notice("", "Save & stop.")]})
    assert "Stop My Server" in told
    assert "&lt;b&gt;training" in told
    assert "<b>training" not in told
    assert "It has reported a fault." in told
    assert "Save &amp; stop." in told


def test_a_visitor_and_servers_of_other_spawners_have_no_notices() -> None:
    assert notices_for(None) == []
    assert notices_for(SimpleNamespace(name="a service")) == []
    assert notices_for(SimpleNamespace(spawners={"": object()})) == []
