"""Writes the pages that are made from the code: settings and states.

Run it after a change of a setting or of the table of states: ``python docs/generate.py``. Tests
compare.
"""

# ruff: noqa: INP001
from __future__ import annotations

from collections.abc import Iterable
from inspect import cleandoc
from pathlib import Path

from traitlets import TraitType
from traitlets.config import Configurable

from gpuspawner.pool_traits import PoolTraits
from gpuspawner.spawner_traits import SpawnerTraits
from gpuspawner.states import CARD_FACTS, FACTS, STEPS, Step, Taker

DOCS = Path(__file__).resolve().parent
SECTIONS: dict[str, type[Configurable]] = {"GPUSpawner": SpawnerTraits, "GPUPool": PoolTraits}
INTRO = {
    "GPUSpawner": (
        "One server. All of DockerSpawner's and JupyterHub's own settings for spawners work too, "
        "written as `c.GPUSpawner`, `c.DockerSpawner` or `c.Spawner`. Three of them have another "
        "default here: `remove` is True, `start_timeout` is 300 and `http_timeout` is 120. With "
        "`remove = False` a server without a GPU keeps its container for the next start; one with "
        "a GPU is made anew each time."
    ),
    "GPUPool": "The GPUs of the hub's Docker engine.",
}
HEAD = """\
# Settings

<!-- Made by docs/generate.py from the help texts in the code. -->

They are written in `jupyterhub_config.py` and checked when the hub starts. Times are in seconds.
"""


def traits_of(section: str) -> dict[str, TraitType]:
    """The settings that gpuspawner adds, by name."""
    return dict(sorted(SECTIONS[section].class_own_traits(config=True).items()))


def example_of(trait: TraitType) -> str:
    """The lines after ``Example::`` in a help text."""
    return cleandoc(str(trait.help).partition("Example::")[2])


def words_of(trait: TraitType) -> str:
    """The help text without its example, in Markdown."""
    return cleandoc(str(trait.help).partition("Example::")[0]).replace("``", "`")


def settings_page() -> str:
    """The whole page."""
    parts = [HEAD]
    for section in SECTIONS:
        parts.append(f"## c.{section}\n\n{INTRO[section]}\n")
        parts += [
            f"### {name}\n\n{words_of(trait)}\n\n```python\n{example_of(trait)}\n```\n"
            for name, trait in traits_of(section).items()
        ]
    return "\n".join(parts)


# -- states ----------------------------------------------------------------------------------------

STATES_HEAD = """\
# States of a lease and of a card

<!-- Made by docs/generate.py from gpuspawner/states.py. -->

A *lease* is one try to start one server and all that follows from it. [Leases](leases.md) tells the
story; this is the table that the code goes by. An attempt that is in flight takes the steps marked
"attempt" and no other.
"""
LEASES_HEAD = """\
*Listed as* is how the engine's list may show the container as long as no outside hand touches it;
*blocks* is who can't have its cards."""
CARDS_HEAD = """\
The first that applies. Only a free card is offered, or the share that is left on a shared one."""
TAKERS: dict[Taker, str] = {
    "attempt": "attempt",
    "hub": "hub",
    "cleaner": "cleaner",
    "engine": "seen in the list only",
}


def diagram() -> str:
    """The steps as a Mermaid state diagram, one arrow for each pair of states."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for step in STEPS:
        events = arrows.setdefault((step.source.value, step.target.value), [])
        if step.event not in events:
            events.append(step.event)
    lines = [
        f"    {source} --> {target}: {' / '.join(events)}"
        for (source, target), events in arrows.items()
    ]
    return "\n".join(
        [
            "```mermaid",
            "stateDiagram-v2",
            "    [*] --> reserved: a card is chosen",
            *lines,
            "    free --> [*]",
            "```",
        ]
    )


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table in Markdown."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _step_row(step: Step) -> tuple[str, ...]:
    return (step.source.value, step.target.value, step.event, TAKERS[step.taker])


def states_page() -> str:
    """The whole page."""
    leases = [
        (state.value, ", ".join(facts.seen), facts.blocks.value, facts.means)
        for state, facts in FACTS.items()
    ]
    cards = [(state.value, words) for state, words in CARD_FACTS.items()]
    return "\n\n".join(
        [
            STATES_HEAD + "\n" + diagram(),
            "## Leases",
            LEASES_HEAD,
            table(("state", "listed as", "blocks", "meaning"), leases),
            "## Steps",
            table(("from", "to", "when", "taken by"), [_step_row(step) for step in STEPS]),
            "## Cards",
            CARDS_HEAD,
            table(("state", "meaning"), cards) + "\n",
        ]
    )


PAGES = {"reference/settings.md": settings_page, "explanation/states.md": states_page}

if __name__ == "__main__":
    for path, page in PAGES.items():
        (DOCS / path).write_text(page())
