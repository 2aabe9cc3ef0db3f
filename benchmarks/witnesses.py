"""The confusion table: what every witness says of every trained model, in its class's layout and in the other.

Every model is inspected four times: as it is; with its rows permuted and config.json as before, as if it had never been
brought to its class's layout; with the same rows in random order within each head; and with random weights. In the
first two the truth is known, in the last two there is none, and every witness that measures has to say "unknown".

Then the weights alone, by their smallest signs: how often one measure of one head group of one layer is right, by how
many standard deviations it is out, and the slope of the logistic curve that fits this best. `families.weights` has its
confidence from there.

    python benchmarks/witnesses.py                          the models in fixtures/
    python benchmarks/witnesses.py --model DIR --model ...  others, which are in the layout of their class
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from ropetool import convert, detect
from ropetool.checkpoint.bundled import CHECKPOINT, TEXT, bundled
from ropetool.checkpoint.folder import open_checkpoint
from ropetool.families.attention_rows import sampled_rows
from ropetool.families.plan import claims
from ropetool.families.reading import read_model
from ropetool.rope.pairing import Head, Pairing, index_map, rows_of
from ropetool.rope.signs import seen_in_layer, signs_of

ROOT = Path(__file__).resolve().parents[1]
SEED = 20261130
WITNESSES = ("class", "code", "weights", "text")
# The class's own word, or that of a key that it obeys.
CLASS = {"family": "class", "config": "class"}
BOUNDS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 7.0, float("inf"))
Weights = dict[str, torch.Tensor]


def class_pairing(model: Path) -> Pairing:
    """The layout that a checkpoint's class rotates."""
    return read_model(open_checkpoint(model).config).class_pairing


def rewritten(model: Path, out: Path, weights: Weights) -> Path:
    """A copy with other weights and everything else as it was."""
    shutil.copytree(model, out, ignore=shutil.ignore_patterns("*.safetensors*"))
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    return out


def weights_of(model: Path) -> Weights:
    """All tensors of a checkpoint."""
    return {name: tensor for shard in sorted(model.glob("*.safetensors")) for name, tensor in load_file(shard).items()}


def copies(model: Path, place: Path) -> Iterator[tuple[str, str, Path]]:
    """The name of each copy, what is true of it, and where it lies."""
    pairing = class_pairing(model)
    yield pairing.value, pairing.value, model
    other = place / "converted"
    convert.apply(convert.plan(model, other, pairing.other, written_as="same"))
    yield pairing.other.value, pairing.other.value, rewritten(model, place / "permuted", weights_of(other))
    yield "shuffled", "unknown", rewritten(model, place / "shuffled", shuffled(model))
    generator = torch.Generator().manual_seed(SEED)
    random = {n: (torch.randn(t.shape, generator=generator) * 0.05).to(t.dtype) for n, t in weights_of(model).items()}
    yield "random", "unknown", rewritten(model, place / "random", random)


def shuffled(model: Path) -> Weights:
    """The weights with the rotated rows of every head in one random order, the same for q and k."""
    checkpoint = open_checkpoint(model)
    reading = read_model(checkpoint.config)
    weights, generator = weights_of(model), torch.Generator().manual_seed(SEED)
    orders: dict[int, torch.Tensor] = {}
    for claim in claims(checkpoint, reading):
        spans, at = claim.geometry.spans(claim.moved.rows) if claim.moved else (), 0
        tensor = weights[claim.tensor.name]
        rows_RM = tensor.view(rows_of(spans), -1) if spans else tensor
        for span in spans:
            if isinstance(span, Head):
                rows = slice(at + span.rope_start, at + span.rope_start + span.rope_dim)
                if span.rope_dim not in orders:
                    orders[span.rope_dim] = torch.randperm(span.rope_dim, generator=generator)
                rows_RM[rows] = rows_RM[rows][orders[span.rope_dim]]
            at += span.rows
    return weights


def confusion(models: list[Path], text: str) -> Counter[tuple[str, str, str]]:
    """Print a row for every copy of every model; count (witness, truth, says)."""
    counted: Counter[tuple[str, str, str]] = Counter()
    print("| model | rows stored as | class | code | weights | text | verdict |\n|---|---|---|---|---|---|---|")
    for model in models:
        with tempfile.TemporaryDirectory() as place:
            for name, true, path in copies(model, Path(place)):
                found = detect.inspect(path, code=True, weights=True, text=text)
                said = {CLASS.get(witness.source, witness.source): witness for witness in found.evidence}
                cells = [_cell(said, source) for source in WITNESSES]
                print(f"| {model.name} | {name} | {' | '.join(cells)} | {found.pairing} |", flush=True)
                for source in WITNESSES:
                    counted[source, true, said[source].says if source in said else "unknown"] += 1
    return counted


def _cell(said: dict[str, detect.Evidence], source: str) -> str:
    witness = said.get(source)
    if witness is None:
        return "-"
    figure = witness.figures.get("sigmas" if source == "weights" else "gap")
    return witness.says if figure is None else f"{witness.says} ({float(figure):+.2f})"


def single_signs(model: Path) -> Iterator[float]:
    """Every sign of every single group of heads, in standard deviations, positive where it is right; both layouts."""
    checkpoint = open_checkpoint(model)
    reading = read_model(checkpoint.config)
    true = reading.class_pairing
    for rows in sampled_rows(checkpoint, reading).layers:
        if rows.q is None or rows.k is None:
            continue
        q, k, rope_dim = rows.q[:], rows.k[:], rows.q.shape[1]
        order = index_map((Head(rope_dim, 0, rope_dim),), true, true.other)
        for pairing, (q_rows, k_rows) in ((true, (q, k)), (true.other, (q[:, order], k[:, order]))):
            per = len(q_rows) // len(k_rows)
            for group in range(len(k_rows)):
                seen = seen_in_layer(q_rows[group * per : (group + 1) * per], k_rows[group : group + 1])
                for sign in signs_of(seen.measures).values():
                    yield sign.sigmas if pairing is Pairing.HALF else -sign.sigmas


def calibration(models: list[Path]) -> None:
    """Print how often single signs are right by their size, and the slope of the logistic curve through them."""
    signs = np.array([sign for model in models for sign in single_signs(model)])
    size, right = np.abs(signs), signs > 0
    print("\n| standard deviations | signs | right |\n|---|---|---|")
    for low, high in itertools.pairwise(BOUNDS):
        within = (size >= low) & (size < high)
        print(f"| {low:g} to {high:g} | {within.sum()} | {right[within].mean():.3f} |")
    slope = 1.0
    for _ in range(100):  # Newton's method on the log-likelihood
        chance = 1 / (1 + np.exp(-slope * size))
        slope += ((right - chance) * size).sum() / (chance * (1 - chance) * size**2).sum()
    print(f"\nlogistic slope {slope:.2f} over {len(signs)} signs")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, action="append", help="a checkpoint in the layout of its class")
    parser.add_argument("--text", type=Path, default=bundled(TEXT))
    options = parser.parse_args()
    torch.set_num_threads(1)
    models = options.model or [bundled(CHECKPOINT), *sorted(path for path in (ROOT / "fixtures/layouts").iterdir())]
    counted = confusion(models, options.text.read_text("utf-8"))
    print("\n| witness | true | says half | says interleaved | says mixed | says unknown |\n|---|---|---|---|---|---|")
    for source in WITNESSES:
        for true in ("half", "interleaved", "unknown"):
            says = " | ".join(str(counted[source, true, s]) for s in ("half", "interleaved", "mixed", "unknown"))
            print(f"| {source} | {true} | {says} |")
    calibration(models)


if __name__ == "__main__":
    main()
