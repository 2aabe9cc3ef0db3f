"""The factor lists of LongRoPE in a file of their own: JSON, or CSV of two columns."""

from __future__ import annotations

import csv
from pathlib import Path

from ropetool.checkpoint.strangers import Limits, open_regular, read_named_json
from ropetool.errors import ConfigError

COLUMNS = ("short_factor", "long_factor")
LIMITS = Limits(1 << 20, 100_000)


def read_factors(path: Path) -> dict[str, list[float]]:
    """The two lists of ``path``: an object with short_factor and long_factor, or rows of ``short,long``.

    A CSV may have a first line with the two names, in either order. Raises `ConfigError` naming file and line.
    """
    lists = _from_json(path) if path.suffix.lower() == ".json" else _from_csv(path)
    short, long = (lists[column] for column in COLUMNS)
    if len(short) != len(long):
        raise ConfigError(f"{path.name} has {len(short)} short factors and {len(long)} long ones", file=str(path))
    return lists


def _from_json(path: Path) -> dict[str, list[float]]:
    content = read_named_json(path, LIMITS)
    for column in COLUMNS:
        if not isinstance(content.get(column), list) or not content[column]:
            raise ConfigError(f"{path.name} has no list {column}; it needs {' and '.join(COLUMNS)}", key=column)
    return {c: [_factor(v, f"{path.name}: {c}[{i}]") for i, v in enumerate(content[c])] for c in COLUMNS}


def _from_csv(path: Path) -> dict[str, list[float]]:
    with open_regular(path) as file:
        raw = file.read(LIMITS.size_bytes + 1)
    if len(raw) > LIMITS.size_bytes:
        raise ConfigError(f"{path.name} has over {LIMITS.size_bytes:,} bytes; factor lists are small", file=str(path))
    rows = list(csv.reader(raw.decode("utf-8-sig", errors="replace").splitlines()))
    lines = [(number, [cell.strip() for cell in row]) for number, row in enumerate(rows, 1) if any(map(str.strip, row))]
    names = COLUMNS
    if lines and set(lines[0][1]) == set(COLUMNS):
        names = (lines[0][1][0], lines[0][1][1])
        lines = lines[1:]
    if not lines:
        raise ConfigError(f"{path.name} has no factors; it needs two columns, {' and '.join(COLUMNS)}", file=str(path))
    lists: dict[str, list[float]] = {name: [] for name in names}
    for number, row in lines:
        if len(row) != len(names):
            raise ConfigError(
                f"{path.name}, line {number}: {len(row)} columns; each line needs a short and a long factor",
                file=str(path),
                line=number,
            )
        for name, cell in zip(names, row, strict=True):
            lists[name].append(_factor(cell, f"{path.name}, line {number}"))
    return {column: lists[column] for column in COLUMNS}


def _factor(value: object, where: str) -> float:
    try:
        factor = float(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else 0.0
    except (ValueError, OverflowError):
        factor = 0.0
    if not 0 < factor < 1e6:
        raise ConfigError(f"{where} is {value!r}; a factor is a positive number", value=str(value)[:40])
    return factor
