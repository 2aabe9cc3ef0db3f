"""Served: does a running server apply RoPE as a checkpoint means? Told by its log-probabilities alone.

After a single token no rotation shows: a token that attends to itself alone does so whatever its angle. So how far the
server is off there is what its weights and number types are worth, and no more than that may be found at later
positions, where every mistake in the rotation shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ropetool.checkpoint.bundled import TEXT, bundled
from ropetool.checkpoint.folder import open_checkpoint
from ropetool.engines.client import Client, connected
from ropetool.engines.completions import Asker, Model, Sample, Told, ask, served_model
from ropetool.engines.heard import Case
from ropetool.engines.mistakes import Rotated, guesses, meant, mistakes, unseen
from ropetool.errors import UnsupportedError, UsageError
from ropetool.families.reading import Reading
from ropetool.families.verdict import Check
from ropetool.models.options import Device, DType
from ropetool.models.understand import understand
from ropetool.rope.frequencies import Dynamic, LongRope

if TYPE_CHECKING:
    from ropetool.models.likelihood import Own

DEFAULT_TOKENS, FEWEST_TOKENS = 512, 16
DEFAULT_TIMEOUT_S = 120.0
# In bfloat16, int8, and 5 and 4 bits, the tokens of a long context are 0.5 to 1.2 times as far off as single ones
# (SmolLM2); a server that keeps its keys and values in float16 adds a fifth of what bfloat16 does everywhere. This many
# times the larger of the two is allowed.
MARGIN = 2.0
# What two programs in float32 are apart, in nats: transformers, llama.cpp, mlx-lm and CTranslate2 on SmolLM2, at most.
FLOAT32_APART = 1e-3
# How much wider than the tolerance the wrong layout must miss for anything to be proven.
CONTROL_MARGIN = 2.0
# Of two ways to rotate, one is nearer where it is so at this many standard deviations more positions than chance.
SIGMAS = 3.0
TIE = 1e-4  # nats; positions that differ by less count for neither
# What is less likely counts as this: a server may give the logarithm of nothing.
FLOOR = -60.0

Floats = npt.NDArray[np.float64]
Talk = Callable[[str], None]


@dataclass(frozen=True)
class Fit:
    """A wrong way to rotate, held against the server: ``apart`` from what it gave, ``from_meant`` from what is right.

    Both are means over the positions, in nats. ``sigmas`` is how clearly the server is nearer to what is meant,
    ``near`` whether this is within the tolerance of it, too.
    """

    said: str
    key: str
    engines: tuple[str, ...]
    apart: float
    from_meant: float
    sigmas: float
    near: bool

    @property
    def fits_better(self) -> bool:
        """Whether the server is nearer to this than to what the checkpoint means."""
        return self.sigmas <= -SIGMAS

    @property
    def excluded(self) -> bool:
        """Whether the server surely does something else."""
        return self.sigmas >= SIGMAS or (not self.near and not self.fits_better)


@dataclass(frozen=True)
class Comparison:
    """What the server's log-probabilities tell, held against the checkpoint's. Mean |differences| in nats."""

    headline: str
    single_tokens_apart: float
    bfloat16_apart: float
    apart: float
    tolerance: float
    by_position: tuple[Mapping[str, float], ...]
    control: Mapping[str, object]
    fits: tuple[Fit, ...]
    unseen: tuple[str, ...]
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether every check is."""
        return all(check.passed for check in self.checks)


@dataclass(frozen=True)
class Served:
    """The verdict on a server, and everything that it rests on."""

    checkpoint: str
    server: str
    model: str
    form: str
    device: str
    dtype: str
    tokens: int
    positions: int
    found: Comparison


def verify_served(
    path: Path,
    url: str,
    *,
    model: str | None = None,
    tokens: int | None = None,
    text: str | None = None,
    device: Device = Device.AUTO,
    dtype: DType = DType.FLOAT32,
    tolerance: float | None = None,
    max_memory: Mapping[int | str, int] | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    key: str = "",
    talk: Talk = lambda message: None,
    trust_remote_code: bool = False,
) -> Served:
    """Compare the checkpoint at ``path`` with the OpenAI-compatible server at ``url``.

    ``tokens`` of ``text`` (a bundled novel) are sent, by default 512 or as many as the model was trained with and the
    server takes. ``tolerance`` is in nats. ``timeout_s`` is for each whole answer, ``key`` the server's API key. Raises
    `ServerError` where the server gives nothing to compare, `RopetoolError` for a checkpoint that cannot be run.
    """
    from ropetool.models.pickles import as_safetensors
    from ropetool.models.run import pick_device

    where = pick_device(device)
    with connected(url, timeout_s=timeout_s, key=key) as client, as_safetensors(path) as files:
        checkpoint = open_checkpoint(files)
        reading = understand(files, checkpoint.config, trust_remote_code=trust_remote_code)
        if not reading.rotations:
            raise UnsupportedError(f"{path} cannot be compared: {reading.refusal}", path=str(path))
        asked = served_model(client, model)
        ids = _ids(files, reading, text, _length(reading, tokens, asked))
        told = ask(_asker(client, asked, files), ids, talk)
        talk(f"loading {path}")
        from ropetool.models.likelihood import own

        options = {"trust_remote_code": trust_remote_code, "max_memory": max_memory, "tokens": len(ids)}
        loaded = own(files, reading, where, dtype, **options)
        found = _held_against(loaded, Case(checkpoint.config, reading), ids, told, tolerance, talk)
    return Served(
        checkpoint=str(path), server=client.base, model=asked.name, form=told.form.value, device=str(where),
        dtype=dtype.value, tokens=len(ids), positions=len(told.along), found=found,
    )  # fmt: skip


def _length(reading: Reading, tokens: int | None, model: Model) -> int:
    """How many tokens to send, leaving room for the one that a server must generate."""
    trained = reading.rotations[0].original_length or reading.length or DEFAULT_TOKENS
    room = trained if model.length is None else min(model.length - 1, trained)
    wanted = tokens or min(DEFAULT_TOKENS, room)
    if model.length is not None and wanted >= model.length:
        raise UsageError(f"the server takes {model.length} tokens with its answer; give --tokens below {model.length}")
    follows = any(isinstance(rotation.scaling, (Dynamic, LongRope)) for rotation in reading.rotations)
    if follows and wanted > trained:
        raise UsageError(
            f"beyond {trained} tokens this checkpoint turns by the length in play, which differs from answer to "
            f"answer; give --tokens {trained} at most"
        )
    if wanted < FEWEST_TOKENS:
        raise UsageError(f"{wanted} tokens are too few to see a rotation; {FEWEST_TOKENS} are the least")
    return wanted


def _ids(path: Path, reading: Reading, text: str | None, length: int) -> tuple[int, ...]:
    from ropetool.models.likelihood import token_ids

    words = text if text is not None else bundled(TEXT).read_text(encoding="utf-8")[: 16 * length]
    ids = token_ids(path, reading, words, length, given=text is not None)
    if len(ids) < FEWEST_TOKENS:
        raise UsageError(f"the text gives {len(ids)} tokens; {FEWEST_TOKENS} are the least to see a rotation")
    return ids


def _asker(client: Client, model: Model, path: Path) -> Asker:
    from ropetool.models.text import ids_by_text, text_of

    return Asker(client, model.name, 0, lambda ids: text_of(path, ids), lambda text: ids_by_text(path).get(text))


def _held_against(
    loaded: Own, case: Case, ids: Sequence[int], told: Told, tolerance: float | None, talk: Talk
) -> Comparison:
    from ropetool.models.likelihood import as_meant, at, in_bfloat16, rotated

    truth, tokens = meant(case.reading), len(ids)
    talk(f"running the checkpoint as it means it: {truth.said}")
    right = at(as_meant(loaded, ids), told.along)
    singles = [at(as_meant(loaded, sample.prompt[:1]), [sample])[0] for sample in told.singles]
    single = float(_distances(told.singles, singles).mean())
    with in_bfloat16(loaded):
        half = _between(right, at(as_meant(loaded, ids), told.along))
    allowed = max(MARGIN * max(single, half), FLOAT32_APART) if tolerance is None else tolerance
    rows = _distances(told.along, right)

    def fit(how: Rotated) -> Fit:
        talk(f"running it with {how.said}")
        wrong = at(rotated(loaded, how, ids), told.along)
        other = _distances(told.along, wrong)
        apart = float(other.mean())
        return Fit(
            how.said, how.key, how.engines, apart, _between(right, wrong), _sigmas(rows, other), apart <= allowed
        )  # fmt: skip

    reference = fit(truth)
    made = mistakes(case, tokens)
    fits = [fit(how) for how in made]
    apart = float(rows.mean())
    if apart > allowed and not any(found.near for found in fits):
        fits += [fit(how) for how in guesses(case, tokens, made)]
    hidden = unseen(case, tokens)
    checks = _checks(apart, single, half, allowed, reference, fits, tolerance is not None, len(rows))
    control = {
        "layout": truth.pairing.other.value,
        "apart": fits[0].from_meant,
        "failed_as_it_must": next(check.passed for check in checks if check.name == "control"),
    }
    headline = _headline(truth, apart, allowed, fits, checks)
    by_position = _by_position(told.along, rows)
    return Comparison(headline, single, half, apart, allowed, by_position, control, tuple(fits), hidden, tuple(checks))


def _distances(told: Sequence[Sample], ours: Sequence[Floats]) -> Floats:
    """The mean |difference| in nats at each position."""
    theirs = (np.array(list(sample.log_probs.values()), dtype=np.float64) for sample in told)
    return np.array([_apart(a, b) for a, b in zip(theirs, ours, strict=True)])


def _between(ours: Sequence[Floats], others: Sequence[Floats]) -> float:
    return float(np.mean([_apart(a, b) for a, b in zip(ours, others, strict=True)]))


def _apart(a: Floats, b: Floats) -> float:
    return float(np.abs(np.maximum(a, FLOOR) - np.maximum(b, FLOOR)).mean())


def _sigmas(right: Floats, other: Floats) -> float:
    """The sign test: how many standard deviations more positions are nearer to the first than chance would have it."""
    nearer, further = int((other - right > TIE).sum()), int((right - other > TIE).sum())
    return 0.0 if nearer == further else (nearer - further) / math.sqrt(nearer + further)


def _by_position(told: Sequence[Sample], rows: Floats) -> tuple[Mapping[str, float], ...]:
    """The distance by the position of the last token that was seen, in buckets of doubling width."""
    last = np.array([sample.seen - 1 for sample in told])
    edges = [0, 16]
    while edges[-1] <= last.max():
        edges.append(edges[-1] * 2)
    inside = [(start, stop, (last >= start) & (last < stop)) for start, stop in pairwise(edges)]
    return tuple(
        {"from": start, "to": min(stop, int(last.max()) + 1), "apart": float(rows[these].mean())}
        for start, stop, these in inside
        if these.any()
    )


def nats(value: float) -> str:
    """A distance as it is said: 2.3 nats."""
    return f"{value:.2g} nats"


def _checks(
    apart: float,
    single: float,
    half: float,
    allowed: float,
    reference: Fit,
    fits: Sequence[Fit],
    given: bool,
    positions: int,
) -> list[Check]:
    control, best = fits[0], min(fits, key=lambda fit: fit.apart)
    larger = "single tokens are off" if single >= half else f"bfloat16 does to this checkpoint, {nats(half)}"
    why = "as was asked" if given else f"{MARGIN:g} times what {larger}"
    sound = CONTROL_MARGIN * MARGIN * single <= control.from_meant
    proves = CONTROL_MARGIN * allowed <= control.from_meant
    detail = f"after a single token, which no rotation touches, the server is {nats(single)} off"
    advice = ": it serves other weights, or weights quantised so coarsely that a rotation does not show"
    return [
        Check("single-tokens", sound, detail + ("" if sound else advice), None if sound else "weights"),
        Check(
            "reference", reference.from_meant <= allowed,
            f"the checkpoint's own class is {nats(reference.from_meant)} from the rotation that config.json means",
        ),
        Check(
            "control", proves,
            f"with {control.said}, the checkpoint is {nats(control.from_meant)} from itself"
            + ("" if proves else f": too near to {nats(allowed)} to prove anything; send more tokens by --tokens"),
        ),
        Check(
            "log-probabilities", apart <= allowed,
            f"over {positions} positions the server is {nats(apart)} from what the checkpoint means; {nats(allowed)} "
            f"are allowed: {why}",
        ),
        *(_not(fit, fit.near or fit is best) for fit in fits),
    ]  # fmt: skip


def _not(fit: Fit, likely: bool) -> Check:
    """The server does not make this mistake, or it cannot be told; of far ones that are nearer, the best is likely."""
    by = f" (what {_and(fit.engines)} would do)" if fit.engines else ""
    if fit.fits_better and likely:
        return Check(f"not: {fit.said}", False, f"the server is nearer to this: {nats(fit.apart)}{by}", fit.key or None)
    if fit.excluded or not fit.near:
        return Check(f"not: {fit.said}", True, f"{nats(fit.apart)} from the server{by}")
    detail = f"cannot be told: it is {nats(fit.from_meant)} from what is meant, and {nats(fit.apart)} from the server"
    return Check(f"not: {fit.said}", True, detail + by)


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _headline(truth: Rotated, apart: float, allowed: float, fits: Sequence[Fit], checks: Sequence[Check]) -> str:
    """The verdict in a sentence."""
    failed = {check.name: check for check in checks if not check.passed}
    if not failed:
        alike = [fit.said for fit in fits if not fit.excluded]
        open_ = f"; it cannot be told from {' or '.join(alike)}" if alike else ""
        return f"the server rotates as the checkpoint means ({truth.said}): {nats(apart)} apart{open_}"
    for name in ("single-tokens", "reference", "control"):
        if name in failed:
            return f"nothing is proven: {failed[name].detail}"
    best = min(fits, key=lambda fit: fit.apart)
    by = f", as {_and(best.engines)} would" if best.engines else ""
    means = f"{truth.said}, as the checkpoint means ({nats(apart)})"
    if best.fits_better:
        near = "fit" if best.apart <= allowed else "are nearest to"
        return f"the server's log-probabilities {near} {best.said} ({nats(best.apart)} apart){by}, not {means}"
    return (
        f"the server's log-probabilities are {nats(apart)} from {truth.said}, as the checkpoint means, and fit none "
        f"of {len(fits)} mistakes that were tried; after single tokens they are right, so it is what follows the "
        f"position: the rotation, a window, or a cache of keys in few bits"
    )
