"""Whether a server's user can write to the home folder, and how to make that right.

The engine's archive calls work on a created container with its volumes in place: its first header
tells who owns the folder, and a tar with one folder entry gives it to the user. Only the top folder
is ever touched: what lies in it belongs to whoever put it there. Pure; the caller talks to the
engine.
"""

from __future__ import annotations

import io
import posixpath
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .hostconfig import items, mount_ends, tidy
from .identity import Identity


@dataclass(frozen=True)
class Owner:
    """What is at a path in the container.

    Attributes:
        kind: ``folder``, ``link`` or ``other``.
        mode: permission bits.
        mtime: seconds since the epoch.
    """

    uid: int
    gid: int
    mode: int
    kind: Literal["folder", "link", "other"] = "folder"
    mtime: int = 0


@dataclass(frozen=True)
class HomeMount:
    """The mount that holds the home folder.

    Attributes:
        kind: ``volume`` or ``bind``.
        source: a volume's name (empty for one without), or the host's path.
        target: path in the container; the home or a folder above it.
        writable: False for a read-only mount.
    """

    kind: Literal["volume", "bind"]
    source: str
    target: str
    writable: bool = True


@dataclass(frozen=True)
class Keep:
    """The folder is the user's already."""


@dataclass(frozen=True)
class MakeRight:
    """Give the folder to the user: put ``archive`` at ``path`` (Docker's ``put_archive``)."""

    path: str
    archive: bytes


@dataclass(frozen=True)
class Refuse:
    """The server can't start like this; ``message`` is for the admin."""

    message: str


def home_mount(kwargs: Mapping[str, Any], home: str) -> HomeMount | None:
    """Which mount, if any, holds the home folder.

    Args:
        kwargs: of docker-py's ``create_container``, with ``host_config`` in the API's form.
        home: absolute path in the container.

    Returns:
        The innermost one; None if the home is in the container's own files, which are new.
    """
    host = kwargs.get("host_config") or {}
    found = [
        _mount(entry, mount_ends(entry)[1])
        for entry in [*items(host.get("Binds")), *items(host.get("Mounts"))]
    ]
    above = [mount for mount in found if _holds(mount.target, tidy(home))]
    return max(above, key=lambda mount: len(mount.target), default=None)


def _holds(folder: str, path: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _mount(entry: object, target: str) -> HomeMount:
    if isinstance(entry, Mapping):
        kind: Literal["volume", "bind"] = "bind" if entry.get("Type") == "bind" else "volume"
        source, writable = str(entry.get("Source") or ""), not entry.get("ReadOnly")
    else:
        parts = str(entry).split(":")
        source = parts[0]
        kind = "bind" if source.startswith("/") else "volume"
        writable = "ro" not in parts[-1].split(",") if len(parts) > 2 else True
    return HomeMount(kind, source, tidy(target), writable)


def read_owner(chunks: Iterable[bytes]) -> Owner:
    """Read who owns a path from the beginning of its archive (Docker's ``get_archive``).

    Takes no more of ``chunks`` than the first header needs; the caller closes the stream, so a
    full home is not read.

    Raises:
        ValueError: it is no tar.
    """
    try:
        with tarfile.open(fileobj=_Stream(chunks), mode="r|") as archive:
            entry = archive.next()
    except tarfile.TarError as error:
        raise ValueError(f"the engine's archive can't be read: {error}") from error
    if entry is None:
        raise ValueError("the engine's archive is empty")
    kind: Literal["folder", "link", "other"] = "other"
    if entry.isdir():
        kind = "folder"
    elif entry.issym():
        kind = "link"
    return Owner(entry.uid, entry.gid, entry.mode & 0o7777, kind, int(entry.mtime))


class _Stream(io.RawIOBase):
    """Chunks as a file to read from."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        super().__init__()
        self._chunks = iter(chunks)
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        # One chunk at a time: tarfile asks again as long as it needs more.
        if not self._rest:
            self._rest = next(self._chunks, b"")
        part = self._rest if size < 0 else self._rest[:size]
        self._rest = self._rest[len(part) :]
        return part


def home_action(
    owner: Owner | None, identity: Identity, *, mount: HomeMount | None, fresh: bool = False
) -> Keep | MakeRight | Refuse:
    """What to do about the home folder before the server starts.

    Args:
        owner: what is there; None if nothing is.
        identity: whom the server runs as; has the path.
        mount: from :func:`home_mount`.
        fresh: the mount is a volume that came into being with this container. The engine fills it
            from the image, so it may belong to the image's user.
    """
    home = identity.home
    who = f"{identity.uid}:{identity.gid}"
    where = _where(mount)
    if owner is not None and owner.kind != "folder":
        what = "a symbolic link" if owner.kind == "link" else "not a folder"
        return Refuse(
            f"{home} in the container{where} is {what}; set GPUSpawner.home to a folder, or mount "
            "one there"
        )
    if owner is not None and owner.uid == identity.uid:
        return Keep()
    if mount is not None and not mount.writable:
        return Refuse(
            f"{home} in the container{where} is mounted read-only, and does not belong to "
            f"{who}; mount it writable, or give it to them"
        )
    if owner is None:
        # From the mount, since folders in between may be missing too; the root may be read-only.
        above = mount.target if mount is not None and mount.target != home else "/"
        return _put(above, home, identity, 0o777 & ~identity.umask, 0)
    if owner.uid == 0 or mount is None or (fresh and mount.kind == "volume"):
        return _put(posixpath.dirname(home), home, identity, owner.mode, owner.mtime)
    return Refuse(
        f"{home} in the container{where} belongs to {owner.uid}:{owner.gid}, but the server runs "
        f"as {who}; run 'chown {who}' on that folder and what is in it, or set GPUSpawner.uid to "
        f"{owner.uid}"
    )


def _where(mount: HomeMount | None) -> str:
    if mount is None or not mount.source:
        return ""
    what = "volume" if mount.kind == "volume" else "the host's"
    return f" ({what} {mount.source!r} on {mount.target})"


def _put(folder: str, home: str, identity: Identity, mode: int, mtime: int) -> MakeRight:
    """A tar of the home folder alone. An existing folder keeps what is in it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        entry = tarfile.TarInfo(posixpath.relpath(home, folder))
        entry.type = tarfile.DIRTYPE
        entry.uid, entry.gid = identity.uid, identity.gid
        entry.mode, entry.mtime = mode | 0o700, mtime
        archive.addfile(entry)
    return MakeRight(folder, buffer.getvalue())
