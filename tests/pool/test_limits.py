"""Limits under real traffic: starts and stops at once never add up to more than is allowed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import pytest

from fakes.docker_machine import FakeMachine
from fakes.hub import FakeHub, in_thread, until
from gpuspawner.attempts import Attempt
from gpuspawner.demand import Demand
from gpuspawner.limits import limits_for
from gpuspawner.pool import NoRoom, OverQuota
from gpuspawner.request import Request
from gpuspawner.states import State

Make = Callable[..., FakeHub]
STUDENTS = {"ada", "ben", "cleo"}
HALF = Fraction(1, 2)


def ask(
    user: str,
    server: str = "",
    *,
    profile: str = "one-gpu",
    count: int = 1,
    share: Fraction = Fraction(1),
    most: int = 0,
    group: int = 0,
    profile_most: int | None = None,
    servers: int | None = None,
) -> Demand:
    """What the spawner would ask for with these limits."""
    return Demand(
        user=user,
        server=server,
        profile=profile,
        requests=(Request(count, share),),
        limits=limits_for(
            user,
            most=most,
            groups=[("students", group, STUDENTS)] if group and user in STUDENTS else [],
            profile=profile,
            profile_name=profile,
            profile_most=profile_most,
            profile_servers=servers,
        ),
    )


async def spawn(hub: FakeHub, demand: Demand) -> tuple[Attempt, str]:
    """A whole start."""
    attempt = await hub.pool.reserve(demand)
    ticket = hub.pool.ticket(attempt)
    container_id = await hub.go(attempt, ticket)
    assert container_id is not None
    hub.pool.hold(attempt, ticket)
    return attempt, container_id


def refusals(results: Sequence[object]) -> int:
    return sum(isinstance(r, OverQuota) for r in results)


async def test_a_storm_of_a_group_stays_within_its_limit(hub: FakeHub) -> None:
    asked = [ask(sorted(STUDENTS)[i % 3], f"s{i}", group=2) for i in range(18)]
    results = await asyncio.gather(*(spawn(hub, d) for d in asked), return_exceptions=True)
    assert refusals(results) == 16
    assert len(hub.machine.live()) == 2
    # Whoever is in no such group has what is left.
    await spawn(hub, ask("dan", most=1))


async def test_a_storm_on_a_profile_stays_within_its_limit(hub: FakeHub) -> None:
    asked = [ask(f"user{i}", profile="large", profile_most=3) for i in range(20)]
    results = await asyncio.gather(*(spawn(hub, d) for d in asked), return_exceptions=True)
    assert refusals(results) == 17
    assert len(hub.machine.live()) == 3
    await spawn(hub, ask("user0", "other", profile="small"))


async def test_two_halves_are_one_card(hub: FakeHub) -> None:
    asked = [ask("ada", f"s{i}", share=HALF, most=1) for i in range(20)]
    results = await asyncio.gather(*(spawn(hub, d) for d in asked), return_exceptions=True)
    assert refusals(results) == 18
    with pytest.raises(OverQuota) as refused:
        await hub.pool.check(ask("ada", "more", share=HALF, most=1))
    assert refused.value.over.total == 1
    await hub.pool.check(ask("ada", "more", share=HALF, most=2))


async def test_a_storm_without_gpus_stays_within_the_number_of_servers(hub: FakeHub) -> None:
    asked = [ask("ada", f"s{i}", profile="cpu", count=0, servers=2) for i in range(20)]
    results = await asyncio.gather(*(spawn(hub, d) for d in asked), return_exceptions=True)
    assert refusals(results) == 18
    assert len(hub.machine.live()) == 2
    with pytest.raises(OverQuota):
        await hub.pool.check(ask("ada", "more", profile="cpu", count=0, servers=2))
    await spawn(hub, ask("ben", profile="cpu", count=0, servers=2))
    await spawn(hub, ask("ada", "gpu", servers=2))


async def test_a_listing_without_a_server_that_has_started_since_is_void(
    hub: FakeHub, machine: FakeMachine
) -> None:
    """Else: listed without its container, counted without its attempt, and one too many."""
    with machine.gate("list", "after") as gate:
        late = asyncio.ensure_future(
            hub.pool.reserve(ask("ada", "two", profile="cpu", count=0, servers=1))
        )
        await in_thread(gate.wait_arrived)  # it has the answer of a machine without containers
        attempt = Attempt("L", (), Fraction(1), ("ada", "one"), profile="cpu")
        hub.pool.attempts.add(attempt)
        machine.add(state="running", labels=hub.labels(attempt))
        for state in (State.CREATING, State.CLAIMED, State.STARTING, State.HELD):
            hub.pool.attempts.move(attempt, state)
    with pytest.raises(OverQuota):
        await late


@pytest.mark.parametrize("count", [0, 1])
async def test_a_listing_with_a_server_that_has_gone_since_refuses_nobody(
    hub: FakeHub, machine: FakeMachine, count: int
) -> None:
    await hub.pool.view(probe_age_seconds=60)
    attempt, container_id = await spawn(hub, ask("ada", "one", count=count, servers=1, profile="p"))
    with machine.gate("list", "after") as gate:
        late = asyncio.ensure_future(
            hub.pool.reserve(ask("ada", "two", count=count, servers=1, profile="p"))
        )
        await in_thread(gate.wait_arrived)  # it has seen the first one run
        gone = asyncio.ensure_future(hub.stop(attempt, container_id))
        await until(lambda: not machine.containers)
        await gone
    assert (await late).owner == ("ada", "two")


@dataclass
class Watch:
    """Counts, at every start, what runs and was not given up, beside the product's own count."""

    running: dict[str, Demand] = field(default_factory=dict)

    def started(self, container_id: str, demand: Demand) -> None:
        self.running[container_id] = demand
        for limit in demand.limits:
            counted = [
                d.requests[0]
                for d in self.running.values()
                if limit.users is None or d.user in limit.users
                if not limit.profile or d.profile == limit.profile
            ]
            cards = sum((r.count * r.share for r in counted), Fraction(0))
            held = len(counted) if limit.kind == "servers" else cards
            # A server without a GPU may start where others are over the limit on GPUs.
            if limit.kind == "servers" or demand.needs_gpu:
                assert held <= limit.most, (limit, counted)


@pytest.mark.parametrize("seed", range(6))
async def test_no_crowd_gets_more_than_the_limits(make_hub: Make, seed: int) -> None:
    luck = random.Random(seed)
    machine = FakeMachine(seed=seed)
    machine.jitter = random.Random(seed)
    hub = make_hub(on=machine, cards=24)
    watch, done = Watch(), {"started": 0, "refused": 0}

    async def person(user: str, name: str) -> None:
        for round_ in range(4):
            count = luck.choice([0, 1, 1, 2])
            demand = ask(
                user,
                f"{name}{round_}",
                profile="cpu" if count == 0 else luck.choice(["whole", "half"]),
                count=count,
                share=luck.choice([HALF, Fraction(1)]) if count else Fraction(1),
                most=2,
                group=3,
                profile_most=4,
                servers=2,
            )
            try:
                attempt, container_id = await spawn(hub, demand)
            except OverQuota:
                done["refused"] += 1
                continue
            except NoRoom:
                continue
            done["started"] += 1
            watch.started(container_id, demand)
            await asyncio.sleep(luck.random() / 200)
            del watch.running[container_id]
            await hub.stop(attempt, container_id)

    crowd = [(user, f"{user}-{i}") for user in (*sorted(STUDENTS), "dan") for i in range(4)]
    await asyncio.gather(*(person(user, name) for user, name in crowd))
    assert not watch.running
    assert all(done.values()), done
