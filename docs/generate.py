"""Writes docs/reference/settings.md from the help texts of the settings.

Run it after a change of a setting: ``python docs/generate.py``. A test compares.
"""

# ruff: noqa: INP001
from __future__ import annotations

from inspect import cleandoc
from pathlib import Path

from traitlets import TraitType
from traitlets.config import Configurable

from gpuspawner.pool_traits import PoolTraits
from gpuspawner.spawner_traits import SpawnerTraits

TARGET = Path(__file__).resolve().parent / "reference" / "settings.md"
SECTIONS: dict[str, type[Configurable]] = {"GPUSpawner": SpawnerTraits, "GPUPool": PoolTraits}
INTRO = {
    "GPUSpawner": (
        "One server. All of DockerSpawner's and JupyterHub's own settings for spawners work too, "
        "written as `c.GPUSpawner`, `c.DockerSpawner` or `c.Spawner`. Two of them have another "
        "default here: `remove` is True and `start_timeout` is 300. With `remove = False` a server "
        "without a GPU keeps its container for the next start; one with a GPU is made anew each "
        "time."
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


if __name__ == "__main__":
    TARGET.write_text(settings_page())
