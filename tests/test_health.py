"""Law 7, pure: a card with anybody else's work on it, or with a fault, is not offered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.rows import HUB, OTHER_HUB, cards, claim, foreign, listing, ours, sliced
from gpuspawner.asks import Asks
from gpuspawner.claims import Detail, Row, Survey, loads, needs_detail, read_claims
from gpuspawner.departures import Departures, conditions_now
from gpuspawner.devices import Device, Inventory, Process
from gpuspawner.health import (
    WELL,
    Health,
    Limits,
    Look,
    Seen,
    observe,
    recalled,
)
from gpuspawner.states import CardState

LIMITS = Limits(foreign_memory_mib=500, clean_probes=3)
HOLDS = Detail(Asks(manner="holds", ids=frozenset({"GPU-0"})))
MAY_USE = Detail(Asks(manner="may-use"))
OBSERVES = Detail(Asks(manner="observes", ids=frozenset({"all"})))
NOTHING = Detail(Asks())


def seen(inventory: Inventory, rows: Iterable[Row], details: Mapping[str, Detail]) -> Seen:
    rows = tuple(rows)
    told = {r.id: details.get(r.id, NOTHING) for r in rows if needs_detail(r)}
    survey = Survey(listing(*rows), told)
    return Seen(survey, read_claims(survey, inventory, HUB))


class Story:
    """Looks one after another."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.health = Health()
        self.limits = limits
        self.now = 0.0

    def look(
        self,
        inventory: Inventory,
        *rows: Row,
        before: Iterable[Row] | None = None,
        **details: Detail,
    ) -> dict[str, str]:
        """One look; the states of the cards that are not well.

        Args:
            rows: listed after the probe, and before it unless ``before`` says otherwise.
        """
        self.now += 1
        known = recalled(inventory, self.health)
        look = Look(
            self.now,
            known,
            seen(known, rows if before is None else before, details),
            seen(known, rows, details),
        )
        self.health = observe(self.health, look, self.limits)
        return {u: c.state.value for u, c in self.health.conditions.items() if c is not WELL}


def machine(*processes: Process, count: int = 2, **card: Any) -> Inventory:
    """Cards of which the first has these processes."""
    first, *others = cards(count).devices
    fields = {"used_mib": 0, "reserved_mib": 600, "recovery_action": "none", **card}
    return Inventory((replace(first, processes=processes, **fields), *others))


def at_work(container: str | None, pid: int = 7, used_mib: int | None = 300) -> Process:
    return Process(pid, "compute", used_mib, container)


CLEAN = machine()
MINE = ours("GPU-0", id="c1", state="running")


def test_a_holders_own_work_is_right() -> None:
    assert Story().look(machine(at_work("c1")), MINE) == {}
    other = ours("GPU-0", id="c1", hub=OTHER_HUB, state="running")
    assert Story().look(machine(at_work("c1")), other) == {}
    assert Story().look(machine(at_work("x1")), foreign(), x1=HOLDS) == {}
    # Where the start is not answered yet, the list still says created.
    assert Story().look(machine(at_work("c1")), ours("GPU-0", id="c1")) == {}
    mps = ours("GPU-0", id="c1", state="running", role="mps")
    assert Story().look(machine(at_work("c1")), mps) == {}


def test_who_may_use_a_card_holds_it_while_at_work() -> None:
    assert Story().look(machine(at_work("x1")), foreign(), x1=MAY_USE) == {}


@pytest.mark.parametrize("rows", [[], [MINE]], ids=["free", "held"])
def test_a_process_of_nobody_is_dirt_whoever_holds_the_card(rows: list[Row]) -> None:
    story = Story()
    assert story.look(machine(at_work(None)), *rows) == {"GPU-0": "dirty"}
    assert "process 7 (300 MiB)" in story.health.of("GPU-0").why
    assert story.health.of("GPU-0").strangers


@pytest.mark.parametrize(
    ("row", "detail"),
    [
        (ours("GPU-1", id="c1", state="running"), NOTHING),  # holds another card
        (ours(id="c1", state="running"), NOTHING),  # a server without a GPU
        (foreign("c1"), NOTHING),
        (foreign("c1", state="paused"), NOTHING),
    ],
)
def test_a_container_that_does_not_hold_the_card_is_a_stranger(row: Row, detail: Detail) -> None:
    assert Story().look(machine(at_work("c1")), row, c1=detail) == {"GPU-0": "dirty"}


def test_a_container_that_the_engine_does_not_know_is_a_stranger() -> None:
    assert Story().look(machine(at_work("f" * 64))) == {"GPU-0": "dirty"}


def test_who_only_looks_is_no_dirt() -> None:
    assert Story().look(machine(at_work("x1")), foreign(), x1=OBSERVES) == {}
    for role in ("probe", "observer"):
        assert Story().look(machine(at_work("c1")), ours(state="running", role=role)) == {}


def test_graphics_is_no_dirt() -> None:
    desktop = Process(7, "graphics", 900)
    assert Story().look(machine(desktop, used_mib=900, display=True)) == {}


def test_after_dirt_it_takes_clean_looks_in_a_row() -> None:
    story = Story()
    story.look(machine(at_work(None)))
    assert story.look(CLEAN) == {"GPU-0": "settling"}
    assert "2 more clean looks" in story.health.of("GPU-0").why
    assert story.look(CLEAN) == {"GPU-0": "settling"}
    assert "one more clean look" in story.health.of("GPU-0").why
    story.look(machine(at_work(None)))
    assert [story.look(CLEAN) for _ in range(3)] == [{"GPU-0": "settling"}] * 2 + [{}]


def test_one_clean_look_is_enough_where_the_admin_says_so() -> None:
    story = Story(Limits(clean_probes=1))
    story.look(machine(at_work(None)))
    assert story.look(CLEAN) == {}


@pytest.mark.parametrize("left_as", ["gone", "exited", "removing"])
def test_what_a_container_leaves_behind_settles_and_is_free_at_the_next_clean_look(
    left_as: str,
) -> None:
    story = Story()
    after = [] if left_as == "gone" else [replace(MINE, state=left_as)]
    details = {"c1": Detail(finished_at=1000.0)}
    told = story.look(machine(at_work("c1")), *after, before=[MINE], **details)
    assert told == {"GPU-0": "settling"}
    assert not story.health.of("GPU-0").strangers
    assert story.look(CLEAN) == {}


def test_a_process_that_outlives_its_container_settles_as_long_as_it_stays() -> None:
    story = Story()
    story.look(machine(at_work("c1")), MINE)
    for _ in range(3):
        assert story.look(machine(at_work("c1"))) == {"GPU-0": "settling"}
    assert story.look(CLEAN) == {}


def test_settling_on_the_way_back_from_dirt_begins_the_count_anew() -> None:
    story = Story()
    story.look(machine(at_work(None)), MINE)
    story.look(CLEAN, MINE)
    story.look(machine(at_work("c1")), before=[MINE])
    assert [story.look(CLEAN) for _ in range(3)] == [{"GPU-0": "settling"}] * 2 + [{}]


# -- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inventory", "dirty"),
    [
        (machine(used_mib=501), True),
        (machine(used_mib=500), False),
        (machine(used_mib=None), False),
        # Before driver 510 the reserve is counted as used, and not told.
        (machine(used_mib=5000, reserved_mib=None), False),
        (machine(Process(7, "graphics", 900), used_mib=1401), True),
        (machine(Process(7, "graphics", 900), used_mib=1400), False),
        (machine(Process(7, "graphics", None), used_mib=5000), False),
    ],
)
def test_memory_in_use_by_nobody(inventory: Inventory, dirty: bool) -> None:
    assert Story().look(inventory) == ({"GPU-0": "dirty"} if dirty else {})


def test_memory_is_its_holders_while_one_is_there() -> None:
    full = machine(used_mib=9000)
    assert Story().look(full, MINE) == {}
    # One that was never started has none.
    assert Story().look(full, ours("GPU-0")) == {"GPU-0": "dirty"}


def test_memory_of_a_holder_that_has_just_ended_settles_then_is_dirt() -> None:
    story, full = Story(), machine(used_mib=9000)
    assert story.look(full, before=[MINE]) == {"GPU-0": "settling"}
    assert story.look(full) == {"GPU-0": "dirty"}
    story = Story()
    story.look(full, before=[MINE])
    assert story.look(CLEAN) == {}


def test_an_observers_memory_is_accounted_for() -> None:
    watched = machine(at_work("x1", used_mib=600), used_mib=700)
    assert Story().look(watched, foreign(), x1=OBSERVES) == {}


# -- ill and gone ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [{"recovery_action": "gpu-reset"}, {"error": "GPU is lost"}])
def test_an_ill_card_heals_by_clean_looks(fault: dict[str, Any]) -> None:
    story = Story()
    assert story.look(machine(**fault)) == {"GPU-0": "ill"}
    assert next(iter(fault.values())) in story.health.of("GPU-0").why
    assert [story.look(CLEAN) for _ in range(3)] == [{"GPU-0": "settling"}] * 2 + [{}]


def test_what_the_driver_does_not_tell_is_no_illness() -> None:
    assert Story().look(machine(recovery_action=None, used_mib=None, reserved_mib=None)) == {}


def test_a_card_that_vanishes_is_gone_and_back_when_it_is_seen() -> None:
    story = Story()
    story.look(CLEAN)
    without = Inventory(CLEAN.devices[1:])
    for _ in range(2):
        assert story.look(without) == {"GPU-0": "gone"}
        assert [d.uuid for d in story.health.gone] == ["GPU-0"]
    assert story.look(CLEAN) == {}
    assert story.health.gone == ()


def test_a_card_that_was_ill_before_it_vanished_is_not_well_when_it_is_back() -> None:
    story = Story()
    story.look(machine(error="GPU is lost"))
    story.look(Inventory(CLEAN.devices[1:]))
    assert story.look(CLEAN) == {"GPU-0": "settling"}


def test_a_card_in_its_place_has_replaced_one_that_is_gone() -> None:
    story = Story()
    story.look(CLEAN)
    new = replace(CLEAN.devices[0], uuid="GPU-new")
    assert story.look(Inventory((new, CLEAN.devices[1]))) == {}
    assert story.health.gone == ()


def test_a_card_so_lost_that_it_has_no_name_is_known_by_its_index() -> None:
    story = Story()
    story.look(CLEAN)
    lost = Inventory((Device("", 0, error="GPU is lost"), CLEAN.devices[1]), complete=False)
    for _ in range(2):
        assert story.look(lost, MINE) == {"GPU-0": "ill"}
        assert story.health.gone == ()
        assert story.health.inventory.by_uuid["GPU-0"].memory_mib == 40960
    assert story.look(CLEAN) == {"GPU-0": "settling"}
    # Never seen before: there is no name to be recalled.
    assert Story().look(lost) == {}


# -- slices ---------------------------------------------------------------------------------------


def worked_on(slice_uuid: str, process: Process) -> Inventory:
    first, *others = sliced().devices
    slices = (replace(s, processes=(process,)) if s.uuid == slice_uuid else s for s in first.slices)
    return Inventory((replace(first, slices=tuple(slices)), *others))


def test_in_a_slice_only_its_holder_and_the_whole_cards_are_right() -> None:
    busy = worked_on("MIG-a", at_work("c1"))
    assert Story().look(busy, ours("MIG-a", id="c1", state="running")) == {}
    assert Story().look(busy, ours("GPU-0", id="c1", state="running")) == {}
    strange = Story().look(busy, ours("MIG-b", id="c1", state="running"))
    assert strange == {"GPU-0": "dirty", "MIG-a": "dirty"}, "and its sibling is well"


def test_what_is_told_of_the_card_alone_is_told_of_each_slice() -> None:
    first, whole = sliced().devices
    stranger = Process(7, "compute", 100)
    busy = Inventory((replace(first, processes=(stranger,)), whole))
    assert Story().look(busy) == dict.fromkeys(("GPU-0", "MIG-a", "MIG-b"), "dirty")
    ill = Inventory((replace(first, recovery_action="gpu-reset"), whole))
    assert Story().look(ill) == dict.fromkeys(("GPU-0", "MIG-a", "MIG-b"), "ill")


def test_a_slice_that_is_gone_still_ties_its_holder_to_the_card() -> None:
    story = Story()
    holder = ours("MIG-a", id="c1", state="running")
    story.look(sliced(), holder)
    whole = Inventory((replace(sliced().devices[0], slices=(), mig=False), sliced().devices[1]))
    for _ in range(2):
        assert story.look(whole, holder) == {}
        known = story.health.inventory
        assert loads([claim("c1", ["MIG-a"])], known, "GPU-0")
        assert not loads([claim("c1", ["MIG-a"])], known, "GPU-1")
        assert known.neighbours("MIG-a") == {"GPU-0"}
    story.look(sliced(), holder)
    assert story.health.inventory.former == ()


# -- between looks --------------------------------------------------------------------------------


def test_a_card_left_since_the_last_look_began_waits_for_the_next() -> None:
    departures, inventory = Departures(), cards(2)
    holder = claim("c1", ["GPU-0"], state="running")
    departures.note([holder], 10.0)
    assert departures.left([holder], inventory, 5.0) == frozenset()
    assert departures.left([], inventory, 10.0) == {"GPU-0"}
    now = conditions_now(Health(), {"GPU-0"})
    assert now["GPU-0"].state is CardState.SETTLING
    assert departures.left([], inventory, 10.5) == frozenset()
    assert departures.left([], inventory, 5.0) == frozenset(), "a look has been since"


def test_a_container_that_never_ran_leaves_nothing_behind() -> None:
    departures = Departures()
    departures.note([claim("c1", ["GPU-0"])], 10.0)
    assert departures.left([], cards(1), 5.0) == frozenset()


def test_who_left_a_slice_has_left_its_card() -> None:
    departures = Departures()
    departures.note([claim("c1", ["MIG-a"], state="running")], 10.0)
    assert departures.left([], sliced(), 5.0) == {"MIG-a", "GPU-0"}


def test_a_departure_makes_no_ill_card_look_better() -> None:
    story = Story()
    story.look(machine(error="GPU is lost"))
    assert conditions_now(story.health, {"GPU-0"})["GPU-0"].state is CardState.ILL


# -- whatever comes -------------------------------------------------------------------------------

IDS = ["c1", "c2", "x1"]
STATES = st.sampled_from(["created", "running", "paused", "restarting", "exited", "removing"])


@st.composite
def rows(draw: st.DrawFn) -> list[Row]:
    found = [
        ours(*draw(st.sampled_from([["GPU-0"], ["GPU-1"], []])), id=one, state=draw(STATES))
        for one in ("c1", "c2")
        if draw(st.booleans())
    ]
    return found + [foreign(state=draw(STATES)) for _ in range(draw(st.integers(0, 1)))]


@st.composite
def devices(draw: st.DrawFn) -> Inventory:
    several = [d for d in cards(2).devices if draw(st.integers(0, 9))]
    return Inventory(
        tuple(
            replace(
                device,
                used_mib=draw(st.sampled_from([None, 0, 400, 5000])),
                reserved_mib=draw(st.sampled_from([None, 600])),
                recovery_action=draw(st.sampled_from([None, "none", "none", "none", "gpu-reset"])),
                processes=tuple(
                    Process(
                        pid,
                        draw(st.sampled_from(["compute", "compute", "graphics"])),
                        draw(st.sampled_from([None, 300])),
                        draw(st.sampled_from([None, *IDS])),
                    )
                    for pid in range(draw(st.integers(0, 2)))
                ),
            )
            for device in several
        )
    )


DETAILS = st.fixed_dictionaries({"x1": st.sampled_from([HOLDS, MAY_USE, OBSERVES, NOTHING])})
LOOKS = st.lists(st.tuples(devices(), rows(), rows(), DETAILS), min_size=1, max_size=6)


def wrong_with(device: Device, after: Seen) -> bool:
    """The law, read anew: somebody else's work, a fault, or memory of nobody."""
    near = {c.row.id for c in after.claims.claims if device.uuid in c.devices}
    states = {r.id: r.state for r in after.survey.listing.rows}
    for process in device.processes:
        owner = process.container_id
        if process.kind == "graphics" or (owner == "x1" and owner in after.harmless):
            continue
        if owner not in near or states[owner] in ("exited", "removing"):
            return True
    running = {i for i in near if states[i] in ("running", "paused", "restarting")}
    sizes = [p.used_mib for p in device.processes]
    told = None not in (device.used_mib, device.reserved_mib, *sizes)
    memory = told and (device.used_mib or 0) - sum(s or 0 for s in sizes) > 500 and not running
    return bool(device.ill or memory)


@given(LOOKS)
def test_a_card_with_anything_wrong_is_never_well(looks: list[Any]) -> None:
    story = Story()
    seen_cards: set[str] = set()
    for inventory, before, after, details in looks:
        story.look(inventory, *after, before=before, **details)
        told = seen(story.health.inventory, after, details)
        harmless_before = seen(story.health.inventory, before, details).harmless
        seen_cards |= set(inventory.by_uuid)
        for device in story.health.inventory.devices:
            condition = story.health.of(device.uuid)
            if harmless_before - told.harmless:
                continue  # an observer that ended meanwhile: its work is on neither side
            if wrong_with(device, told):
                assert condition.state is not CardState.FREE, device
                assert condition.why
            else:
                assert condition.state is not CardState.DIRTY, condition.why
        for uuid in seen_cards - set(inventory.by_uuid):
            assert story.health.of(uuid).state is CardState.GONE


@given(LOOKS, st.integers(1, 4))
def test_whatever_was_clean_looks_heal_it(looks: list[Any], needed: int) -> None:
    story = Story(Limits(clean_probes=needed))
    for inventory, before, after, details in looks:
        story.look(inventory, *after, before=before, **details)
    for _ in range(needed + 1):
        last = story.look(cards(2))
    assert last == {}
    assert story.health.gone == ()
    assert not story.health.unwell


def test_one_that_came_and_went_between_two_looks_is_on_its_way_out() -> None:
    """No look has listed it, but a spawn's own listings have: its process is nobody else's."""
    departures, inventory = Departures(), machine(Process(1, "compute", 800, "c1"), count=1)
    departures.note([claim("c1", ["GPU-0"], state="running")], 1.0)
    gone = Look(2.0, inventory, seen(inventory, (), {}), seen(inventory, (), {}))
    settling = observe(Health(), gone, Limits(), departures.lately())
    assert settling.of("GPU-0").state is CardState.SETTLING
    assert observe(settling, gone, Limits()).of("GPU-0").state is CardState.SETTLING
    assert observe(Health(), gone, Limits()).of("GPU-0").state is CardState.DIRTY


def test_one_that_went_after_the_probe_is_known_by_the_listing_before_it() -> None:
    clean, busy = machine(count=1), machine(Process(1, "compute", 800, "c1"), count=1)
    row = ours("GPU-0", state="running")
    look = Look(1.0, clean, seen(clean, (row,), {}), seen(clean, (), {}))
    health = observe(Health(), look, Limits())
    again = Look(2.0, busy, seen(busy, (), {}), seen(busy, (), {}))
    assert observe(health, again, Limits()).of("GPU-0").state is CardState.SETTLING
