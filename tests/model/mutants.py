"""Each rule left out in turn, and the scene in which the search finds what it is good for.

The other half, rules that no search of leases can express, is in :mod:`model.units`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from gpuspawner import names
from gpuspawner.claims import Claim, Claims, Listing, Survey, Times, read_claims
from gpuspawner.cleaning import Cleaning, Ownership, leftovers
from gpuspawner.devices import Inventory
from gpuspawner.verdict import Verdict, judge

from .machine import IN_FLIGHT
from .rules import RULES, Rules
from .scenes import OBSERVER, A, B, own, same, two
from .world import Outside, Scene, Spawn


@dataclass(frozen=True)
class Mutant:
    """A rule left out.

    Attributes:
        rule: its number, or the words of a reading.
        without: what is left out.
        breaks: the law that the search must find broken.
    """

    rule: str
    without: str
    rules: Rules
    scene: Scene
    breaks: str


MUTANTS: list[Mutant] = []


def mutant(rule: str, without: str, scene: Scene, breaks: str, **changes: Any) -> None:
    MUTANTS.append(Mutant(rule, without, replace(RULES, **changes), scene, breaks))


STRANGER = own(1, strangers=(Outside(),))

# -- rule 1: never start where others are --------------------------------------------------------


def blind(claims: Iterable[Claim]) -> list[Claim]:
    return [c for c in claims if c.whose != "outsider"]


def judge_blindly(mine: Claim, claims: Iterable[Claim], inventory: Inventory) -> Verdict:
    return judge(mine, blind(claims), inventory)


def see_blindly(inventory: Inventory, claims: Iterable[Claim], *rest: Any) -> Any:
    return RULES.see_cards(inventory, blind(claims), *rest)


mutant("1", "a look before start", two(), "law 1: a card", judge=lambda *_: Verdict.START)
mutant("1", "strangers seen by that look", STRANGER, "law 1: 0 starts", judge=judge_blindly)
mutant("1", "a second look", STRANGER, "law 1: 0 is told", second_look=lambda *_: True)
mutant("1", "nothing goes where a stranger is", STRANGER, "law 2", see_cards=see_blindly)

# -- rule 2: unknown is busy ---------------------------------------------------------------------


def only_inspected(survey: Survey, *rest: Any) -> Claims:
    """A row of ours whose inspection says 404 is taken for nothing."""
    rows = tuple(
        r
        for r in survey.listing.rows
        if not (r.ours and r.id in survey.details and survey.details[r.id].missing)
    )
    return read_claims(Survey(Listing(rows, survey.listing.at), survey.details), *rest)


def in_the_making_too(survey: Survey, *rest: Any) -> Claims:
    """A stranger that is only being created is taken for a claim."""
    details = {i: replace(d, missing=False) for i, d in survey.details.items()}
    return read_claims(Survey(survey.listing, details), *rest)


mutant("2", "silence is unknown", STRANGER, "law 2", silence_is_unknown=False)
mutant("2", "a failed listing is no verdict (start)", two(), "law 1", failed_listing="start")
mutant("2", "a failed listing is no verdict (yield)", two(), "rule 4", failed_listing="yield")
mutant("2", "a failed listing frees nothing", own(), "law 3", failed_listing="empty")
mutant(
    "2",
    "ours is known by its labels alone",
    own(1, faults={"kill": 1}),
    "law 2",
    needs_detail=lambda row: True,
    read_claims=only_inspected,
)
mutant("2", "a 404 of a stranger is no claim", STRANGER, "law 2", read_claims=in_the_making_too)

# -- rule 3: a reservation lives until its attempt has ended -------------------------------------


def counted_twice(inventory: Inventory, claims: Iterable[Claim], *rest: Any) -> Any:
    return RULES.see_cards(inventory, [replace(c, whose="sibling") for c in claims], *rest)


for state in sorted(IN_FLIGHT - {"waiting"}):
    mutant(
        "3",
        f"a reservation while {state}",
        own(2, faults={"cancel": 1}),
        "law",
        reserved_in=RULES.reserved_in - {state},
    )
mutant("3", "counted once with its container", own(1), "law 2", see_cards=counted_twice)
mutant("3", "older listings are void", own(), "law 3: hub", void_old_listings=False)
mutant("3", "a cancel ends no call", own(1, faults={"cancel": 1}), "law 3", follow_cancelled=False)
RESET = own(1, faults={"reset": 1})
mutant("3", "a reset ends no call", RESET, "law 3", follow_lost=False)
mutant("3", "the call is followed for the grace", RESET, "law 3", follow_for="once")
mutant(
    "3",
    "the following ends",
    own(1, faults={"bounce": 1}),
    "law 8: 0 stays releasing",
    follow_for="ever",
)
mutant("3", "only absence from a list proves a 404", RESET, "law 3", list_after_404=False)
mutant(
    "3",
    "a refused removal is tried again",
    own(1, faults={"cancel": 1, "refuse": 1}),
    "law 3",
    retry_removal=False,
)

# -- rule 4: create, look, start -----------------------------------------------------------------


def earlier_wins(mine: Claim, claims: Iterable[Claim], inventory: Inventory) -> Verdict:
    earlier = [c for c in claims if c.decided or c.row.order < mine.row.order]
    return judge(mine, earlier, inventory)


def sees_only_started(mine: Claim, claims: Iterable[Claim], inventory: Inventory) -> Verdict:
    return judge(mine, [c for c in claims if c.decided], inventory)


def sees_only_created(mine: Claim, claims: Iterable[Claim], inventory: Inventory) -> Verdict:
    return judge(mine, [c for c in claims if not c.decided], inventory)


def all_yield(mine: Claim, claims: Iterable[Claim], inventory: Inventory) -> Verdict:
    verdict = judge(mine, claims, inventory)
    return Verdict.YIELD if verdict is Verdict.WAIT else verdict


def all_wait(mine: Claim, claims: Iterable[Claim], inventory: Inventory) -> Verdict:
    verdict = judge(mine, claims, inventory)
    return Verdict.WAIT if verdict is Verdict.YIELD else verdict


mutant("4", "those listed later count", two(rank=2), "law 1: a card", judge=earlier_wins)
mutant("4", "created ones count", two(), "law 1: a card", judge=sees_only_started)
mutant("4", "started ones count", two(), "law 1: a card", judge=sees_only_created)
mutant("4", "the look comes after the answer", two(), "law 1: a card", look_after_answer=False)
mutant("4", "the earlier one waits", two(), "rule 4: all", judge=all_yield)
mutant("4", "the later one yields", two(), "rule 4: they wait", judge=all_wait)
mutant(
    "4",
    "waiting has an end",
    own(1, strangers=(Outside(begins="absent"),), faults={}),
    "law 8: 0 stays waiting",
    judge=all_wait,
    wait_ends=False,
)

# -- rule 5: one life, and nothing by name -------------------------------------------------------

mutant(
    "5",
    "a container with a claim is started once",
    own(faults={"exit": 1, "ages": 1}),
    "law 3: hub",
    start_once=False,
)
mutant(
    "5",
    "no restart policy",
    own(faults={"exit": 1, "ages": 1, "bounce": 1}),
    "law 3: hub",
    restart_policy="always",
)
mutant(
    "5",
    "no automatic removal",
    own(1, live_restore=True, faults={"bounce": 1}),
    "law 8: 0 is lost",
    auto_remove=True,
)
NAMESAKES = Scene((Spawn(0, user="ada"), Spawn(1, user="ada")), cards=2, ids=(A, B))
mutant("5", "nothing is found by name", NAMESAKES, "rule 5", by_label=False)

# -- rule 6: the cleaner -------------------------------------------------------------------------


def cleaning(**changes: Any) -> Callable[..., Cleaning]:
    """The product's cleaner with other delays or other knowledge."""

    def run(listing: Listing, own: Ownership, **delays: float) -> Cleaning:
        knows = {k: v for k, v in changes.items() if k in Ownership.__dataclass_fields__}
        waits = {k: v for k, v in changes.items() if k not in knows}
        return leftovers(listing, replace(own, **knows), **{**delays, **waits})

    return run


def of_all_hubs(listing: Listing, own: Ownership, **delays: float) -> Cleaning:
    """Takes every container of any hub for its own."""
    rows = tuple(
        replace(r, labels={**r.labels, names.LABEL_HUB: own.hub_id}) if r.ours else r
        for r in listing.rows
    )
    return leftovers(replace(listing, rows=rows), own, **delays)


def all_earlier(listing: Listing, own: Ownership, **delays: float) -> Cleaning:
    return leftovers(listing, replace(own, earlier={r.id for r in listing.rows}), **delays)


KILLED = own(1, faults={"kill": 1, "clean": 1, "ages": 1})
mutant("6", "there is a cleaner", KILLED, "law 8: the container", cleans=False)
mutant(
    "6a",
    "old created ones are removed",
    own(1, faults={"kill": 1}),
    "law 8: the container",
    leftovers=cleaning(earlier=(), created_grace_seconds=1e9),
)
mutant(
    "6a",
    "running ones have a grace",
    KILLED,
    "law 8: 0 is stopped before",
    leftovers=cleaning(orphan_grace_seconds=-1.0),
)
mutant(
    "6a",
    "what the database names is kept",
    KILLED,
    "law 8: 0 is stopped, which the database names",
    leftovers=cleaning(in_database=()),
)
mutant(
    "6a",
    "a new spawn removes what is left of its server",
    same(cards=2, faults={"kill": 1}),
    "rule 6: two containers",
    remove_leftovers=False,
)
#: A second hub that only cleans.
BESIDE = Scene((Spawn(0),), ids=(A, B), faults={"clean": 1, "ages": 1})
TWIN = replace(BESIDE, ids=(A, A))
mutant("6b", "newer running ones are kept", TWIN, "rule 6: hub", leftovers=all_earlier)
mutant(
    "6c",
    "another hub's created ones are removed",
    two(rank=2, returns=(False, True), faults={"kill": 1}),
    "law 8",
    leftovers=lambda listing, own, **delays: leftovers(
        replace(listing, rows=tuple(r for r in listing.rows if r.mine(own.hub_id))), own, **delays
    ),
)
mutant(
    "6c",
    "another hub's created ones have a grace",
    BESIDE,
    "rule 6: hub",
    leftovers=cleaning(created_grace_seconds=-1.0),
)
mutant(
    "6c",
    "unforced",
    BESIDE,
    "law 8: hub",
    unforced=False,
)

# -- readings ------------------------------------------------------------------------------------


def over_at_once(survey: Survey, inventory: Inventory, hub_id: str, times: Times) -> Claims:
    return read_claims(survey, inventory, hub_id, replace(times, release_delay_seconds=-1.0))


def never_over(survey: Survey, inventory: Inventory, hub_id: str, times: Times) -> Claims:
    return read_claims(survey, inventory, hub_id, replace(times, release_delay_seconds=1e9))


def created_for_ever(survey: Survey, inventory: Inventory, hub_id: str, times: Times) -> Claims:
    return read_claims(survey, inventory, hub_id, replace(times, created_grace_seconds=1e9))


def errors_claim(survey: Survey, *rest: Any) -> Claims:
    details = {i: replace(d, error="") for i, d in survey.details.items()}
    return read_claims(Survey(survey.listing, details), *rest)


def observers_hold(survey: Survey, *rest: Any) -> Claims:
    details = {
        i: replace(d, asks=replace(d.asks, manner="holds", counts=frozenset({-1})))
        for i, d in survey.details.items()
    }
    return read_claims(Survey(survey.listing, details), *rest)


EXIT = own(1, faults={"exit": 1, "ages": 1, "refuse": 1})
mutant("reading", "mine is this hub's only", BESIDE, "rule 6", leftovers=of_all_hubs)
mutant("reading", "exited ones block for a while", EXIT, "law 2", read_claims=over_at_once)
mutant("reading", "and no longer", EXIT, "law 2", read_claims=never_over)
mutant(
    "reading",
    "an exit is confirmed",
    own(1, faults={"restart": 1}),
    "law 8: 0, in a docker restart",
    confirm_exit=False,
)
mutant(
    "reading",
    "a lease is known until its removal is answered",
    own(1, faults={"stop": 1, "clean": 1}),
    "rule 6: an alarm",
    known_until_removed=False,
)
mutant(
    "reading",
    "what was known before a listing is known still",
    own(1, faults={"stop": 1, "clean": 1}),
    "rule 6: an alarm",
    known_before=False,
)
mutant("reading", "a single orphan is adopted", KILLED, "law 8: 0 runs", adopts=False)
mutant("reading", "not what the cleaner removes", KILLED, "law 8: hub", adopts_swept=True)
AGING = own(1, strangers=(Outside(),), faults={"ages": 1})
mutant(
    "table", "a created stranger has a grace", AGING, "law 8: GPU-0", read_claims=created_for_ever
)
mutant(
    "table",
    "a failed start is no claim",
    own(1, strangers=(Outside(fails=True),)),
    "law 2",
    read_claims=errors_claim,
)
mutant(
    "table",
    "observers hold nothing",
    own(1, strangers=(OBSERVER,)),
    "law 2",
    read_claims=observers_hold,
)
