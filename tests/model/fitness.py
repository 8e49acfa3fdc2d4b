"""Rule 7 as a search of its own: one card, its holders' processes, strangers, illness, and looks.

A look is four steps (begun and listed, probed, listed again, judged), and anything may come in
between. What follows from a look is the product's own :func:`~gpuspawner.health.observe`; what is
offered between two looks is decided by ``Departures``, ``conditions_now`` and ``see_cards``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from fakes.rows import HUB, cards, listing, ours
from gpuspawner.attempts import Attempts
from gpuspawner.cards import see_cards
from gpuspawner.claims import Claim, Detail, Survey, read_claims
from gpuspawner.departures import Departures, conditions_now
from gpuspawner.devices import Inventory, Process
from gpuspawner.health import Condition, Health, Limits, Look, Seen, observe
from gpuspawner.placement import place
from gpuspawner.request import Card, Placement, Request
from gpuspawner.states import CardState

from .machine import Broken
from .search import Found, story

CARD = "GPU-0"
LIMITS = Limits(foreign_memory_mib=500, clean_probes=3)
FAULTS = frozenset({CardState.DIRTY, CardState.ILL})
WELL_CARD = cards(1)
#: A container as it is listed: which life, and its state; None if it is not listed.
Box = tuple[int, str]


class Under(NamedTuple):
    """A look under way.

    Attributes:
        before, after: the listings around it.
        probe: what the driver said: (life whose process is there, a stranger, ill).
    """

    begun: int
    before: Box | None
    probe: tuple[int, bool, bool] | None = None
    after: Box | None = None
    listed: bool = False


class World(NamedTuple):
    """One moment.

    Attributes:
        life: which container is, or was, the card's holder; 0 before the first.
        work: the life whose process is on the card; 0 for none.
        clean: clean looks since one that saw a fault; -1 if none ever did.
        seen: a look has seen the stranger or illness that is there still.
        last: when a container was last listed at work, as ``Departures`` has it.
    """

    life: int = 0
    box: str = "absent"
    work: int = 0
    stranger: bool = False
    ill: bool = False
    seen: bool = False
    clean: int = -1
    under: Under | None = None
    health: int = 0
    last: tuple[tuple[str, int], ...] = ()
    now: int = 1
    left: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Fitness:
    """The product's functions; a mutant replaces one."""

    observe: Callable[[Health, Look, Limits, Any], Health] = observe
    left: Callable[..., frozenset[str]] = Departures.left
    see_cards: Callable[..., tuple[Card, ...]] = see_cards
    limits: Limits = LIMITS
    listed_after: bool = True


@dataclass
class Search:
    """Every state that can be reached with some lives, strangers and illnesses."""

    fit: Fitness = field(default_factory=Fitness)
    lives: int = 0
    strangers: int = 0
    illnesses: int = 0
    _healths: list[Health] = field(default_factory=lambda: [Health()])
    _known: dict[str, int] = field(default_factory=lambda: {repr(Health()): 0})
    _judged: dict[object, int] = field(default_factory=dict)
    _healed: set[World] = field(default_factory=set)

    # -- the product's view ----------------------------------------------------------------------

    def _survey(self, box: Box | None) -> Survey:
        if box is None:
            return Survey(listing())
        row = ours(CARD, id=f"c{box[0]}", lease=f"L{box[0]}", state=box[1])
        return Survey(listing(row), {row.id: Detail(finished_at=1000.0)})

    def _seen(self, box: Box | None, inventory: Inventory) -> Seen:
        survey = self._survey(box)
        return Seen(survey, read_claims(survey, inventory, HUB))

    def _inventory(self, probe: tuple[int, bool, bool]) -> Inventory:
        life, stranger, ill = probe
        processes = [Process(100 + life, "compute", 800, f"c{life}")] if life else []
        if stranger:
            processes.append(Process(7, "compute", 800))
        (device,) = WELL_CARD.devices
        action = "gpu-reset" if ill else "none"
        return Inventory((replace(device, processes=tuple(processes), recovery_action=action),))

    def _departures(self, world: World) -> Departures:
        departures = Departures()
        for container, at in world.last:
            departures._last[container] = (frozenset({CARD}), float(at))
        return departures

    def _keep(self, departures: Departures) -> tuple[tuple[str, int], ...]:
        return tuple(sorted((c, int(at)) for c, (_, at) in departures._last.items()))

    def _intern(self, health: Health) -> int:
        key = repr(health)
        if key not in self._known:
            self._known[key] = len(self._healths)
            self._healths.append(health)
        return self._known[key]

    def condition(self, world: World) -> Condition:
        return self._healths[world.health].of(CARD)

    # -- steps -----------------------------------------------------------------------------------

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        yield from self.holder(world)
        if world.left[0] and not world.stranger:
            left = (world.left[0] - 1, world.left[1])
            yield "a stranger comes", world._replace(stranger=True, seen=False, left=left)
        if world.left[1] and not world.ill:
            left = (world.left[0], world.left[1] - 1)
            yield "it falls ill", world._replace(ill=True, seen=False, left=left)
        if world.stranger:
            yield "the stranger goes", world._replace(stranger=False, seen=False)
        if world.ill:
            yield "it is mended", world._replace(ill=False, seen=False)
        yield self.looking(world)
        offered, after = self.decide(world)
        yield "a decision", after
        if offered and world.life < self.lives:
            departures = self._departures(after)
            box = (world.life + 1, "running")
            # The looks around its start list it.
            departures.note(self._claims(box), float(after.now))
            last = self._keep(departures)
            yield "a server starts", after._replace(life=box[0], box="running", last=last)

    def holder(self, world: World) -> Iterator[tuple[str, World]]:
        if world.box == "running" and world.work != world.life and not world.work:
            yield "it computes", world._replace(work=world.life)
        if world.box == "running":
            yield "it exits", world._replace(box="exited")
            yield "it is removed", world._replace(box="absent")
        if world.box == "exited":
            yield "its container is removed", world._replace(box="absent")
        if world.work and (world.work != world.life or world.box != "running"):
            yield "its process is reaped", world._replace(work=0)

    def _shown(self, world: World) -> Box | None:
        return None if world.box == "absent" else (world.life, world.box)

    def _claims(self, box: Box | None) -> tuple[Claim, ...]:
        return self._seen(box, WELL_CARD).claims.claims

    def looking(self, world: World) -> tuple[str, World]:
        under = world.under
        if under is None:
            now = world.now + 1
            return "a look begins", world._replace(now=now, under=Under(now, self._shown(world)))
        if under.probe is None:
            probe = (world.work, world.stranger, world.ill)
            return "the driver answers", world._replace(under=under._replace(probe=probe))
        if not under.listed:
            after = under._replace(after=self._shown(world), listed=True)
            return "listed again", world._replace(under=after)
        return "the look is judged", self.judged(world, under, under.probe)

    def judged(self, world: World, under: Under, probe: tuple[int, bool, bool]) -> World:
        inventory = self._inventory(probe)
        after = under.after if self.fit.listed_after else under.before
        look = Look(
            float(under.begun),
            inventory,
            self._seen(under.before, inventory),
            self._seen(after, inventory),
        )
        departures = self._departures(world)
        lately = departures.lately()
        key = (world.health, under, tuple(sorted(lately.get(CARD, ()))))
        if key not in self._judged:
            before = self._healths[world.health]
            self._judged[key] = self._intern(
                self.fit.observe(before, look, self.fit.limits, lately)
            )
        health = self._judged[key]
        for seen in (look.before, look.after):
            departures.note(seen.claims.claims, look.begun)
        worker, stranger, ill = probe
        leaving = worker and under.after != (worker, "running")
        clean = world.clean + (world.clean >= 0 and not leaving)
        if stranger or ill:
            clean = 0
        still = (stranger and world.stranger) or (ill and world.ill)
        world = world._replace(
            under=None,
            health=health,
            last=self._keep(departures),
            clean=min(clean, 3),
            seen=world.seen or still,
        )
        if self.condition(world).state in FAULTS and world.clean < 0:
            raise Broken("rule 7: dirty, though nobody was there but its holders")
        return world

    def decide(self, world: World) -> tuple[bool, World]:
        """What the hub would offer now."""
        now = world.now + 1
        health = self._healths[world.health]
        departures = self._departures(world)
        claims = self._claims(self._shown(world))
        departures.note(claims, float(now))
        left = self.fit.left(departures, claims, WELL_CARD, health.begun)
        card = self._card(claims, conditions_now(health, left))
        offered = isinstance(place(Request(1), card), Placement)
        if offered:
            self.check_offer(world)
        return offered, world._replace(now=now, last=self._keep(departures))

    def _card(
        self, claims: Iterable[Claim], conditions: Mapping[str, Condition]
    ) -> tuple[Card, ...]:
        return self.fit.see_cards(WELL_CARD, claims, Attempts(), HUB, conditions=conditions)

    # -- laws ------------------------------------------------------------------------------------

    def check_offer(self, world: World) -> None:
        if world.seen:
            raise Broken("rule 7: offered with the stranger or the illness that a look saw")
        if 0 <= world.clean < LIMITS.clean_probes:
            raise Broken("rule 7: offered before enough clean looks")
        if world.work:
            raise Broken("rule 7: offered with the process of its last holder")

    def heals(self, world: World) -> None:
        """Left alone, it is offered again."""
        world = world._replace(stranger=False, ill=False, seen=False)
        if world.box == "running":
            return
        world = self.settled(world._replace(box="absent", work=0, clean=-1, left=(0, 0)))
        if world in self._healed:
            return
        self._healed.add(world)
        for _ in range(4 * (LIMITS.clean_probes + 2)):
            world = self.settled(self.looking(world)[1])
        if not self.decide(world)[0]:
            raise Broken(f"rule 7: it is never offered again: {self.condition(world)}")

    # -- all of it -------------------------------------------------------------------------------

    def settled(self, world: World) -> World:
        """The same with times that only tell an order."""
        health = self._healths[world.health]
        times = {world.now, *(at for _, at in world.last)}
        if world.under is not None:
            times.add(world.under.begun)
        if health.begun > 0:
            times.add(int(health.begun))
        rank = {at: i for i, at in enumerate(sorted(times), start=1)}
        if health.begun > 0:
            health = replace(health, begun=float(rank[int(health.begun)]))
        under = world.under and world.under._replace(begun=rank[world.under.begun])
        return world._replace(
            now=rank[world.now],
            health=self._intern(health),
            under=under,
            last=tuple((c, rank[at]) for c, at in world.last),
        )

    def run(self) -> Found:
        """Search all of it, until a law is broken."""
        first = World(left=(self.strangers, self.illnesses))
        came_by: dict[World, tuple[World, str] | None] = {first: None}
        frontier = [first]
        while frontier:
            world = frontier.pop()
            try:
                self.heals(world)
                for name, step in self.steps(world):
                    after = self.settled(step)
                    if after not in came_by:
                        came_by[after] = (world, name)
                        frontier.append(after)
            except Broken as broken:
                return Found(len(came_by), str(broken), story(came_by, world))
        return Found(len(came_by))


# -- each part of the rule left out ----------------------------------------------------------------


def without_strangers(health: Health, look: Look, limits: Limits, lately: Any) -> Health:
    (device,) = look.inventory.devices
    known = tuple(p for p in device.processes if p.container_id)
    inventory = Inventory((replace(device, processes=known),))
    return observe(health, replace(look, inventory=inventory), limits, lately)


def without_word(health: Health, look: Look, limits: Limits, lately: Any) -> Health:
    (device,) = look.inventory.devices
    inventory = Inventory((replace(device, recovery_action="none"),))
    return observe(health, replace(look, inventory=inventory), limits, lately)


def without_leftovers(health: Health, look: Look, limits: Limits, lately: Any) -> Health:
    """Whoever has ended is believed to be gone."""
    (device,) = look.inventory.devices
    alive = {row.id for row in look.after.survey.listing.rows if row.state == "running"}
    kept = tuple(p for p in device.processes if not p.container_id or p.container_id in alive)
    inventory = Inventory((replace(device, processes=kept),))
    return observe(health, replace(look, inventory=inventory), limits, lately)


def without_memory(health: Health, look: Look, limits: Limits, lately: Any) -> Health:
    """Who held the card before is forgotten."""
    return observe(replace(health, holders={}), look, limits, {})


def by_load_alone(*args: Any, **_: Any) -> tuple[Card, ...]:
    return see_cards(*args)


#: What is left out, where it is missed, and the words with which the search must end.
MUTANTS: dict[str, tuple[Fitness, dict[str, Any], str]] = {
    "strangers are seen": (
        Fitness(observe=without_strangers),
        {"strangers": 1},
        "rule 7: offered with the stranger",
    ),
    "the driver's word counts": (
        Fitness(observe=without_word),
        {"illnesses": 1},
        "rule 7: offered with the stranger or the illness",
    ),
    "what a holder left settles first": (
        Fitness(observe=without_leftovers),
        {"lives": 1},
        "rule 7: offered with the process",
    ),
    "and is no dirt": (Fitness(observe=without_memory), {"lives": 1}, "rule 7: dirty"),
    "several clean looks": (
        Fitness(limits=replace(LIMITS, clean_probes=1)),
        {"strangers": 1},
        "rule 7: offered before",
    ),
    "news since the look": (
        Fitness(left=lambda *_: frozenset()),
        {"lives": 1},
        "rule 7: offered with the process",
    ),
    "conditions count": (Fitness(see_cards=by_load_alone), {"strangers": 1}, "rule 7: offered"),
    "a listing after the probe": (
        Fitness(listed_after=False),
        {"lives": 1, "strangers": 1},
        "rule 7: offered",
    ),
}
