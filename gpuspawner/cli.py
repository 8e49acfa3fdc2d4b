"""The commands ``gpuspawner devices`` and ``gpuspawner leases``.

They read the same ``jupyterhub_config.py`` as the hub, ask engine and driver as the hub would, and
change nothing. The hub need not run.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from traitlets import Bool, TraitError, Unicode
from traitlets.config import Application, Config
from traitlets.config.loader import ArgumentError

from . import __version__
from .cli_config import load_config, open_pool
from .cli_report import devices_report, leases_report
from .cli_tables import devices_table, leases_table
from .errors import ConfigError, EngineUnknown, GPUSpawnerError, ProbeError
from .view import View

DEFAULT_CONFIG = "jupyterhub_config.py"


class Command(Application):
    """What both commands share: the configuration, one look, errors in words."""

    version = __version__
    config_file = Unicode(
        "",
        help=f"The hub's configuration. Default: {DEFAULT_CONFIG} in this folder, if it is there.",
    ).tag(config=True)
    json = Bool(False, help="Write JSON instead of a table.").tag(config=True)

    aliases = {"f": "Command.config_file", "config": "Command.config_file"}  # noqa: RUF012
    flags = {"json": ({"Command": {"json": True}}, "Write JSON instead of a table.")}  # noqa: RUF012

    def run(self, words: list[str]) -> None:
        """Read the command line, look once, print; exit with status 1 if that can't be done."""
        # Also an error about another word is to come as JSON if that was asked for.
        self.json = "--json" in words
        try:
            self._parse(words)
            if self.extra_args:
                raise ConfigError(f"what is {self.extra_args[0]!r}? Try '{self.name} --help'")
            config, folder = self._load()
            asyncio.run(self._look(config, folder))
        except GPUSpawnerError as error:
            self.fail(error)
        except (ArgumentError, TraitError) as error:
            self.fail(ConfigError(f"{error}. Try '{self.name} --help'"))

    def _parse(self, words: list[str]) -> None:
        complaint = io.StringIO()
        try:
            with contextlib.redirect_stderr(complaint):
                self.parse_command_line(words)
        except SystemExit as end:
            if not end.code:
                raise  # --help
            error = complaint.getvalue().strip().rpartition("error: ")[2]
            error = error.replace(f"--{type(self).__name__}.config_file", "-f")
            raise ConfigError(f"{error}. Try '{self.name} --help'") from None

    def _load(self) -> tuple[Config, Path]:
        path = Path(self.config_file or DEFAULT_CONFIG)
        if not self.config_file and not path.exists():
            return Config(), Path.cwd()
        # What the file prints must not get between the braces.
        with contextlib.redirect_stdout(sys.stderr):
            return load_config(path), path.resolve().parent

    async def _look(self, config: Config, folder: Path) -> None:
        pool = open_pool(config, folder, _quiet_log())
        try:
            view = await pool.view(probe_age_seconds=0)
        finally:
            pool.engine.close()
        report = self.report(view, pool.hub_id)
        if self.json:
            print(json.dumps(report, indent=2))
        else:
            self.table(report)

    def report(self, view: View, hub_id: str) -> dict[str, Any]:
        """What was seen, JSON-ready."""
        raise NotImplementedError

    def table(self, report: dict[str, Any]) -> None:
        """Print a report for people."""
        raise NotImplementedError

    def fail(self, error: GPUSpawnerError) -> NoReturn:
        """Print an error as the reader wants it, and exit with status 1."""
        if self.json:
            print(json.dumps({"error": {"kind": _kind(error), "message": str(error)}}))
        else:
            print(f"{self.name}: {error}", file=sys.stderr)
        sys.exit(1)


def _kind(error: GPUSpawnerError) -> str:
    if isinstance(error, EngineUnknown):
        return "engine"
    return f"driver: {error.kind}" if isinstance(error, ProbeError) else "config"


def _quiet_log() -> logging.Logger:
    # What went wrong is printed once, as the command's own answer.
    log = logging.getLogger("gpuspawner.cli")
    log.addHandler(logging.NullHandler())
    log.propagate = False
    return log


class DevicesCommand(Command):
    """Show the GPUs, their health and who holds them."""

    name = "gpuspawner devices"
    description = __doc__
    examples = "gpuspawner devices -f /srv/jupyterhub/jupyterhub_config.py --json"

    def report(self, view: View, hub_id: str) -> dict[str, Any]:
        return devices_report(view, hub_id)

    def table(self, report: dict[str, Any]) -> None:
        devices_table(report)


class LeasesCommand(Command):
    """Show every container that holds a GPU: this hub's, another's, or anybody's."""

    name = "gpuspawner leases"
    description = __doc__
    examples = "gpuspawner leases -f /srv/jupyterhub/jupyterhub_config.py --json"

    def report(self, view: View, hub_id: str) -> dict[str, Any]:
        return leases_report(view, hub_id)

    def table(self, report: dict[str, Any]) -> None:
        leases_table(report)


COMMANDS: dict[str, type[Command]] = {"devices": DevicesCommand, "leases": LeasesCommand}


def main(argv: Sequence[str] | None = None) -> None:
    """The command line: ``gpuspawner devices`` or ``gpuspawner leases``."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in COMMANDS:
        command = COMMANDS[words[0]]()
        command.run(words[1:])
        return
    if words and words[0] in ("--version", "-V"):
        print(__version__)
        return
    lines = [f"  gpuspawner {name:8} {cls.__doc__}" for name, cls in COMMANDS.items()]
    usage = "\n".join(["Usage:", *lines, "", "Each takes -f jupyterhub_config.py, --json, --help."])
    if words and words[0] in ("--help", "-h", "help"):
        print(usage)
        return
    wrong = f"gpuspawner: there is no command {words[0]!r}\n" if words else ""
    print(f"{wrong}{usage}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
