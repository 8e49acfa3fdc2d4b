"""What may happen next: the steps of engine, outsiders and time. Those of hubs are in hubs.py.

Every step is atomic; whatever takes time in the world is two steps (sent and done, done and heard),
so that anything may come in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from .rules import Deciding, Rules
from .world import AGES, Lease, Scene, World, put, put_hub, put_stranger

#: A step: what happened, and the world after it.
Step = tuple[str, World]
#: Where an attempt holds a reservation.
IN_FLIGHT = frozenset({"reserved", "creating", "claimed", "waiting", "starting", "releasing"})
#: Calls that were answered and not heard yet.
ANSWERS = frozenset(
    {"listed", "create-refused", "started", "start-refused", "removed", "runs", "remove-refused"}
)


class Broken(Exception):
    """A law is broken."""


class Machine:
    """The engine of a scene, its outsiders, and time."""

    def __init__(self, scene: Scene, rules: Rules) -> None:
        self.scene, self.rules = scene, rules
        self.deciding = Deciding(scene, rules)
        self._faults = {name: place for place, name in enumerate(scene.faults)}
        self._counted: set[object] = set()
        self._settled: dict[World, bool] = {}

    # -- faults are counted ----------------------------------------------------------------------

    def may(self, world: World, fault: str) -> bool:
        place = self._faults.get(fault)
        return place is not None and world.left[place] > 0

    def spend(self, world: World, fault: str) -> World:
        left = list(world.left)
        left[self._faults[fault]] -= 1
        return world._replace(left=tuple(left))

    # -- the engine ------------------------------------------------------------------------------

    def engine_steps(self, world: World) -> Iterator[Step]:
        for i, one in enumerate(world.leases):
            if one.inside and one.inside not in ANSWERS:
                for name, after in self.effects(world, i, one):
                    # Nobody hears what a dead hub's call was answered.
                    yield name, self.unheard(after, i)
            if one.box == "restarting":
                yield f"{i} back after restart", put(world, i, box="running")

    def unheard(self, world: World, i: int) -> World:
        one = world.leases[i]
        if one.inside in ANSWERS and one.at in ("orphan", "free", "held"):
            return put(world, i, inside="")
        return world

    def taken_away(self, world: World, i: int) -> World:
        """A removal by anybody else: what is still in the making answers 404 and stays."""
        if world.leases[i].inside in ("listed", "making"):
            return world
        return put(world, i, box="absent")

    def effects(self, world: World, i: int, one: Lease) -> Iterator[Step]:
        """The engine carries out the call that is inside."""
        if one.inside == "making":
            yield f"{i} can be removed", put(world, i, inside="")
        elif one.inside == "create":
            # Where nobody hears the answer, what is listed may still be in the making.
            nobody = one.lost or one.at == "orphan"
            inside = "making" if nobody else "listed"
            yield f"{i} created", put(world, i, box="created", inside=inside)
            if self.may(world, "refuse") and not one.lost:
                after = put(world, i, inside="create-refused")
                yield f"{i} create refused", self.spend(after, "refuse")
        elif one.inside.startswith("start"):
            then = one.inside.partition("/")[2]
            if one.box == "absent":
                yield f"{i} start: 404", put(world, i, inside=then or "start-refused")
            else:
                after = put(world, i, box="running", inside=then or "started")
                yield f"{i} started", after
                if self.may(world, "refuse"):
                    after = put(world, i, inside=then or "start-refused")
                    yield f"{i} start refused", self.spend(after, "refuse")
            if then:
                yield f"{i} removed before its start", put(world, i, box="absent", inside="removed")
        elif one.inside == "remove" and one.box not in ("created", "exited", "absent"):
            yield f"{i} not removed: runs", put(world, i, inside="runs")
        else:
            after = put(world, i, box="absent", inside="removed")
            yield f"{i} removed", after
            if self.may(world, "refuse"):
                after = put(world, i, inside="remove-refused")
                yield f"{i} remove refused", self.spend(after, "refuse")

    # -- what happens by itself, and outside hands -----------------------------------------------

    def outside_steps(self, world: World) -> Iterator[Step]:
        for i, one in enumerate(world.leases):
            if one.box == "running" and self.may(world, "exit"):
                after = put(world, i, box="exited", ended=world.time)
                yield f"{i} exits", self.spend(after, "exit")
            if one.box in ("created", "running") and self.may(world, "rm"):
                yield f"docker rm -f {i}", self.spend(self.taken_away(world, i), "rm")
            if one.box == "running" and self.may(world, "halt"):
                after = put(world, i, box="exited", ended=world.time)
                yield f"docker stop {i}", self.spend(after, "halt")
            if one.box == "running" and self.may(world, "restart"):
                after = put(world, i, box="restarting", ended=world.time)
                yield f"docker restart {i}", self.spend(after, "restart")
        if self.may(world, "bounce"):
            yield "engine restarts", self.spend(self.bounced(world), "bounce")
        if self.may(world, "ages") and not any(
            (one.lost and one.inside) or one.box == "restarting" for one in world.leases
        ):
            yield "time passes", self.spend(world._replace(time=world.time + AGES), "ages")

    def bounced(self, world: World) -> World:
        """The engine restarts: every call inside is lost; without live-restore all have ended."""
        for i, one in enumerate(world.leases):
            box, ended = one.box, one.ended
            if box == "restarting":
                box = "running"
            if not self.scene.live_restore and box == "running":
                box, ended = "exited", world.time
            if self.rules.restart_policy == "always" and one.box == "exited":
                box = "running"
            if self.rules.auto_remove and one.box == "running":
                box = "absent"
            if one.box == "running" and box != "running" and self.scene.live_restore:
                raise Broken(f"law 8: {i} is lost though containers outlive the engine")
            world = put(world, i, box=box, ended=ended)
            if one.inside and one.inside not in ANSWERS:
                # What was inside is dropped, and whoever waits hears a reset.
                world = self.reset(put(world, i, inside=""), i, one.inside)
        for s, stranger in enumerate(world.strangers):
            state = stranger.box
            if state == "running" and not self.scene.live_restore:
                state = "running" if self.scene.strangers[s].always else "exited"
            if stranger.inside != "failed":
                world = put_stranger(world, s, box=state, ended=world.time, inside="")
        return world

    def reset(self, world: World, i: int, call: str) -> World:
        """Whoever waits for a call hears that its connection is gone."""
        raise NotImplementedError

    # -- strangers -------------------------------------------------------------------------------

    def stranger_steps(self, world: World) -> Iterator[Step]:
        for s in range(len(world.strangers)):
            yield from self.stranger_steps_of(world, s)

    def stranger_steps_of(self, world: World, s: int) -> Iterator[Step]:
        """A stranger comes, runs and goes, once."""
        one = world.strangers[s]
        if one.box == "absent" and not one.ended and not one.born:
            after = put_stranger(world, s, box="created", born=world.time, inside="making")
            yield f"x{s} created", after
        elif one.box == "created" and one.inside == "making":
            yield f"x{s} made", put_stranger(world, s, inside="")
        elif one.box == "created" and not one.inside:
            yield f"x{s} starts", put_stranger(world, s, inside="starting")
        elif one.inside == "starting":
            yield f"x{s} runs", put_stranger(world, s, box="running", inside="")
            if self.scene.strangers[s].fails:
                yield f"x{s} fails to start", put_stranger(world, s, inside="failed")
        elif one.box == "running":
            after = put_stranger(world, s, box="exited", ended=world.time)
            yield f"x{s} exits", self._let_go(after, s)
        elif one.box == "exited":
            yield f"x{s} removed", put_stranger(world, s, box="absent")

    def _let_go(self, world: World, s: int) -> World:
        for i, one in enumerate(world.leases):
            if s in one.hands:
                world = put(world, i, hands=tuple(x for x in one.hands if x != s))
        return world

    def hands_on(self, world: World, devices: tuple[str, ...]) -> tuple[int, ...]:
        """Strangers who run on any of these cards now."""
        return tuple(
            s
            for s, one in enumerate(world.strangers)
            if one.box == "running"
            and self.scene.strangers[s].asks.resolve(self.scene.inventory)[0] & set(devices)
        )

    # -- hubs die and return ---------------------------------------------------------------------

    def hub_steps(self, world: World) -> Iterator[Step]:
        for h, hub in enumerate(world.hubs):
            if hub.alive and self.may(world, "kill"):
                for after in self.killed(world, h):
                    yield f"hub {h} killed", self.spend(after, "kill")
            if not hub.alive and self.scene.returns[h]:
                earlier = frozenset(
                    (i, one.tries) for i, one in enumerate(world.leases) if one.box != "absent"
                )
                # It comes with its cleaner, and knows its servers a little later.
                loaded = not any(one.saved for one in world.leases)
                after = put_hub(
                    world, h, alive=True, loaded=loaded, since=world.time + 1, earlier=earlier
                )
                yield f"hub {h} returns", after._replace(time=world.time + 1)

            if hub.alive and not hub.loaded:
                yield f"hub {h} reads its database", put_hub(world, h, loaded=True)

    def killed(self, world: World, h: int) -> list[World]:
        """A hub dies: what it had in memory is gone, what the engine has goes on."""
        worlds = [put_hub(world, h, alive=False, asked=None, sweep=())]
        for i, one in enumerate(world.leases):
            if self.scene.spawns[i].hub != h:
                continue
            ends = self._left(one)
            worlds = [put(w, i, **end) for w in worlds for end in ends]
            worlds = [self.unheard(w, i) for w in worlds]
        return worlds

    def _left(self, one: Lease) -> list[dict[str, object]]:
        gone: dict[str, object] = {"seen": None, "again": False, "hands": (), "lost": False}
        if one.at in ("idle", "refused", "free"):
            return [{}]
        if one.at == "placing":
            return [{**gone, "at": "refused"}]
        if one.at == "held" and one.saved:
            return [gone]
        there = one.box != "absent" or one.inside == "create"
        orphan = {**gone, "at": "orphan" if there else "free", "saved": False, "stood": False}
        if one.at == "releasing" and one.saved:
            # Was the end of the server committed or not?
            return [orphan, {**gone, "at": "held"}]
        return [orphan]

    # -- law 1 -----------------------------------------------------------------------------------

    def check_cards(self, world: World) -> None:
        """Containers of hubs never exceed a device; one that ended a moment ago counts."""
        load: dict[str, Fraction] = {}
        for i, one in enumerate(world.leases):
            if one.box in ("running", "restarting") or (
                one.box == "exited" and one.ended == world.time
            ):
                for device in one.devices:
                    load[device] = load.get(device, Fraction(0)) + self.scene.spawns[i].share
        if any(size > 1 for size in load.values()):
            raise Broken("law 1: a card has two holders")

    def check_servers(self, world: World) -> None:
        """Never two containers of one server."""
        servers = [
            (self.scene.ids[self.scene.spawns[i].hub], self.scene.user(i))
            for i, one in enumerate(world.leases)
            if one.box == "running"
        ]
        if len(set(servers)) < len(servers) and not self.scene.twins:
            raise Broken("rule 6: two containers of one server run")
