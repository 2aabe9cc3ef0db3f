"""Values of a config's rope block, each checked: what cannot be used is a `ConfigError` that names its key.

``null`` is the same as absent. A value that is absent and has no default is an error; so is one of another kind
(``"4"`` and ``true`` are no numbers), and one without a sane size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropetool.errors import ConfigConflictError, ConfigError

Block = Mapping[str, Any]
LARGEST, LARGEST_COUNT = 1e18, 1 << 40


def fault(key: str, reason: str, value: Any = None) -> ConfigError:
    """The error for a key of the block: "the rope block's <key> <reason>"."""
    return ConfigError(f"the rope block's {key} {reason}", key=key, value=value)


def number(
    block: Block, key: str, default: float | None = None, *, least: float = 1 / LARGEST, most: float = LARGEST
) -> float:
    """A number from ``least`` to ``most``, both included."""
    value = block.get(key)
    if value is None:
        if default is None:
            raise fault(key, "is missing")
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise fault(key, f"must be a number, not {_shown(value)}", value)
    if not least <= value <= most:
        raise fault(key, f"must be a number from {least:g} to {most:g}, not {_shown(value)}", value)
    return float(value)


def optional(block: Block, key: str) -> float | None:
    """A number, or None where it is absent."""
    return None if block.get(key) is None else number(block, key)


def count(block: Block, key: str, default: int | None = None, *, least: int = 1) -> int:
    """A whole number, ``least`` or more."""
    value = default if block.get(key) is None else block[key]
    if isinstance(value, float):
        raise fault(key, f"must be a whole number, not {_shown(value)}", value)
    return int(number({key: value}, key, least=least, most=LARGEST_COUNT))


def numbers(block: Block, key: str) -> tuple[float, ...]:
    """A list of numbers, one at least."""
    values = block.get(key)
    if not isinstance(values, list) or not values or None in values:
        raise fault(key, "is missing" if values is None else f"must be a list of numbers, not {_shown(values)}", values)
    return tuple(number({key: value}, key) for value in values)


def flag(block: Block, key: str, default: bool) -> bool:
    """True or false."""
    value = block.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise fault(key, f"must be true or false, not {_shown(value)}", value)
    return value


def agree(block: Block, key: str, other: str) -> None:
    """Raises `ConfigConflictError` naming both keys where both are there and differ."""
    values = [block.get(key), block.get(other)]
    if None not in values and values[0] != values[1]:
        raise ConfigConflictError(
            f"the rope block's {key} is {_shown(values[0])} but its {other} is {_shown(values[1])}; engines differ in "
            f"which they read. Make them agree, or remove one",
            keys=[key, other],
            values=values,
        )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
