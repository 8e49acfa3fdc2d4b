"""The checks behind :func:`gpuspawner.configure`: each error names the line to change."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from copy import deepcopy
from difflib import get_close_matches
from typing import Any

from traitlets import TraitError
from traitlets.config import Config, Configurable

from .bookings import parse_bookings, parse_reserved
from .checks import shown
from .collisions import collisions
from .config_sections import BadConfigError, Sections, Setting, settings, spawner_of_nobody
from .containment import Policy, reserved_env
from .errors import ConfigError
from .hostconfig import ContainmentError
from .identity import Identity, resolve_identity
from .inventory import source_from_config
from .memory import check_fraction
from .options import check_images
from .pool_traits import PoolTraits
from .spawner import GPUSpawner

#: Sections that other versions will have.
_LATER_SECTIONS = {"GPUSwarmSpawner": "Docker Swarm", "GPUStatus": "the status service"}
_OUR_SECTIONS = ("GPUSpawner", "GPUPool")
#: How some traits of the hub's own fail on a value of another kind.
STUMBLES = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError)
#: Where traitlets does not say what is allowed.
_WRITE = {
    "mem_limit": "a size such as '8G'",
    "mem_guarantee": "a size such as '8G'",
    "cpu_limit": "a number of processors such as 2",
    "cpu_guarantee": "a number of processors such as 2",
}
_CONTAINERS = (list, dict, set)
_FORM_IS_OURS = (
    "remove it; the form is made from c.GPUSpawner.profile_list, and what users send is checked "
    "against it. Its entries may have profile_options for more questions"
)
_NOT_FROM_THE_HUB = "remove that name; it would hand the hub's own setting to every server"
_IDENTITY_KEYS = {"uid", "gid", "supplemental_gids", "user_name", "home"}


# -- names --------------------------------------------------------------------------------------


def check_names(c: Config, sections: Sections) -> None:
    """Refuse sections and settings that nobody reads: most are slips of the pen."""
    for name in c:
        if name in _LATER_SECTIONS:
            raise BadConfigError(
                f"c.{name}: {_LATER_SECTIONS[name]} is not in this version; remove it"
            )
        for ours in _OUR_SECTIONS:
            if name != ours and name.lower() == ours.lower():
                raise BadConfigError(f"c.{name}: there is no such section; did you mean c.{ours}?")
    own = [n for n in sections.names if _is_ours(sections, n)]
    for name in own:
        _known_settings(c, name, sections.spawner_class)
    _known_settings(c, "GPUPool", PoolTraits)


def _is_ours(sections: Sections, name: str) -> bool:
    """True if the section is GPUSpawner's own or an admin's subclass's."""
    return any(
        cls.__name__ == name and issubclass(cls, GPUSpawner)
        for cls in sections.spawner_class.__mro__
    )


def _known_settings(c: Config, section: str, cls: type[Configurable]) -> None:
    known = cls.class_trait_names(config=True)
    for setting in settings(c, section):
        if setting.key not in known:
            raise BadConfigError(
                f"{setting.line}: there is no such setting{_hint(setting.key, section, known)}"
            )


def _hint(key: str, section: str, known: Collection[str]) -> str:
    other, traits = (
        ("GPUSpawner", GPUSpawner.class_trait_names(config=True))
        if section == "GPUPool"
        else ("GPUPool", PoolTraits.class_trait_names(config=True))
    )
    if key in traits:
        return f"; it belongs to c.{other}: c.{other}.{key}"
    close = get_close_matches(key, known, n=1)
    return f"; did you mean c.{section}.{close[0]}?" if close else "; see docs/reference"


# -- collisions ---------------------------------------------------------------------------------


def check_collisions(sections: Sections, spawner: GPUSpawner) -> None:
    """Refuse what would give a container GPUs behind the pool's back, or open a second door.

    Args:
        sections: the lines as the admin wrote them.
        spawner: a spawner of nobody's with the merged settings.
    """
    policy = policy_of(spawner)
    found = [
        f"{setting.line}{place}: {instead}"
        for setting in sections
        for place, instead in _collisions(setting, policy)
    ]
    if found:
        raise BadConfigError("\n".join(found))
    cls = sections.spawner_class
    if cls.create_object is not GPUSpawner.create_object:
        by = next(k for k in cls.__mro__ if "create_object" in vars(k))
        raise BadConfigError(
            f"{by.__name__}.create_object: it would replace the step that puts a server on its "
            "GPU; remove it, and change what is created with c.DockerSpawner.extra_create_kwargs "
            "or extra_host_config (both may be callables), or with c.Spawner.pre_spawn_hook"
        )


def policy_of(spawner: GPUSpawner) -> Policy:
    """What servers of a spawner with these settings may have.

    Raises:
        ConfigError: not as whom it says.
    """
    return Policy(
        identity_of(spawner),
        allow_root=spawner.allow_root,
        allow_privileged=spawner.allow_privileged,
        allow_devices=tuple(spawner.allow_devices),
        allow_capabilities=tuple(spawner.allow_capabilities),
    )


def _collisions(setting: Setting, policy: Policy) -> list[tuple[str, str]]:
    key, value = setting.key, setting.plain
    if key in ("options_form", "options_from_form", "apply_user_options") and value:
        return [("", _FORM_IS_OURS)]
    if key == "env_keep":
        return [(f" ({name!r})", _NOT_FROM_THE_HUB) for name in value if reserved_env(str(name))]
    try:
        return collisions(key, value, policy)
    except ContainmentError as error:
        raise BadConfigError(f"{setting.line}: {error}") from error


# -- values -------------------------------------------------------------------------------------


def check_types(sections: Sections) -> None:
    """Let traitlets look at every setting of the spawner, one by one, to name the line."""
    known = GPUSpawner.class_trait_names(config=True)
    for setting in sections:
        if setting.key in known:
            _check_type(setting, GPUSpawner, spawner_of_nobody)


def _check_type(
    setting: Setting, cls: type[Configurable], make: Callable[[Config], object]
) -> None:
    if setting.added and not isinstance(cls.class_traits()[setting.key].default(), _CONTAINERS):
        # Traitlets would drop it without a word.
        raise BadConfigError(
            f"{setting.line}: there is nothing to add to; write the whole value, {setting.line} = …"
        )
    section = Config({setting.key: deepcopy(setting.value)})
    try:
        make(Config({cls.__name__: section}))
    except TraitError as error:
        raise BadConfigError(f"{setting.line}: {in_short(error, setting.key)}") from error
    except STUMBLES as error:
        raise BadConfigError(
            f"{setting.line}: {shown(setting.plain)} can't be used here ({error})"
        ) from error


def in_short(error: TraitError, key: str) -> str:
    """Traitlets' own words without the class they were tried on, and what to write."""
    text = re.sub(r"^The '\w+' trait of an? \w+ instance", "it", str(error))
    return f"{text.removesuffix('.')}; use {_WRITE[key]}" if key in _WRITE else text


#: What reads the settings of the pool whose types don't tell all.
_READERS: dict[str, Callable[[Any], object]] = {
    "inventory": source_from_config,
    "reserved_for": parse_reserved,
    "bookings": parse_bookings,
}


def check_pool(c: Config) -> None:
    """Check the settings of ``c.GPUPool``."""
    for setting in settings(c, "GPUPool"):
        _check_type(setting, PoolTraits, lambda config: PoolTraits(config=config))
        if setting.key in _READERS:
            try:
                _READERS[setting.key](setting.plain)
            except ConfigError as error:
                raise BadConfigError(f"c.{error}") from error


def check_spawner(sections: Sections, spawner: GPUSpawner) -> None:
    """Check what the types don't tell: identity, fractions.

    Args:
        sections: the lines as the admin wrote them.
        spawner: a spawner of nobody's with the merged settings.
    """
    if spawner.memory_fraction is not None:
        _try(check_fraction, spawner.memory_fraction, sections.line("memory_fraction"))
    if (spawner.shm_size or 0) < 0:
        raise BadConfigError(
            f"{sections.line('shm_size')}: {shown(spawner.shm_size)} is negative; use a size such "
            "as '16G', or 0 for half of mem_limit"
        )
    _try(identity_of, spawner)
    _try(resolve_identity, 1000, 100, home=spawner.home, line=sections.line("home"))
    _try(resolve_identity, 1000, 100, umask=spawner.nb_umask, line=sections.line("nb_umask"))
    _check_identity_source(spawner, sections)
    if not callable(spawner.allowed_images):
        _check_images(spawner, sections)
    if spawner.drop_from_root and spawner.allowed_images == "*":
        raise BadConfigError(
            f"{sections.line('drop_from_root')}: with {sections.line('allowed_images')} = '*' "
            "users bring images of their own, which need not become NB_UID but may stay root; list "
            "the images, or turn drop_from_root off"
        )


def _check_images(spawner: GPUSpawner, sections: Sections) -> None:
    try:
        check_images(spawner.allowed_images)
    except ConfigError as error:
        line = sections.line("allowed_images")
        raise BadConfigError(str(error).replace("allowed_images", line, 1)) from error


def identity_of(spawner: GPUSpawner) -> Identity:
    """As whom servers of a spawner with these settings run."""
    # What a callable will answer at each start can't be known now; a usual number stands for it.
    uid, gid = (1000 if callable(value) else value for value in (spawner.uid, spawner.gid))
    groups = spawner.supplemental_gids
    return resolve_identity(
        uid,
        gid,
        () if callable(groups) else groups,
        allow_root=spawner.allow_root,
        drop_from_root=spawner.drop_from_root,
    )


def _check_identity_source(spawner: GPUSpawner, sections: Sections) -> None:
    source = spawner.identity_from
    keys = source.get("auth_state") if isinstance(source, dict) and len(source) == 1 else None
    if source in ("", "passwd", {}) or (isinstance(keys, dict) and set(keys) <= _IDENTITY_KEYS):
        return
    raise BadConfigError(
        f"{sections.line('identity_from')}: {shown(source)} is no source; use 'passwd', or "
        "{'auth_state': {'uid': '<key>', 'gid': '<key>'}}, where what is found may be "
        f"{', '.join(sorted(_IDENTITY_KEYS))}"
    )


def _try(check: Any, *args: Any, line: str = "", **kwargs: Any) -> None:
    try:
        check(*args, **kwargs)
    except ConfigError as error:
        text = f"{line}: {error}" if line else str(error)
        raise BadConfigError(f"c.{text}" if text.startswith("GPU") else text) from error
