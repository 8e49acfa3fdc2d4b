"""What must be so in every state, and that from every state things come to a good end."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from gpuspawner.states import FACTS, Blocks, State
from gpuspawner.verdict import Verdict

from .hubs import Protocol
from .machine import IN_FLIGHT, Broken
from .rules import Undecided
from .world import AGES, TIMES, World, put, seen_now

#: Faults after which a container may be gone, or run, without its owner's doing.
_OUTSIDE = frozenset({"rm", "halt", "restart", "exit", "bounce", "clean", "ages"})
#: The states that block their own hub, listed or not.
_COUNTED = {
    state.value
    for state, facts in FACTS.items()
    if facts.blocks in (Blocks.OWN_HUB, Blocks.OWN_HUB_AND_LISTED, Blocks.ALL)
} - {"held"}
#: Rounds of the cleaner, each after a long time, in which everything must have come to rest.
_ROUNDS = 3


class Laws(Protocol):
    """A scene's steps, with the laws that each state is held to."""

    def check(self, world: World) -> None:
        """The laws, in one state.

        Raises:
            Broken: one of them is broken.
        """
        self.check_cards(world)
        self.check_servers(world)
        for i, one in enumerate(world.leases):
            over = one.at in ("free", "refused", "idle")
            if over and (one.box != "absent" or one.inside == "create"):
                raise Broken(f"law 3: nobody knows of {i} any more, but it is there or may come")
            if one.at in State._value2member_map_ and not _OUTSIDE & self.scene.faults.keys():
                facts = FACTS[State(one.at)]
                if one.box not in facts.seen and not (one.at == "held" and one.saved):
                    raise Broken(f"table: {i} is {one.at} and {one.box}")
        seen = seen_now(world)
        for h, hub in enumerate(world.hubs):
            if hub.alive:
                self.check_counts(world, h, seen)
        self.settle(world)

    # -- law 2, and counted once -----------------------------------------------------------------

    def check_counts(self, world: World, h: int, seen: object) -> None:
        """A hub counts each lease once: by its own attempt, or by its listed container."""
        key = ("counted", h, seen, self.deciding.attempts(world, h))
        if key in self._counted:
            return
        self._counted.add(key)
        try:
            cards = self.deciding.cards(h, seen_now(world), world)
        except Undecided:
            return
        for card in cards:
            expected = self._taken(world, h, card.uuid)
            if card.load != expected:
                raise Broken(
                    f"law 2: hub {h} counts {card.load} on {card.uuid}, where {expected} is taken"
                )

    def _taken(self, world: World, h: int, uuid: str) -> Fraction:
        taken = Fraction(0)
        for i, one in enumerate(world.leases):
            own = self.scene.spawns[i].hub == h and one.at in _COUNTED and not one.stood
            if uuid in one.devices and (own or _claims(world.time, one.box, one.ended)):
                taken += self.scene.spawns[i].share
        for s, stranger in enumerate(world.strangers):
            held = self.scene.strangers[s].asks.resolve(self.scene.inventory)[0]
            waits = stranger.box == "created" and (
                stranger.inside in ("making", "failed")
                or world.time - stranger.born > TIMES.created_grace_seconds
            )
            if uuid in held and not waits:
                taken += _claims(world.time, stranger.box, stranger.ended)
        return taken

    # -- a quiet end -----------------------------------------------------------------------------

    def settle(self, world: World) -> None:
        """Let nothing new happen: everything must come to rest, and rightly."""
        world = world._replace(left=(0,) * len(world.left))
        moving = any(one.at in IN_FLIGHT - {"releasing", "reserved"} for one in world.leases)
        path: list[World] = []
        rounds = 0
        while world not in self._settled:
            path.append(world)
            if len(path) > 500:
                raise Broken("law 8: it never comes to rest")
            after = self.calm_step(world)
            if after is None and rounds < _ROUNDS * 2:
                rounds += 1
                after = self.cleaned(world)
                if rounds % 2 == 0:
                    after = after._replace(time=after.time + AGES)
            if after is None:
                self.check_rest(world)
                self._settled[world] = any(one.at == "held" for one in world.leases)
                break
            world = after
        held = self._settled[world]
        for one in path:
            self._settled[one] = held
        if moving and not held and not self.scene.faults and not self.scene.strangers:
            raise Broken("rule 4: all have yielded, and the card is left over")

    def calm_step(self, world: World) -> World | None:
        """The next thing that happens if nothing goes wrong; None if only time can help."""
        return next(self._calm_steps(world), None)

    def _calm_steps(self, world: World) -> Iterator[World]:
        for _, after in (*self.engine_steps(world), *self.hub_steps(world)):
            yield after
        for h, hub in enumerate(world.hubs):
            if hub.sweep:
                yield from (after for _, after in self.cleaner_steps(world, h))
        at_work = [
            (i, one)
            for i, one in enumerate(world.leases)
            if one.at not in ("idle", "refused") and world.hubs[self.scene.spawns[i].hub].alive
        ]
        for i, one in at_work:
            if one.at != "waiting" or one.seen is not None or not self._still_waits(world, i):
                yield from (after for _, after in self.lease_steps(world, i, one) if after != world)
        for s, stranger in enumerate(world.strangers):
            if stranger.inside in ("making", "starting"):
                yield from (after for _, after in self.stranger_steps_of(world, s))
        for i, one in at_work:
            if one.at == "waiting" and self.rules.wait_ends:
                if not self.scene.faults and not self.scene.strangers:
                    raise Broken("rule 4: they wait for each other")
                yield self.give_up(put(world, i, seen=None), i, force=False, again=False)

    def _still_waits(self, world: World, i: int) -> bool:
        try:
            verdict = self.deciding.verdict(i, world.leases[i].tries, seen_now(world))
        except Undecided:
            return True
        return verdict is Verdict.WAIT

    def cleaned(self, world: World) -> World:
        """One whole round of every hub's cleaner."""
        for h, hub in enumerate(world.hubs):
            if not hub.alive or not self.rules.cleans:
                continue
            if hub.asked is not None:
                world = self.decided(world, h, *hub.asked)
            world = self._swept(world, h)
            world = self.decided(world, h, seen_now(world), self.deciding.known(world, h))
            for i, _, _ in world.hubs[h].sweep:
                if world.leases[i].box == "running" and self._could_live(world, i):
                    raise Broken(f"law 8: {i} runs and is stopped, though its server is wanted")
            world = self._swept(world, h)
        return world

    def _could_live(self, world: World, i: int) -> bool:
        """True for the only container of its server."""
        return not any(
            self.same_server(i, j) and (other.box != "absent" or other.at in IN_FLIGHT)
            for j, other in enumerate(world.leases)
        )

    def _swept(self, world: World, h: int) -> World:
        while world.hubs[h].sweep:
            world = next(after for _, after in self.cleaner_steps(world, h))
        return world

    def check_rest(self, world: World) -> None:
        """Every card without a running server is free, and nothing is left that nobody owns."""
        self.check_cards(world)
        for i, one in enumerate(world.leases):
            gone_for_good = not world.hubs[self.scene.spawns[i].hub].alive
            if one.at in IN_FLIGHT or (one.at == "held" and one.box != "running"):
                if not gone_for_good:
                    raise Broken(f"law 8: {i} stays {one.at}, its container {one.box}")
            if one.at != "held" and one.box != "absent":
                if not (gone_for_good and one.box in ("running", "exited")):
                    raise Broken(f"law 8: the container of {i} is left {one.box}, owned by nobody")
        seen = seen_now(world)
        for h, hub in enumerate(world.hubs):
            if not hub.alive:
                continue
            try:
                cards = self.deciding.cards(h, seen, world)
            except Undecided:
                raise Broken("law 3: unknown for ever") from None
            for card in cards:
                runs = any(
                    one.box == "running" and card.uuid in one.devices for one in world.leases
                ) or self.hands_on(world, (card.uuid,))
                if card.load and not runs:
                    raise Broken(f"law 8: {card.uuid} is held by nothing")


def _claims(time: int, box: str, ended: int) -> bool:
    """Is a container in this state a claim?"""
    return box in ("created", "running", "restarting") or (
        box == "exited" and time - ended <= TIMES.release_delay_seconds
    )
