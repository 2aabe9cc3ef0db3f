"""What a person names a checkpoint by, a path or a Hub id, and the one place that makes it a path for the verbs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ropetool.checkpoint.hub_id import Found, HubId, Need, hub_id
from ropetool.checkpoint.lock import share
from ropetool.cli.sink import Sink


@dataclass(frozen=True)
class Named:
    """An argument that stands for a checkpoint: a path, unless it can only be a repository at the Hub."""

    path: Path
    hub: HubId | None = None

    def __str__(self) -> str:
        return str(self.hub or self.path)


def parse_checkpoint(text: str | Named) -> Named:
    """A path that is there, or that is not written like a Hub id, is a path; nothing is asked of the network here."""
    if isinstance(text, Named):
        return text
    return Named(Path(text), None if os.path.lexists(text) else hub_id(text))


def found(named: Named, need: Need, sink: Sink) -> Found | None:
    """Fetch what a command needs of a repository at the Hub; None for what is a path already.

    Nobody can change that in place then, until the command ends.
    """
    if named.hub is None:
        share(named.path)
        return None
    from ropetool.checkpoint.fetching import bring

    return bring(named.hub, need, talk=sink.talk, bars=sink.shows_bars)


def local(named: Named, need: Need, sink: Sink) -> Path:
    """The path for a verb; see `found`."""
    fetched = found(named, need, sink)
    return fetched.path if fetched else named.path
