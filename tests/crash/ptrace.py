"""A child process stopped at each of its system calls that touch files, where it can be killed or lied to.

ptrace(2), by ctypes alone: what is killed and what fails are the calls of the kernel, whoever makes them (Python's own
buffers, shutil, numpy), nothing has to be installed or compiled, and a process may trace its own child without being
root. Linux on x86-64: the registers are its own.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.calls import ROWS, Call, Row

TRACEME, GETREGS, SETREGS, SYSCALL, SETOPTIONS = 0, 12, 13, 24, 0x4200  # linux/ptrace.h, x86/asm/ptrace-abi.h
SYSGOOD, FORK, VFORK, CLONE, EXITKILL = 0x1, 0x2, 0x4, 0x8, 0x100000
WALL = 0x40000000  # wait for threads too: linux/wait.h
AT_FDCWD, MAX_PATH_BYTES = -100, 4096
RAX, ORIG_RAX = 10, 15
ARGUMENTS = (14, 13, 12, 7, 9, 8)  # rdi, rsi, rdx, r10, r8, r9 in user_regs_struct: x86/asm/user_64.h
TIMEOUT_SECONDS = 60

Registers = ctypes.c_ulonglong * 27
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_libc.ptrace.restype = ctypes.c_long


@dataclass(frozen=True)
class Act:
    """What to do at a call: fail it, shorten it, kill before it or after it (shortened: in the middle)."""

    error: int = 0
    size: int | None = None
    kill_before: bool = False
    kill_after: bool = False


GO_ON = Act()
Decide = Callable[[Call], Act]
Observe = Callable[[Call, int, int], None]


@dataclass(frozen=True)
class Ended:
    """How a child ended: its exit code, or minus the signal that killed it."""

    code: int
    timed_out: bool


def why_not() -> str:
    """Why nothing can be traced here; empty where it can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"registers are read as those of Linux on x86-64, and this is {sys.platform}, {platform.machine()}"
    try:
        ended = trace(lambda: 0, Path("/"), lambda call: GO_ON)
    except OSError as error:
        return f"the system does not allow ptrace of a child: {error}"
    return "" if ended.code == 0 else f"a traced child ended with {ended.code}"


def _ptrace(request: int, pid: int, address: int = 0, data: object = 0) -> None:
    if _libc.ptrace(request, pid, address, data) == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def signed(value: int) -> int:
    """A register, or the int in its lower half, as a signed number."""
    return ctypes.c_longlong(value).value


def trace(body: Callable[[], int], root: Path, decide: Decide, observe: Observe | None = None) -> Ended:
    """Run ``body`` in a child and ask ``decide`` at every call on a file below ``root``, by any thread or child of it.

    A kill takes the child and whatever it started. ``observe`` is told of calls that were made, with their results
    and the thread, which waits.
    """
    pid = os.fork()
    if pid == 0:
        _be_traced(body)
    return _Tracer(pid, root, decide, observe).run()


def _be_traced(body: Callable[[], int]) -> None:
    code = 99
    with suppress(BaseException):
        _ptrace(TRACEME, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        code = body()
    os._exit(code)


@dataclass
class _Tracer:
    main: int
    root: Path
    decide: Decide
    observe: Observe | None
    inside: dict[int, tuple[Call, Act] | None] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    count: int = 0
    timed_out: bool = False

    def run(self) -> Ended:
        _, status = os.waitpid(self.main, WALL)
        if not os.WIFSTOPPED(status):
            raise OSError(os.WEXITSTATUS(status), "the child could not ask to be traced")
        _ptrace(SETOPTIONS, self.main, 0, SYSGOOD | FORK | VFORK | CLONE | EXITKILL)
        self.seen.add(self.main)
        self._go_on(self.main)
        before = signal.signal(signal.SIGALRM, self._time_out)
        signal.alarm(TIMEOUT_SECONDS)
        code = 0
        try:
            while self.seen:
                tid, status = os.waitpid(-1, WALL)
                if os.WIFSTOPPED(status):
                    self._stopped(tid, status)
                    continue
                self.seen.discard(tid)
                if tid == self.main:
                    code = os.waitstatus_to_exitcode(status)
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
        return Ended(code, self.timed_out)

    def _time_out(self, number: int, frame: object) -> None:
        self.timed_out = True
        self._kill()

    def _kill(self) -> None:
        for tid in self.seen:
            with suppress(ProcessLookupError):
                os.kill(tid, signal.SIGKILL)

    def _stopped(self, tid: int, status: int) -> None:
        number = os.WSTOPSIG(status)
        if number == signal.SIGTRAP | 0x80:
            self._at_call(tid)
            number = 0
        elif status >> 16 or tid not in self.seen:  # it started another one, or is one
            number = 0
        self.seen.add(tid)
        self._go_on(tid, number)

    def _go_on(self, tid: int, number: int = 0) -> None:
        with suppress(ProcessLookupError):
            _ptrace(SYSCALL, tid, 0, number)

    def _at_call(self, tid: int) -> None:
        registers = Registers()
        try:
            _ptrace(GETREGS, tid, 0, ctypes.addressof(registers))
            if tid in self.inside:
                entered = self.inside.pop(tid)
                if entered is not None:
                    self._leave(tid, registers, *entered)
            else:
                self.inside[tid] = None  # whatever happens on the way: the next stop is the call's end
                self.inside[tid] = self._enter(tid, registers)
        except ProcessLookupError:
            return

    def _enter(self, tid: int, registers: ctypes.Array[ctypes.c_ulonglong]) -> tuple[Call, Act] | None:
        row = ROWS.get(registers[ORIG_RAX])
        if row is None:
            return None
        args = tuple(registers[place] for place in ARGUMENTS)
        if row.only and args[1] not in row.only:
            return None
        path = self._path(tid, row.fd, row.paths, args)
        if path is None:
            return None
        call = Call(self.count, row, path, args, _size(tid, row, args))
        self.count += 1
        act = self.decide(call)
        if act.kill_before:
            registers[ORIG_RAX] = 2**64 - 1
            _ptrace(SETREGS, tid, 0, ctypes.addressof(registers))
            self._kill()
        elif act.error:
            registers[ORIG_RAX] = 2**64 - 1  # no call: the kernel does nothing
            _ptrace(SETREGS, tid, 0, ctypes.addressof(registers))
        elif act.size is not None:
            _resize(tid, call, act.size, registers)
        return call, act

    def _leave(self, tid: int, registers: ctypes.Array[ctypes.c_ulonglong], call: Call, act: Act) -> None:
        if act.error:
            registers[RAX] = 2**64 - act.error
            _ptrace(SETREGS, tid, 0, ctypes.addressof(registers))
        elif act.size is not None:  # the caller may look at its register, or its buffers, again
            _resize(tid, call, call.size, registers)
        if self.observe:
            self.observe(call, signed(registers[RAX]), tid)
        if act.kill_after:
            self._kill()

    def _path(
        self, tid: int, fd: int | None, paths: tuple[tuple[int | None, int], ...], args: tuple[int, ...]
    ) -> str | None:
        """The first of the call's files that is the root or lies below it, relative to it."""
        names = [self._of_descriptor(tid, args[fd])] if fd is not None else []
        for directory, place in paths:
            name = os.fsdecode(_memory(tid, args[place], MAX_PATH_BYTES).split(b"\0")[0])
            if not name and directory is not None:  # AT_EMPTY_PATH: the descriptor itself
                names.append(self._of_descriptor(tid, args[directory]))
            elif name.startswith("/") or directory is None or ctypes.c_int(args[directory]).value == AT_FDCWD:
                names.append(os.path.join(os.readlink(f"/proc/{tid}/cwd"), name))
            else:
                names.append(os.path.join(self._of_descriptor(tid, args[directory]), name))
        below = (os.path.relpath(name, self.root) for name in names if f"{name}/".startswith(f"{self.root}/"))
        return next(below, None)

    @staticmethod
    def _of_descriptor(tid: int, number: int) -> str:
        try:
            return os.readlink(f"/proc/{tid}/fd/{ctypes.c_int(number).value}")
        except OSError:
            return ""


def _size(tid: int, row: Row, args: tuple[int, ...]) -> int:
    if row.vector:
        return int.from_bytes(_memory(tid, args[1] + 8, 8), "little")  # struct iovec: base, length
    return args[row.size] if row.size is not None else 0


def _resize(tid: int, call: Call, size: int, registers: ctypes.Array[ctypes.c_ulonglong]) -> None:
    """Let a call ask for ``size`` bytes; one without a size stays as it is."""
    if call.row.vector:
        with open(f"/proc/{tid}/mem", "r+b", buffering=0) as memory:
            os.pwrite(memory.fileno(), size.to_bytes(8, "little"), call.args[1] + 8)
    elif call.row.size is not None:
        registers[ARGUMENTS[call.row.size]] = size
        _ptrace(SETREGS, tid, 0, ctypes.addressof(registers))


def _memory(tid: int, address: int, size: int) -> bytes:
    """Bytes of a process from ``address`` on, fewer where its memory ends."""
    parts = []
    with open(f"/proc/{tid}/mem", "rb", buffering=0) as memory:
        while size > 0:
            step = min(size, 4096 - address % 4096)
            try:
                parts.append(os.pread(memory.fileno(), step, address))
            except OSError:
                break
            if size == MAX_PATH_BYTES and b"\0" in parts[-1]:
                break
            address, size = address + step, size - step
    return b"".join(parts)
