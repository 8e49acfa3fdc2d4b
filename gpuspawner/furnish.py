"""What is put into a created container before it starts: the startup hook, a home to write to.

Both go through the engine's archive calls, not through the hub's disk: a hub in a container has no
such path on the host. The engine mounts a created container's volumes for these calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from docker.errors import APIError

from .calls import Ticket
from .connection import NoAnswer
from .containment import ContainmentError
from .engine import Engine
from .home import HomeMount, MakeRight, Owner, Refuse, home_action, home_mount, read_owner
from .hook import hook_archive
from .identity import Identity

#: Bytes read at a time of a home's archive: a tar header and no more than need be.
_CHUNK_BYTES = 4096

#: Who owns a path among an image's own files, by image id and path. An id names its content for
#: ever, and asking costs the engine a mount of the container's files: a tenth of a quick start.
_in_images: dict[tuple[str, str], Owner | None] = {}


@dataclass(frozen=True)
class Home:
    """The home folder as it was found before create.

    Attributes:
        mount: which mount holds it, None for the container's own files.
        fresh: the mount is a volume that did not exist before.
    """

    mount: HomeMount | None
    fresh: bool


def find_home(engine: Engine, kwargs: Mapping[str, Any], identity: Identity) -> Home:
    """Which mount the home will be on, and whether create will make it. Blocks: run in a thread."""
    mount = home_mount(kwargs, identity.home)
    fresh = False
    if mount is not None and mount.kind == "volume":
        # A volume without a name is always made anew.
        fresh = not mount.source or not _exists(engine, mount.source)
    return Home(mount, fresh)


def _exists(engine: Engine, volume: str) -> bool:
    try:
        engine.connection.client().inspect_volume(volume)
    except APIError as error:
        if error.status_code == 404:
            return False
        raise
    return True


async def furnish(
    engine: Engine,
    ticket: Ticket,
    identity: Identity,
    home: Home,
    *,
    image_id: str,
    with_hook: bool,
) -> None:
    """Furnish the ticket's created container, which is made of the image ``image_id``.

    Raises:
        ContainmentError: the home belongs to another user.
        docker.errors.APIError: the engine refused.
    """
    container_id = ticket.container_id

    def work() -> None:
        client = engine.connection.client()
        place = (image_id, identity.home)
        if home.mount is None and place in _in_images:
            owner = _in_images[place]
        else:
            owner = owner_of(engine, container_id, identity.home)
            if home.mount is None:
                _in_images[place] = owner
        action = home_action(owner, identity, mount=home.mount, fresh=home.fresh)
        if isinstance(action, Refuse):
            raise HomeRefused(action.message)
        if isinstance(action, MakeRight):
            _make_right(client, container_id, action, identity, home)
        if with_hook:
            client.put_archive(container_id, "/", hook_archive())

    await ticket.call(work)


def _make_right(
    client: Any, container_id: str, action: MakeRight, identity: Identity, home: Home
) -> None:
    try:
        client.put_archive(container_id, action.path, action.archive)
    except APIError as error:
        if "read-only" not in str(error.explanation):
            raise
        where = f" ({home.mount.source!r})" if home.mount else ""
        raise HomeRefused(
            f"{identity.home} in the container{where} can't be given to {identity.uid}:"
            f"{identity.gid}, since the container's root is read-only; run 'chown {identity.uid}:"
            f"{identity.gid}' on that folder, or take read_only out of extra_host_config"
        ) from error


class HomeRefused(ContainmentError):
    """The home folder belongs to another user; the text names path and owner."""


def owner_of(engine: Engine, container_id: str, path: str) -> Owner | None:
    """Who owns a path in a created container; None if nothing is there."""
    # docker-py's get_archive leaves the connection open unless the whole home is read.
    url = f"/containers/{container_id}/archive"
    try:
        with engine.get(url, params={"path": path}, stream=True) as answer:
            return read_owner(answer.iter_content(_CHUNK_BYTES))
    except ValueError as error:
        raise NoAnswer(f"no archive of {path} in the engine's answer: {error}") from error
    except APIError as error:
        if error.status_code == 404:
            return None
        raise
