"""Watch, kill or fail a process before any system call that changes files (Linux on x86-64, no
tools needed).

A forked child runs a function; this process stops it at each system call by ptrace and sees which
file is meant. SQLite's own calls are seen as well as Python's.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Elsewhere numbers of calls and registers differ.
SUPPORTED: Final = sys.platform == "linux" and platform.machine() == "x86_64"

_TRACEME = 0
_PEEKUSER = 3
_POKEUSER = 6
_SYSCALL = 24
_SETOPTIONS = 0x4200
_GOOD_STOP = 0x1
_THREADS_TOO = 0x8
_KILL_WITH_US = 0x100000
#: Wait for threads as well as processes.
_ALL: Final = 0x40000000
_AT_FDCWD: Final = -100
#: Offsets of registers in `struct user`.
_ORIG_RAX = 120
_RAX = 80
_RDI = 112
_RSI = 104
_RDX = 96
_R10 = 56
_NAMES: Final = {
    1: "write",
    18: "pwrite64",
    20: "writev",
    296: "pwritev",
    76: "truncate",
    77: "ftruncate",
    285: "fallocate",
    74: "fsync",
    75: "fdatasync",
    2: "open",
    85: "creat",
    257: "openat",
    82: "rename",
    264: "renameat",
    316: "renameat2",
    87: "unlink",
    263: "unlinkat",
    83: "mkdir",
    258: "mkdirat",
    84: "rmdir",
    86: "link",
    265: "linkat",
    326: "copy_file_range",
    40: "sendfile",
}
_CREAT = os.O_CREAT
_TRUNC = os.O_TRUNC
_APPEND = os.O_APPEND


@dataclass(frozen=True)
class Call:
    """A system call that changes files, or writes to something else, before it is made.

    Args:
        name: "create", "open-truncated", "write", "truncate", "sync", "rename", "unlink", "mkdir",
            "rmdir", "other"; or "say", a write to a pipe or terminal.
        path: of the file or directory.
        target: where a rename leads.
        offset: where it writes; the new length for "truncate".
        content: what it writes.
    """

    name: str
    path: str
    target: str = ""
    offset: int = 0
    content: bytes = b""


def traced(
    body: Callable[[], object], root: Path, decide: Callable[[Call], int | None] = lambda _: None
) -> int:
    """Run ``body`` in a forked child that is stopped before each call that changes something below
    ``root``.

    Args:
        body: what the child runs; an exception is exit status 1. All of its threads are seen.
        root: a directory.
        decide: about each such call and each write to elsewhere: None to let it happen, 0 to
            kill the child before it, an error number to fail it with.

    Returns:
        The child's exit status, negative for a signal.
    """
    if not SUPPORTED:
        raise RuntimeError("tracing system calls needs Linux on x86-64.")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.restype = ctypes.c_long
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _child(libc, body)
    os.waitpid(pid, 0)
    tracer = _Tracer(libc, pid, os.path.realpath(root))
    try:
        return tracer.run(decide)
    except BaseException:
        tracer.kill()
        raise


def _child(libc: ctypes.CDLL, body: Callable[[], object]) -> None:
    status = 1
    try:
        libc.ptrace(_TRACEME, 0, None, None)
        os.kill(os.getpid(), signal.SIGSTOP)
        body()
        status = 0
    except SystemExit as leave:
        status = leave.code if isinstance(leave.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


@dataclass
class _Thread:
    """Where a thread of the child stands.

    Args:
        new: whether it has not stopped yet; it does so as it begins.
        entering: whether its next stop is before a call; otherwise after it.
        failure: the error number of the call that it is in.
    """

    new: bool = True
    entering: bool = True
    failure: int | None = None


class _Tracer:
    def __init__(self, libc: ctypes.CDLL, pid: int, root: str) -> None:
        self._libc = libc
        self._pid = pid
        self._root = root
        #: Whose registers are read.
        self._thread = pid
        self._ptrace(_SETOPTIONS, 0, _GOOD_STOP | _THREADS_TOO | _KILL_WITH_US)

    def kill(self) -> None:
        """End the child and wait until it has."""
        os.kill(self._pid, signal.SIGKILL)
        while True:
            thread, status = os.waitpid(-1, _ALL)
            if thread == self._pid and not os.WIFSTOPPED(status):
                return

    def run(self, decide: Callable[[Call], int | None]) -> int:
        """Follow the child to its end."""
        threads = {self._pid: _Thread(new=False)}
        self._ptrace(_SYSCALL, 0, 0)
        while True:
            self._thread, status = os.waitpid(-1, _ALL)
            if not os.WIFSTOPPED(status):
                if self._thread == self._pid:
                    return os.waitstatus_to_exitcode(status)
                threads.pop(self._thread, None)
                continue
            thread = threads.setdefault(self._thread, _Thread())
            passed_on = 0
            if os.WSTOPSIG(status) == signal.SIGTRAP | 0x80:
                if not self._at_call(thread, decide):
                    self.kill()
                    return -signal.SIGKILL
            elif (
                not thread.new and not status >> 16
            ):  # no stop of a thread that begins or was begun
                passed_on = os.WSTOPSIG(status)
            thread.new = False
            with contextlib.suppress(ProcessLookupError):  # another thread ended the process
                self._ptrace(_SYSCALL, 0, passed_on)

    def _at_call(self, thread: _Thread, decide: Callable[[Call], int | None]) -> bool:
        """Before or after a call of a thread; False if the child is to be killed."""
        if thread.entering:
            call = self._call()
            if call is not None:
                thread.failure = decide(call)
                if thread.failure == 0:
                    return False
                if thread.failure is not None:
                    self._ptrace(_POKEUSER, _ORIG_RAX, 2**64 - 1)
        elif thread.failure is not None:
            self._ptrace(_POKEUSER, _RAX, 2**64 - thread.failure)
            thread.failure = None
        thread.entering = not thread.entering
        return True

    def _ptrace(self, request: int, address: int, data: int) -> int:
        ctypes.set_errno(0)
        value = self._libc.ptrace(
            request, self._thread, ctypes.c_void_p(address), ctypes.c_void_p(data)
        )
        if value == -1 and ctypes.get_errno():
            raise OSError(ctypes.get_errno(), f"ptrace request {request:#x}")
        return value

    def _register(self, offset: int) -> int:
        return self._ptrace(_PEEKUSER, offset, 0) & (2**64 - 1)

    def _call(self) -> Call | None:
        """What the child is about to do, if it changes something below the root or says
        something.
        """
        name = _NAMES.get(self._register(_ORIG_RAX))
        if name is None:
            return None
        call = _READERS[name](self, name, *map(self._register, (_RDI, _RSI, _RDX, _R10)))
        if call is None or call.name == "say":
            return call
        below = call.path.startswith(self._root + "/")
        return call if below or call.path == self._root else None

    def write(self, name: str, fd: int, data: int, size: int, offset: int) -> Call:
        """A write of one or several pieces."""
        if name in ("writev", "pwritev"):
            table = self._memory(data, 16 * size)
            pieces = [struct.unpack_from("QQ", table, 16 * i) for i in range(size)]
            content = b"".join(self._memory(at, length) for at, length in pieces)
        else:
            content = self._memory(data, size)
        path = self._descriptor(fd)
        if not path.startswith("/"):
            return Call("say", path, content=content)
        if not name.startswith("pwrite"):
            lines = Path(f"/proc/{self._pid}/fdinfo/{fd}").read_text().split()
            position = int(lines[1])
            flags = int(lines[3], 8)
            offset = os.stat(f"/proc/{self._pid}/fd/{fd}").st_size if flags & _APPEND else position
        return Call("write", path, offset=offset, content=content)

    def resize(self, name: str, which: int, size: int, *_: int) -> Call:
        """Cutting or stretching an open file, or one with a path."""
        if name == "truncate":
            return Call("truncate", self._absolute(_AT_FDCWD, which), offset=size)
        return Call("truncate", self._descriptor(which), offset=size)

    def sync(self, name: str, fd: int, *_: int) -> Call:
        """Making a file or directory durable."""
        return Call("sync", self._descriptor(fd))

    def open(self, name: str, *arguments: int) -> Call | None:
        """Opening a file, if that changes something."""
        path, flags = self._path(name, "openat", arguments)
        if name == "creat":
            flags = _CREAT | _TRUNC
        exists = os.path.lexists(path)
        if flags & _CREAT and not exists:
            return Call("create", path)
        if flags & _TRUNC and exists:
            return Call("open-truncated", path)
        return None

    def entry(self, name: str, *arguments: int) -> Call | None:
        """Removing a name or making a directory; None where it will fail."""
        kind = name.removesuffix("at")
        path, flags = self._path(name, f"{kind}at", arguments)
        if kind == "unlink" and name.endswith("at") and flags & 0x200:
            kind = "rmdir"
        return Call(kind, path) if os.path.lexists(path) != (kind == "mkdir") else None

    def rename(self, name: str, *arguments: int) -> Call:
        """Another name."""
        if name == "rename":
            source, target = (self._absolute(_AT_FDCWD, at) for at in arguments[:2])
        else:
            source = self._absolute(*arguments[:2])
            target = self._absolute(*arguments[2:4])
        return Call("rename", source, target)

    def other(self, name: str, first: int, *_: int) -> Call:
        """Calls that fedmf makes no use of: seen, so that a new one does not go unnoticed."""
        return Call(
            "other", self._descriptor(first) if name != "link" else self._absolute(_AT_FDCWD, first)
        )

    def _path(self, name: str, at_form: str, arguments: tuple[int, ...]) -> tuple[str, int]:
        if name == at_form:
            return self._absolute(arguments[0], arguments[1]), arguments[2]
        return self._absolute(_AT_FDCWD, arguments[0]), arguments[1]

    def _absolute(self, directory: int, at: int) -> str:
        signed = ctypes.c_int(directory & 0xFFFFFFFF).value
        place = "cwd" if signed == _AT_FDCWD else f"fd/{signed}"
        base = os.readlink(f"/proc/{self._pid}/{place}")
        path = os.path.join(base, os.fsdecode(self._memory(at, 4096, text=True)))
        return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))

    def _descriptor(self, fd: int) -> str:
        return os.readlink(f"/proc/{self._pid}/fd/{fd}")

    def _memory(self, at: int, size: int, text: bool = False) -> bytes:
        with open(f"/proc/{self._pid}/mem", "rb", buffering=0) as memory:
            memory.seek(at)
            if not text:
                content = b""
                while len(content) < size:
                    content += memory.read(size - len(content))
                return content
            content = memory.read(min(size, 4096 - at % 4096))
            if b"\0" not in content:
                content += memory.read(size)
            return content.split(b"\0", 1)[0]


_READERS: Final = {
    **dict.fromkeys(("write", "pwrite64", "writev", "pwritev"), _Tracer.write),
    **dict.fromkeys(("ftruncate", "truncate"), _Tracer.resize),
    **dict.fromkeys(("fsync", "fdatasync"), _Tracer.sync),
    **dict.fromkeys(("open", "creat", "openat"), _Tracer.open),
    **dict.fromkeys(("unlink", "unlinkat", "mkdir", "mkdirat", "rmdir"), _Tracer.entry),
    **dict.fromkeys(("rename", "renameat", "renameat2"), _Tracer.rename),
    **dict.fromkeys(("fallocate", "link", "linkat", "copy_file_range", "sendfile"), _Tracer.other),
}
