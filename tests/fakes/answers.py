"""HTTP answers as the engine's server would send them, and docker-py's errors for them."""

from __future__ import annotations

import json
from email.utils import formatdate
from typing import Any

import requests
from docker.errors import APIError, create_api_error_from_http_exception


def response(status: int, body: Any, now: float) -> requests.Response:
    """What the engine's HTTP server would send."""
    answer = requests.Response()
    answer.status_code = status
    answer.url = "http://fake/"
    answer._content = json.dumps(body).encode()
    answer.headers["Date"] = formatdate(now, usegmt=True)
    answer.headers["Content-Type"] = "application/json"
    return answer


def api_error(status: int, message: str) -> APIError:
    """The error docker-py makes of an answer with this status."""
    try:
        response(status, {"message": message}, 0).raise_for_status()
    except requests.exceptions.HTTPError as error:
        try:
            create_api_error_from_http_exception(error)
        except APIError as made:
            return made
    raise AssertionError(f"{status} is no error")
