"""What hubs do: the way of each spawn, its end, and the cleaner.

Decisions are the product's; what is written here is only when they are asked for and what is sent
because of them, as the product's pool and spawner do it.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuspawner.verdict import Verdict

from .machine import IN_FLIGHT, Broken, Machine, Step
from .rules import Undecided, moved
from .world import ORPHAN_GRACE_SECONDS, TIMES, Lease, Seen, World, put, put_hub, seen_now


class Protocol(Machine):
    """All steps of a scene."""

    def steps(self, world: World) -> Iterator[Step]:
        """Whatever may happen next."""
        yield from self.engine_steps(world)
        for i, one in enumerate(world.leases):
            hub = world.hubs[self.scene.spawns[i].hub]
            if hub.alive and (hub.loaded or not one.saved):
                yield from self.lease_steps(world, i, one)
        yield from self.hub_steps(world)
        yield from self.stranger_steps(world)
        yield from self.outside_steps(world)
        for h, hub in enumerate(world.hubs):
            if hub.alive and self.rules.cleans:
                yield from self.cleaner_steps(world, h)

    # -- one step of the table -------------------------------------------------------------------

    def move(self, world: World, i: int, target: str, **changes: object) -> World:
        """One step of an attempt; if that ends its reservation, older listings are void."""
        one = world.leases[i]
        ended = moved(one.at, target)
        world = put(world, i, at=target, **changes)
        return self.void(world, i) if ended and one.devices else world

    def void(self, world: World, i: int) -> World:
        if self.rules.void_old_listings:
            hub = self.scene.spawns[i].hub
            for j, other in enumerate(world.leases):
                if other.at == "placing" and self.scene.spawns[j].hub == hub:
                    world = put(world, j, seen=None)
        return world

    # -- the way of one spawn --------------------------------------------------------------------

    def lease_steps(self, world: World, i: int, one: Lease) -> Iterator[Step]:
        steps = {
            "placing": self.placing,
            "reserved": self.reserved,
            "creating": self.creating,
            "claimed": self.looking,
            "waiting": self.looking,
            "starting": self.starting,
            "held": self.held,
            "releasing": self.releasing,
            "orphan": self.adopting,
        }
        if one.at == "idle":
            yield from self.begin(world, i)
        elif one.at in steps:
            yield from steps[one.at](world, i, one)
        if one.at == "placing" or one.at in IN_FLIGHT - {"releasing"}:
            yield from self.interrupted(world, i, one)

    def interrupted(self, world: World, i: int, one: Lease) -> Iterator[Step]:
        if self.may(world, "cancel"):
            after = self.spend(world, "cancel")
            yield f"{i} cancelled", self.give_up(after, i, force=True, again=False)
        if self.may(world, "reset") and one.inside in ("create", "listed", "start", "started"):
            after = self.reset(self.spend(world, "reset"), i, one.inside)
            yield f"{i} hears a reset", after

    def begin(self, world: World, i: int) -> Iterator[Step]:
        hub = self.scene.spawns[i].hub
        if any(self.same_server(i, j, hub) for j in self.busy(world, i)):
            return  # the hub starts a server once at a time
        after = put(world, i, at="placing")
        known = self.deciding.known(world, hub)
        for j, other in enumerate(world.leases):
            if other.box == "absent" or self.deciding.lease_id(j, other.tries) in known:
                continue
            if self.rules.remove_leftovers and self.same_server(i, j):
                if self.hub_id(j) != self.hub_id(i):
                    raise Broken(f"rule 5: the hub of {i} removes {j}, another hub's")
                if (j, other.tries) in world.hubs[hub].earlier:
                    after = self.taken_away(after, j)
        yield f"{i} begins", after

    def busy(self, world: World, i: int) -> Iterator[int]:
        for j, other in enumerate(world.leases):
            if j != i and (other.at == "placing" or other.at in IN_FLIGHT or other.at == "held"):
                yield j

    def same_server(self, i: int, j: int, hub: int | None = None) -> bool:
        """Do both belong to one server, as far as labels (or one hub process) can tell?"""
        if hub is not None and self.scene.spawns[j].hub != hub:
            return False
        alike = i != j and self.scene.user(i) == self.scene.user(j)
        return alike and (self.hub_id(i) == self.hub_id(j) or not self.rules.by_label)

    def hub_id(self, i: int) -> str:
        return self.scene.ids[self.scene.spawns[i].hub]

    def placing(self, world: World, i: int, one: Lease) -> Iterator[Step]:
        hub = self.scene.spawns[i].hub
        if one.seen is None:
            seen = seen_now(world)
            try:
                self.deciding.cards(hub, seen, world)
            except Undecided:
                return
            yield f"{i} lists", put(world, i, seen=seen)
            if self.rules.failed_listing == "empty":
                nothing: Seen = (world.time, (None,) * len(seen[1]))
                yield f"{i} can't list", put(world, i, seen=nothing)
            return
        chosen = self.deciding.placed(i, one.seen, world)
        if chosen is None:
            yield f"{i} is refused", put(world, i, at="refused", seen=None)
            return
        after = put(world, i, at="reserved", seen=None, devices=chosen)
        self.check_reserved(after, hub)
        yield f"{i} reserves {','.join(chosen)}", after

    def reserved(self, world: World, i: int, one: Lease) -> Iterator[Step]:
        sent = self.move(world, i, "creating", inside="create", born=world.time)
        yield f"{i} sends create", sent

    def creating(self, world: World, i: int, one: Lease) -> Iterator[Step]:
        if one.inside == "listed":
            hands = self.hands_on(world, one.devices)
            after = self.move(world, i, "claimed", inside="", hands=hands)
            yield f"{i} hears: created", after
        elif one.inside == "create-refused":
            after = put(world, i, inside="")
            yield f"{i} hears: refused", self.give_up(after, i, force=True, again=False)
        if not self.rules.look_after_answer and one.seen is None:
            yield f"{i} lists early", put(world, i, seen=seen_now(world))

    def looking(self, world: World, i: int, one: Lease) -> Iterator[Step]:
        if one.seen is None:
            seen = seen_now(world)
            try:
                self.deciding.verdict(i, one.tries, seen)
            except Undecided:
                return
            yield f"{i} looks", put(world, i, seen=seen)
            if self.rules.failed_listing == "start":
                yield f"{i} can't look", self.send_start(world, i, one)
            elif self.rules.failed_listing == "yield":
                yield f"{i} can't look", self.give_up(world, i, force=False, again=True)
            return
        verdict = self.deciding.verdict(i, one.tries, one.seen)
        unseen = verdict is None and not self.rules.look_after_answer
        if verdict is Verdict.START or unseen:
            yield f"{i} may start", self.send_start(world, i, one)
        elif verdict is Verdict.WAIT:
            after = put(world, i, seen=None)
            yield f"{i} waits", self.move(after, i, "waiting") if one.at == "claimed" else after
            if self.may(world, "tire"):
                tired = self.spend(after, "tire")
                yield f"{i} has waited too long", self.give_up(tired, i, force=False, again=True)
        elif verdict is Verdict.YIELD:
            yield f"{i} yields", self.give_up(world, i, force=False, again=True)
        else:
            yield f"{i} is gone", self.give_up(world, i, force=True, again=False)

    def send_start(self, world: World, i: int, one: Lease) -> World:
        if one.hands:
            raise Broken(f"law 1: {i} starts on a card that it was shown in other hands")
        return self.move(world, i, "starting", inside="start", seen=None)

    def starting(self, world: World, i: int, one: Lease) -> Iterator[Step]:
        if one.inside == "started":
            hands = self.hands_on(world, one.devices)
            yield f"{i} hears: started", put(world, i, inside="", ran=True, hands=hands)
        elif one.inside == "start-refused":
            after = put(world, i, inside="")
            yield f"{i} hears: not started", self.give_up(after, i, force=True, again=False)
        elif one.ran and one.seen is None:
            seen = seen_now(world)
            try:
                self.deciding.still_alone(i, one.tries, seen)
            except Undecided:
                return
            yield f"{i} looks again", put(world, i, seen=seen)
        elif one.ran and one.seen is not None:
            if not self.deciding.still_alone(i, one.tries, one.seen):
                yield f"{i} moves", self.give_up(world, i, force=True, again=True)
                return
            if one.hands:
                raise Broken(f"law 1: {i} is told ready on a card that a stranger runs on")
            after = self.move(world, i, "held", seen=None, hands=(), stood=True)
            yield f"{i} is held", after

    # -- the end of one spawn --------------------------------------------------------------------

    def give_up(self, world: World, i: int, *, force: bool, again: bool) -> World:
        one = world.leases[i]
        retry = again and one.tries < self.scene.spawns[i].tries
        if one.at == "placing":
            return put(world, i, at="refused", seen=None)
        if one.at == "reserved":
            return self.move(world, i, "free")
        if not self.rules.follow_cancelled and one.inside in ("create", "listed", "start"):
            return put(world, i, at="free", seen=None, inside=one.inside)
        after = self.move(world, i, "releasing", seen=None, again=retry, force=force, hands=())
        if not one.inside and one.box == "absent" and one.at == "creating":
            return self.over(after, i)  # refused: nothing was made
        return after

    def reset(self, world: World, i: int, call: str) -> World:
        """A call of ``i`` was sent and will never be answered, though the engine may go on."""
        one = world.leases[i]
        if one.at not in IN_FLIGHT:
            return world
        if call in ("create", "listed"):
            inside = "" if call == "listed" or not one.inside else "create"
            if one.at == "releasing":
                return put(world, i, lost=True, inside=inside)
            if not self.rules.follow_lost:
                after = put(world, i, at="free", seen=None)
                return self.void(after, i)
            return self.move(world, i, "releasing", seen=None, lost=True, inside=inside, force=True)
        if call in ("start", "started"):
            inside = "start/force" if call == "start" and one.inside else ""
            if one.at == "releasing":
                return put(world, i, inside=inside)
            return self.move(world, i, "releasing", seen=None, inside=inside, force=True, hands=())
        return world

    def over(self, world: World, i: int) -> World:
        """The engine has answered for the container."""
        one = world.leases[i]
        if one.box != "absent" or one.inside == "create":
            raise Broken(f"law 3: {i} counts as over, but its container is there or may come")
        world = put(world, i, at="free") if one.stood else self.move(world, i, "free")
        if one.again:
            return put(world, i, **Lease(tries=one.tries + 1)._asdict())
        return put(world, i, inside="", lost=False, unseen=-1, saved=False, stood=False)

    def releasing(self, world: World, i: int, one: Lease) -> Iterator[Step]:
        if one.lost:
            yield from self.following(world, i, one)
        elif one.inside == "":
            call = "force" if one.force or not self.rules.unforced else "remove"
            yield f"{i} sends rm", put(world, i, inside=call)
        elif one.inside in ("listed", "create-refused", "started", "start-refused"):
            after = put(world, i, inside="")
            if one.inside == "create-refused":
                after = self.over(after, i)
            yield f"{i} hears the end of its last call", after
        elif one.inside == "removed":
            yield f"{i} hears: removed", self.over(put(world, i, inside=""), i)
        elif one.inside in ("runs", "remove-refused"):
            if not self.rules.retry_removal:
                yield f"{i} lets it be", self.over(put(world, i, inside=""), i)
                return
            yield f"{i} hears: not removed", put(world, i, inside="", force=True)

    def following(self, world: World, i: int, one: Lease) -> Iterator[Step]:
        """A create had no answer: its lease is searched in the list."""
        if one.box != "absent":
            if one.inside == "making" and not self.rules.list_after_404:
                yield f"{i} is not there to remove", self.over(world, i)
            elif not one.inside:
                # From here it is a removal like any other.
                yield f"{i} is found", put(world, i, lost=False, unseen=-1)
            return
        if self.rules.follow_for == "once":
            yield f"{i} was not found", self.over(world, i)
        elif one.unseen < 0:
            yield f"{i} is not listed", put(world, i, unseen=world.time)
        elif (
            self.rules.follow_for == "grace"
            and world.time - one.unseen > TIMES.created_grace_seconds
        ):
            yield f"{i} never came", self.over(world, i)

    # -- a server that stands --------------------------------------------------------------------

    def held(self, world: World, i: int, one: Lease) -> Iterator[Step]:
        if not one.saved and self.may(world, "kill"):
            yield f"{i} is saved", put(world, i, saved=True)
        if one.box == "absent":
            yield f"{i} is found gone", self.over(world, i)
        elif one.box == "exited" or (one.box == "restarting" and not self.rules.confirm_exit):
            if one.box == "restarting":
                raise Broken(f"law 8: {i}, in a docker restart, is declared dead")
            yield f"{i} is found ended", self.release(world, i)
            if not self.rules.start_once:
                yield f"{i} is started again", put(world, i, box="running")
        elif self.may(world, "stop"):
            yield f"{i} is stopped", self.release(self.spend(world, "stop"), i)

    def release(self, world: World, i: int) -> World:
        return put(world, i, at="releasing", force=True, inside="force")

    def adopting(self, world: World, i: int, one: Lease) -> Iterator[Step]:
        if not self.rules.adopts:
            return
        alike = [
            j
            for j, other in enumerate(world.leases)
            if other.at == "orphan" and other.box == "running" and self.same_server(i, j)
        ]
        newer = any(self.same_server(i, j) for j in self.busy(world, i))
        sweep = world.hubs[self.scene.spawns[i].hub].sweep
        swept = any(i == j for j, _, _ in sweep) and not self.rules.adopts_swept
        if one.box == "running" and not alike and not newer and not one.inside and not swept:
            yield f"{i} is adopted", put(world, i, at="held", stood=True)
        if one.box == "absent" and not one.inside:
            yield f"{i} is over", put(world, i, at="free")

    # -- the cleaner -----------------------------------------------------------------------------

    def cleaner_steps(self, world: World, h: int) -> Iterator[Step]:
        hub = world.hubs[h]
        if hub.sweep:
            i, tries, force = hub.sweep[0]
            rest = put_hub(world, h, sweep=hub.sweep[1:])
            for name, after in self.sweeping(rest, h, i, tries, force=force):
                yield f"hub {h}: {name}", after
        elif hub.asked is None:
            if self.may(world, "clean"):
                asked = (seen_now(world), self.deciding.known(world, h))
                yield f"hub {h} lists to clean", self.spend(put_hub(world, h, asked=asked), "clean")
        else:
            yield f"hub {h} decides what to clean", self.decided(world, h, *hub.asked)

    def decided(self, world: World, h: int, seen: Seen, before: frozenset[str]) -> World:
        known = self.deciding.known(world, h)
        if self.rules.known_before:
            known |= before
        cleaning = self.deciding.cleaning(world, h, seen, known)
        if cleaning.alarms and not self.scene.twins:
            raise Broken("rule 6: an alarm of a copied hub id where there is none")
        places = {
            self.deciding.container_id(i, one.tries): (i, one.tries)
            for i, one in enumerate(world.leases)
        }
        sweep = tuple(
            (*places[gone.row.id], gone.force or not self.rules.unforced)
            for gone in cleaning.remove
            if gone.row.id in places
        )
        for gone in cleaning.remove:
            self.check_sweep(world, h, places.get(gone.row.id), gone.row.state)
        return put_hub(world, h, asked=None, sweep=sweep)

    def check_sweep(self, world: World, h: int, place: tuple[int, int] | None, state: str) -> None:
        """What the cleaner may never decide."""
        if place is None:
            return
        i, one = place[0], world.leases[place[0]]
        mine = self.scene.spawns[i].hub == h
        age = world.time - one.born
        if state != "created":
            if not mine:
                raise Broken(f"rule 6: hub {h} stops {i}, another hub's")
            if one.saved:
                raise Broken(f"law 8: {i} is stopped, which the database names")
            if world.time - world.hubs[h].since <= ORPHAN_GRACE_SECONDS:
                raise Broken(f"law 8: {i} is stopped before the grace of orphans")
        elif not mine and age <= TIMES.created_grace_seconds:
            raise Broken(f"rule 6: hub {h} removes {i}, which is being started")

    def sweeping(self, world: World, h: int, i: int, tries: int, *, force: bool) -> Iterator[Step]:
        one = world.leases[i]
        if one.tries != tries or one.box == "absent":
            yield f"{i} is gone already", world
            return
        if one.box in ("running", "restarting") and not force:
            yield f"{i} runs", world
            return
        if one.box in ("running", "restarting") and one.at not in ("orphan", "releasing"):
            raise Broken(f"law 8: hub {h} kills {i}, a server with an owner")
        yield f"{i} is removed", self.taken_away(world, i)

    # -- laws ------------------------------------------------------------------------------------

    def check_reserved(self, world: World, h: int) -> None:
        """One hub never promises a card twice, counting what runs of its own."""
        for card in self.scene.inventory.by_uuid:
            load = sum(
                self.scene.spawns[i].share
                for i, one in enumerate(world.leases)
                if card in one.devices and self.scene.spawns[i].hub == h
                if (one.at in IN_FLIGHT and not one.stood) or one.box == "running"
            )
            if load > 1:
                raise Broken(f"law 3: hub {h} promises {card} twice")
