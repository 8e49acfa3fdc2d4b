"""Rules of which a search of leases can't tell, left out in turn: which tests then fail.

This is a plugin of pytest too: ``python -m pytest -p model.units`` runs the tests named here, each
with its rule left out, and writes which of them failed (:mod:`model.test_units` looks at that).
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from gpuspawner import names
from gpuspawner.asks import Asks
from gpuspawner.claims import Detail, Listing
from gpuspawner.cleaning import Cleaning, Ownership, leftovers
from gpuspawner.devices import Inventory
from gpuspawner.engine import Engine
from gpuspawner.prober import Prober
from gpuspawner.removal import Remover
from gpuspawner.sightings import Sightings

#: Where the results are written.
RESULTS = "MODEL_UNITS_RESULTS"


@dataclass(frozen=True)
class Unit:
    """A rule left out.

    Attributes:
        rule: its number, or ``reading``.
        without: what is left out.
        test: file and function that must fail without it.
        target: what is replaced, as ``module:Class.attribute``; the test's own module is ``.``.
        value: what it is replaced by.
    """

    rule: str
    without: str
    test: str
    target: str
    value: Any


_inspect_detail, _once = Engine._inspect_detail, Remover.once
_resolve, _neighbours = Asks.resolve, Inventory.neighbours
_listing = Sightings.listing


def _silence_is_nothing(self: Engine, *args: Any) -> Detail:
    return _inspect_detail(self, *args) or Detail(missing=True)


async def _always_forced(self: Remover, container_id: str, *, force: bool = True) -> bool:
    return await _once(self, container_id, force=True)


async def _no_leftovers(*_: Any) -> bool:
    return False


async def _always_ask(self: Prober, *_: Any) -> Inventory:
    return await self.refresh()


def _by_stamp(listing: Listing, own: Ownership, **delays: float) -> Cleaning:
    since = listing.at - own.watching_seconds
    earlier = {row.id for row in listing.rows if row.created < since}
    return leftovers(listing, replace(own, earlier=earlier), **delays)


def _created_wait(listing: Listing, own: Ownership, **delays: float) -> Cleaning:
    rows = tuple(r for r in listing.rows if r.state != "created" or listing.age(r) > 120)
    return leftovers(replace(listing, rows=rows), own, **delays)


def _no_alarm(listing: Listing, own: Ownership, **delays: float) -> Cleaning:
    return replace(leftovers(listing, own, **delays), alarms=())


def _by_one_clock(self: Sightings, *args: Any, **times: Any) -> Listing:
    return replace(_listing(self, *args, **times), ages={})


def _known_cdi_only(self: Asks, inventory: Inventory) -> Any:
    known = frozenset(n for n in self.cdi if n.partition("=")[2] in (*inventory.by_uuid, "1"))
    return _resolve(replace(self, cdi=known), inventory)


def _complete(self: Asks, inventory: Inventory) -> Any:
    return _resolve(self, replace(inventory, complete=True))


def _minor_is_index(self: Asks, inventory: Inventory) -> Any:
    devices = tuple(replace(d, minor=d.index) for d in inventory.devices)
    return _resolve(self, replace(inventory, devices=devices))


def _family(self: Inventory, uuid: str) -> frozenset[str]:
    near = _neighbours(self, uuid)
    return near.union(*(_neighbours(self, other) for other in near)) - {uuid}


UNITS = (
    Unit(
        "2",
        "silence of an inspection holds everything",
        "pool/test_rivals.py::test_an_outsider_being_started_again_is_seen_by_its_silence",
        "gpuspawner.engine:Engine._inspect_detail",
        _silence_is_nothing,
    ),
    Unit(
        "2",
        "a missed probe keeps the last one",
        "test_prober.py::test_a_missed_probe_keeps_the_last_for_a_while_only",
        "gpuspawner.prober:Prober.latest",
        _always_ask,
    ),
    Unit(
        "3",
        "only an HTTP answer ends a call",
        "test_calls.py::test_only_an_http_answer_is_an_answer",
        "gpuspawner.calls:NO_ANSWER",
        (),
    ),
    Unit(
        "4",
        "what runs or ran is not asked to yield",
        "test_verdict.py::test_one_whole_card",
        "gpuspawner.claims:Claim.decided",
        property(lambda self: False),
    ),
    Unit(
        "4",
        "three yields, then refused",
        "test_yields.py::test_after_three_yields_it_is_refused",
        "gpuspawner.launching:MAX_YIELDS",
        0,
    ),
    Unit(
        "4",
        "hubs try cards in different orders",
        "test_cards.py::test_hubs_try_equal_cards_in_orders_of_their_own_that_stay",
        "gpuspawner.cards:_order",
        lambda *_: 0,
    ),
    Unit(
        "5",
        "no automatic removal, no restart policy",
        "test_containment.py::test_closed_by_default",
        "gpuspawner.containment:_set_life",
        lambda host: [],
    ),
    Unit(
        "5",
        "the hub id is random",
        "test_hubid.py::test_it_is_made_once_and_stays",
        "gpuspawner.hubid:secrets.token_hex",
        lambda count: "0" * 2 * count,
    ),
    Unit(
        "6a",
        "created ones of an earlier process are removed at once",
        "test_cleaning.py::test_mine",
        ".:leftovers",
        _created_wait,
    ),
    Unit(
        "6a",
        "earlier is told by id, not by stamps",
        "test_cleaning.py::test_what_is_older_is_told_by_id_whatever_the_clock_was_set_to",
        ".:leftovers",
        _by_stamp,
    ),
    Unit(
        "6b",
        "the alarm of a copied hub id",
        "pool/test_leftovers.py::test_a_twin_with_our_id_is_told_of_once_and_not_touched",
        "gpuspawner.cleaner:leftovers",
        _no_alarm,
    ),
    Unit(
        "6c",
        "unforced",
        "pool/test_leftovers.py::"
        "test_the_cleaner_never_stops_another_hubs_container_that_started_meanwhile",
        "gpuspawner.removal:Remover.once",
        _always_forced,
    ),
    Unit(
        "6a",
        "a new spawn removes what is left of its server",
        "pool/test_leftovers.py::test_a_new_spawn_removes_what_its_server_left_behind",
        "gpuspawner.pool_leftovers:PoolLeftovers.remove_leftovers",
        _no_leftovers,
    ),
    Unit(
        "claim",
        "age is what was lived, whatever the clock was set to",
        "pool/test_leftovers.py::test_a_clock_that_is_set_frees_no_outsiders_card_early_nor_never",
        "gpuspawner.sightings:Sightings.listing",
        _by_one_clock,
    ),
    Unit(
        "claim",
        "a commit of ours is not ours",
        "test_claims.py::test_a_commit_of_ours_is_an_outsider",
        "gpuspawner.claims:Row.ours",
        property(lambda self: names.LABEL_HUB in self.labels),
    ),
    Unit(
        "claim",
        "nodes are known by minor, not by index",
        "test_asks.py::test_holds",
        "gpuspawner.asks:Asks.resolve",
        _minor_is_index,
    ),
    Unit(
        "claim",
        "one that may use a card holds where it works",
        "test_claims.py::test_one_that_may_use_any_card_holds_those_it_works_on",
        "gpuspawner.claims:_at_work_on",
        lambda *_: frozenset(),
    ),
    Unit(
        "claim",
        "a slice and its parent claim each other",
        "test_verdict.py::test_a_slice_and_its_parent_exclude_each_other_siblings_do_not",
        "gpuspawner.devices:Inventory.neighbours",
        lambda *_: frozenset(),
    ),
    Unit(
        "reading",
        "siblings do not",
        "test_claims.py::test_a_parent_weighs_on_its_slices_and_they_on_it_but_not_on_each_other",
        "gpuspawner.devices:Inventory.neighbours",
        _family,
    ),
    Unit(
        "reading",
        "a CDI name that resolves to nothing blocks everything",
        "test_asks.py::test_holds",
        "gpuspawner.asks:Asks.resolve",
        _known_cdi_only,
    ),
    Unit(
        "reading",
        "an unknown id blocks everything while a card has no name",
        "test_asks.py::test_an_unknown_id_blocks_everything_while_a_card_has_no_name",
        "gpuspawner.asks:Asks.resolve",
        _complete,
    ),
)


def rounds() -> list[list[Unit]]:
    """The units in as few rounds as there are for one test, so that each test has one at a time."""
    found: list[list[Unit]] = []
    for unit in UNITS:
        for one in found:
            if unit.test not in {other.test for other in one}:
                one.append(unit)
                break
        else:
            found.append([unit])
    return found


# -- as a plugin -----------------------------------------------------------------------------------


def _unit_of(item: pytest.Item) -> Unit:
    number = int(os.environ[RESULTS].rpartition(":")[2])
    name = item.nodeid.partition("[")[0]
    return next(u for u in rounds()[number] if name.endswith(u.test))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    unit = _unit_of(item)
    place, _, path = unit.target.partition(":")
    owner: Any = item.module if place == "." else import_module(place)  # type: ignore[attr-defined]
    *parents, attribute = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, attribute, unit.value)
        return (yield)


_failed: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and report.failed:
        _failed.add(report.nodeid.partition("[")[0])


def pytest_sessionfinish() -> None:
    path = os.environ[RESULTS].rpartition(":")[0]
    Path(path).write_text(json.dumps(sorted(_failed)))
