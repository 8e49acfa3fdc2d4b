"""The pool keeps the laws in whatever order the engine's effects come, and the machine can fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from gpuspawner import pool_seeing
from gpuspawner.attempts import Attempts
from gpuspawner.cards import see_cards
from gpuspawner.claims import Listing
from gpuspawner.engine import Engine
from gpuspawner.errors import EngineUnknown
from gpuspawner.health import WELL
from gpuspawner.pool import GPUPool
from gpuspawner.states import State

from .pool_machine import PoolMachine
from .world import Broken, Server, World

#: The same runs each time, and nothing kept from one time to the next.
SHORT = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def test_in_any_order_the_laws_hold() -> None:
    run_state_machine_as_test(PoolMachine, settings=SHORT)


# -- planted violations -------------------------------------------------------------------------


async def no_look(pool: GPUPool, attempt: Any, container_id: str) -> bool:
    pool.attempts.move(attempt, State.CLAIMED)
    return True


async def no_second_look(pool: GPUPool, attempt: Any, container_id: str) -> bool:
    return True


def no_reservation_counts(attempts: Attempts, near: Any) -> int:
    return 0


def cancel_is_an_answer(pool: GPUPool, attempt: Any, ticket: Any, *, force: bool = True) -> None:
    if attempt.state in (State.HELD, State.FREE):
        return
    if attempt.state is not State.RESERVED:
        pool._step(attempt, State.RELEASING)
    pool._step(attempt, State.FREE)
    ticket._on_end = lambda *_: None
    ticket.abandon(force=force)


async def silence_is_an_answer(pool: GPUPool, attempt: Any) -> None:
    pool._step(attempt, State.FREE)


_listing = Engine.listing


async def no_listing_is_an_empty_one(engine: Engine) -> Listing:
    try:
        return await _listing(engine)
    except EngineUnknown:
        return Listing((), 0.0)


def begin(world: World, hub: int, user: str = "ada") -> Server:
    life, server = world.lives[hub], world.databases[hub][user]
    assert life is not None
    server.spawning = life.do(life.spawn(server, 1), server)
    return server


def all_at_once(world: World) -> None:
    """Two on each hub, all calls in turn."""
    for user in ("ada", "ben"):
        for hub in range(2):
            begin(world, hub, user)
    world.go_on_all()


def an_outsider_just_before_the_start(world: World) -> None:
    begin(world, 0)
    start = world.go_to("start", "before")
    cards = world.machine.containers[str(start.subject)].cards
    world.outsiders.append(world.machine.add(cards=tuple(cards), state="running"))
    world.go_on_all()


def cancelled_inside_of_create(world: World) -> None:
    server = begin(world, 0)
    world.go_to("create", "before")
    assert server.spawning is not None
    server.spawning.cancel()
    world.settle()
    world.go_on(0)


def a_create_without_an_answer(world: World) -> None:
    begin(world, 0)
    world.strike(world.go_to("create", "after"), "cut")
    for _ in range(3):
        world.pass_time(1.0)
        world.go_on_all()


def a_poll_without_an_answer(world: World) -> None:
    server = begin(world, 0)
    world.go_on_all()
    world.pass_time(1.0)
    life = world.lives[0]
    assert life is not None
    assert server.held is not None
    life.do(life.poll(server), server)
    world.strike(world.go_to("list", "before"), "lost")


def a_card_that_is_lost(world: World) -> None:
    world.cards.wrong[0] = "lost"
    begin(world, 0)
    world.go_on_all()


def any_card_is_well(*args: Any, conditions: Any, gone: Any, **_: Any) -> Any:
    return see_cards(*args, conditions=dict.fromkeys(conditions, WELL))


#: Each rule left out, and a story in which a law is broken without it.
MUTANTS = [
    (GPUPool, "look", no_look, all_at_once),
    (GPUPool, "look_again", no_second_look, an_outsider_just_before_the_start),
    (Attempts, "taking", no_reservation_counts, all_at_once),
    (GPUPool, "give_up", cancel_is_an_answer, cancelled_inside_of_create),
    (GPUPool, "_follow", silence_is_an_answer, a_create_without_an_answer),
    (Engine, "listing", no_listing_is_an_empty_one, a_poll_without_an_answer),
    (pool_seeing, "see_cards", any_card_is_well, a_card_that_is_lost),
]


@pytest.mark.parametrize("with_rule", [True, False], ids=["with", "without"])
@pytest.mark.parametrize(
    ("where", "what", "mutant", "story"), MUTANTS, ids=[m[2].__name__ for m in MUTANTS]
)
def test_with_one_rule_left_out_a_law_is_broken(
    monkeypatch: pytest.MonkeyPatch,
    where: Any,
    what: str,
    mutant: Any,
    story: Callable[[World], None],
    with_rule: bool,
) -> None:
    world = World(1)
    try:
        if with_rule:
            story(world)
            world.finish()
        else:
            monkeypatch.setattr(where, what, mutant)
            with pytest.raises(Broken):
                story(world)
    finally:
        world.close()
