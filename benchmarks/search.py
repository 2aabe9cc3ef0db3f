"""What `extend --method auto` gains on a checkpoint, within a budget, checked on a text that it never saw.

    python benchmarks/search.py CKPT --to 32k --text novel.txt --check other.txt --budget 40 [--study FILE] [--out FILE]

Prints the loss by position on the check text of default YaRN, NTK-aware scaling and what the search chose, and the
three bars: the mean at least 0.05 below default YaRN, no bin worse than the better of the two by more than 0.02, and
the first bin no worse than default YaRN's.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from ropetool import extend
from ropetool.checkpoint.folder import read_config
from ropetool.checkpoint.study import Study
from ropetool.cli.app import run
from ropetool.cli.options import parse_length
from ropetool.families.methods import Method, Weights
from ropetool.models.bench import Bench, Part, Turned, identity_of
from ropetool.models.emulated import quick_dtype
from ropetool.models.load import pick_device
from ropetool.models.objective import bins_for, by_bin
from ropetool.models.options import Device
from ropetool.models.stages import Clock
from ropetool.models.text import encode

GAIN, WORSE = 0.05, 0.02


def searched(options: argparse.Namespace, place: Path) -> dict:
    """The ``search`` of the result, by the command itself."""
    out = options.out or place / "search.json"
    more = [*(["--study", str(options.study)] if options.study else [])]
    command = [
        "extend", str(options.checkpoint), str(place / "chosen"), "--method", "auto", "--to", options.to, "--text",
        str(options.text), "--budget", str(options.budget), "--weights", "none", "--out", str(out), *more,
    ]  # fmt: skip
    started = time.monotonic()
    code = run(command)
    if code:
        sys.exit(code)
    print(f"\nthe search took {(time.monotonic() - started) / 60:.1f} minutes")
    return json.loads(out.read_text())["search"]


def checked(options: argparse.Namespace, chosen: dict, place: Path) -> None:
    """The three on the check text, and the bars."""
    path, length = options.checkpoint, parse_length(options.to)
    config = read_config(path)
    ways = {
        "yarn": (Method.YARN, {}),
        "ntk": (Method.NTK, {}),
        "chosen": (Method(chosen["method"]), chosen["settings"]),
    }
    ids = encode(path, options.check.read_text())[:length]
    part = Part("check", ids[None])
    dtype = quick_dtype(path, pick_device(Device.AUTO))
    with Study.open(options.check_study, {**identity_of(path), "check": options.check.name}) as study:
        rows = {}
        for name, (method, given) in ways.items():
            made = extend.plan(path, place / name, method, to=length, settings=given, weights=Weights.NONE)
            bins = bins_for(made.result.original_length, length)
            bench = Bench(
                path, config, study, Clock(), block=bins.block, device=Device.AUTO, dtype=dtype, max_memory=None,
                longest=length, talk=lambda said: print(said, file=sys.stderr),
            )  # fmt: skip
            read, _ = bench.losses(Turned(made.config, made.reading), part, length, 1)
            rows[name] = by_bin(read.blocks, bins, length)
    report(rows, bins.edges)


def report(rows: dict, edges: tuple[int, ...]) -> None:
    """Losses by position, and whether each bar is met."""
    print(f"{'positions':>16} " + " ".join(f"{name:>8}" for name in rows))
    for start, stop, *losses in zip((0, *edges), edges, *rows.values(), strict=False):
        print(f"{start:>8}-{stop:<7} " + " ".join(f"{loss:8.4f}" for loss, _ in losses))
    means = {name: sum(loss * n for loss, n in row) / sum(n for _, n in row) for name, row in rows.items()}
    print(f"{'mean':>16} " + " ".join(f"{mean:8.4f}" for mean in means.values()))
    gain = means["yarn"] - means["chosen"]
    worst = max(
        own - min(y, n) for (own, _), (y, _), (n, _) in zip(rows["chosen"], rows["yarn"], rows["ntk"], strict=True)
    )
    first = rows["chosen"][0][0] - rows["yarn"][0][0]
    for met, said in (
        (gain >= GAIN, f"mean {gain:+.4f} below default YaRN (bar {GAIN})"),
        (worst <= WORSE, f"the worst bin is {worst:+.4f} from the better of YaRN and NTK (bar {WORSE})"),
        (first <= 0, f"the first bin is {first:+.4f} from YaRN's (bar 0)"),
    ):
        print(f"{'met' if met else 'NOT met'}: {said}")


def main() -> None:
    """Search, then check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--to", required=True)
    for name in ("text", "check"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=40.0)
    for name in ("study", "check-study", "out"):
        parser.add_argument(f"--{name}", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        checked(options, searched(options, Path(place))["chosen"], Path(place))


if __name__ == "__main__":
    main()
