"""The home folder: who owns it, and that the user can write to it."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from docker.errors import NotFound
from docker.types import Mount
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.containment import Policy, contain, grant
from gpuspawner.home import (
    HomeMount,
    Keep,
    MakeRight,
    Owner,
    Refuse,
    home_action,
    home_mount,
    read_owner,
)
from gpuspawner.identity import Identity, resolve_identity

if TYPE_CHECKING:
    from ground.engine import Engine

HOME = "/home/jovyan"
USER = resolve_identity(2000, 2001)
VOLUME = HomeMount("volume", "work", HOME)
BIND = HomeMount("bind", "/srv/homes/ada", HOME)


def archive(**fields: Any) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        entry = tarfile.TarInfo("jovyan")
        entry.type = tarfile.DIRTYPE
        for name, value in fields.items():
            setattr(entry, name, value)
        tar.addfile(entry)
        content = tarfile.TarInfo("jovyan/full")
        content.size = 100_000
        tar.addfile(content, io.BytesIO(bytes(content.size)))
    return buffer.getvalue()


def entry_of(action: MakeRight) -> tarfile.TarInfo:
    with tarfile.open(fileobj=io.BytesIO(action.archive)) as tar:
        (entry,) = tar.getmembers()
    return entry


# -- who owns it ----------------------------------------------------------------------------------


@given(
    uid=st.integers(0, 2**32 - 2),
    gid=st.integers(0, 2**32 - 2),
    mode=st.integers(0, 0o7777),
    size=st.integers(1, 20_000),
)
def test_reads_the_owner_from_any_chunks(uid: int, gid: int, mode: int, size: int) -> None:
    data = archive(uid=uid, gid=gid, mode=mode, mtime=5)
    chunks = (data[at : at + size] for at in range(0, len(data), size))
    assert read_owner(chunks) == Owner(uid, gid, mode, "folder", 5)


def test_reads_no_more_than_it_needs() -> None:
    data = archive(uid=1)
    read = []

    def chunks() -> Iterator[bytes]:
        for at in range(0, len(data), 512):
            read.append(at)
            yield data[at : at + 512]

    read_owner(chunks())
    assert max(read) <= tarfile.RECORDSIZE


def test_reads_extended_headers() -> None:
    names = {"SCHILY.xattr.user.note": "x" * 3000}
    assert read_owner([archive(uid=7, pax_headers=names)]).uid == 7


@pytest.mark.parametrize(
    ("kind", "word"),
    [(tarfile.DIRTYPE, "folder"), (tarfile.SYMTYPE, "link"), (tarfile.FIFOTYPE, "other")],
)
def test_reads_what_it_is(kind: bytes, word: str) -> None:
    assert read_owner([archive(type=kind)]).kind == word


@pytest.mark.parametrize("data", [b"", b"no tar at all", bytes(1024), b"\1" * 2048])
def test_no_tar(data: bytes) -> None:
    with pytest.raises(ValueError, match="archive"):
        read_owner([data])


# -- which mount ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ({}, None),
        ({"Binds": ["work:/home/jovyan"]}, VOLUME),
        ({"Binds": ["/srv/homes/ada:/home/jovyan/:rw"]}, BIND),
        ({"Mounts": [Mount(HOME, "work")]}, VOLUME),
        ({"Mounts": [Mount(HOME, "/srv/homes/ada", type="bind")]}, BIND),
        ({"Binds": ["/homes:/home:ro,z"]}, HomeMount("bind", "/homes", "/home", writable=False)),
        (
            {"Mounts": [Mount(HOME, "work", read_only=True)]},
            HomeMount("volume", "work", HOME, writable=False),
        ),
        ({"Binds": ["/homes:/home", "work:/home/jovyan"]}, VOLUME),
        ({"Binds": ["/a:/home/jovyan/data", "b:/home/jov", "c:/homes"]}, None),
        ({"Binds": None, "Mounts": None}, None),
    ],
)
def test_the_mount_that_holds_the_home(host: dict[str, Any], expected: HomeMount | None) -> None:
    assert home_mount({"host_config": host}, HOME) == expected


# -- what to do -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mount", [None, VOLUME, BIND])
def test_the_users_own_home_is_kept(mount: HomeMount | None) -> None:
    assert home_action(Owner(2000, 5, 0o700), USER, mount=mount) == Keep()


@pytest.mark.parametrize("mount", [None, VOLUME, BIND])
def test_roots_home_is_made_right(mount: HomeMount | None) -> None:
    action = home_action(Owner(0, 0, 0o2055, mtime=9), USER, mount=mount)
    assert isinstance(action, MakeRight)
    assert action.path == "/home"
    entry = entry_of(action)
    assert entry.isdir()
    assert (entry.name, entry.uid, entry.gid) == ("jovyan", 2000, 2001)
    assert (entry.mode, entry.mtime) == (0o2755, 9)


def test_a_new_volume_filled_from_the_image_is_made_right() -> None:
    owner = Owner(1000, 100, 0o755)
    assert isinstance(home_action(owner, USER, mount=VOLUME, fresh=True), MakeRight)
    assert isinstance(home_action(owner, USER, mount=None), MakeRight)
    assert isinstance(home_action(owner, USER, mount=BIND, fresh=True), Refuse)


@pytest.mark.parametrize("mount", [VOLUME, BIND])
def test_another_users_home_is_refused_with_path_and_owner(mount: HomeMount) -> None:
    action = home_action(Owner(5000, 50, 0o777), USER, mount=mount)
    assert isinstance(action, Refuse)
    for part in (HOME, mount.source, "5000:50", "chown 2000:2001", "GPUSpawner.uid to 5000"):
        assert part in action.message


def test_a_missing_home_is_made_by_the_users_umask() -> None:
    identity = resolve_identity(2000, 2001, home="/home/deep/ada", umask="027")
    above = HomeMount("bind", "/homes", "/home")
    action = home_action(None, identity, mount=above)
    assert isinstance(action, MakeRight)
    assert (action.path, entry_of(action).name, entry_of(action).mode) == (
        "/home",
        "deep/ada",
        0o750,
    )
    action = home_action(None, identity, mount=None)
    assert isinstance(action, MakeRight)
    assert (action.path, entry_of(action).name) == ("/", "home/deep/ada")


@pytest.mark.parametrize("owner", [None, Owner(0, 0, 0o755)])
def test_a_read_only_home_is_refused(owner: Owner | None) -> None:
    mount = HomeMount("bind", "/homes", HOME, writable=False)
    action = home_action(owner, USER, mount=mount)
    assert isinstance(action, Refuse)
    assert "read-only" in action.message


@pytest.mark.parametrize(("kind", "word"), [("link", "symbolic link"), ("other", "not a folder")])
def test_no_folder_is_refused(kind: Any, word: str) -> None:
    action = home_action(Owner(2000, 2001, 0o777, kind), USER, mount=VOLUME)
    assert isinstance(action, Refuse)
    assert word in action.message


@given(
    owner=st.none()
    | st.builds(Owner, st.integers(0, 9), st.integers(0, 9), st.integers(0, 0o7777)),
    uid=st.integers(1, 9),
    mount=st.sampled_from([None, VOLUME, BIND]),
    fresh=st.booleans(),
)
def test_only_the_top_folder_and_never_anothers(
    owner: Owner | None, uid: int, mount: HomeMount | None, fresh: bool
) -> None:
    action = home_action(owner, resolve_identity(uid, 1), mount=mount, fresh=fresh)
    theirs = owner is not None and owner.uid not in (0, uid) and mount is not None
    if isinstance(action, MakeRight):
        assert entry_of(action).uid == uid
        assert entry_of(action).mode & 0o700 == 0o700
        assert not theirs or (fresh and mount == VOLUME)
    elif theirs:
        assert isinstance(action, Refuse)
    else:
        assert action == Keep()


# -- on real engines ------------------------------------------------------------------------------


class Server:
    """A container that was made as a spawner makes it, home included."""

    def __init__(self, engine: Engine, image: str, identity: Identity, **host: Any) -> None:
        self.client = engine.client
        kwargs, _ = contain(
            {
                "image": image,
                "command": [
                    "sh",
                    "-c",
                    'id -u; touch "$HOME/first" && echo wrote; cat /proc/1/status',
                ],
                "host_config": dict(self.client.create_host_config(**host)),
            },
            Policy(identity),
        )
        self.mount = home_mount(kwargs, identity.home)
        self.home = identity.home
        self.id = self.client.create_container(**grant(kwargs, [], "none"))["Id"]
        self.before = self.owner()

    def owner(self) -> Owner | None:
        try:
            chunks, _ = self.client.get_archive(self.id, self.home)
        except NotFound:
            return None
        return read_owner(chunks)

    def make_right(self, action: object) -> None:
        assert isinstance(action, MakeRight)
        assert self.client.put_archive(self.id, action.path, action.archive)

    def run(self) -> str:
        self.client.start(self.id)
        self.client.wait(self.id)
        return str(self.client.logs(self.id).decode())


@pytest.fixture
def identity() -> Identity:
    return resolve_identity(2000, 2001)


def test_first_write_into_a_new_volume(
    clean_engine: Engine, tiny_image: str, identity: Identity
) -> None:
    client = clean_engine.client
    volume = client.create_volume()["Name"]
    try:
        server = Server(clean_engine, tiny_image, identity, binds=[f"{volume}:{HOME}"])
        assert server.before is not None
        server.make_right(home_action(server.before, identity, mount=server.mount, fresh=True))
        after = server.owner()
        assert after is not None
        assert (after.uid, after.gid) == (2000, 2001)
        assert after.mode == server.before.mode | 0o700
        output = server.run()
        assert output.startswith("2000\nwrote\n")
        assert "NoNewPrivs:\t1" in output
        assert "CapBnd:\t0000000000000000" in output
        again = Server(clean_engine, tiny_image, identity, binds=[f"{volume}:{HOME}"])
        assert home_action(again.before, identity, mount=again.mount) == Keep()
    finally:
        clean_engine.remove_containers()
        client.remove_volume(volume)


def test_first_write_into_roots_folder_of_the_host(
    clean_engine: Engine, tiny_image: str, identity: Identity, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    inner = home / "theirs"
    inner.mkdir(parents=True)
    os.chown(inner, 5, 6)
    home.chmod(0o755)
    server = Server(clean_engine, tiny_image, identity, binds=[f"{home}:{HOME}"])
    assert server.before == Owner(0, 0, 0o755, "folder", int(home.stat().st_mtime))
    server.make_right(home_action(server.before, identity, mount=server.mount))
    assert (home.stat().st_uid, home.stat().st_gid) == (2000, 2001)
    assert (inner.stat().st_uid, inner.stat().st_gid) == (5, 6)
    assert server.run().startswith("2000\nwrote\n")


def test_first_write_where_no_home_was(
    clean_engine: Engine, tiny_image: str, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    identity = resolve_identity(2000, 2001, home="/home/deep/ada")
    server = Server(clean_engine, tiny_image, identity, binds=[f"{tmp_path}:/home"])
    assert server.before is None
    server.make_right(home_action(None, identity, mount=server.mount))
    assert (tmp_path / "deep" / "ada").stat().st_uid == 2000
    assert server.run().startswith("2000\nwrote\n")


def test_a_link_is_seen_as_one(clean_engine: Engine, tiny_image: str, tmp_path: Path) -> None:
    (tmp_path / "ada").symlink_to("/etc")
    identity = resolve_identity(2000, 2001, home="/home/ada")
    server = Server(clean_engine, tiny_image, identity, binds=[f"{tmp_path}:/home"])
    assert isinstance(home_action(server.before, identity, mount=server.mount), Refuse)
