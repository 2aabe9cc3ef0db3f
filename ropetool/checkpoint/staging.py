"""The directory beside an output in which it is written: one process has it, and what a killed one left is removed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ropetool.checkpoint.lock import PATIENCE_SECONDS, exclusive
from ropetool.errors import BusyError, OutputError, OutputExistsError

# Another run may end, and take its directory away, between two looks at it.
ATTEMPTS = 10


def unfinished(destination: Path) -> Path:
    """Where ``destination`` is written."""
    place = destination.resolve()
    return place.parent / f".{destination.name}.ropetool-unfinished"


@contextmanager
def own_stage(destination: Path, patience_seconds: float = PATIENCE_SECONDS) -> Iterator[Path]:
    """Within, an empty directory beside ``destination`` that no other process writes to; what becomes of it is open.

    Its lock goes with the process, so a directory without one is what a killed run left. Raises `BusyError` where
    another run is writing the same output, `OutputExistsError` where one has just done so.
    """
    stage = unfinished(destination)
    with ExitStack() as stack:
        _take(stage, destination, stack, patience_seconds)
        if destination.exists() or destination.is_symlink():
            stage.rmdir()
            raise OutputExistsError(f"{destination} is there now: another run wrote it", path=str(destination))
        yield stage


def _take(stage: Path, destination: Path, stack: ExitStack, patience_seconds: float) -> None:
    """Make the directory and lock it, or empty the one that is there."""
    for _ in range(ATTEMPTS):
        made = _make(stage)
        try:
            known = stack.enter_context(exclusive(stage, anew=True, patience_seconds=patience_seconds))
        except FileNotFoundError:
            continue
        except BusyError as error:
            said = error.message.partition(": ")[2]
            raise BusyError(f"{destination} is being written: {said}", **error.fields) from error
        except OSError:
            if made:
                stage.rmdir()
            raise
        if not made:
            _empty(stage, known)
        return
    raise OutputError(f"{stage} comes and goes: other runs write {destination}; wait for them", path=str(stage))


def _make(stage: Path) -> bool:
    """Make the directory; false where it is there."""
    try:
        stage.mkdir(mode=0o700)
    except FileExistsError:
        return False
    return True


def _empty(stage: Path, known: bool) -> None:
    """Remove what a killed run left in the directory."""
    if stage.is_symlink() or stage.stat().st_uid != os.geteuid():
        raise OutputError(f"{stage} is in the way, and not yours to remove", path=str(stage))
    if not known:
        raise OutputError(
            f"{stage} is there, and its file system knows no locks that would tell whether another run is writing it; "
            f"remove it if none is",
            path=str(stage),
        )
    for left in list(stage.iterdir()):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink()
