"""What the engine's answers say of one container."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from .parts import FakeContainer


def list_row(one: FakeContainer, now: float) -> dict[str, Any]:
    """One element of ``GET /containers/json``."""
    status = one.state.capitalize()
    if one.state == "exited" and one.finished_at is not None:
        status = f"Exited ({one.exit_code}) {_ago(now - one.finished_at)} ago"
    return {
        "Id": one.id,
        "Names": [f"/{one.name}"],
        "Image": one.image,
        "ImageID": one.image_id,
        "Created": int(one.created),
        "Labels": dict(one.labels),
        "State": one.state,
        "Status": status,
        "HostConfig": {"NetworkMode": one.network},
        "NetworkSettings": {"Networks": _networks(one)},
    }


def inspection(one: FakeContainer) -> dict[str, Any]:
    """``GET /containers/<id>/json``."""
    return {
        "Id": one.id,
        "Name": f"/{one.name}",
        "Created": _stamp(one.created),
        "Image": one.image_id,
        "Config": {"Image": one.image, "Labels": dict(one.labels), "Env": list(one.env)},
        "HostConfig": {"Runtime": "runc", **one.host_config},
        "Mounts": [],
        "NetworkSettings": {
            "IPAddress": one.address,
            "Networks": _networks(one),
            "Ports": {
                port: [{"HostIp": "127.0.0.1", "HostPort": str(number)}]
                for port, number in one.host_ports.items()
            },
        },
        "State": {
            "Status": one.state,
            "Running": one.live,
            "Paused": one.state == "paused",
            "OOMKilled": one.oom_killed,
            "Pid": next(iter(one.pids), 0),
            "StartedAt": _stamp(one.started_at),
            "Error": one.error,
            "ExitCode": one.exit_code,
            "FinishedAt": _stamp(one.finished_at),
        },
    }


def _networks(one: FakeContainer) -> dict[str, Any]:
    return {one.network: {"IPAddress": one.address}}


def _stamp(moment: float | None) -> str:
    if moment is None:
        return "0001-01-01T00:00:00Z"
    whole = datetime.fromtimestamp(int(moment), timezone.utc)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{int(moment % 1 * 1e9):09d}Z"


def _ago(seconds: float) -> str:
    """The engine's own words for an age."""
    if seconds < 1:
        return "Less than a second"
    if seconds < 2:
        return "1 second"
    if seconds < 60:
        return f"{int(seconds)} seconds"
    minutes = int(seconds / 60)
    if minutes == 1:
        return "About a minute"
    if minutes < 60:
        return f"{minutes} minutes"
    hours = int(seconds / 3600 + 0.5)
    return "About an hour" if hours == 1 else f"{hours} hours"
