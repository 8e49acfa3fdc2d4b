"""The hub's own clock knows when clocks are changed."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from gpuspawner import local_time


@pytest.fixture(autouse=True)
def fresh() -> None:
    local_time._zone.cache_clear()


@pytest.mark.parametrize("name", ["Europe/Berlin", ":America/New_York"])
def test_the_zone_of_the_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", name)
    now = local_time.local_now()
    assert now.tzinfo == ZoneInfo(name.removeprefix(":"))
    assert abs(now - datetime.now(timezone.utc)) < timedelta(minutes=10)


@pytest.mark.parametrize("named", [False, True])
def test_the_zone_of_the_machine(named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TZ", raising=False)
    zones = [Path(p, "Europe/Berlin") for p in ("/usr/share/zoneinfo", "/usr/lib/zoneinfo")]
    found = next((p for p in zones if p.exists()), None)
    if found is None:
        pytest.skip("no time zones on this machine")
    monkeypatch.setattr(local_time, "_LOCALTIME", Path("/nowhere") if named else found)
    if named:
        monkeypatch.setenv("TZ", f":{found}")
    zone = local_time.local_now().tzinfo
    summer, winter = datetime(2030, 7, 1, tzinfo=zone), datetime(2030, 1, 1, tzinfo=zone)
    assert (summer.utcoffset(), winter.utcoffset()) == (timedelta(hours=2), timedelta(hours=1))


@pytest.mark.parametrize("name", ["Nowhere/Atlantis", "UTC0-nonsense"])
def test_without_a_known_zone_the_distance_from_utc_is_taken(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", name)
    now = local_time.local_now()
    assert now.utcoffset() is not None
    monkeypatch.delenv("TZ")
    monkeypatch.setattr(local_time, "_LOCALTIME", Path("/nowhere"))
    assert local_time.local_now().utcoffset() is not None
