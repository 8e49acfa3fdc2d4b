"""A ``docker.APIClient`` of a fake engine: docker-py's own, over a connection that is a call."""

from __future__ import annotations

import io
import socket
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

import requests
from urllib3 import HTTPResponse

from gpuspawner.connection import EngineClient

from .docker_api import API_VERSION, Reply, Request, serve
from .docker_machine import FakeMachine


class FakeClient(EngineClient):
    """A client of a FakeMachine; everything but the wire is docker-py's."""

    def __init__(self, machine: FakeMachine) -> None:
        super().__init__(base_url="http://fake:1", version=API_VERSION)
        self.machine = machine
        # Neither a proxy nor a .netrc has a say here, and looking for them takes time.
        self.trust_env = False
        self.mount("http://fake:1", _Wire(machine))


class _Wire(requests.adapters.HTTPAdapter):
    """Hands requests to the machine in the calling thread."""

    def __init__(self, machine: FakeMachine) -> None:
        super().__init__()
        self._machine = machine

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: Any = True,
        cert: Any = None,
        proxies: Mapping[str, str] | None = None,
    ) -> requests.Response:
        url = urlsplit(str(request.url))
        body = request.body or b""
        reply = serve(
            self._machine,
            Request(
                method=str(request.method),
                path=url.path,
                params=dict(parse_qsl(url.query)),
                body=body.encode() if isinstance(body, str) else cast("bytes", body),
                timeout=timeout if isinstance(timeout, int | float) else None,
                upgrade="Upgrade" in request.headers,
            ),
        )
        raw = HTTPResponse(
            body=_Body(reply),
            headers=dict(reply.headers),
            status=reply.status,
            preload_content=False,
        )
        return self.build_response(request, raw)


class _Body(io.BytesIO):
    """What docker-py reaches into: a body, or the socket of a connection that was taken over."""

    chunked = False

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.body)
        self.fp = self
        self.raw: Any = self
        if reply.raw is not None:
            self.raw, far = socket.socketpair()
            with far:
                far.sendall(reply.raw)

    def close(self) -> None:
        if self.raw is not self:
            self.raw.close()
        super().close()
