"""The core keeps the laws in whatever order the steps come, and the machine can fail."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from fakes.rows import OTHER_HUB
from gpuspawner.cards import see_cards
from gpuspawner.cleaning import Cleaning, Leftover
from gpuspawner.health import WELL
from gpuspawner.request import Request
from gpuspawner.verdict import Verdict, judge

from . import core_machine
from .core_machine import Broken, CoreMachine

#: The same runs each time, and nothing kept from one time to the next.
SHORT = settings(
    max_examples=80,
    stateful_step_count=30,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def test_in_any_order_the_laws_hold() -> None:
    run_state_machine_as_test(CoreMachine, settings=SHORT)


# -- planted violations -------------------------------------------------------------------------


def naive_judge(mine: Any, claims: Any, inventory: Any) -> Verdict:
    """The earlier one wins, and what comes later does not matter."""
    before = [c for c in claims if c.decided or c.row.order < mine.row.order]
    return judge(mine, before, inventory)


def blind_judge(mine: Any, claims: Any, inventory: Any) -> Verdict:
    return Verdict.START


def careless_leftovers(listing: Any, own: Any, **_: Any) -> Cleaning:
    """Whatever is not this hub's may go."""
    return Cleaning(
        tuple(Leftover(r, "orphan", force=True) for r in listing.rows if r.lease not in own.known)
    )


def late_comer(machine: CoreMachine) -> None:
    """The second hub's container is before the first's in the order, and comes after its look."""
    machine.begin(1)
    machine.spawn([0, 1], Request(1))
    first, second = machine.spawns
    for one, steps in ((first, 3), (second, 3), (first, 3), (second, 3)):
        for _ in range(steps):
            machine.step(one)
    assert min(machine.engine.rows.values(), key=lambda row: row.order).mine(OTHER_HUB)
    for _ in range(40):
        machine.go_on([0, 1])


def another_hubs_server(machine: CoreMachine) -> None:
    machine.begin(1)
    machine.spawn([1], Request(1))
    machine.go_on([0] * 40)
    machine.cleaner_looks(0)
    machine.cleaner_removes(0)
    assert machine.engine.rows
    machine.check()


def ill_card(machine: CoreMachine) -> None:
    machine.begin(2)
    machine.card_falls_ill_or_heals(0, core_machine.LOST)
    machine.spawn([0, 1], Request(1))
    machine.go_on([0, 1] * 40)
    assert len(machine.engine.rows) == 1
    machine.card_falls_ill_or_heals(0, core_machine.LOST)
    machine.spawn([0], Request(1))
    machine.go_on([0] * 20)
    assert len(machine.engine.rows) == 2


def see_well_cards(inventory: Any, *rest: Any) -> Any:
    return see_cards(inventory, *rest, conditions={d.uuid: WELL for d in inventory.devices})


@pytest.mark.parametrize("with_rule", [True, False], ids=["with", "without"])
@pytest.mark.parametrize(
    ("what", "mutant", "story"),
    [
        ("judge", blind_judge, late_comer),
        ("judge", naive_judge, late_comer),
        ("leftovers", careless_leftovers, another_hubs_server),
        ("see_cards", see_well_cards, ill_card),
    ],
    ids=["no verdict", "the earlier one wins", "cleaner", "ill cards are not offered"],
)
def test_with_one_rule_left_out_a_law_is_broken(
    monkeypatch: pytest.MonkeyPatch, what: str, mutant: Any, story: Any, with_rule: bool
) -> None:
    machine = CoreMachine()
    if with_rule:
        story(machine)
        machine.teardown()
    else:
        monkeypatch.setattr(core_machine, what, mutant)
        with pytest.raises(Broken):
            story(machine)
