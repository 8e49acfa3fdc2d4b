"""Who a server runs as: plain numbers in, what the container is told out.

The numbers come from the configuration, from a user's ``auth_state`` under keys that the admin
names, or from the host's passwd; a wrong one is refused in words that name the setting.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from .errors import ConfigError

#: The largest id that Docker and runc take; the kernel would go on to 2**32 - 2.
MAX_ID: Final = 2**31 - 1

#: The user of the Jupyter docker-stacks images.
DEFAULT_USER: Final = "jovyan"
DEFAULT_HOME: Final = "/home/jovyan"

#: What a start as root needs to hand over to the user: own the home, change group, change user.
DROP_CAPABILITIES: Final = ("CHOWN", "SETGID", "SETUID")

_LINUX_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


@dataclass(frozen=True)
class Identity:
    """A user and the groups, as the container will know them.

    Attributes:
        uid, gid: numbers, 0 only where the admin allows root.
        supplemental_gids: further groups, sorted, without ``gid``.
        user_name: a Linux user name.
        home: absolute path in the container.
        umask: of the notebook server, such as ``0o022``.
        drop_from_root: the container starts as root, and its image's start script becomes the user
            (the way of the Jupyter docker-stacks images). The server itself is never root.
    """

    uid: int
    gid: int
    supplemental_gids: tuple[int, ...] = ()
    user_name: str = DEFAULT_USER
    home: str = DEFAULT_HOME
    umask: int = 0o022
    drop_from_root: bool = False

    @property
    def container_user(self) -> str:
        """The container's ``user``: ``1000:100``, or ``0:0`` for a start as root."""
        return "0:0" if self.drop_from_root else f"{self.uid}:{self.gid}"

    @property
    def group_add(self) -> tuple[str, ...]:
        """The container's ``GroupAdd``."""
        return tuple(str(gid) for gid in self.supplemental_gids)

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What this identity needs added after all capabilities were dropped."""
        return DROP_CAPABILITIES if self.drop_from_root else ()

    @property
    def env(self) -> dict[str, str]:
        """``NB_UID`` and its kin, which start scripts of Jupyter images read, and ``HOME``.

        A start as root gets no ``HOME``: the start script sets the user's, root has its own.
        """
        env = {
            "NB_UID": str(self.uid),
            "NB_GID": str(self.gid),
            "NB_USER": self.user_name,
            "NB_UMASK": f"{self.umask:03o}",
        }
        if not self.drop_from_root:
            env["HOME"] = self.home
        return env


def resolve_identity(
    uid: object,
    gid: object,
    supplemental_gids: object = (),
    *,
    user_name: str = DEFAULT_USER,
    home: str = DEFAULT_HOME,
    umask: object = 0o022,
    allow_root: bool = False,
    drop_from_root: bool = False,
    source: str = "",
) -> Identity:
    """Check the numbers and make an identity of them.

    Args:
        uid: an int, or digits in a text (``auth_state`` often has those).
        gid: the same.
        supplemental_gids: a list of such, or None for none.
        user_name: taken if Linux would, else ``jovyan``.
        home: absolute path in the container.
        umask: an int, or an octal text such as ``"027"``.
        allow_root: uid 0 and group 0 are fine.
        drop_from_root: see :class:`Identity`.
        source: where the numbers came from, for messages, such as ``auth_state``.

    Raises:
        ConfigError: a value is of the wrong kind or out of range, or root without ``allow_root``.
    """
    where = f" (from {source})" if source else ""
    user = _number(uid, "GPUSpawner.uid", where)
    group = _number(gid, "GPUSpawner.gid", where)
    groups = _groups(supplemental_gids, where)
    if not allow_root:
        if user == 0:
            raise ConfigError(
                f"GPUSpawner.uid is 0{where}, which is root; use a user's number such as 1000, or "
                "set GPUSpawner.drop_from_root = True if the image's start script needs root, or "
                "GPUSpawner.allow_root = True to let servers run as root"
            )
        if group == 0 or 0 in groups:
            name = "gid" if group == 0 else "supplemental_gids"
            raise ConfigError(
                f"GPUSpawner.{name} has group 0{where}, which is root's; use another group such "
                "as 100, or set GPUSpawner.allow_root = True"
            )
    others = tuple(sorted(groups - {group}))
    if drop_from_root and others:
        raise ConfigError(
            f"GPUSpawner.supplemental_gids is {list(others)}{where}, but with drop_from_root the "
            "image's start script sets the groups and would drop them; turn one of the two off"
        )
    return Identity(
        uid=user,
        gid=group,
        supplemental_gids=others,
        user_name=safe_user_name(user_name),
        home=_home(home),
        umask=_umask(umask),
        drop_from_root=drop_from_root,
    )


def safe_user_name(name: str, default: str = DEFAULT_USER) -> str:
    """``name`` if Linux takes it as a user name, else ``default``."""
    return name if _LINUX_NAME.fullmatch(name) and name != "root" else default


def from_auth_state(
    auth_state: Mapping[str, Any] | None, keys: Mapping[str, str]
) -> dict[str, Any]:
    """Pick identity values out of a user's ``auth_state``.

    Args:
        auth_state: what the authenticator stored, None if it stored nothing.
        keys: argument of :func:`resolve_identity` (``uid``, ``gid``, ``supplemental_gids``,
            ``user_name``, ``home``) to the key that has it. Dots reach into nested dicts:
            ``oauth_user.uidNumber``. A list of one stands for its item, as LDAP gives it.

    Returns:
        The values found, not yet checked.

    Raises:
        ConfigError: a name in ``keys`` is not known, or a key is missing: never a default in its
            place, which would be another user's number.
    """
    values = {}
    for argument, key in keys.items():
        if argument not in _UNFIT:
            raise ConfigError(
                f"{argument!r} can't be read from auth_state; allowed are {', '.join(_UNFIT)}"
            )
        if auth_state is None:
            raise ConfigError(
                f"{argument} comes from auth_state[{key!r}], but this user has no auth_state; set "
                "Authenticator.enable_auth_state = True and JUPYTERHUB_CRYPT_KEY, and have the "
                "user log in again"
            )
        value: Any = auth_state
        for part in key.split("."):
            if not isinstance(value, Mapping) or part not in value:
                raise ConfigError(
                    f"{argument} comes from auth_state[{key!r}], but the user's auth_state has no "
                    f"{part!r} there; its keys are {', '.join(sorted(map(str, auth_state)))}"
                )
            value = value[part]
        if argument != "supplemental_gids" and isinstance(value, (list, tuple)) and len(value) == 1:
            value = value[0]
        wanted = _UNFIT[argument](value)
        if wanted:
            # The value is not shown: auth_state has tokens too, and this text goes into the log.
            raise ConfigError(
                f"{argument} comes from auth_state[{key!r}], where a {type(value).__name__} is "
                f"found; {wanted} is needed"
            )
        values[argument] = value
    return values


def _unfit_number(value: object) -> str:
    return "" if isinstance(value, int) or _is_digits(value) else "a whole number"


def _unfit_groups(value: object) -> str:
    fits = isinstance(value, (list, tuple)) and not any(map(_unfit_number, value))
    return "" if fits or value is None else "a list of whole numbers"


def _unfit_text(value: object) -> str:
    return "" if isinstance(value, str) else "a text"


#: What is wrong with a value from ``auth_state``, by what it is for; empty if nothing is.
_UNFIT: Final[Mapping[str, Callable[[object], str]]] = {
    "uid": _unfit_number,
    "gid": _unfit_number,
    "supplemental_gids": _unfit_groups,
    "user_name": _unfit_text,
    "home": _unfit_text,
}


def _is_digits(value: object) -> bool:
    return isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 12


def from_passwd(name: str, uid: int, gid: int, groups: Iterable[int] = ()) -> dict[str, Any]:
    """The arguments for :func:`resolve_identity` from a passwd entry of the host.

    The entry's home is the host's and says nothing about the container, so it is left out. Group
    0 among the supplemental groups is left out too: it would not be theirs to use.
    """
    return {
        "user_name": name,
        "uid": uid,
        "gid": gid,
        "supplemental_gids": [group for group in groups if group not in (0, gid)],
    }


def _number(value: object, name: str, where: str) -> int:
    number = None
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str) and _is_digits(value):
        number = int(value)
    if number is None or not 0 <= number <= MAX_ID:
        raise ConfigError(
            f"{name} is {value!r}{where}; use a whole number from 0 to {MAX_ID}, or a callable "
            "that takes the spawner and returns one"
        )
    return number


def _groups(values: object, where: str) -> set[int]:
    if values is None:
        return set()
    if not isinstance(values, (list, tuple, set, frozenset)):
        raise ConfigError(
            f"GPUSpawner.supplemental_gids is {values!r}{where}; use a list of numbers such as "
            "[2000, 2001], or a callable that takes the spawner and returns one"
        )
    return {_number(value, "an item of GPUSpawner.supplemental_gids", where) for value in values}


def _umask(value: object) -> int:
    number = None
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str) and re.fullmatch(r"[0-7]{1,4}", value):
        number = int(value, 8)
    if number is None or not 0 <= number <= 0o777:
        raise ConfigError(f"the umask is {value!r}; use an octal number such as 0o022 or '022'")
    return number


def _home(value: str) -> str:
    parts = value.split("/")
    if not value.startswith("/") or "\0" in value or value.strip("/") == "" or ".." in parts:
        raise ConfigError(
            f"the home folder in the container is {value!r}; use an absolute path such as "
            f"{DEFAULT_HOME!r}"
        )
    return "/" + "/".join(part for part in parts if part not in ("", "."))
