"""What a refusal looks like at each of the hub's doors, on whichever hub is installed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from jupyterhub.utils import format_exception
from tornado.web import HTTPError

from gpuspawner import messages, names
from gpuspawner.errors import (
    ConfigError,
    EngineUnknown,
    ForbiddenProfile,
    OptionsError,
    ProbeError,
)
from gpuspawner.faults import engine_fault
from gpuspawner.refusal import (
    HAS_SPAWN_EXCEPTION,
    GPURefusal,
    refusal_from_error,
    refusal_from_fault,
    shield_failure_count,
)

TEXT = 'All <8> GPUs are "100%" busy.'


def refusal(**kwargs: Any) -> GPURefusal:
    return GPURefusal(TEXT, **{"reason": names.REASON_NO_FREE_GPU, **kwargs})


def test_every_way_to_read_it_gives_the_text_alone() -> None:
    error = refusal(admin_message="GPU-1234 held by container abc")
    assert str(error) == TEXT
    assert error.get_message() == TEXT
    assert error.jupyterhub_message == TEXT
    assert format_exception(error)[0] == TEXT
    assert format_exception(error, only_jupyterhub=True)[0] == TEXT
    # JupyterHub 5 writes its REST answer this way, JupyterHub 6 by get_message.
    if not HAS_SPAWN_EXCEPTION:
        assert str(error.log_message) % error.args == TEXT
    shown = (str(error), repr(error.log_message), error.jupyterhub_html_message)
    assert not any("GPU-1234" in s or "GPURefusal" in s for s in shown)


def test_the_html_is_escaped() -> None:
    html = refusal().jupyterhub_html_message
    assert "<8>" not in html
    assert "&lt;8&gt;" in html
    assert type(html) is str


def test_without_a_cause_the_admin_reads_the_text() -> None:
    assert refusal().admin_message == TEXT
    assert refusal(admin_message="why").admin_message == "why"


@pytest.mark.parametrize(
    ("status", "on_6", "on_5"), [(503, 503, 429), (400, 400, 400), (403, 403, 403), (409, 409, 409)]
)
def test_status(status: int, on_6: int, on_5: int) -> None:
    error = refusal(status=status)
    assert isinstance(error, HTTPError)
    assert error.status_code == (on_6 if HAS_SPAWN_EXCEPTION else on_5)
    assert error.reason == error.refusal_reason == names.REASON_NO_FREE_GPU


@pytest.mark.parametrize(
    ("error", "reason", "status"),
    [
        (OptionsError("cause", user_message="words"), names.REASON_OPTIONS, 400),
        (ForbiddenProfile("cause", user_message="words"), names.REASON_FORBIDDEN, 403),
        (EngineUnknown("cause", user_message="words"), names.REASON_ENGINE, 503),
        (ConfigError("cause", user_message="words"), names.REASON_ENGINE, 503),
    ],
)
def test_errors_of_the_core(error: Exception, reason: str, status: int) -> None:
    found = refusal_from_error(error)
    assert (found.refusal_reason, str(found)) == (reason, "words")
    assert "cause" in found.admin_message
    assert found.status_code == (status if HAS_SPAWN_EXCEPTION or status < 500 else 429)


@pytest.mark.parametrize(
    "error",
    [
        OptionsError("GPU-1 cause"),
        ForbiddenProfile("GPU-1 cause"),
        EngineUnknown("GPU-1 cause"),
        ProbeError("GPU-1 cause", kind="timeout"),
        RuntimeError("GPU-1 cause"),
    ],
)
def test_an_error_without_words_never_shows_its_cause(error: Exception) -> None:
    found = refusal_from_error(error)
    assert "GPU-1" not in str(found)
    assert len(str(found)) > 20
    assert "GPU-1 cause" in found.admin_message


def test_a_refusal_stays_itself() -> None:
    error = refusal()
    assert refusal_from_error(error) is error


def test_a_fault_of_the_engine() -> None:
    fault = engine_fault(404, "No such image: lab/torch:1", image="PyTorch")
    found = refusal_from_fault(fault)
    assert str(found) == messages.image_missing("PyTorch")
    assert found.refusal_reason == names.REASON_IMAGE
    assert "lab/torch:1" in found.admin_message


# -- JupyterHub 5's counter ---------------------------------------------------------------------


class Hub5:
    """The few lines of JupyterHub 5 that count, over a spawn that ends as told."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.aborted = False
        self.handler = SimpleNamespace(settings=self.settings)

    def spawn(self, shield: bool = True) -> tuple[Any, asyncio.Future[None]]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        spawner = SimpleNamespace(
            _spawn_future=future, consecutive_failure_limit=3, handler=self.handler
        )

        def track(f: asyncio.Future[None]) -> None:
            if f.cancelled() or f.exception() is None:
                self.settings["failure_count"] = 0
                return
            self.settings.setdefault("failure_count", 0)
            self.settings["failure_count"] += 1
            limit = spawner.consecutive_failure_limit
            self.aborted |= bool(limit and self.settings["failure_count"] >= limit)

        future.add_done_callback(track)
        if shield:
            shield_failure_count(spawner)
        return spawner, future


async def settle(*futures: asyncio.Future[None]) -> None:
    await asyncio.gather(*futures, return_exceptions=True)
    await asyncio.sleep(0)


@pytest.fixture
def on_hub_5(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuspawner.refusal.COUNTED_AS_FAILURE", True)


@pytest.mark.usefixtures("on_hub_5")
async def test_refusals_are_not_counted_even_all_at_once() -> None:
    hub = Hub5()
    spawns = [hub.spawn() for _ in range(20)]
    for _, future in spawns:
        future.set_exception(refusal())
    await settle(*(f for _, f in spawns))
    assert hub.settings["failure_count"] == 0
    assert not hub.aborted
    assert all(s.consecutive_failure_limit == 3 for s, _ in spawns)


@pytest.mark.usefixtures("on_hub_5")
async def test_a_success_between_leaves_the_count_right() -> None:
    hub = Hub5()
    refused = [hub.spawn() for _ in range(10)]
    _, fine = hub.spawn(shield=False)
    fine.set_result(None)
    await settle(fine)
    for _, future in refused:
        future.set_exception(refusal())
    await settle(*(f for _, f in refused))
    assert hub.settings["failure_count"] == 0
    assert not hub.aborted


@pytest.mark.usefixtures("on_hub_5")
async def test_real_failures_count_as_before() -> None:
    hub = Hub5()
    for real in (True, False, True, False, True):
        _, future = hub.spawn(shield=not real)
        future.set_exception(RuntimeError("broken") if real else refusal())
        await settle(future)
    assert hub.settings["failure_count"] == 3
    assert hub.aborted


@pytest.mark.usefixtures("on_hub_5")
async def test_a_refusal_is_not_the_last_straw() -> None:
    hub = Hub5()
    hub.settings["failure_count"] = 2
    spawner, future = hub.spawn()
    shield_failure_count(spawner)  # twice is once
    future.set_exception(refusal())
    await settle(future)
    assert hub.settings["failure_count"] == 2
    assert not hub.aborted
    assert spawner.consecutive_failure_limit == 3


async def test_nothing_happens_where_the_hub_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpuspawner.refusal.COUNTED_AS_FAILURE", False)
    spawner, future = Hub5().spawn()
    assert spawner.consecutive_failure_limit == 3
    future.cancel()
    monkeypatch.setattr("gpuspawner.refusal.COUNTED_AS_FAILURE", True)
    spawner._spawn_future = None
    shield_failure_count(spawner)
    assert spawner.consecutive_failure_limit == 3
