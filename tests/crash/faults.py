"""Faults of a disk: calls that fail with an error of the kernel, and reads and writes that do less than they were asked.

What a command may make of each: get round it, and end with the right result; or say so in one sentence, exit code 2, with
nothing half-written left. A fault that must not even be noticed has ``got_round``.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.crash.calls import Call, Kind
from tests.crash.killing import FAILED, Outcome, unharmed
from tests.crash.ptrace import GO_ON, Act
from tests.crash.running import traced
from tests.crash.scenes import SRC, Scene

Where = Callable[[Call], bool]


@dataclass(frozen=True)
class Fault:
    """An error (or, for 0, half of the bytes) at one of the calls that ``where`` names, or from that one on."""

    name: str
    where: Where
    error: int = 0
    lasting: bool = False
    got_round: bool = False

    def decide(self, at: int) -> Callable[[Call], Act]:
        """What happens at each call when the fault is at call number ``at``."""

        def act(call: Call) -> Act:
            hit = call.at >= at if self.lasting else call.at == at
            if not hit or not self.where(call):
                return GO_ON
            if self.error:
                return Act(error=self.error)
            return Act(size=(call.size + 1) // 2) if call.size > 1 else GO_ON

        return act


def of(*kinds: Kind, named: Sequence[str] = (), but: Sequence[str] = (), changing: bool = False) -> Where:
    """Calls of these kinds, of these names only where some are given, and only those that change something."""

    def where(call: Call) -> bool:
        right = call.row.kind in kinds and call.row.name not in but
        return right and (not named or call.row.name in named) and (call.changes or not changing)

    return where


MAKES = ("mkdir", "mkdirat", "rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat")
TAKES = ("unlink", "unlinkat", "rmdir")
RENAMES, MKDIRS = ("rename", "renameat", "renameat2"), ("mkdir", "mkdirat")
IN_KERNEL = ("copy_file_range", "sendfile")
GROWS = of(Kind.WRITE, Kind.NAME, Kind.OPEN, Kind.SYNC, but=TAKES, changing=True)

FAULTS = (
    Fault("disk full, once", GROWS, errno.ENOSPC),
    Fault("disk full from then on", GROWS, errno.ENOSPC, lasting=True),
    Fault("quota used up from then on", of(Kind.WRITE), errno.EDQUOT, lasting=True),
    Fault("EIO on write", of(Kind.WRITE), errno.EIO),
    Fault("EIO on write from then on", of(Kind.WRITE), errno.EIO, lasting=True),
    Fault("EIO on read", of(Kind.READ), errno.EIO),
    Fault("EIO on sync", of(Kind.SYNC), errno.EIO),
    Fault("EIO on rename", of(Kind.NAME, named=RENAMES), errno.EIO),
    Fault("EACCES on rename", of(Kind.NAME, named=RENAMES), errno.EACCES),
    Fault("EROFS on mkdir", of(Kind.NAME, named=MKDIRS), errno.EROFS),
    Fault("EMLINK on link", of(Kind.NAME, named=("link", "linkat")), errno.EMLINK),
    Fault("EACCES on open", of(Kind.OPEN), errno.EACCES),
    Fault("EMFILE on open", of(Kind.OPEN), errno.EMFILE),
    Fault("EIO on open", of(Kind.OPEN), errno.EIO),
    Fault("EIO on close", of(Kind.CLOSE), errno.EIO),
    Fault("EPERM on chmod", of(Kind.MODE), errno.EPERM),
    Fault("EIO on stat or listing", of(Kind.LOOK), errno.EIO),
    Fault("ENOLCK on lock", of(Kind.LOCK), errno.ENOLCK),
    Fault("no copying in the kernel", of(Kind.WRITE, named=IN_KERNEL), errno.EXDEV, lasting=True, got_round=True),
    Fault("every write short", of(Kind.WRITE), lasting=True, got_round=True),
    Fault("a write short", of(Kind.WRITE), got_round=True),
    Fault("every read short", of(Kind.READ), lasting=True, got_round=True),
    Fault("a read short", of(Kind.READ), got_round=True),
    Fault("EINTR on read or write", of(Kind.READ, Kind.WRITE), errno.EINTR, got_round=True),
)


def fail_everywhere(scene: Scene, number: int, seed: int, faults: Sequence[Fault] = FAULTS) -> Iterator[Outcome]:
    """Plant each fault at up to ``number`` of its calls, spread over the run; those that last at the first one too."""
    calls = unharmed(scene).calls
    rng = random.Random(seed)
    for fault in faults:
        hit = [call for call in calls if fault.where(call)]
        chosen = rng.sample(hit, min(number, len(hit)))
        if fault.lasting and hit and hit[0] not in chosen:
            chosen[0] = hit[0]
        for call in sorted(chosen, key=lambda call: call.at):
            done = traced(scene.arguments, scene.root, fault.decide(call.at), run=scene.run)
            how, wrong = scene.after_fault(done)
            reads = call.path.startswith(f"{SRC}/") and call.row.kind is not Kind.CLOSE
            if done.code != 0 and reads and str(scene.src) not in done.err:
                wrong.append(f"what could not be read is not named: {done.err.strip()[:200]}")
            if fault.got_round and done.code != 0:
                wrong.append(f"not got round: {done.err.strip()[:200]}")
            scene.clear()
            yield Outcome(
                scene.command.name, fault.name, f"call {call.at} {call}", FAILED if wrong else how, "; ".join(wrong)
            )
