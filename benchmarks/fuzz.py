"""Play random episodes of the scheduler and report: `python benchmarks/fuzz.py --episodes 100000`.

Each episode is a small server with a life full of bad luck (`tests/engine/episodes.py`): tiny pools, forks, aborts,
interrupted steps, priorities, swapping. After every step all invariants are checked, and at the end every output is
compared with that of the request alone. An episode that fails is named; `--first NUMBER --episodes 1` plays it again.
"""

import argparse
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.engine.episodes import play  # noqa: E402

AT_ONCE = 250  # episodes a process plays before it reports


def play_some(numbers: range) -> tuple[Counter, list[str]]:
    """What happened how often, and the tracebacks of episodes that failed."""
    happened, failures = Counter(), []
    for number in numbers:
        try:
            happened += play(number)
        except Exception:
            failures.append(f"episode {number}:\n{traceback.format_exc()}")
    return happened, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000, help="how many to play (10000)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one (0)")
    parser.add_argument("--processes", type=int, default=1, help="how many processes play at a time (1)")
    args = parser.parse_args()

    last = args.first + args.episodes
    portions = [range(start, min(start + AT_ONCE, last)) for start in range(args.first, last, AT_ONCE)]
    started, done, happened, failures = time.perf_counter(), 0, Counter(), []
    with ProcessPoolExecutor(args.processes) as pool:
        for portion, (counts, failed) in zip(portions, pool.map(play_some, portions), strict=True):
            done += len(portion)
            happened += counts
            failures += failed
            seconds = time.perf_counter() - started
            line = f"{done:,} of {args.episodes:,} episodes, {seconds:.0f} s, {len(failures)} failed"
            print(f"\r{line}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)

    print(f"{args.episodes:,} episodes, numbers {args.first} to {last - 1}, in {time.perf_counter() - started:.0f} s")
    for event, count in happened.items():
        if event != "episodes":
            print(f"{event:<16}{count:>12,}")
    print(f"{'failed':<16}{len(failures):>12,}")
    for failure in failures[:3]:
        print(f"\n{failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
