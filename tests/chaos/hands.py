"""Strange hands: outsiders that take cards, and whatever ``docker`` allows with any container."""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path
from typing import Any

from ground.engine import Engine

from .crowd import SERVERS
from .noise import Doing
from .wire import Refused, Silent, Wire

_LABEL = "chaos.outsider"


class Hands:
    """Deeds on containers.

    Args:
        names: that the hubs may want for their containers.
    """

    def __init__(self, engine: Engine, image: str, wire: Wire, doing: Doing, users: int) -> None:
        self._engine, self._image = engine, image
        self._wire, self._doing = wire, doing
        self._users = users

    # -- outsiders ----------------------------------------------------------------------------

    def outsider(self, dice: random.Random) -> None:
        """One who creates a container on a card or two, mostly starts it, and goes again."""
        cards = sorted(dice.sample(self._engine.uuids, dice.choice((1, 1, 1, 2))))
        wait, stay = dice.choice((0.0, dice.uniform(0, 3))), dice.uniform(1, 8)
        starts = dice.random() < 0.8
        body = {
            "Image": self._image,
            "Cmd": ["sleep", "3600"],
            "Labels": {_LABEL: "1"},
            "HostConfig": {"DeviceRequests": [self._request(dice, cards)]},
        }
        try:
            identity = str(self._wire.ask("POST", "/containers/create", body=body)["Id"])
        except (Silent, Refused):
            return
        self._doing.oracle.outsider_created(identity, time.time())
        self._doing.tell("outsiders", identity[:12], cards)
        self._doing.pause(wait)
        if starts and not self._order("POST", f"/containers/{identity}/start"):
            self._doing.oracle.outsider_failed(identity)
        self._doing.pause(stay)
        self._order("DELETE", f"/containers/{identity}", force=1)

    def _request(self, dice: random.Random, cards: list[str]) -> dict[str, Any]:
        if self._engine.has_cdi and dice.random() < 0.5:
            return {"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={card}" for card in cards]}
        return {"Driver": "nvidia", "DeviceIDs": cards, "Capabilities": [["gpu"]]}

    # -- hands on any container ---------------------------------------------------------------

    def remove(self, dice: random.Random) -> None:
        self._on_one(dice, "DELETE", "", "rm -f", force=1)

    def stop(self, dice: random.Random) -> None:
        self._on_one(dice, "POST", "/stop", "stop", t=1)

    def kill(self, dice: random.Random) -> None:
        self._on_one(dice, "POST", "/kill", "kill")

    def restart(self, dice: random.Random) -> None:
        self._on_one(dice, "POST", "/restart", "restart", starts=True, t=1)

    def pause(self, dice: random.Random) -> None:
        chosen = self._on_one(dice, "POST", "/pause", "pause")
        self._doing.pause(dice.uniform(0.2, 3))
        if chosen:
            self._unpause(chosen)

    def update(self, dice: random.Random) -> None:
        """Other limits, and sometimes a restart policy."""
        policy = dice.choice(("no", "no", "on-failure", "always"))
        body = {"CpuShares": dice.choice((256, 512)), "RestartPolicy": {"Name": policy}}
        self._on_one(dice, "POST", "/update", "update", starts=policy != "no", body=body)

    def rename(self, dice: random.Random) -> None:
        """Another name, which may be one that a hub wants for a container of its own."""
        server = dice.choice(SERVERS)
        user = f"jupyter-user{dice.randrange(self._users)}{f'--{server}' if server else ''}"
        name = dice.choice((user, f"stranger-{dice.randrange(10**9)}"))
        self._on_one(dice, "POST", "/rename", "rename", name=name)

    def undo(self) -> dict[tuple[str, str], str]:
        """End what outsiders and pauses left when the engine was away; what there was."""
        left: dict[tuple[str, str], str] = {}
        for row in self._wire.containers():
            identity = str(row["Id"])
            if _LABEL in row["Labels"]:
                left["outsider stays", identity] = f"{identity[:12]} is {row['State']}"
                self._order("DELETE", f"/containers/{identity}", force=1)
            elif row["State"] == "paused":
                left["pause stays", identity] = f"{identity[:12]} is paused"
                self._unpause(identity)
        return left

    def _unpause(self, identity: str) -> None:
        done = self._order("POST", f"/containers/{identity}/unpause", timeout_seconds=10)
        if not done and exec_hangs(identity):
            self._doing.oracle.count("containers frozen with an exec inside")
            set_frozen(identity, frozen=False)

    def _on_one(
        self, dice: random.Random, method: str, path: str, what: str, *, starts: bool = False,
        **query: Any,
    ) -> str:  # fmt: skip
        """One order on a container chosen at random; its id, empty where there was none."""
        try:
            rows = self._wire.containers()
        except (Silent, Refused):
            return ""
        if not rows:
            return ""
        row = dice.choice(sorted(rows, key=lambda row: str(row["Id"])))
        identity = str(row["Id"])
        if starts:
            self._doing.oracle.may_be_started_by_hand(identity)
        cards = [c for c in row["Labels"].get("gpuspawner.devices", "").split(",") if c]
        self._doing.tell(f"docker {what}", f"of {identity[:12]}", cards)
        self._order(method, f"/containers/{identity}{path}", **query)
        return identity

    def _order(self, method: str, target: str, **query: Any) -> bool:
        """True if it was carried out."""
        try:
            self._wire.ask(method, target, **query)
            return True
        except (Silent, Refused) as error:
            # Gone meanwhile, in the wrong state for it, or the engine is away.
            self._doing.oracle.count(f"orders not carried out ({type(error).__name__})")
            return False


def exec_hangs(identity: str) -> bool:
    """True if an exec is caught in a frozen container.

    Docker refuses an exec in a paused container; but one that has just begun is frozen with it,
    and containerd 1.6 then carries out nothing more for that container, the end of the pause
    neither.
    """
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_text().split("\0")
            if Path(words[0]).name == "runc" and "exec" in words and identity in words:
                return True
    return False


def set_frozen(identity: str, *, frozen: bool) -> None:
    """Freeze or thaw a container's processes behind the engine's back, as an admin would."""
    for folder in Path("/sys/fs/cgroup").rglob(f"*{identity}*"):
        for name, text in (
            ("freezer.state", "FROZEN" if frozen else "THAWED"),
            ("cgroup.freeze", str(int(frozen))),
        ):
            if (folder / name).exists():
                (folder / name).write_text(text)
