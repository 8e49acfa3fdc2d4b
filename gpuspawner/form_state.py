"""What the spawn form says: how each profile stands, what is preselected, what stands together.

The page and its later refreshing speak from these values. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import limit_words, messages, shortage_words
from .demand import Demand, Scene, cards_for, decide, outlook
from .gives import gives, places
from .limits import OverLimit
from .profiles import Profile, default_profile
from .request import Shortage

#: From so many profiles on, those of a kind stand under a heading, if there are several kinds.
HEADINGS_FROM = 5
#: Profiles of other groups that are shown as they are; more are folded up, or a student of one
#: course would look for theirs among all of the hub's.
OTHERS_SHOWN = 2


@dataclass(frozen=True)
class ProfileState:
    """What the form says about a profile just now.

    Attributes:
        free: how many of those that fit are free; None leaves the count out.
        total: how many fit, taken or not.
        disabled: why it can't be chosen, in words for users; empty if it can.
        gives: what somebody gets who starts it; empty without a GPU.
        unit: what is counted, if not GPUs: ``share`` or ``slice``.
        lasting: it is disabled for what will not change while the page is open.
    """

    free: int | None = None
    total: int = 0
    disabled: str = ""
    gives: str = ""
    unit: str = ""
    lasting: bool = False

    @property
    def advice(self) -> str:
        """What to do about a profile that was chosen and can't be had; empty if it can."""
        if not self.disabled:
            return ""
        return messages.choose_another() if self.lasting else messages.wait_here()

    @property
    def count(self) -> str:
        """``3 of 8 GPUs free``; empty where there is no count."""
        if self.free is None or not self.total:
            return ""
        plural = "" if self.total == 1 else "s"
        what = f"{self.total} {self.unit}{plural}" if self.unit else messages.gpus(self.total)
        return f"{self.free} of {what} free"


@dataclass(frozen=True)
class Offers:
    """All that one user's form shows just now.

    Attributes:
        profiles: those that the user may have, in the admin's order.
        others: those that are shown, but only others may have.
        states: by slug; a profile that is missing is open and shows no count.
        simulated: the GPUs don't exist.
    """

    profiles: tuple[Profile, ...]
    others: tuple[Profile, ...] = ()
    states: Mapping[str, ProfileState] | None = None
    simulated: bool = False

    def state(self, slug: str) -> ProfileState:
        return (self.states or {}).get(slug, ProfileState())

    def as_json(self, last: str | None) -> dict[str, Any]:
        """What an open page refreshes itself from.

        Args:
            last: slug of the last choice.
        """
        states = {p.slug: self.state(p.slug) for p in self.profiles}
        told = {
            slug: {
                "count": state.count,
                "free": state.free,
                "total": state.total,
                "disabled": state.disabled,
                "advice": state.advice,
                "gives": state.gives,
            }
            for slug, state in states.items()
        }
        return {"profiles": told, "selected": preselected(self.profiles, states, last)}


def state_of(demand: Demand, scene: Scene) -> ProfileState:
    """The state of a profile for one user just now; without a GPU only a limit closes it."""
    found = decide(demand, scene)
    disabled, lasting = "", False
    if isinstance(found, OverLimit):
        disabled, lasting = limit_words.disabled(found), found.never
    elif isinstance(found, Shortage):
        # A machine without any may have lost them, and get them back.
        disabled, lasting = shortage_words.disabled(found), found.never and found.total > 0
    if not demand.needs_gpu:
        return ProfileState(disabled=disabled, lasting=lasting)
    cards = cards_for(demand, scene)
    asked = [r for r in demand.requests if r.count]
    unit = ""
    if all(r.mig_profile for r in asked):
        unit = "slice"
    elif all(r.share < 1 for r in asked):
        unit = "share"
    total, free = places(asked, cards) if unit == "share" else outlook(demand, scene)
    return ProfileState(
        free=free,
        total=total,
        disabled=disabled,
        gives=gives(asked, cards),
        unit=unit,
        lasting=lasting,
    )


def preselected(
    profiles: Sequence[Profile], states: Mapping[str, ProfileState], last: str | None
) -> str | None:
    """The slug that is chosen when the page opens: never one that is disabled.

    The last choice if it is free, else one without a GPU, else the first that is free. Whoever
    has not chosen before gets the admin's default if it is free. None if all are disabled.
    """
    open_now = [p for p in profiles if not states.get(p.slug, ProfileState()).disabled]
    if last is None:
        found = default_profile(open_now)
        return found.slug if found else None
    slugs = [p.slug for p in open_now]
    without_gpu = [p.slug for p in open_now if not p.needs_gpu]
    return next(iter([last] if last in slugs else without_gpu or slugs), None)


@dataclass(frozen=True)
class Section:
    """Profiles that stand together.

    Attributes:
        heading: empty for none.
        folded: they are shown when the heading is opened.
    """

    heading: str
    profiles: tuple[Profile, ...]
    folded: bool = False


def sections(profiles: Sequence[Profile], others: Sequence[Profile] = ()) -> tuple[Section, ...]:
    """The form from top to bottom; the admin's order is kept within each section."""
    by_kind: dict[str, list[Profile]] = {}
    for profile in profiles:
        by_kind.setdefault(_kind(profile), []).append(profile)
    if len(profiles) >= HEADINGS_FROM and len(by_kind) > 1:
        found = [Section(kind, tuple(members)) for kind, members in by_kind.items()]
    else:
        found = [Section("", tuple(profiles))]
    if others:
        folded = len(others) > OTHERS_SHOWN
        heading = messages.others_folded(len(others)) if folded else ""
        if not folded and found[0].heading:
            heading = messages.OTHERS_HEADING
        found.append(Section(heading, tuple(others), folded))
    return tuple(found)


def _kind(profile: Profile) -> str:
    if not profile.needs_gpu:
        return "Without a GPU"
    first = next(r for r in profile.requests if r.count)
    return "Part of a GPU" if first.share < 1 or first.mig_profile else "Whole GPUs"


def shown_to_others(profiles: Sequence[Profile], allowed: Sequence[Profile]) -> tuple[Profile, ...]:
    """Profiles for groups that the user is not in.

    One that names users only is nobody else's business, so it stays hidden.
    """
    return tuple(p for p in profiles if p not in allowed and p.groups)
