"""What this machine is: its release, its package sources, where downloads are kept."""

from __future__ import annotations

import fcntl
import os
import random
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

#: Where system commands live; a user's PATH may lack the sbin folders.
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


#: Seconds after which something that was waited for is taken to never come.
PATIENCE_SECONDS = 180.0


class GroundError(RuntimeError):
    """Something the ground needs is missing; the message says what and how to get it."""


class NotInTimeError(GroundError):
    """What was waited for did not come in time: the machine is too slow, or something is broken."""


@dataclass(frozen=True)
class AptSource:
    """One line or stanza of the machine's apt sources.

    Attributes:
        signed_by: path of a keyring, empty where apt's own trusted keys are used.
        trusted: True where the source is marked ``trusted=yes``.
    """

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str = ""
    trusted: bool = False


def cache_dir() -> Path:
    """``$GPUSPAWNER_CACHE``, else ``~/.cache/gpuspawner``; made if it is not there."""
    given = os.environ.get("GPUSPAWNER_CACHE")
    path = Path(given) if given else Path.home() / ".cache" / "gpuspawner"
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def cache_lock(name: str) -> Iterator[None]:
    """Hold the cache's lock ``name``, so that two runs do not build the same thing at once."""
    with (cache_dir() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def find_command(name: str) -> str | None:
    """Full path of a system command, looked for in PATH and in the sbin folders."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")


def require_command(name: str, package: str) -> str:
    """Full path of a system command.

    Raises:
        GroundError: it is not installed; names the package that brings it.
    """
    found = find_command(name)
    if not found:
        raise GroundError(
            f"{name} is not installed. Run script/bootstrap as root, "
            f"or: apt-get install --no-install-recommends {package}"
        )
    return found


def run(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
    timeout_seconds: float = 900,
) -> str:
    """Run a command and return its stdout.

    Raises:
        GroundError: it failed; the message holds the end of its output.
    """
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        env=dict(env) if env is not None else None,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_seconds,
        check=False,
    )
    if done.returncode:
        tail = (done.stdout + done.stderr).strip()[-3000:]
        raise GroundError(f"{shlex.join(words)} ended with {done.returncode}:\n{tail}")
    return done.stdout


#: Below the ports that the kernel lends to outgoing connections: a hub that is started again must
#: find its port free.
_PORTS = range(20_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Ports on 127.0.0.1 that nothing uses, kept for this process as long as it lives.

    Raises:
        GroundError: too many are in use.
    """
    found: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        if len(found) == count:
            return found
        if _claim_port(port):
            found.append(port)
    raise GroundError(f"fewer than {count} ports from {_PORTS.start} to {_PORTS.stop - 1} are free")


def _claim_port(port: int) -> bool:
    """True if the port is free and no other process that asked here keeps it."""
    lock = socket.socket(socket.AF_UNIX)
    try:
        lock.bind(f"\0gpuspawner-port-{port}")  # a name without a file
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
    except OSError:
        lock.close()
        return False
    lock.detach()  # kept until the kernel ends this process
    return True


def os_release(root: Path = Path("/")) -> dict[str, str]:
    """The keys of ``/etc/os-release``, such as ``ID`` and ``VERSION_CODENAME``."""
    path = root / "etc" / "os-release"
    if not path.exists():
        return {}
    pairs = (line.partition("=") for line in path.read_text().splitlines() if "=" in line)
    return {key: "".join(shlex.split(value)) for key, _, value in pairs}


def apt_sources(root: Path = Path("/")) -> list[AptSource]:
    """The machine's binary package sources, both file formats, in apt's reading order."""
    apt = root / "etc" / "apt"
    parts = apt / "sources.list.d"
    sources: list[AptSource] = []
    for path in [apt / "sources.list", *sorted(parts.glob("*.list"))]:
        if path.is_file():
            lines = path.read_text().splitlines()
            sources += [found for line in lines if (found := _one_line(line))]
    for path in sorted(parts.glob("*.sources")):
        for stanza in re.split(r"\n\s*\n", path.read_text()):
            sources += _stanza(stanza)
    return sources


def distribution_source(root: Path = Path("/")) -> AptSource:
    """The source of the distribution itself: the one with the release's own suite and ``main``.

    Raises:
        GroundError: there is none, such as on a machine without apt.
    """
    codename = os_release(root).get("VERSION_CODENAME", "")
    for source in apt_sources(root):
        if codename in source.suites and "main" in source.components:
            return source
    raise GroundError(
        f"no apt source for suite {codename or '(unknown)'!r} with component 'main' was found in "
        f"{root / 'etc/apt'}; the ground needs Debian or Ubuntu with its own package mirror"
    )


def _one_line(line: str) -> AptSource | None:
    match = re.match(r"\s*deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<rest>[^#]+)", line)
    if not match:
        return None
    words = match["rest"].split()
    if len(words) < 2:
        return None
    pairs = (option.partition("=") for option in (match["options"] or "").split())
    options = {key.lower(): value for key, _, value in pairs}
    return AptSource(
        uri=words[0],
        suites=(words[1],),
        components=tuple(words[2:]),
        signed_by=options.get("signed-by", ""),
        trusted=options.get("trusted", "").lower() == "yes",
    )


def _stanza(text: str) -> list[AptSource]:
    fields: dict[str, str] = {}
    key = ""
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        if line[0].isspace():
            fields[key] = f"{fields.get(key, '')} {line.strip()}"
            continue
        key, _, value = line.partition(":")
        key = key.strip().lower()
        fields[key] = value.strip()
    if fields.get("enabled", "yes").lower() == "no" or "deb" not in fields.get("types", "").split():
        return []
    signed_by = fields.get("signed-by", "")
    return [
        AptSource(
            uri=uri,
            suites=tuple(fields.get("suites", "").split()),
            components=tuple(fields.get("components", "").split()),
            # A key written into the stanza itself cannot be handed on as a path.
            signed_by=signed_by if signed_by.startswith("/") else "",
            trusted=fields.get("trusted", "").lower() == "yes",
        )
        for uri in fields.get("uris", "").split()
    ]
