"""Faults of a disk: calls that fail with an error of the kernel, and reads and writes that do less than was asked.

What a command may make of each: get round it, and end with the right result; or say so in one sentence, exit code 2,
with nothing half-written left. A fault that must not even be noticed has ``got_round``.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from tests.crash.calls import Call, Kind
from tests.crash.killing import FAILED, Outcome, unharmed
from tests.crash.ptrace import GO_ON, Act
from tests.crash.running import Done, traced
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

    def planted(self, number: int) -> Planted:
        """This fault at the how-many-th call that it can be at."""
        return Planted(self, number)


@dataclass
class Planted:
    """A fault on its way: ``hit`` is the call that it met first."""

    fault: Fault
    countdown: int
    hit: Call | None = None

    def decide(self, call: Call) -> Act:
        """What happens at ``call``."""
        fault = self.fault
        if not fault.where(call):
            return GO_ON
        self.countdown -= 1
        if self.countdown >= 0 or (self.hit and not fault.lasting):
            return GO_ON
        self.hit = self.hit or call
        if fault.error:
            return Act(error=fault.error)
        return Act(size=(call.size + 1) // 2) if call.size > 1 else GO_ON


def of(*kinds: Kind, named: Sequence[str] = (), but: Sequence[str] = (), changing: bool = False) -> Where:
    """Calls of these kinds, of these names only where some are given, and only those that change something."""

    def where(call: Call) -> bool:
        right = call.row.kind in kinds and call.row.name not in but
        return right and (not named or call.row.name in named) and (call.changes or not changing)

    return where


def _closes_file(call: Call) -> bool:
    """close(2) fails where written data could not be kept: of a file, and one that is still there."""
    return call.row.kind is Kind.CLOSE and PurePath(call.path).suffix in (".json", ".safetensors", ".journal")


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
    Fault("EIO on close", _closes_file, errno.EIO),
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
        possible = sum(map(fault.where, calls))
        chosen = set(rng.sample(range(possible), min(number, possible)))
        if fault.lasting and possible:
            chosen.add(0)
        for at in sorted(chosen):
            planted = fault.planted(at)
            done = traced(scene.arguments, scene.root, planted.decide, run=scene.run)
            how, wrong = scene.after_fault(done)
            wrong += _faults_of_telling(scene, planted, done)
            scene.clear()
            where = f"number {at}, {planted.hit}"
            yield Outcome(scene.command.name, fault.name, where, FAILED if wrong else how, "; ".join(wrong))


def _faults_of_telling(scene: Scene, planted: Planted, done: Done) -> Iterator[str]:
    """What is wrong with how a fault was taken, whatever the files are: noticed for nothing, or not named."""
    hit, said = planted.hit, done.err.strip()[:200]
    if done.code == 0 or hit is None:
        return
    if planted.fault.got_round:
        yield f"not got round: {said}"
    if hit.path.startswith(f"{SRC}/") and hit.row.kind in (Kind.OPEN, Kind.READ) and str(scene.src) not in done.err:
        yield f"what could not be read is not named: {said}"
