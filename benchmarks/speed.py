"""How fast a conversion is, as ratios to ``cp -r`` and to load-and-save loops; the figures of one run.

Makes checkpoints in a folder of your choice and removes them after. Every figure is of fresh processes; what is
compared runs in rounds, each contender once a round in an order that turns, and a ratio is the median over the rounds
of that round's ratio. The source is in the page cache throughout, as after a download, unless caches are dropped.

    python benchmarks/speed.py --dir /somewhere                                   # 4 GB, needs 9 GB free
    python benchmarks/speed.py --dir /somewhere --layers 2 --rounds 3 --equal-mb 200 --without-rivals
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from shapes import eight_billion, make, of_bytes

ROPETOOL = [sys.executable, "-m", "ropetool"]
RIVALS = [sys.executable, str(Path(__file__).with_name("rivals.py"))]
MB = 1_000_000
# Bytecode is written and used, as after an installation.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@dataclass(frozen=True)
class Run:
    """One process: seconds by the clock and of the processors, its peak of resident memory."""

    seconds: float
    processor_seconds: float
    peak_bytes: int


def run(command: Sequence[object]) -> Run:
    """Run a command to its end; whoever fails ends the benchmark."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [str(word) for word in command], env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {process.stderr.read().decode()[-2000:]}")
    process.stderr.close()
    kib = usage.ru_maxrss if sys.platform == "linux" else usage.ru_maxrss // 1024
    return Run(seconds, usage.ru_utime + usage.ru_stime, kib * 1024)


@dataclass
class Contender:
    """What is run once a round: a command from a source to a destination, or on a copy that it changes in place."""

    name: str
    command: Callable[[Path, Path], Sequence[object]]
    in_place: bool = False
    rounds: int | None = None
    runs: dict[int, Run] = field(default_factory=dict)


def converting(*options: str) -> Callable[[Path, Path], Sequence[object]]:
    """Convert from a directory to another."""
    return lambda source, target: [*ROPETOOL, "convert", source, target, "--to", "interleaved", "--quiet", *options]


def in_place(*options: str) -> Callable[[Path, Path], Sequence[object]]:
    """Convert the copy that is made before, and is on disk."""
    return lambda source, copy: [*ROPETOOL, "convert", copy, "--in-place", "--to", "interleaved", "--quiet", *options]


COPY = Contender("cp -r", lambda source, target: ["cp", "-r", source, target])


def contenders(rivals: bool, rounds: int) -> list[Contender]:
    """All that is measured; the loops that load and save take long, and run in the first rounds only."""
    found = [
        COPY,
        Contender("cp -r, then sync", lambda s, t: ["sh", "-c", 'cp -r "$0" "$1" && sync "$1"/*', s, t]),
        Contender("convert", converting()),
        Contender("convert --sync", converting("--sync")),
    ]
    if "--in-place" in subprocess.run([*ROPETOOL, "convert", "--help"], capture_output=True, text=True).stdout:
        found.append(Contender("convert --in-place --no-sync", in_place("--no-sync"), in_place=True))
        found.append(Contender("convert --in-place", in_place(), in_place=True))
    else:
        print("convert has no --in-place yet: left out")
    if rivals:
        for name in ("safetensors", "transformers"):
            command = lambda s, t, name=name: [*RIVALS, name, s, t]  # noqa: E731 - a row of a table
            found.append(Contender(f"{name}: load, permute, save", command, rounds=min(rounds, 2)))
    return found


def drop_caches() -> None:
    """Forget what of the disk is in memory; needs root."""
    subprocess.run(["sync"], check=True)
    Path("/proc/sys/vm/drop_caches").write_text("3\n", encoding="ascii")


def race(found: list[Contender], source: Path, place: Path, rounds: int, cold: bool) -> None:
    """Run all contenders in rounds, after one that is not counted for those that are measured in all of them."""
    target = place / "out"
    for number in range(-1, rounds):
        turned = found[number % len(found) :] + found[: number % len(found)]
        for contender in turned[:: 1 if number % 2 else -1]:
            if number >= (contender.rounds or rounds) or (number < 0 and contender.rounds):
                continue
            if contender.in_place:
                shutil.copytree(source, target)
                subprocess.run(["sync", *target.iterdir()], check=True)
            if cold:
                drop_caches()
            os.sync()  # nobody pays for what the one before wrote
            done = run(contender.command(source, target))
            shutil.rmtree(target)
            if number >= 0:
                contender.runs[number] = done


def ratio(contender: Contender, to: Contender, value: Callable[[Run], float]) -> float:
    """The median over the rounds that both ran in."""
    return median(value(done) / value(to.runs[number]) for number, done in contender.runs.items())


def show_race(found: list[Contender]) -> None:
    """The table of ratios."""
    print("\nPeaks are at least this program's own, which its children begin with.")
    print("\n| command | seconds | x cp -r, clock | x cp -r, processors | peak memory | rounds |")
    print("|---|---|---|---|---|---|")
    for c in found:
        seconds = median(r.seconds for r in c.runs.values())
        clock, work = ratio(c, COPY, lambda r: r.seconds), ratio(c, COPY, lambda r: r.processor_seconds)
        peak = max(r.peak_bytes for r in c.runs.values()) / MB
        print(f"| {c.name} | {seconds:.2f} | {clock:.2f} | {work:.2f} | {peak:,.0f} MB | {len(c.runs)} |")


def cold_starts(place: Path, times: int) -> None:
    """Medians of fresh processes on a small checkpoint of 1,000 tensors."""
    source, out = place / "thousand", place / "out"
    make(source, of_bytes(1000, 20 * MB), 1)
    commands: dict[str, list[object]] = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "--help": [*ROPETOOL, "--help"],
        "inspect": [*ROPETOOL, "inspect", source],
        "extend": [*ROPETOOL, "extend", source, out, "--method", "yarn", "--to", "32k"],
        "convert": [*ROPETOOL, "convert", source, out, "--to", "interleaved"],
    }
    runs: dict[str, list[Run]] = {name: [] for name in commands}
    for number in range(-1, times):
        for name, command in commands.items():
            done = run(command)
            shutil.rmtree(out, ignore_errors=True)
            if number >= 0:
                runs[name].append(done)
    print(f"\n| cold start, 1,000 tensors | median of {times} | least | processor seconds, least |\n|---|---|---|---|")
    for name, found in runs.items():
        clock = [r.seconds for r in found]
        print(
            f"| {name} | {median(clock):.2f} s | {min(clock):.2f} s | {min(r.processor_seconds for r in found):.2f} s |"
        )
    shutil.rmtree(source)


def series(place: Path, what: str, shapes: Sequence[tuple[int, int]], equal_bytes: int, rounds: int) -> None:
    """The cost of a conversion by number of tensors, or of shards, at the same bytes."""
    print(f"\n| {what}, {equal_bytes / MB:,.0f} MB | seconds | x cp -r, clock | x cp -r, processors | peak |")
    print("|---|---|---|---|---|")
    for tensors, shards in shapes:
        source = place / "series"
        model = of_bytes(tensors, equal_bytes)
        make(source, model, shards)
        copy, convert = Contender("cp -r", COPY.command), Contender("convert", converting())
        race([copy, convert], source, place, rounds, cold=False)
        clock, work = ratio(convert, copy, lambda r: r.seconds), ratio(convert, copy, lambda r: r.processor_seconds)
        peak, seconds = (
            f([r.peak_bytes, r.seconds][i] for r in convert.runs.values()) for i, f in ((0, max), (1, median))
        )
        count = f"{sum(1 for _ in model.tensors()):,} tensors, {shards} shards"
        print(f"| {count} | {seconds:.2f} | {clock:.2f} | {work:.2f} | {peak / MB:,.0f} MB |", flush=True)
        shutil.rmtree(source)


def check_same(place: Path) -> None:
    """Convert and the safetensors loop must write the same tensors: nobody is fast by doing something else."""
    source = place / "source"
    make(source, eight_billion(1), 4)
    run(converting()(source, place / "a"))
    run([*RIVALS, "safetensors", source, place / "b"])
    run([*RIVALS, "same", place / "a", place / "b"])
    print("\nconvert and the safetensors loop write the same tensors")
    for name in ("source", "a", "b"):
        shutil.rmtree(place / name)


def machine(place: Path) -> str:
    """What it ran on, in a line."""
    kind = subprocess.run(["stat", "-f", "-c", "%T", str(place)], capture_output=True, text=True).stdout.strip()
    load = "/".join(f"{x:.1f}" for x in os.getloadavg())
    return f"{os.cpu_count()} cores, file system {kind or 'unknown'}, load {load}, python {sys.version.split()[0]}"


def main() -> int:
    """Make, measure, print, remove."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=Path, required=True, help="where to write checkpoints; removed after")
    parser.add_argument("--layers", type=int, default=8, help="8 layers are 4.0 GB, each is 0.44 GB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--starts", type=int, default=9, help="fresh processes for each cold start")
    parser.add_argument("--equal-mb", type=int, default=1000, help="bytes of the series by tensors and shards")
    parser.add_argument("--without-rivals", action="store_true", help="leave out the loops that need torch")
    parser.add_argument("--drop-caches", action="store_true", help="read the source from the disk (needs root)")
    parser.add_argument("--only", choices=("race", "starts", "series"), help="one part alone")
    options = parser.parse_args()
    model = eight_billion(options.layers)
    needed = 2 * sum(2 * rows[0] * (rows[1] if len(rows) > 1 else 1) for _, rows in model.tensors()) + 1000 * MB
    if shutil.disk_usage(options.dir).free < needed:
        print(f"{options.dir} has less than the {needed / MB:,.0f} MB free that are needed")
        return 2
    place = Path(tempfile.mkdtemp(prefix="ropetool-benchmark-", dir=options.dir))
    try:
        print(machine(place), flush=True)
        if options.only in (None, "race"):
            source, found = place / "source", contenders(not options.without_rivals, options.rounds)
            total = make(source, model, 4)
            print(f"{total / MB:,.0f} MB in bfloat16, {options.layers} layers, 4 shards;", end=" ")
            print("caches dropped before each run" if options.drop_caches else "source in the page cache", flush=True)
            race(found, source, place, options.rounds, options.drop_caches)
            show_race(found)
            shutil.rmtree(source)
            if not options.without_rivals:
                check_same(place)
        if options.only in (None, "starts"):
            cold_starts(place, options.starts)
        if options.only in (None, "series"):
            equal = options.equal_mb * MB
            series(place, "by tensors", [(100, 4), (1000, 4), (10_000, 4)], equal, options.rounds)
            series(place, "by shards", [(300, 1), (300, 4), (300, 16)], equal, options.rounds)
        print(f"\n{machine(place)}")
        return 0
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    sys.exit(main())
