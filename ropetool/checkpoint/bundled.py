"""The checkpoint and the text that come with ropetool: in the wheel, or in the source tree's ``fixtures/``."""

from __future__ import annotations

from pathlib import Path

from ropetool.errors import MissingFileError

_PACKAGE = Path(__file__).resolve().parent.parent
CHECKPOINT = "recall-256"
TEXT = "text/persuasion.txt"


def bundled(name: str) -> Path:
    """The path of a bundled file or directory; raises `MissingFileError` when the installation lacks it."""
    for root in (_PACKAGE / "bundled", _PACKAGE.parent / "fixtures"):
        if (root / name).exists():
            return root / name
    raise MissingFileError(f"this installation of ropetool lacks its bundled {name}; install it again", path=name)
