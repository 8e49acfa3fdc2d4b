"""A person at the hub's pages, over plain HTTP: logs in, reads the form, submits it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import requests

from .machine import PATIENCE_SECONDS, GroundError, NotInTimeError

#: What a browser sends with a click on a page of the same site; the hub's form check asks for it.
_NAVIGATION = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "same-origin"}


class Student:
    """One browser session.

    Attributes:
        http: the session with its cookies, for anything not offered here.
    """

    def __init__(self, hub_url: str, user: str) -> None:
        self.hub_url = hub_url
        self.user = user
        self.http = requests.Session()
        self.http.trust_env = False
        self.http.headers.update(_NAVIGATION)
        # The proxy ends idle connections after some seconds: a request must not meet that moment.
        self.http.headers["Connection"] = "close"

    def login(self, password: str) -> None:
        """Log in on the hub's page.

        Raises:
            GroundError: the hub refused.
        """
        self.get("/hub/login")
        answer = self.post(
            "/hub/login",
            {"username": self.user, "password": password},
            params={"next": "/hub/home"},
            allow_redirects=False,
        )
        if answer.status_code != 302:
            raise GroundError(f"login of {self.user!r} was refused: {answer.status_code}")
        # The first page after the login renews the token that forms must carry.
        self.get("/hub/home")

    @property
    def xsrf(self) -> str:
        """The form token for the hub's pages."""
        for cookie in self.http.cookies:
            if cookie.name == "_xsrf" and cookie.path == "/hub/" and cookie.value:
                return cookie.value
        raise GroundError(f"the hub gave {self.user!r} no form token")

    def get(self, path: str, **kwargs: Any) -> requests.Response:
        """GET a page of the hub's site; redirects are followed."""
        kwargs.setdefault("timeout", 60)
        return self.http.get(self.hub_url + path, **kwargs)

    def post(self, path: str, data: Mapping[str, Any], **kwargs: Any) -> requests.Response:
        """POST a form of the hub's site, with the form token."""
        kwargs.setdefault("timeout", 60)
        kwargs["params"] = {"_xsrf": self.xsrf, **kwargs.get("params", {})}
        return self.http.post(self.hub_url + path, data={"_xsrf": self.xsrf, **data}, **kwargs)

    def get_form(self, name: str = "", **query: str) -> requests.Response:
        """The spawn page; with ``profile=…`` it starts the server at once."""
        return self.get(self._spawn_path(name), params=query, allow_redirects=not query)

    def post_form(self, data: Mapping[str, Any] | None = None, name: str = "") -> requests.Response:
        """Submit the spawn form; 302 to the pending page, or the page that says why not."""
        return self.post(self._spawn_path(name), data or {}, allow_redirects=False)

    def refused_form(
        self, data: Mapping[str, Any] | None = None, name: str = ""
    ) -> requests.Response:
        """Submit the spawn form for a start that is refused: the page that says why not."""
        return self._last_word(self.post_form(data, name), name)

    def refused_link(self, name: str = "", **query: str) -> requests.Response:
        """Follow a link such as ``?profile=…`` for a start that is refused: the same page."""
        return self._last_word(self.get_form(name, **query), name)

    def _last_word(self, answer: requests.Response, name: str) -> requests.Response:
        """The hub waits a second for a start; a busy one sends to the pending page before."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while answer.status_code in (200, 302):
            if answer.status_code == 302 and "spawn-pending" not in answer.headers["Location"]:
                return answer
            if time.monotonic() > deadline:
                raise NotInTimeError(f"the start of {self.user!r} is pending still")
            time.sleep(0.05)
            answer = self.pending_page(name)
        return answer

    def pending_page(self, name: str = "") -> requests.Response:
        """The page that a waiting user looks at."""
        return self.get(f"/hub/spawn-pending/{self._server(name)}", allow_redirects=False)

    def progress(self, name: str = "") -> Iterator[dict[str, Any]]:
        """Events of the own pending server's progress stream, until it ends."""
        path = f"servers/{name}" if name else "server"
        url = f"{self.hub_url}/hub/api/users/{self.user}/{path}/progress"
        return progress_events(self.http, f"{url}?_xsrf={self.xsrf}")

    def open_server(self, path: str = "", name: str = "") -> requests.Response:
        """GET below the own server, through all redirects of a first visit."""
        return self.get(f"/user/{self._server(name)}/{path}")

    def api(self, method: str, path: str, **kwargs: Any) -> requests.Response:
        """Call the REST API as this user's own page does, with cookie and form token."""
        kwargs.setdefault("timeout", 60)
        headers = {
            "X-XSRFToken": self.xsrf,
            "Sec-Fetch-Mode": "cors",
            "Referer": f"{self.hub_url}/hub/home",
        }
        url = f"{self.hub_url}/hub/api/{path.lstrip('/')}"
        return self.http.request(method, url, headers=headers, **kwargs)

    def _server(self, name: str) -> str:
        return f"{self.user}/{name}" if name else self.user

    def _spawn_path(self, name: str) -> str:
        return f"/hub/spawn/{self._server(name)}"


def progress_events(session: requests.Session, url: str) -> Iterator[dict[str, Any]]:
    """Events of a progress stream as they arrive.

    Raises:
        requests.HTTPError: there is no pending server to follow.
    """
    headers = {"Accept": "text/event-stream", "Sec-Fetch-Mode": "cors"}
    with session.get(url, stream=True, headers=headers, timeout=120) as answer:
        if not answer.ok:
            raise requests.HTTPError(
                f"{urlsplit(url).path}: {answer.status_code} {answer.text}", response=answer
            )
        for line in answer.iter_lines(chunk_size=1):
            if line.startswith(b"data:"):
                yield json.loads(line.removeprefix(b"data:"))
