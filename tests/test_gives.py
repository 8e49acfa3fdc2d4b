"""What a profile gives, and what stands together on the form: tables and laws."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.demands import demand, scene
from fakes.docker_client import FakeClient
from fakes.docker_machine import FakeMachine
from gpuspawner.errors import EngineUnknown
from gpuspawner.form_state import Offers, ProfileState, sections, shown_to_others, state_of
from gpuspawner.gives import gives, model_name, places
from gpuspawner.glance import Glance
from gpuspawner.placement import place
from gpuspawner.profiles import parse_profile_list
from gpuspawner.refusal import GPURefusal
from gpuspawner.request import Card, Kept, Placement, Request
from real_spawner import RealHub

A100, L4, H100 = "NVIDIA A100-SXM4-40GB", "NVIDIA L4", "NVIDIA H100 80GB HBM3"
HALF = Fraction(1, 2)
TIED = "\N{NO-BREAK SPACE}"


def card(model: str = A100, gib: float | None = 40, **kwargs: Any) -> Card:
    memory = None if gib is None else int(gib * 1024)
    return Card(uuid=f"GPU-{id(kwargs)}", index=0, model=model, memory_mib=memory, **kwargs)


MIXED = [card(), card(L4, 24)]
SLICE = card(f"{A100} MIG 1g.5gb", 4.75, mig_profile="1g.5gb", parent="GPU-0")


@pytest.mark.parametrize(
    ("requests", "cards", "expected"),
    [
        ([Request()], [card(), card()], "1 GPU · A100 · 40 GB"),
        ([Request(2)], [card(), card()], "2 GPUs · A100 · 40 GB each"),
        ([Request(2, linked="require")], [card()] * 2, "2 linked GPUs · A100 · 40 GB each"),
        (
            [Request(2, linked="prefer")],
            [card()] * 2,
            "2 GPUs, linked if possible · A100 · 40 GB each",
        ),
        ([Request(linked="prefer")], [card()], "1 GPU · A100 · 40 GB"),
        ([Request()], MIXED, "1 GPU · A100 or L4 · 24 to 40 GB"),
        ([Request()], [card("A"), card("B"), card("C")], "1 GPU · A, B or C · 40 GB"),
        ([Request()], [card(m) for m in "ABCD"], "1 GPU · any of 4 models · 40 GB"),
        ([Request(min_memory_mib=30_000)], MIXED, "1 GPU · A100 · 40 GB"),
        (
            [Request(share=HALF)],
            [card()],
            "1/2 of a GPU · A100 · about 20 GB, shared, not walled off",
        ),
        (
            [Request(2, share=HALF)],
            [card(), card()],
            "1/2 of each of 2 GPUs · A100 · about 20 GB each, shared, not walled off",
        ),
        # An admin's memory_fraction is as soft, and counts where it is less than the share.
        ([Request(told=HALF)], [card()], "1 GPU · A100 · about 20 GB"),
        ([Request(2, told=HALF)], [card()] * 2, "2 GPUs · A100 · about 20 GB each"),
        (
            [Request(share=HALF, told=Fraction(1, 4))],
            [card()],
            "1/2 of a GPU · A100 · about 10 GB, shared, not walled off",
        ),
        (
            [Request(share=HALF, told=Fraction(3, 4))],
            [card()],
            "1/2 of a GPU · A100 · about 20 GB, shared, not walled off",
        ),
        (
            [Request(min_memory_mib=30_000, told=HALF)],
            [card(), card(H100, 80)],
            "1 GPU · H100 · about 40 GB",
        ),
        ([Request(mig_profile="1g.5gb")], [SLICE], "1 slice of a GPU · A100 · 4.8 GB"),
        (
            [Request(models=("*A100*",)), Request(models=("*L4*",))],
            MIXED,
            "1 GPU · A100 · 40 GB, else 1 GPU · L4 · 24 GB",
        ),
        # What can never be met is not promised.
        ([Request(models=("*H100*",)), Request()], [card()], "1 GPU · A100 · 40 GB"),
        ([Request(3)], [card(), card()], ""),
        ([Request()], [], ""),
        ([Request(0)], [card()], ""),
        # A card that this user can't get is no part of the promise, unless there is no other.
        ([Request()], [card(), card(H100, 80, kept="for staff")], "1 GPU · A100 · 40 GB"),
        ([Request()], [card(), card(H100, 80, unavailable="ill")], "1 GPU · A100 · 40 GB"),
        ([Request()], [card(unavailable="ill")], "1 GPU · A100 · 40 GB"),
        ([Request(2)], [card(), card(unavailable="ill")], "2 GPUs · A100 · 40 GB each"),
        ([Request()], [card("", None)], "1 GPU"),
        ([Request()], [card(), card(A100, None)], "1 GPU · A100"),
        ([Request()], [card(display=True, screen_mib=1024)], "1 GPU · A100 · 39 GB"),
    ],
)
def test_what_is_told(requests: list[Request], cards: list[Card], expected: str) -> None:
    told = gives(requests, cards)
    assert told.replace(TIED, " ") == expected
    assert " GB" not in told
    assert " ·" not in told


@pytest.mark.parametrize(
    ("model", "short"),
    [
        (A100, "A100"),
        ("NVIDIA A100 80GB PCIe", "A100"),
        (H100, "H100"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090"),
        ("NVIDIA Tesla T4", "T4"),
        ("NVIDIA", "NVIDIA"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada Generation"),
        ("", ""),
    ],
)
def test_models_as_people_say_them(model: str, short: str) -> None:
    assert model_name(model) == short


cards_drawn = st.lists(
    st.builds(
        Card,
        uuid=st.uuids().map(str),
        index=st.integers(0, 9),
        model=st.sampled_from([A100, L4]),
        memory_mib=st.sampled_from([8192, 24576, 40960]),
        load=st.sampled_from([Fraction(0), Fraction(1, 4), HALF, Fraction(1), Fraction(3, 2)]),
        unavailable=st.sampled_from(["", "", "ill"]),
    ),
    max_size=6,
    unique_by=lambda c: c.uuid,
)


@given(cards_drawn, st.sampled_from([Fraction(1, 4), Fraction(2, 5), HALF]))
def test_a_share_that_is_counted_free_can_be_had(cards: list[Card], share: Fraction) -> None:
    total, free = places([Request(share=share)], cards)
    assert 0 <= free <= total
    state = state_of(demand(share=share), scene(cards))
    assert (state.free == 0) == bool(state.disabled)
    assert state.unit == "share"
    given_out = 0
    while isinstance(found := place(Request(share=share), cards), Placement):
        cards = [replace(c, load=c.load + share * (c.uuid in found.devices)) for c in cards]
        given_out += 1
    assert given_out == free


def test_cards_kept_for_others_are_counted_as_taken_and_those_kept_always_not_at_all() -> None:
    for kept, whole, halves in (
        (Kept("booked"), "1 of 2 GPUs free", "2 of 4 shares free"),
        (Kept("reserved", always=True), "1 of 1 GPU free", "2 of 2 shares free"),
    ):
        now = scene([card(), card(kept=kept)])
        assert state_of(demand(), now).count == whole
        assert state_of(demand(share=HALF), now).count == halves


@given(cards_drawn, st.integers(1, 3))
def test_no_more_memory_is_told_than_the_smallest_has(cards: list[Card], count: int) -> None:
    told = gives([Request(count)], cards)
    assert bool(told) == (len(cards) >= count)
    if told and all(not c.unavailable for c in cards):
        assert f" {min(c.memory_mib or 0 for c in cards) // 1024} " in told.replace(TIED, " ")


def test_shares_and_slices_are_counted_as_such() -> None:
    half = state_of(demand(share=HALF), scene([card(load=HALF), card(), card(load=Fraction(1))]))
    assert half.count == "3 of 6 shares free"
    assert state_of(demand(mig_profile="1g.5gb"), scene([SLICE, card()])).count == (
        "1 of 1 slice free"
    )
    one = state_of(demand(), scene([card()]))
    told = (one.count, one.gives.replace(TIED, " "))
    assert told == ("1 of 1 GPU free", "1 GPU · A100 · 40 GB")


# -- what stands together -------------------------------------------------------------------------


def named(*entries: tuple[str, dict[str, Any]]) -> Any:
    return parse_profile_list([{"display_name": n, **more} for n, more in entries]).profiles


WHOLE: dict[str, Any] = {"gpu": {"count": 1}}
PART: dict[str, Any] = {"gpu": {"share": "1/2"}}


def shape(profiles: Any, others: Any = ()) -> list[tuple[str, list[str]]]:
    return [(s.heading, [p.slug for p in s.profiles]) for s in sections(profiles, others)]


def test_few_profiles_have_no_headings_and_keep_the_admins_order() -> None:
    few = named(("a", WHOLE), ("b", {}), ("c", PART), ("d", WHOLE))
    assert shape(few) == [("", ["a", "b", "c", "d"])]
    many = named(("a", WHOLE), ("b", {}), ("c", PART), ("d", WHOLE), ("e", {}))
    assert shape(many) == [
        ("Whole GPUs", ["a", "d"]),
        ("Without a GPU", ["b", "e"]),
        ("Part of a GPU", ["c"]),
    ]
    alike = named(*((name, WHOLE) for name in "abcdef"))
    assert shape(alike) == [("", list("abcdef"))]


def test_profiles_of_other_groups_come_last_and_many_are_folded() -> None:
    mine, theirs = named(("a", WHOLE), ("b", {})), named(*((n, WHOLE) for n in "xyz"))
    assert shape(mine, theirs[:2]) == [("", ["a", "b"]), ("", ["x", "y"])]
    *_, last = sections(mine, theirs)
    assert (last.heading, last.folded) == ("3 more, open to other groups only", True)


def test_profiles_of_single_users_are_nobody_elses_business() -> None:
    profiles = named(
        ("all", {}), ("staff", {"groups": ["staff"]}), ("boss", {"users": ["boss"]}),
        ("both", {"groups": ["staff"], "users": ["boss"]}),
    )  # fmt: skip
    allowed = [p for p in profiles if p.allows("ada", ())]
    assert [p.slug for p in shown_to_others(profiles, allowed)] == ["staff", "both"]
    assert shown_to_others(profiles, profiles) == ()


def test_what_an_open_page_is_told() -> None:
    profiles = named(("a", WHOLE), ("b", {}))
    shut = ProfileState(free=0, total=2, disabled="All taken.", gives="1 GPU")
    told = Offers(profiles, named(("x", WHOLE)), {"a": shut}).as_json("a")
    assert told["selected"] == "b"
    assert list(told["profiles"]) == ["a", "b"]
    assert told["profiles"]["a"] == {
        "count": "0 of 2 GPUs free", "free": 0, "total": 2, "disabled": "All taken.",
        "gives": "1 GPU", "advice": "It opens here by itself when that changes, or choose another.",
    }  # fmt: skip
    assert told["profiles"]["b"]["advice"] == ""


# -- a fraction that the admin has set ------------------------------------------------------------

SLOW = {"display_name": "Slow", "slug": "slow", **WHOLE}
FRACTIONS: list[tuple[Any, dict[str, Any], str]] = [
    (None, {}, "40 GB"),
    (1, {}, "40 GB"),
    (0.5, {}, "about 20 GB"),
    (0.5, {"spawner_override": {"memory_fraction": "1/4"}}, "about 10 GB"),
    (0.5, {"spawner_override": {"memory_fraction": 1}}, "40 GB"),
    (0.5, {"spawner_override": {"memory_fraction": None}}, "40 GB"),
    (0.5, {"spawner_override": {"memory_fraction": lambda spawner: 0.1}}, "40 GB"),
    (
        None,
        {"profile_options": {"part": {"choices": {
            "all": {}, "less": {"spawner_override": {"memory_fraction": 0.5}},
        }}}},
        "about 20 GB",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("of_all", "more", "memory"), FRACTIONS)
async def test_the_form_tells_what_frameworks_will_be_told(
    tmp_path: Path, of_all: Any, more: dict[str, Any], memory: str
) -> None:
    machine = FakeMachine()
    hub = RealHub(tmp_path, client=lambda: FakeClient(machine))
    hub.config.GPUSpawner.memory_fraction = of_all
    hub.config.GPUSpawner.profile_list = [{**SLOW, **more}, {"display_name": "CPU", "slug": "cpu"}]
    told = (await hub.spawner("ada").live_form())["profiles"]["slow"]["gives"]
    assert told.replace(TIED, " ") == f"1 GPU · A100 · {memory}"
    hub.close()


async def test_the_memory_that_a_profile_promises_is_what_frameworks_are_told(
    tmp_path: Path,
) -> None:
    machine = FakeMachine()
    hub = RealHub(tmp_path, client=lambda: FakeClient(machine))
    large = {"display_name": "Large", "gpu": {"min_memory_gib": 24}}
    less = {**large, "slug": "less", "spawner_override": {"memory_fraction": 0.5}}
    hub.config.GPUSpawner.profile_list = [large, less]
    state = (await hub.spawner("ada").live_form())["profiles"]
    assert state["large"]["disabled"] == ""
    assert state["less"]["disabled"] == "This machine has no GPU with 24 GB."
    with pytest.raises(GPURefusal) as refused:
        await hub.start("ben", {"profile": "less"})
    assert refused.value.reason == "no-free-gpu"
    assert "memory_fraction 1/2" in refused.value.admin_message
    await hub.start("ada", {"profile": "large"})
    hub.close()


# -- one look for all that are open ---------------------------------------------------------------


async def test_many_who_ask_at_once_share_a_look_and_its_failure() -> None:
    looks = 0
    gate = asyncio.Event()

    async def look() -> int:
        nonlocal looks
        looks += 1
        await gate.wait()
        if looks == 2:
            raise EngineUnknown("away")
        return looks

    glance = Glance(look, seconds=0)
    asking = [asyncio.ensure_future(glance.latest()) for _ in range(40)]
    await asyncio.sleep(0)
    asking[0].cancel()  # a browser that goes away ends it for nobody else
    gate.set()
    assert set(await asyncio.gather(*asking[1:])) == {1}
    failed = await asyncio.gather(*(glance.latest() for _ in range(3)), return_exceptions=True)
    assert [type(f) for f in failed] == [EngineUnknown] * 3
    assert await glance.latest() == 3

    lasting = Glance(look, seconds=3600)
    assert [await lasting.latest() for _ in range(3)] == [4, 4, 4]


async def test_forty_open_forms_ask_the_engine_once(tmp_path: Path) -> None:
    machine = FakeMachine()
    hub = RealHub(tmp_path, client=lambda: FakeClient(machine))
    spawners = [hub.spawner(f"user{n}") for n in range(40)]
    await spawners[0].live_form()
    asked = 0
    survey = hub.pool.survey

    async def counted() -> Any:
        nonlocal asked
        asked += 1
        return await survey()

    hub.pool.survey = counted  # type: ignore[method-assign]
    told = await asyncio.gather(*(spawner.live_form() for spawner in spawners))
    assert asked <= 1
    assert {t["profiles"]["one-gpu"]["count"] for t in told} == {"4 of 4 GPUs free"}
    hub.close()


async def test_an_open_form_is_told_that_the_engine_is_away(tmp_path: Path) -> None:
    machine = FakeMachine()
    hub = RealHub(tmp_path, client=lambda: FakeClient(machine))

    async def away() -> Any:
        raise EngineUnknown("away")

    hub.pool.survey = away  # type: ignore[method-assign]
    told = await hub.spawner("ada").live_form()
    assert told["selected"] is None
    assert all("can't reach" in p["disabled"] for p in told["profiles"].values())
    hub.close()
