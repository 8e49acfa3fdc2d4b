"""Where an engine's programs come from: the machine's own, or a current one fetched beside it."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from .machine import (
    SYSTEM_PATH,
    GroundError,
    cache_dir,
    cache_lock,
    distribution_source,
    os_release,
    require_command,
    run,
)

#: Debian's suite in testing that carries an engine with CDI; its programs need only glibc 2.34.
CURRENT_SUITE = "forky"

#: First engine version that reads CDI specifications.
FIRST_CDI_VERSION = (25,)


@dataclass(frozen=True)
class Binaries:
    """One set of engine programs.

    Attributes:
        dockerd, containerd, runc: full paths.
        path: PATH that the daemons get, without the folder of simulated helpers.
        version: the engine's version, such as ``28.5.2``.
    """

    dockerd: str
    containerd: str
    runc: str
    path: str
    version: str

    @property
    def version_numbers(self) -> tuple[int, ...]:
        return tuple(int(number) for number in re.findall(r"\d+", self.version)[:3])

    @property
    def has_cdi(self) -> bool:
        return self.version_numbers >= FIRST_CDI_VERSION


def machine_binaries() -> Binaries:
    """The engine installed on this machine.

    Raises:
        GroundError: there is none.
    """
    dockerd = require_command("dockerd", "docker.io")
    return Binaries(
        dockerd=dockerd,
        containerd=require_command("containerd", "containerd"),
        runc=require_command("runc", "runc"),
        path=SYSTEM_PATH,
        version=_version(dockerd),
    )


def current_binaries() -> Binaries:
    """An engine that reads CDI specifications: the machine's if it does, else one fetched.

    Raises:
        GroundError: the machine's is too old and this is not Debian, or the fetch failed.
    """
    machine = machine_binaries()
    if machine.has_cdi:
        return machine
    folder = fetch_current_engine()
    path = f"{folder}/bin:{folder}/usr/sbin:{folder}/usr/bin:{SYSTEM_PATH}"
    dockerd = f"{folder}/usr/sbin/dockerd"
    return Binaries(
        dockerd=dockerd,
        containerd=f"{folder}/usr/bin/containerd",
        runc=f"{folder}/bin/runc",
        path=path,
        version=_version(dockerd),
    )


def fetch_current_engine() -> Path:
    """Fetch the engine of :data:`CURRENT_SUITE` into the cache, once; returns its folder.

    Uses the machine's own mirror and keyring under an apt configuration of its own, so the
    machine's package state is not touched.

    Raises:
        GroundError: not Debian, or apt could not fetch it.
    """
    target = cache_dir() / f"engine-{CURRENT_SUITE}"
    with cache_lock(target.name):
        if (target / "complete").exists():
            return target
        release = os_release()
        if release.get("ID") != "debian":
            raise GroundError(
                "the machine's engine is older than 25 and reads no CDI specifications, and a "
                f"current one is fetched only on Debian (this is {release.get('ID', 'unknown')}). "
                "Install a newer docker.io"
            )
        shutil.rmtree(target, ignore_errors=True)
        work = target / "apt"
        apt = _private_apt(work)
        run([*apt, "update"])
        debs = work / "debs"
        debs.mkdir()
        packages = [f"{name}/{CURRENT_SUITE}" for name in ("docker.io", "containerd")]
        run([*apt, "download", *packages], folder=debs)
        for deb in sorted(debs.glob("*.deb")):
            run([require_command("dpkg", "dpkg"), "-x", deb, target])
        shutil.rmtree(work)
        (target / "bin").mkdir()
        # The suite's own runc needs a newer libc than the machine's: the machine's is used.
        (target / "bin" / "runc").symlink_to(require_command("runc", "runc"))
        (target / "complete").touch()
    return target


def _private_apt(work: Path) -> list[str]:
    source = distribution_source()
    for folder in ("parts", "lists/partial", "cache/archives/partial"):
        (work / folder).mkdir(parents=True)
    lines = [
        "Types: deb",
        f"URIs: {source.uri}",
        f"Suites: {CURRENT_SUITE}",
        "Components: main",
    ]
    if source.signed_by:
        lines.append(f"Signed-By: {source.signed_by}")
    if source.trusted:
        lines.append("Trusted: yes")
    (work / "parts" / "current.sources").write_text("\n".join(lines) + "\n")
    options = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": f"{work}/parts",
        "Dir::State::lists": f"{work}/lists",
        "Dir::Cache": f"{work}/cache",
        # The download folder may be closed to apt's own user.
        "APT::Sandbox::User": "root",
        "Acquire::Retries": "3",
    }
    flags = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    return [require_command("apt-get", "apt"), *flags]


def _version(dockerd: str) -> str:
    printed = run([dockerd, "--version"])
    match = re.search(r"version (\d+\.\d+\.\d+)", printed)
    if not match:
        raise GroundError(f"{dockerd} --version printed no version: {printed!r}")
    return match[1]
