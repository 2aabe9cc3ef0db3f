"""What a repository at the Hub is called, and how much of one a command may need. Light, for every start."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

# huggingface_hub 2.4, utils/_validators.py, validate_repo_id; but only with an owner, and no file.
_REPO = re.compile(r"\b[\w\-.]{1,96}\b/\b[\w\-.]{1,96}\b", re.ASCII)
_REVISION = re.compile(r"[\w.+\-]+(/[\w.+\-]+)*", re.ASCII)


@dataclass(frozen=True)
class HubId:
    """A repository as a person names it: ``org/name``, or ``org/name@revision``."""

    repo: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.repo if self.revision is None else f"{self.repo}@{self.revision}"


class Need(Enum):
    """How much of a repository a command reads."""

    HEADERS = "config files, and the headers of the shards"
    CONFIGS = "every file that holds no weights"
    PLAN = "every file that holds no weights, and the headers of the shards; or pickles whole, which have none"
    WEIGHTS = "every file that holds no weights, and the weights in one format"


@dataclass(frozen=True)
class Found:
    """Where a repository lies here, and what of it was read: the commit that the revision meant."""

    path: Path
    repo: str
    revision: str
    commit: str


def hub_id(text: str) -> HubId | None:
    """The Hub id that ``text`` can be, None where it is not written like one."""
    repo, at, revision = text.partition("@")
    wrong = "--" in repo or ".." in text or repo.endswith((".git", ".safetensors"))
    if wrong or not _REPO.fullmatch(repo) or (at and not _REVISION.fullmatch(revision)):
        return None
    return HubId(repo, revision or None)
