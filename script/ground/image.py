"""Container images built without any registry, kept as tar files in the cache.

A base from the machine's own package mirror by debootstrap, a tiny server on it for tests of
starts and stops, and a real notebook server. The files do not depend on an engine: each engine
loads them with one import.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import docker

from .machine import (
    GroundError,
    cache_dir,
    cache_lock,
    distribution_source,
    os_release,
    require_command,
    run,
)

TINY = "gpuspawner-tiny:latest"
#: The same with ``NVIDIA_VISIBLE_DEVICES=all`` baked in, as CUDA images have it.
TINY_ALL = "gpuspawner-tiny:all"
NOTEBOOK = "gpuspawner-notebook:latest"

_UID, _GID = 1000, 100
_HOME = "/home/jovyan"
_ACCOUNT = f"jovyan:x:{_UID}:{_GID}:jovyan:{_HOME}:/bin/bash\n"
_TINY_SERVER = Path(__file__).with_name("tiny_server.py")
_CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
_NOTEBOOK_PACKAGES = ("jupyterhub>=5.3", "jupyterlab>=4")
_UNNEEDED = (
    *("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info"),
    *("var/lib/apt/lists", "var/cache/apt", "var/log"),
)
#: What a tiny server does not need either; it is loaded into every engine.
_UNNEEDED_IN_TINY = ("usr/share/perl", "usr/lib/*/perl-base", "usr/share/zoneinfo")
_RECIPE_LABEL = "gpuspawner-ground.recipe"
_RECIPE = 1  # raise it when the way the images are made changes


def load_tiny(client: docker.APIClient) -> str:
    """Load the tiny image, both tags, into an engine; returns its name."""
    tar = build_tiny()
    if not _has(client, TINY, tar.stem):
        _import(client, tar, TINY, ['CMD ["python3", "-I", "/srv/tiny_server.py"]'])
        _tag_with_env(client, TINY, TINY_ALL, {"NVIDIA_VISIBLE_DEVICES": "all"})
    return TINY


def load_notebook(client: docker.APIClient) -> str:
    """Load the notebook image into an engine; returns its name."""
    tar = build_notebook()
    if not _has(client, NOTEBOOK, tar.stem):
        changes = [
            "ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin",
            f"USER {_UID}:{_GID}",
            'CMD ["jupyterhub-singleuser"]',
        ]
        _import(client, tar, NOTEBOOK, changes)
    return NOTEBOOK


def build_base() -> Path:
    """A minimal system with Python, as a tar file in the cache."""
    source, release = distribution_source(), os_release()
    codename = release["VERSION_CODENAME"]
    components = [c for c in ("main", "universe") if c in source.components]
    with _cached("base", codename, source.uri, *components) as (target, tree):
        if tree is not None:
            command = [require_command("debootstrap", "debootstrap"), "--variant=minbase"]
            command += [f"--components={','.join(components)}", "--include=python3,python3-venv"]
            if source.signed_by:
                command.append(f"--keyring={source.signed_by}")
            run([*command, codename, tree, source.uri], timeout_seconds=1800)
            for path in _UNNEEDED:
                shutil.rmtree(tree / path, ignore_errors=True)
            (tree / "var/lib/apt/lists/partial").mkdir(parents=True)
            _add_user(tree)
    return target


def build_tiny() -> Path:
    """The base with the tiny server, as a tar file in the cache."""
    base = build_base()
    with _cached("tiny", base.name, _TINY_SERVER.read_text()) as (target, tree):
        if tree is not None:
            run(["tar", "-C", tree, "-xf", base])
            shutil.copy(_TINY_SERVER, tree / "srv" / _TINY_SERVER.name)
            for pattern in _UNNEEDED_IN_TINY:
                for path in tree.glob(pattern):
                    shutil.rmtree(path)
    return target


def build_notebook() -> Path:
    """The base with JupyterLab and the hub's single-user server in ``/opt/venv``, in the cache."""
    base = build_base()
    with _cached("notebook", base.name, *_NOTEBOOK_PACKAGES) as (target, tree):
        if tree is not None:
            run(["tar", "-C", tree, "-xf", base])
            with _network_of_this_machine(tree) as env:
                inside = ("chroot", str(tree))
                run([*inside, "python3", "-m", "venv", "/opt/venv"], env=env)
                pip = (*inside, "/opt/venv/bin/pip", "--no-cache-dir", "install")
                run([*pip, *_NOTEBOOK_PACKAGES], env=env, timeout_seconds=1800)
    return target


@contextlib.contextmanager
def _cached(name: str, *recipe: str) -> Iterator[tuple[Path, Path | None]]:
    """Yield the tar file and, if it has to be made, a folder to fill with its content."""
    key = hashlib.sha256(repr((_RECIPE, name, recipe)).encode()).hexdigest()[:12]
    target = cache_dir() / f"{name}-{key}.tar"
    with cache_lock(f"image-{name}"):
        if target.exists():
            yield target, None
            return
        if os.geteuid() != 0:
            raise GroundError(f"building the {name} image needs root; run script/bootstrap as root")
        for stale in cache_dir().glob(f"{name}-*.tar"):
            stale.unlink()
        tree = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=cache_dir()))
        tree.chmod(0o755)
        try:
            yield target, tree
            made = target.with_suffix(".new")
            run(["tar", "-C", tree, "--numeric-owner", "-cf", made, "."])
            made.rename(target)
        finally:
            shutil.rmtree(tree)


def _add_user(tree: Path) -> None:
    passwd = tree / "etc/passwd"
    passwd.write_text(passwd.read_text() + _ACCOUNT)
    home = tree / _HOME.lstrip("/")
    home.mkdir(parents=True, exist_ok=True)
    os.chown(home, _UID, _GID)


@contextlib.contextmanager
def _network_of_this_machine(tree: Path) -> Iterator[Mapping[str, str]]:
    """Let pip inside ``tree`` reach what it reaches outside: names, certificates, index."""
    resolv, bundle = tree / "etc/resolv.conf", tree / "tmp/ca-certificates.crt"
    shutil.copy("/etc/resolv.conf", resolv)
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}
    passed = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT")
    proxies = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
    env |= {key: os.environ[key] for key in (*passed, *proxies) if key in os.environ}
    env["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    trusted = Path(os.environ.get("PIP_CERT", _CA_BUNDLE))
    if trusted.exists():
        shutil.copy(trusted, bundle)
        env["PIP_CERT"] = "/tmp/ca-certificates.crt"
    try:
        yield env
    finally:
        bundle.unlink(missing_ok=True)
        resolv.unlink()


def _has(client: docker.APIClient, name: str, recipe: str) -> bool:
    """True if the engine has the image, made by this very recipe."""
    try:
        labels = client.inspect_image(name)["Config"]["Labels"] or {}
    except docker.errors.ImageNotFound:
        return False
    return bool(labels.get(_RECIPE_LABEL) == recipe)


def _import(client: docker.APIClient, tar: Path, name: str, changes: list[str]) -> None:
    repository, _, tag = name.partition(":")
    common = ["ENV LANG=C.UTF-8", f"ENV HOME={_HOME}", f"WORKDIR {_HOME}"]
    changes = [*common, f"LABEL {_RECIPE_LABEL}={tar.stem}", *changes]
    client.import_image_from_file(str(tar), repository=repository, tag=tag, changes=changes)
    if not _has(client, name, tar.stem):
        raise GroundError(f"the engine took {tar} without making image {name}")


def _tag_with_env(client: docker.APIClient, base: str, name: str, env: Mapping[str, str]) -> None:
    repository, _, tag = name.partition(":")
    container = client.create_container(base)["Id"]
    try:
        changes = [f"ENV {key}={value}" for key, value in env.items()]
        client.commit(container, repository, tag, changes=changes)
    finally:
        client.remove_container(container)
