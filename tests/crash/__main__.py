"""``python -m crash``: kill the hub before every line of spawn and stop, or some of them."""

from __future__ import annotations

import argparse
import time

from .trial import Broken, Trials


def main() -> int:
    parser = argparse.ArgumentParser(prog="crash", description=__doc__)
    parser.add_argument(
        "--again", action="store_true", help="lines that were executed before, too (in loops)"
    )
    parser.add_argument("--every", type=int, default=1, help="of these lines, every N-th")
    parser.add_argument("--skip", type=int, default=0, help="begin with the N-th")
    told = parser.parse_args()
    begun, tried, broken = time.monotonic(), 0, 0
    with Trials() as trials:
        count, first = trials.lines()
        wanted = (list(range(1, count + 1)) if told.again else first)[told.skip :: told.every]
        print(f"{count} lines, {len(first)} of them different; {len(wanted)} to try", flush=True)
        for line in wanted:
            try:
                tried += trials.try_line(line)
            except Broken as error:
                broken += 1
                print(error, flush=True)
            if tried % 100 == 0:
                print(f"{tried} kills, {time.monotonic() - begun:.0f} s", flush=True)
    print(f"{tried} kills, {broken} times a law was broken, {time.monotonic() - begun:.0f} s")
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
