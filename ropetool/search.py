"""Search: measure ways to extend on a text, choose one, and show on other text what it is worth."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropetool.checkpoint.folder import read_config
from ropetool.checkpoint.study import Study
from ropetool.engines.heard import Case
from ropetool.engines.honours import honours, takes
from ropetool.engines.names import EngineName
from ropetool.errors import ConfigError, MethodError, RopetoolError, UsageError
from ropetool.families.candidates import Candidate, Model, fixed, space_of, start_of
from ropetool.families.methods import Method
from ropetool.families.reading import Reading, read_model
from ropetool.models.options import Device, DType, MaxMemory
from ropetool.models.searched import Hearing, Left, Pair, Searched, Setting
from ropetool.rope.bands import wavelengths
from ropetool.rope.frequencies import Floats, Yarn, plain_inv_freq
from ropetool.rope.optimiser import LARGEST_SEED, need_optimiser
from ropetool.rope.spaces import KNOTS, Space, knots_of, longrope_space

if TYPE_CHECKING:
    from ropetool.models.searching import Entry, Planned, Search
    from ropetool.models.stages import Stages

Talk = Callable[[str], None]

# Of the trials of a search for factors, the share that its coarse form gets.
COARSE_SHARE = 0.6
MOST_DOCUMENTS = 60


@dataclass(frozen=True)
class Wish:
    """What is searched for, and what it may cost. Lengths in tokens.

    ``factors``: one factor for each pair (longrope), instead of the settings of every method. ``engine`` binds the
    choice to what that engine honours. ``trials`` fixes how many settings are read, so that two runs do the same on any
    machine; otherwise it is what time allows.
    """

    text: str
    text_name: str
    length: int
    factors: bool = False
    engine: EngineName | None = None
    budget_minutes: float = 30.0
    trials: int | None = None
    seed: int = 7
    study: Path | None = None
    device: Device = Device.AUTO
    dtype: DType | None = None
    max_memory: MaxMemory | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= LARGEST_SEED:
            raise UsageError(f"--seed {self.seed} is out of range: 0 to {LARGEST_SEED}", seed=self.seed)
        if not 0 < self.budget_minutes < 1e5:
            raise UsageError(f"--budget {self.budget_minutes:g} is no number of minutes above 0")


@dataclass(frozen=True)
class Extended:
    """What a candidate would be written as, for whoever searches: the config, and the numbers of the extension."""

    config: Mapping[str, Any]
    reading: Reading
    factor: float
    theta: float
    attention_factor: float
    original_length: int


def search(path: Path, wish: Wish, extended: Callable[[Candidate], Extended], talk: Talk) -> tuple[Searched, Candidate]:
    """Search, and return what was found with the candidate to be written.

    ``extended`` plans an extension to the wished length; it raises `MethodError` or `ConfigError` for what the
    checkpoint cannot take. Raises `UsageError` where the text or the budget is too short, or the optimiser is not
    installed, and what loading raises.
    """
    from ropetool.models.bench import Bench, Turned, parts
    from ropetool.models.emulated import quick_dtype
    from ropetool.models.load import pick_device
    from ropetool.models.objective import bins_for
    from ropetool.models.ranks import world_size
    from ropetool.models.searching import Search
    from ropetool.models.stages import Clock, planned

    need_optimiser()
    if world_size() > 1:
        raise UsageError(
            "a search follows the clock, which differs between processes: run it in one (accelerate places it)"
        )
    started = time.monotonic()
    ends = started + 60 * wish.budget_minutes
    config = read_config(path)
    configure = _configured(wish, extended)
    candidates, default, trained = _candidates(config, wish, configure)
    bins = bins_for(trained, wish.length)
    choosing, held = parts(path, wish.text, wish.length, MOST_DOCUMENTS, wish.seed, keys=True)
    unextended, clock, device = Turned(config, read_model(config)), Clock(), pick_device(wish.device)
    dtype = wish.dtype or quick_dtype(path, device)
    if dtype is not wish.dtype:
        talk("this processor only emulates the stored dtype: the model is read in float32 (--dtype names another)")
    with Study.open(wish.study, _identity(path, wish, bins.block, str(device), dtype)) as study:
        bench = Bench(
            path, config, study, clock, block=bins.block, device=wish.device, dtype=dtype,
            max_memory=wish.max_memory, longest=wish.length, talk=talk,
        )  # fmt: skip
        if wish.trials is None:
            bench.warm_up(unextended, choosing, _warm(trained))
        windows = len(choosing.windows), len(held.windows)
        stages = planned(
            clock.seconds, ends - time.monotonic(), trained, wish.length, windows, wish.trials, bool(choosing.documents)
        )
        talk(_told(stages, bins.length, str(device)))
        state = Search(bench, choosing, held, bins, stages, unextended, configure, ends, talk)
        state.read_unextended()
        start = configure(default)
        _explore(state, candidates, start, wish)
        finalists = state.decide(start)
        best = state.choose(finalists, start)
        found = _searched(path, wish, state, best, start, started)
        return found, next(p.candidate for p in (best.planned, start) if p.setting == found.chosen)


def _warm(trained: int) -> tuple[int, int]:
    return max(16, trained // 8), max(32, trained // 2)


def _told(stages: Stages, length: int, device: str) -> str:
    """What is going to be read, in a sentence."""
    again = "" if stages.decide == stages.screen else f", the best of them at {stages.decide}"
    keys = f", and {stages.documents} passkeys each" if stages.documents else ""
    return (
        f"on {device}: up to {stages.trials} settings are read at {stages.screen} tokens, {stages.windows} at a time"
        f"{again}; then the best and the default on {stages.held_windows} x {length} tokens held out{keys}"
    )


def _identity(path: Path, wish: Wish, block: int, device: str, dtype: DType | None) -> dict[str, Any]:
    """What measurements in a study depend on, beside the config and the lengths that are in their keys."""
    from ropetool.models.bench import identity_of

    return {
        **identity_of(path), "text": hashlib.sha256(wish.text.encode()).hexdigest()[:24], "length": wish.length,
        "block": block, "seed": wish.seed, "device": device, "dtype": dtype.value if dtype else "as stored",
    }  # fmt: skip


def _configured(wish: Wish, extended: Callable[[Candidate], Extended]) -> Callable[[Candidate], Planned]:
    """Plans a candidate, bound to the engine that it is for."""
    from ropetool.models.bench import Turned
    from ropetool.models.searching import Planned

    def configure(candidate: Candidate) -> Planned:
        made = extended(candidate)
        if wish.engine is not None:
            why = takes(wish.engine, Case(made.config, made.reading))
            if why:
                raise MethodError(f"{wish.engine.value} would not turn so: {why}", method=candidate.method.value)
        setting = Setting(candidate.method.value, candidate.settings, made.factor, made.theta, made.attention_factor)
        return Planned(candidate, Turned(made.config, made.reading), setting, made.original_length)

    return configure


def _candidates(
    config: Mapping[str, Any], wish: Wish, configure: Callable[[Candidate], Planned]
) -> tuple[tuple[Candidate, ...], Candidate, int]:
    """The candidates that are tried first, the default among them, and the trained length.

    The default is YaRN's own setting, or the first method that the checkpoint, and the engine, can take. Raises the
    reason of the first where none can be had.
    """
    geometry = read_model(config).rotations[0].geometry
    first: RopetoolError | None = None
    for method in (Method.YARN, Method.NTK, Method.LLAMA3, Method.LINEAR, Method.DYNAMIC):
        try:
            made = configure(Candidate(method))
        except (MethodError, ConfigError) as error:
            first = first or error
            continue
        model = Model(wish.length / made.trained, _plain_theta(made.turned.reading), geometry.rotary_dim)
        rows = [candidate for candidate in fixed(model) if candidate != Candidate(method)]
        return (Candidate(method), *([] if wish.factors else rows)), Candidate(method), made.trained
    refused = first or MethodError("no method can be had for this checkpoint")
    default, trained = _by_factors(geometry.rotary_dim, wish.length, configure, refused)
    if not wish.factors:
        said = f"{refused.message}; `--method longrope --search` finds a factor for each pair instead"
        raise MethodError(said, method=Method.AUTO.value) from refused
    return (default,), default, trained


def _by_factors(
    width: int, length: int, configure: Callable[[Candidate], Planned], refused: RopetoolError
) -> tuple[Candidate, int]:
    """LongRoPE by the factors that YaRN has, for a class that takes nothing else; raises ``refused`` for any other."""
    ones = [1.0] * (width // 2)
    try:
        made = configure(Candidate(Method.LONGROPE, {"short_factor": ones, "long_factor": ones}))
    except (MethodError, ConfigError):
        raise refused from None
    ratio, theta = length / made.trained, _plain_theta(made.turned.reading)
    yarn = Yarn(theta, ratio, made.trained)
    space = longrope_space(width // 2, ratio)
    slower = plain_inv_freq(theta, width) / yarn.inv_freq(width)
    point = knots_of(space, list(slower), yarn.attention_factor)
    return Candidate(Method.LONGROPE, space.settings(point)), made.trained


def _model(state: Search, start: Planned) -> Model:
    reading = start.turned.reading
    width = reading.rotations[0].geometry.rotary_dim
    return Model(state.bins.length / state.bins.trained, _plain_theta(reading), width)


def _explore(state: Search, candidates: Sequence[Candidate], start: Planned, wish: Wish) -> None:
    """Screen the fixed candidates, then tune: the factors of longrope, or the numbers of the best method."""
    state.screen(candidates)
    model = _model(state, start)
    if wish.factors:
        _explore_factors(state, start, model, wish.seed)
        return
    tried: list[Method] = []
    for entry in state.at(state.stages.screen):
        space = space_of(entry.planned.candidate.method, model)
        if space is None or Method(space.method) in tried or not state.whole:
            continue
        tried.append(Method(space.method))
        values = start_of(entry.planned.candidate, model)
        bound = space.without(_unheard_axes(space, values, state))
        if bound.axes:
            state.tune(bound, bound.point(values), wish.seed, state.stages.trials)


def _unheard_axes(space: Space, values: Mapping[str, float], state: Search) -> list[str]:
    """The axes that cannot be moved: the wanted engine does not hear them, or the checkpoint cannot have them."""
    fixed_axes = []
    for axis in space.axes:
        at = axis.place(values[axis.key])
        moved = axis.value(at + 0.2 if at < 0.5 else at - 0.2)
        only = Space(space.method, (axis,))
        try:
            state.configure(Candidate(Method(space.method), {**only.settings([axis.place(moved)])}))
        except (MethodError, ConfigError):
            fixed_axes.append(axis.key)
    return fixed_axes


def _explore_factors(state: Search, start: Planned, model: Model, seed: int) -> None:
    """Factors for each pair: from those that the default has, by few knots; then by twice as many around the best."""
    pairs = model.rotary_dim // 2
    slower = _slower(start, state.bins.length)
    until = int(COARSE_SHARE * state.stages.trials)
    coarse = longrope_space(pairs, model.ratio)
    point = knots_of(coarse, list(slower), start.setting.attention_factor)
    first = state.plan(Candidate(Method.LONGROPE, coarse.settings(point)))
    if first is None:
        raise MethodError(state.left[-1].why, method=Method.LONGROPE.value)
    state.measure(first, "screen")
    state.tune(coarse, point, seed, until)
    found = [e for e in state.at(state.stages.screen) if e.planned.candidate.method is Method.LONGROPE]
    if found and state.whole:
        from ropetool.models.searching import FINE_SPREAD

        fine = longrope_space(pairs, model.ratio, 2 * KNOTS - 1)
        settings = found[0].planned.candidate.settings
        point = knots_of(fine, settings["long_factor"], settings["attention_factor"])
        state.tune(fine, point, seed + 1, state.stages.trials, FINE_SPREAD)


def _slower(planned: Planned, length: int) -> Floats:
    """How many times slower each pair turns than without scaling, [R/2]."""
    rotation = planned.turned.reading.rotations[0]
    width = rotation.geometry.rotary_dim
    return plain_inv_freq(_plain_theta(planned.turned.reading), width) / rotation.scaling.inv_freq(width, length)


def _plain_theta(reading: Reading) -> float:
    """The base before an extension."""
    return float(reading.extension.get("original_theta") or reading.rotations[0].scaling.theta)


def _together(left: Sequence[Left]) -> tuple[Left, ...]:
    """One line for each reason, with all that it is the reason of."""
    names: dict[str, list[str]] = {}
    for each in left:
        names.setdefault(each.why, []).append(each.method)
    return tuple(Left("; ".join(dict.fromkeys(named)), why) for why, named in names.items())


def _searched(path: Path, wish: Wish, state: Search, best: Entry, default: Planned, started: float) -> Searched:
    """All that was found, the best held against the default on the held-out part."""
    from ropetool.models.objective import STATEMENT
    from ropetool.models.outcome import outcome

    found = outcome(state, best, default)
    written, bench = found.written, state.bench
    model, length = _model(state, default), state.bins.length
    plain = wavelengths(plain_inv_freq(model.theta, model.rotary_dim))
    ways = zip(plain, _slower(best.planned, length), _slower(default, length), strict=True)
    keys = [key for key in written.setting.settings if key != "base"]
    heard = honours(Case(written.turned.config, written.turned.reading), keys)
    return Searched(
        checkpoint=str(path),
        objective=STATEMENT,
        original_length=state.bins.trained,
        length=length,
        text=wish.text_name,
        text_tokens=(state.part.windows.numel(), state.held.windows.numel()),
        edges=state.bins.edges,
        decided=best.trial.length,
        windows=(state.windows_at(best.trial.length), found.windows),
        device=str(bench.device),
        dtype=bench.dtype.value if bench.dtype else "as stored",
        seed=wish.seed,
        budget_minutes=wish.budget_minutes,
        minutes=(time.monotonic() - started) / 60,
        wanted_engine=wish.engine.value if wish.engine else None,
        chosen=written.setting,
        best=best.planned.setting,
        default=default.setting,
        is_default=found.is_default,
        why=found.why,
        gain=found.gain,
        bins=found.bins,
        passkey=found.passkey,
        pairs=tuple(Pair(i, float(w), float(c), float(d)) for i, (w, c, d) in enumerate(ways)),
        engines=tuple(Hearing(h.engine, h.part, h.version, h.right, h.ignores, h.said) for h in heard),
        trials=tuple(entry.trial for entry in state.entries),
        left=_together(state.left),
        cut=tuple(state.cut),
        warnings=found.warnings,
    )
