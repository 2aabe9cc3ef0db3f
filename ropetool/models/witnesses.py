"""Whom to ask beside the config, and what they say: the class, the weights, a text. Nothing else is imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropetool.checkpoint.folder import Checkpoint, read_config
from ropetool.checkpoint.foreign import Format
from ropetool.families.joined import UNKNOWN
from ropetool.families.reading import Evidence, Reading
from ropetool.models.understand import understand

if TYPE_CHECKING:
    from ropetool.models.text_findings import TextFindings

Talk = Callable[[str], None]


@dataclass(frozen=True)
class Asked:
    """Which witnesses are asked: the model's class, the weights, and the whole model by a text."""

    code: bool = False
    weights: bool = False
    text: str | None = None
    trust_remote_code: bool = False
    talk: Talk = lambda message: None

    @property
    def names(self) -> tuple[str, ...]:
        """Those who are asked, as their evidence names them."""
        asked = {"code": self.code, "weights": self.weights, "text": self.text is not None}
        return tuple(name for name, wanted in asked.items() if wanted)


def unheard(asked: Asked, why: str) -> tuple[Evidence, ...]:
    """Each one who was asked, and could not be."""
    return tuple(Evidence(name, UNKNOWN, f"not asked: {why}") for name in asked.names)


def by_code(path: Path, config: Mapping[str, Any], reading: Reading, asked: Asked) -> tuple[Evidence, ...]:
    """The class's own word, where it is asked for and was not heard already."""
    if not asked.code or any(witness.source == "code" for witness in reading.evidence):
        return ()
    from ropetool.models.code_witness import code_evidence

    return (code_evidence(path, config, reading, trust_remote_code=asked.trust_remote_code),)


def by_weights(
    checkpoint: Checkpoint | None, reading: Reading, form: Format | None, asked: Asked
) -> tuple[Evidence, ...]:
    """The word of the weights, where it is asked for."""
    if not asked.weights:
        return ()
    if form is not None:
        return (Evidence("weights", UNKNOWN, f"not asked: the tensors have {form.title}"),)
    from ropetool.families.doubt import ask_weights

    nothing = Evidence("weights", UNKNOWN, "there are no safetensors weights to look at")
    return ask_weights(checkpoint, reading) or (nothing,)


def by_text(path: Path, reading: Reading, asked: Asked) -> TextFindings | None:
    """What the model makes of a text, where there is one; it is run for that."""
    if asked.text is None:
        return None
    from ropetool.models.text_findings import text_findings

    return text_findings(path, reading, asked.text, talk=asked.talk, trust_remote_code=asked.trust_remote_code)


def layout_by_text(path: Path, text: str, *, trust_remote_code: bool = False, talk: Talk) -> Evidence:
    """In which layout the checkpoint at ``path`` reads a text better; raises as `understand` does."""
    from ropetool.models.text_findings import text_findings

    reading = understand(path, read_config(path), trust_remote_code=trust_remote_code)
    return text_findings(
        path, reading, text, trust_remote_code=trust_remote_code, talk=talk, layout_alone=True
    ).evidence
