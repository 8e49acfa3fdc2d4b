"""docker-py's error for an HTTP answer as the engine's server would send it."""

from __future__ import annotations

import json

import requests
from docker.errors import APIError, create_api_error_from_http_exception


def api_error(status: int, message: str) -> APIError:
    """The error docker-py makes of an answer with this status."""
    answer = requests.Response()
    answer.status_code = status
    answer.url = "http://fake/"
    answer._content = json.dumps({"message": message}).encode()
    try:
        answer.raise_for_status()
    except requests.exceptions.HTTPError as error:
        try:
            create_api_error_from_http_exception(error)
        except APIError as made:
            return made
    raise AssertionError(f"{status} is no error")
