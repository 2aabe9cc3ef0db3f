"""What a config says about how a checkpoint was quantised: read with typed errors, and only where it is needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ropetool.errors import ConfigConflictError, ConfigError

# compressed-tensors wrote the second name before transformers took it over; mlx-lm writes the third, and the first too.
KEYS = ("quantization_config", "compression_config", "quantization")
# Values of single modules, each of which may have bits of its own: GPTQModel's, then AutoRound's.
OVERRIDES = ("dynamic", "extra_config")
MOST_BITS = 8


@dataclass(frozen=True)
class Quantisation:
    """The quantisation that a config declares: its method, empty where it has none, and its other keys."""

    method: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    key: str = KEYS[0]

    def says(self, key: str) -> str:
        """The value of a key in lower case, empty where it is absent or null."""
        value = self.values.get(key)
        return "" if value is None else str(value).lower()

    @property
    def weights(self) -> Mapping[str, Mapping[str, Any]]:
        """What compressed-tensors did to the weights of each group of modules, by the key that says so."""
        groups = self.values.get("config_groups")
        found = groups.items() if isinstance(groups, dict) else ()
        named = {name: group.get("weights") for name, group in found if isinstance(group, dict)}
        return {f"config_groups.{name}.weights": w for name, w in named.items() if isinstance(w, dict)}

    @property
    def bits(self) -> frozenset[int]:
        """The widths that the packed integers of any module may have; raises `ConfigError` where none is declared."""
        found = frozenset(_bits(f"{self.key}.{key}", value) for key, value in self._declared_bits())
        if not found:
            raise ConfigError(
                f"{self.key} in config.json names no bits, so packed values cannot be told apart; add the width that "
                f"the weights were quantised to",
                key=f"{self.key}.bits",
            )
        return found

    def _declared_bits(self) -> Iterator[tuple[str, Any]]:
        if self.values.get("bits") is not None:
            yield "bits", self.values["bits"]
        for name, weights in self.weights.items():
            if weights.get("num_bits") is not None:
                yield f"{name}.num_bits", weights["num_bits"]
        for name in OVERRIDES:
            rules = self.values.get(name)
            for module, rule in rules.items() if isinstance(rules, dict) else ():
                if isinstance(rule, dict) and rule.get("bits") is not None:
                    yield f"{name}.{module}.bits", rule["bits"]

    @property
    def block(self) -> tuple[int, int] | None:
        """Rows and columns of the blocks that share a scale; None where the config names none."""
        found = {}
        if self.values.get("weight_block_size") is not None:
            found[f"{self.key}.weight_block_size"] = self.values["weight_block_size"]
        for name, weights in self.weights.items():
            if weights.get("block_structure") is not None:
                found[f"{self.key}.{name}.block_structure"] = weights["block_structure"]
        sizes = {key: _block(key, value) for key, value in found.items()}
        if len(set(sizes.values())) > 1:
            said = " but ".join(f"{key} is {list(size)}" for key, size in sizes.items())
            raise ConfigConflictError(
                f"{said}; which of them a module has is not read here, so they must agree",
                keys=list(sizes),
                values=[list(size) for size in sizes.values()],
            )
        return next(iter(sizes.values()), None)


def _bits(key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_BITS:
        raise ConfigError(f"{key} is {value!r}; it must be a whole number from 1 to {MOST_BITS}", key=key, value=value)
    return value


def _block(key: str, value: Any) -> tuple[int, int]:
    """Rows and columns: a list of two, or ``128x128`` as compressed-tensors once wrote it."""
    parts = value.split("x") if isinstance(value, str) else value
    try:
        rows, columns = (int(part) if isinstance(part, str) else part for part in parts)
    except (TypeError, ValueError):
        rows, columns = None, None
    sound = all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in (rows, columns))
    if not sound or rows is None or columns is None:
        raise ConfigError(f"{key} is {value!r}; it must be two positive whole numbers", key=key, value=value)
    return rows, columns


def read_quantisation(config: Mapping[str, Any], text: Mapping[str, Any]) -> Quantisation:
    """The quantisation of a checkpoint, from its whole config or from the text decoder's part of it.

    Raises `ConfigError` for a value that is no object or a method that is no name, and `ConfigConflictError` where
    the two parts disagree.
    """
    found = {}
    for where, part in (("", config), ("the text decoder's ", text)):
        key = next((key for key in KEYS if part.get(key) is not None), None)
        if key is not None:
            found[where + key] = part[key]
    if not found:
        return Quantisation()
    (source, values), *others = found.items()
    if any(other != values for _, other in others):
        raise ConfigConflictError(
            f"{' and '.join(found)} disagree in config.json; make them agree, or remove one", keys=list(found)
        )
    key = source.rpartition(" ")[2]
    if not isinstance(values, dict):
        raise ConfigError(f"{key} is {str(values)[:40]!r}; it must be an object or null", key=key)
    method = values.get("quant_method")
    if method is not None and not isinstance(method, str):
        raise ConfigError(f"{key}.quant_method is {method!r}; it must be a name", key=f"{key}.quant_method")
    return Quantisation((method or _bitsandbytes(values)).lower(), values, key)


def _bitsandbytes(values: Mapping[str, Any]) -> str:
    """The method of a config from before methods had names (transformers 5.24.0, quantizers/auto.py)."""
    return "bitsandbytes" if values.get("load_in_8bit") or values.get("load_in_4bit") else ""
