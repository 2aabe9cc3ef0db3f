"""The whole run, with its tables: kill every command at many points, fail each kind of call, fill the disk.

    python -m tests.crash                                    300 kills a command, 100 power cuts, every fault at 8 calls
    python -m tests.crash --command convert --points 40 --cuts 0 --faults 2 --json

The exit code is 1 where something was lost, half-written or left behind.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.crash.faults import FAULTS, fail_everywhere
from tests.crash.killing import FAILED, Outcome, kill_again, kill_everywhere
from tests.crash.points import HOWS
from tests.crash.power import cut_power
from tests.crash.ptrace import why_not
from tests.crash.scenes import COMMANDS, Command, InPlace
from tests.crash.small_disk import file_system, fill_disk, limit_files

SEED = 20261130


def outcomes_of(command: Command, points: int, cuts: int, faults: int, seed: int) -> Iterator[Outcome]:
    """Everything that is done to one command."""
    with tempfile.TemporaryDirectory(prefix="crash-") as place:
        root = Path(place).resolve()
        (root / "disk").mkdir()
        scene = command.at(root / "disk")
        if points:
            yield from kill_everywhere(scene, points, seed)
        if points and isinstance(scene, InPlace):
            yield from kill_again(scene, max(points // 3, 4), seed)
        if cuts and command.synced:
            yield from cut_power(scene, cuts, seed)
        if faults:
            yield from fail_everywhere(scene, faults, seed)
            yield from limit_files(scene, 2 * faults)
            with file_system(root / "small") as why:
                if why:
                    yield Outcome(command.name, "a small disk", why, "left out")
                else:
                    small = command.at(root / "small")
                    yield from fill_disk(small, 2 * faults)
                    small.close()
        scene.close()


def table(rows: Sequence[str], columns: Sequence[str], counts: Counter[tuple[str, str]], corner: str) -> str:
    """Counts as a Markdown table, nothing for none."""
    lines = [f"| {corner} | {' | '.join(columns)} |", f"|---|{'--:|' * len(columns)}"]
    lines += [f"| {row} | {' | '.join(str(counts[row, column] or '') for column in columns)} |" for row in rows]
    return "\n".join(lines)


def report(outcomes: Sequence[Outcome]) -> str:
    """Both tables: what became of kills, and of faults."""
    kills = Counter((f"{o.command} | {o.how}", o.outcome) for o in outcomes if o.how in HOWS)
    faults = Counter((f"{o.command} | {o.how}", o.outcome) for o in outcomes if o.how not in HOWS)
    parts = []
    for counts, corner in ((kills, "command | killed"), (faults, "command | fault")):
        if not counts:
            continue
        rows = list(dict.fromkeys(row for row, _ in counts))
        columns = sorted({column for _, column in counts}, key=lambda column: (column == FAILED, column))
        parts.append(table(rows, columns if FAILED in columns else [*columns, FAILED], counts, corner))
    return "\n\n".join(part.replace("|---|", "|---|---|", 1) for part in parts)


def main() -> int:
    """Run what is asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [command.name for command in COMMANDS]
    parser.add_argument("--command", action="append", choices=names, help="only this one; may be given again")
    parser.add_argument("--points", type=int, default=300, help="kills a command")
    parser.add_argument("--cuts", type=int, default=100, help="power cuts a command that syncs")
    parser.add_argument("--faults", type=int, default=8, help="calls at which each fault is planted")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--json", action="store_true", help="every outcome, as JSON")
    given = parser.parse_args()
    if reason := why_not():
        sys.exit(reason)
    outcomes: list[Outcome] = []
    for command in COMMANDS:
        if given.command and command.name not in given.command:
            continue
        began = time.perf_counter()
        outcomes += outcomes_of(command, given.points, given.cuts, given.faults, given.seed)
        sys.stderr.write(f"{command.name}: {time.perf_counter() - began:.0f} s\n")
    lost = [outcome for outcome in outcomes if outcome.outcome == FAILED]
    if given.json:
        sys.stdout.write(json.dumps([asdict(outcome) for outcome in outcomes]) + "\n")
    else:
        sys.stdout.write(f"Seed {given.seed}, {len(FAULTS)} kinds of faults, {len(outcomes)} runs.\n\n")
        sys.stdout.write(report(outcomes) + "\n")
        for outcome in lost:
            sys.stdout.write(f"{FAILED}: {outcome.command}, {outcome.how}, {outcome.where}: {outcome.said}\n")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
