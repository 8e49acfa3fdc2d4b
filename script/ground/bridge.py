"""A network bridge of an engine's own, on a subnet that nothing else on the machine uses.

The engine itself is told to leave the firewall alone: at its start a dockerd empties the chains
that all engines of a machine share. The few rules that containers need to reach the outside are
made here, each marked with the bridge's name, and taken away with it.
"""

from __future__ import annotations

import ipaddress
import json
import shlex
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from .machine import GroundError, find_command, require_command, run

PREFIX = "gpus"
_SLOTS = 32
_IP_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


@dataclass(frozen=True)
class Bridge:
    """One bridge: its name, its own address (the containers' gateway) and its subnet."""

    name: str
    gateway: str
    subnet: str


def create_bridge(reserved: Collection[str] = ()) -> Bridge:
    """Make a bridge on a free subnet, under a name that is not ``reserved``.

    Raises:
        GroundError: every slot is taken, or the kernel refuses (not root, no such module).
    """
    ip = require_command("ip", "iproute2")
    taken = _taken(ip)
    for slot in range(_SLOTS):
        name = f"{PREFIX}{slot}"
        network = ipaddress.ip_network(f"10.{220 + slot}.0.0/16")
        if name in reserved or _exists(name) or any(map(network.overlaps, taken)):
            continue
        try:
            run([ip, "link", "add", name, "type", "bridge"])
        except GroundError:
            # Another run took the name between the look and the call; the name is the lock.
            if _exists(name):
                continue
            raise
        bridge = Bridge(name, f"10.{220 + slot}.0.1", str(network))
        try:
            run([ip, "address", "add", f"{bridge.gateway}/16", "dev", name])
            run([ip, "link", "set", name, "up"])
            _open_firewall(bridge)
        except GroundError:
            remove_bridge(name)
            raise
        return bridge
    raise GroundError(f"all {_SLOTS} subnets for test bridges (10.220.0.0/16 and up) are in use")


def remove_bridge(name: str) -> None:
    """Take away a bridge and its firewall rules; nothing happens if they are gone."""
    iptables = find_command("iptables")
    for table in ("nat", "filter") if iptables else ():
        for rule in run([str(iptables), "-w", "-t", table, "-S"]).splitlines():
            words = shlex.split(rule)
            if _mark(name) in words and words[0] == "-A":
                run([str(iptables), "-w", "-t", table, "-D", *words[1:]])
    if _exists(name):
        run([require_command("ip", "iproute2"), "link", "delete", name])


def _open_firewall(bridge: Bridge) -> None:
    iptables = require_command("iptables", "iptables")
    mark = ["-m", "comment", "--comment", _mark(bridge.name)]
    rules = [
        ("nat", "POSTROUTING", ["-s", bridge.subnet, "!", "-o", bridge.name], "MASQUERADE"),
        ("filter", "FORWARD", ["-i", bridge.name], "ACCEPT"),
        ("filter", "FORWARD", ["-o", bridge.name], "ACCEPT"),
        # The hub listens on the gateway's address.
        ("filter", "INPUT", ["-i", bridge.name], "ACCEPT"),
    ]
    for table, chain, match, target in rules:
        run([iptables, "-w", "-t", table, "-I", chain, *match, *mark, "-j", target])
    if _IP_FORWARD.read_text().strip() != "1":
        _IP_FORWARD.write_text("1")


def _mark(name: str) -> str:
    return f"gpuspawner-{name}"


def _exists(name: str) -> bool:
    return Path("/sys/class/net", name).exists()


def _taken(ip: str) -> list[ipaddress.IPv4Network]:
    routes = json.loads(run([ip, "-json", "-4", "route", "show"]) or "[]")
    return [
        ipaddress.IPv4Network(route["dst"], strict=False)
        for route in routes
        if route.get("dst") not in (None, "default")
    ]
