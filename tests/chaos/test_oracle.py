"""The oracle sees what must never be, and only that (planted by hand, no engine)."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from chaos import logs
from chaos.__main__ import report
from chaos.ends import Server, disagreements, read_servers
from chaos.oracle import Container, Oracle, read_container, stamp

A, B = "GPU-a", "GPU-b"
FIRST = Container(
    "first", hub="h0", user="ada", cards=frozenset({A}), labelled=frozenset({A}),
    created=100, started=101,
)  # fmt: skip
SECOND = replace(FIRST, id="second", hub="h1", created=110, started=111)
OUTSIDER = Container("outsider", cards=frozenset({A}), created=100, started=101)


@pytest.fixture
def oracle() -> Oracle:
    return Oracle([A, B], grace_seconds=30)


def kinds(oracle: Oracle) -> list[str]:
    return [violation.kind for violation in oracle.violations]


def test_a_card_each_is_right(oracle: Oracle) -> None:
    elsewhere = frozenset({B})
    oracle.sample(120, [FIRST, replace(SECOND, cards=elsewhere, labelled=elsewhere)])
    assert oracle.violations == []
    assert oracle.granted == {"first", "second"}


def test_two_holders_of_a_card_are_told_once_with_the_story(oracle: Oracle) -> None:
    oracle.note(90, "dockerd killed")
    oracle.note(91, "of another card", [B])
    oracle.sample(120, [FIRST, SECOND])
    oracle.sample(121, [FIRST, SECOND])
    [violation] = oracle.violations
    assert violation.kind == "double grant"
    assert "second (ada/ of hub h1) was started on GPU-a" in violation.text
    assert "90.000 dockerd killed" in violation.story
    assert "of another card" not in str(violation)
    assert any("first (ada/ of hub h0) runs" in line for line in violation.story)


def test_the_report_counts_what_must_never_be_also_where_there_is_none(oracle: Oracle) -> None:
    for kind in ("double grant", "leaked card", "orphan"):
        assert f"      0 {kind}s\n" in report(oracle)
    oracle.sample(120, [FIRST, SECOND])
    oracle.violate("never ready", "only 7 of 8")
    assert "      1 double grants\n      0 leaked cards\n      0 orphans\n" in report(oracle)
    assert report(oracle).endswith("      1 never ready\n      2 violations")


def test_two_of_the_same_hub_are_no_better(oracle: Oracle) -> None:
    oracle.sample(120, [FIRST, replace(SECOND, hub="h0")])
    assert kinds(oracle) == ["double grant"]


def test_shares_may_fill_a_card_and_no_more(oracle: Oracle) -> None:
    half = Fraction(1, 2)
    halves = [
        replace(one, share=half)
        for one in (FIRST, SECOND, replace(SECOND, id="third", started=112))
    ]
    oracle.sample(120, halves[:2])
    assert oracle.violations == []
    oracle.sample(121, halves)
    assert kinds(oracle) == ["double grant"]


def test_one_that_ended_before_may_still_be_in_the_list(oracle: Oracle) -> None:
    oracle.sample(120, [replace(FIRST, state="exited", finished=110.9), SECOND])
    assert oracle.violations == []
    oracle.sample(121, [replace(FIRST, state="exited", finished=111.2), SECOND])
    assert kinds(oracle) == ["double grant"]


# -- outsiders ------------------------------------------------------------------------------------


def test_started_where_an_outsider_ran(oracle: Oracle) -> None:
    oracle.outsider_created("outsider", 100.1)
    oracle.sample(120, [OUTSIDER, SECOND])
    assert kinds(oracle) == ["double grant"]


def test_started_where_an_outsider_had_created(oracle: Oracle) -> None:
    oracle.outsider_created("outsider", 100.1)
    oracle.sample(120, [replace(OUTSIDER, started=110.9), SECOND])
    assert kinds(oracle) == ["double grant"]


@pytest.mark.parametrize(
    ("outsider", "answered"),
    [
        (replace(OUTSIDER, started=112), 100.1),
        (replace(OUTSIDER, started=110.9), 110.5),
        (replace(OUTSIDER, created=78, started=110.9), 78.0),
        (replace(OUTSIDER, finished=95, started=110.9), 90.0),
    ],
    ids=["later", "created-later", "after-its-grace", "restarted-late"],
)
def test_an_outsider_who_came_later_can_not_be_stopped(
    oracle: Oracle, outsider: Container, answered: float
) -> None:
    oracle.outsider_created("outsider", answered)
    oracle.sample(120, [outsider, SECOND])
    assert oracle.violations == []
    assert oracle.counts["cards taken by force from outside"] == 1


def test_outsiders_among_themselves_are_nobodys_concern(oracle: Oracle) -> None:
    oracle.sample(120, [OUTSIDER, replace(OUTSIDER, id="other")])
    assert oracle.violations == []


# -- hands that start a hub's container again -----------------------------------------------------


def test_started_again_by_hand_after_its_card_was_free(oracle: Oracle) -> None:
    oracle.may_be_started_by_hand("first")
    again = replace(FIRST, finished=100.5, started=120)
    oracle.sample(121, [again, SECOND])
    assert oracle.violations == []


def test_started_by_hand_before_its_hub_would(oracle: Oracle) -> None:
    # Its hub saw the first, and would have had it yield.
    oracle.may_be_started_by_hand("second")
    oracle.sample(120, [FIRST, SECOND])
    assert oracle.violations == []


def test_started_beside_one_that_was_started_by_hand_meanwhile(oracle: Oracle) -> None:
    # The first was created, and its hub would have waited, when the second's start was sent.
    oracle.may_be_started_by_hand("first")
    oracle.sample(120, [replace(FIRST, started=110.5), SECOND])
    assert oracle.violations == []
    # But not when it ran before the second was made.
    oracle.sample(121, [replace(FIRST, started=109.5), SECOND])
    assert kinds(oracle) == ["double grant"]


def test_an_outsider_whose_start_failed_holds_nothing(oracle: Oracle) -> None:
    oracle.outsider_created("outsider", 100.1)
    oracle.outsider_failed("outsider")
    oracle.sample(120, [replace(OUTSIDER, started=110.9), SECOND])
    assert oracle.violations == []


def test_a_card_in_mid_restart_is_not_free(oracle: Oracle) -> None:
    oracle.may_be_started_by_hand("first")
    again = replace(FIRST, finished=110.8, started=111.3)
    oracle.sample(121, [again, SECOND])
    [violation] = oracle.violations
    assert "second (ada/ of hub h1) was started" in violation.text


# -- reading --------------------------------------------------------------------------------------


def inspection(requests: list[dict[str, Any]] | None, **labels: str) -> dict[str, Any]:
    return {
        "Id": "1" * 64,
        "Name": "/jupyter-ada",
        "Created": "2026-01-02T03:04:05.25Z",
        "Config": {"Labels": {f"gpuspawner.{key}": value for key, value in labels.items()}},
        "HostConfig": {"DeviceRequests": requests},
        "State": {
            "Status": "running",
            "StartedAt": "2026-01-02T03:04:06.123456789Z",
            "FinishedAt": "0001-01-01T00:00:00Z",
        },
    }


@pytest.mark.parametrize(
    ("requests", "cards"),
    [
        (None, set()),
        ([{"Driver": "nvidia", "DeviceIDs": [B]}], {B}),
        ([{"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={B}"]}], {B}),
        ([{"Driver": "nvidia", "DeviceIDs": None, "Count": 1}], {A}),
        ([{"Driver": "nvidia", "DeviceIDs": None, "Count": -1}], {A, B}),
    ],
)
def test_cards_are_read_from_the_device_requests(
    requests: list[dict[str, Any]] | None, cards: set[str]
) -> None:
    assert read_container(inspection(requests), [A, B]).cards == cards


def test_a_label_that_says_other_than_the_request(oracle: Oracle) -> None:
    requests = [{"Driver": "nvidia", "DeviceIDs": [A]}]
    told = inspection(requests, hub="h0", devices=B, share="1/2", user="ada", server="lab")
    one = read_container(told, [A, B])
    assert (one.share, one.created) == (Fraction(1, 2), stamp("2026-01-02T03:04:05Z") + 0.25)
    assert one.finished == 0
    oracle.sample(1, [one])
    assert kinds(oracle) == ["wrong label"]


# -- hubs and engine at the end -------------------------------------------------------------------


def row(identity: str, state: str = "running", hub: str = "h0") -> dict[str, Any]:
    labels = {"gpuspawner.hub": hub, "gpuspawner.user": "ada", "gpuspawner.server": ""}
    return {"Id": identity, "State": state, "Labels": labels}


READY = Server("ada", "", ready=True, pending="", container="c1")


@pytest.mark.parametrize(
    ("servers", "rows", "expected"),
    [
        ([READY], [row("c1")], []),
        ([READY], [row("c1", "paused"), row("c2", hub="other")], []),
        ([READY], [], ["lost server"]),
        ([READY], [row("c1", "exited")], ["lost server"]),
        ([], [row("c1")], ["orphan"]),
        ([], [row("c1", "created")], ["orphan"]),
        ([READY], [row("c1"), row("c2")], ["orphan"]),
        ([replace(READY, ready=False, pending="spawn")], [], ["never settled"]),
    ],
)
def test_what_hub_and_engine_say_differently(
    servers: list[Server], rows: list[dict[str, Any]], expected: list[str]
) -> None:
    assert [kind for kind, _ in disagreements(servers, rows, "h0")] == expected


def test_servers_are_read_from_the_hubs_users() -> None:
    model = {"name": "", "ready": True, "pending": None, "state": {"object_id": "c1"}}
    assert read_servers([{"name": "ada", "servers": {"": model}}]) == [READY]
    model["state"] = {}
    [server] = read_servers([{"name": "ada", "servers": {"": model}}])
    assert server.container == ""


# -- logs -----------------------------------------------------------------------------------------

TRACEBACK = """\
[I 2026-01-02 03:04:05.678 JupyterHub base:1122] before
[E 2026-01-02 03:04:05.679 JupyterHub base:1123] It failed
    Traceback (most recent call last):
      File "/srv/gpuspawner/pool.py", line 1, in f
        raise ValueError("what")
    ValueError: what
[I 2026-01-02 03:04:05.680 JupyterHub base:1124] after
"""
NEVER_RETRIEVED = """\
Task exception was never retrieved
future: <Task finished coro=<Pool.work() done, defined at /srv/gpuspawner/pool.py:28>>
[I 2026-01-02 03:04:05.680 JupyterHub base:1124] after
"""
FALSE_ALARM = "[C] Container abc carries this hub's id, but this hub did not start it: another\n"


def test_a_traceback_in_a_log_is_found_with_its_end() -> None:
    [fault] = logs.faults(TRACEBACK)
    assert "It failed" in fault.text
    assert fault.last == "ValueError: what"
    assert "after" not in fault.text
    assert fault.ours


@pytest.mark.parametrize("text", [NEVER_RETRIEVED, FALSE_ALARM])
def test_other_signs_of_a_fault(text: str) -> None:
    [fault] = logs.faults(text)
    assert fault.ours


@pytest.mark.parametrize(
    "text",
    [
        TRACEBACK.replace("gpuspawner", "jupyterhub"),
        TRACEBACK.replace("ValueError: what", "asyncio.exceptions.CancelledError"),
        "sys:1: RuntimeWarning: coroutine 'User.spawn' was never awaited\n",
    ],
)
def test_what_is_jupyterhubs_own(text: str) -> None:
    [fault] = logs.faults(text)
    assert not fault.ours


def test_a_log_without_is_clean() -> None:
    assert list(logs.faults("[I] all is well\n")) == []
