"""The pages of the Python API: which modules are public, and in which order they are read."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

FOLDER = "api"


@dataclass(frozen=True)
class Public:
    """A page: its title, what it is about, and the modules and names on it."""

    title: str
    about: str
    names: tuple[str, ...]


PUBLIC = {
    "inspect": Public("Inspect", "What a checkpoint's RoPE is, and which witness says so.", ("ropetool.detect",)),
    "convert": Public("Convert", "The same model with the rows of q and k in the other order.", ("ropetool.convert",)),
    "extend": Public("Extend", "A longer context, by the config alone.", ("ropetool.extend",)),
    "verify": Public("Verify", "Proof that two checkpoints are one model.", ("ropetool.verify", "ropetool.served")),
    "evaluate": Public("Evaluate", "Loss by position, and passkeys found.", ("ropetool.evaluate",)),
    "diff": Public("Diff", "What two checkpoints differ in.", ("ropetool.diff",)),
    "doctor": Public("Doctor", "What each engine makes of a config.", ("ropetool.doctor",)),
    "report": Public("Report", "A checkpoint's RoPE on one page.", ("ropetool.report",)),
    "encodings": Public("Encodings", "Reference implementations of positional encodings.", ("ropetool.encodings",)),
    "choices": Public(
        "Choices",
        "The values that options take.",
        (
            "ropetool.rope.layout.Pairing", "ropetool.families.methods", "ropetool.checkpoint.config.Style",
            "ropetool.engines.names", "ropetool.models.options",
        ),
    ),
    "errors": Public("Errors", "Every error that is raised on purpose.", ("ropetool.errors",)),
}  # fmt: skip


def is_there(public: Public) -> bool:
    """Whether this version has what the page is about."""
    first = public.names[0]
    return find_spec(first) is not None if first.count(".") == 1 else True


def pages() -> dict[str, str]:
    """The Markdown of each page, for mkdocstrings."""
    made = {}
    for name, public in PUBLIC.items():
        if is_there(public):
            blocks = "\n\n".join(f"::: {path}" for path in public.names)
            made[f"{FOLDER}/{name}.md"] = f"# {public.title}\n\n{public.about}\n\n{blocks}\n"
    return made
