"""How long choosing cards takes on the event loop, linked requests beside plain ones.

Usage: ``python benchmarks/bench_placement.py [rounds]``. Every machine has 16 free cards (and one
has 32), the most for which every set is looked at. Plain and linked take turns; printed are
medians in milliseconds of processor time, and how many plain placements a linked one is worth. The
worst machine is one on which no two pairs are alike. Exits with status 1 if a linked placement
takes 50 ms.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from itertools import combinations

from gpuspawner.bookings import parse_bookings, parse_reserved
from gpuspawner.keeping import keep_cards, pick
from gpuspawner.placement import place
from gpuspawner.request import Card, Request
from gpuspawner.topology import Joint, Tier, Topology

TARGET_MS = 50.0
NVLINK = Joint(Tier.NVLINK, 12)


def cards(count: int) -> list[Card]:
    return [Card(f"GPU-{n}", n, "NVIDIA H200", 143_771, order=n * 7 % count) for n in range(count)]


def machine(count: int, island: int, between: Joint) -> Topology:
    """Islands of linked cards."""
    return Topology(
        {
            frozenset((f"GPU-{a}", f"GPU-{b}")): NVLINK if a // island == b // island else between
            for a, b in combinations(range(count), 2)
        }
    )


def tangle(count: int) -> Topology:
    """Every pair joined in a way of its own."""
    dice = random.Random(1)
    joints = [Joint(Tier.SWITCH), *(Joint(Tier.NVLINK, n) for n in range(1, 19))]
    return Topology(
        {
            frozenset((f"GPU-{a}", f"GPU-{b}")): dice.choice(joints)
            for a, b in combinations(range(count), 2)
        }
    )


MACHINES = {
    "16, fully linked": (16, machine(16, 16, Joint())),
    "16, two islands": (16, machine(16, 8, Joint(Tier.NUMA))),
    "16, no pair alike": (16, tangle(16)),
    "32, four islands": (32, machine(32, 8, Joint())),
}


def took_ms(request: Request, among: Sequence[Card], topology: Topology) -> float:
    begun = time.thread_time()
    place(request, among, topology)
    return 1000 * (time.thread_time() - begun)


def kept_ms(rounds: int) -> float:
    """What it costs to see what is kept for whom, with several bookings, for one user."""
    among = cards(16)
    booked = {"cards": 4, "days": ["mon", "wed", "fri"], "from": "10:00", "to": "12:00"}
    keeps = (
        *parse_reserved({"research": ["*H200*"], "theses": 2}),
        *parse_bookings([{**booked, "group": f"class-{n}"} for n in range(4)]),
    )
    picked = pick(keeps, among)
    now = datetime(2030, 1, 1, 9, tzinfo=timezone.utc)
    times = []
    for _ in range(rounds):
        begun = time.thread_time()
        keep_cards(among, picked, groups=frozenset({"class-0"}), max_seconds=7200, now=now)
        times.append(1000 * (time.thread_time() - begun))
    return statistics.median(times)


def main(rounds: int) -> int:
    most = 0.0
    print(f"{'machine':20} {'count':>5} {'plain':>9} {'linked':>9} {'max':>9} {'ratio':>7}")
    for name, (size, topology) in MACHINES.items():
        among = cards(size)
        for count in (2, 4, 8, 12, 16):
            plain, linked = [], []
            for _ in range(rounds):
                plain.append(took_ms(Request(count), among, topology))
                linked.append(took_ms(Request(count, linked="prefer"), among, topology))
            ours, base = statistics.median(linked), statistics.median(plain)
            most = max(most, *linked)
            print(
                f"{name:20} {count:5} {base:6.2f} ms {ours:6.2f} ms {max(linked):6.2f} ms "
                f"{ours / base:7.1f}"
            )
    print(f"what is kept for whom, six entries: {kept_ms(rounds):.2f} ms")
    print(f"longest: {most:.1f} ms; target {TARGET_MS:.0f} ms")
    return int(most >= TARGET_MS)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 50))
