"""What a disk may hold after a power loss: every state that POSIX allows, as far as it can be listed.

A call's effect is certain only after a sync of what it changed: data and length of a file by a sync of the
file, names by a sync of their directory. What is not certain may have happened or not, each by itself and in
any order, and a write may have happened in some of its sectors only; a file that grew by a later write has
zeros where an earlier one is missing. (After Pillai et al. 2014, "All File Systems Are Not Created Equal".)
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from system_calls import Call

__all__ = ["Image", "images"]

_SECTOR = 512


@dataclass(frozen=True)
class _Change:
    """One thing that may or may not have reached the disk; `owner` is what must be synced."""

    owner: int
    kind: str
    name: str = ""
    node: int = 0
    other_owner: int = 0
    other_name: str = ""
    offset: int = 0
    content: bytes = b""


@dataclass
class Image:
    """Directories and files by number, number 0 being the root."""

    directories: dict[int, dict[str, int]] = field(default_factory=lambda: {0: {}})
    files: dict[int, bytes] = field(default_factory=dict)

    def copy(self) -> Image:
        """One that can be changed without changing this."""
        return Image({node: dict(names) for node, names in self.directories.items()}, dict(self.files))

    def apply(self, change: _Change) -> None:
        """Let a change happen."""
        names = self.directories.get(change.owner, {})
        if change.kind == "write":
            old = self.files[change.owner]
            old += bytes(max(0, change.offset - len(old)))
            end = change.offset + len(change.content)
            self.files[change.owner] = old[: change.offset] + change.content + old[end:]
        elif change.kind == "truncate":
            old = self.files[change.owner][: change.offset]
            self.files[change.owner] = old + bytes(change.offset - len(old))
        elif change.kind == "link":
            names[change.name] = change.node
        elif change.kind == "unlink":
            if names.get(change.name) == change.node:
                del names[change.name]
        elif change.kind == "rename":
            if names.get(change.name) == change.node:
                del names[change.name]
            self.directories[change.other_owner][change.other_name] = change.node

    def listing(self, node: int = 0, prefix: str = "") -> Iterator[tuple[str, bytes | None]]:
        """Paths with contents, None for directories."""
        for name, child in sorted(self.directories[node].items()):
            if child in self.directories:
                yield prefix + name, None
                yield from self.listing(child, f"{prefix}{name}/")
            else:
                yield prefix + name, self.files[child]

    def digest(self) -> bytes:
        """Equal for equal disks."""
        whole = hashlib.sha256()
        for path, content in self.listing():
            kept = b"directory" if content is None else hashlib.sha256(content).digest()
            whole.update(path.encode() + b"\0" + kept)
        return whole.digest()

    def write(self, place: Path) -> None:
        """Make it a directory that does not exist yet; for the owner only, as fedmf makes its own."""
        place.mkdir(mode=0o700)
        for path, content in self.listing():
            if content is None:
                (place / path).mkdir(mode=0o700)
            else:
                with open(os.open(place / path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                    file.write(content)


class _Replay:
    """Follows a log of calls: what is there now, what is certain, and what is in between."""

    def __init__(self, root: Path) -> None:
        self._root, self.now = os.path.realpath(root), Image()
        self._next = 1
        self._read(Path(self._root), 0)
        self.certain = self.now.copy()
        self.open_changes: list[_Change] = []

    def _read(self, place: Path, node: int) -> None:
        for child in sorted(place.iterdir()):
            number = self._new()
            self.now.directories[node][child.name] = number
            if child.is_dir():
                self.now.directories[number] = {}
                self._read(child, number)
            else:
                self.now.files[number] = child.read_bytes()

    def _new(self) -> int:
        self._next += 1
        return self._next - 1

    def find(self, path: str) -> int | None:
        """The number of a file or directory; None if it has no name any more."""
        node = 0
        for name in Path(path).relative_to(self._root).parts:
            child = self.now.directories.get(node, {}).get(name)
            if child is None:
                return None
            node = child
        return node

    def take(self, call: Call) -> None:
        """A call happens."""
        if call.name == "sync":
            self._sync(self.find(call.path))
        elif call.name == "other":
            raise ValueError(f"a call that is not modelled: {call}")
        else:
            for change in self._changes(call):
                self.now.apply(change)
                self.open_changes.append(change)

    def _changes(self, call: Call) -> list[_Change]:
        if call.name in ("write", "truncate", "open-truncated"):
            node = self.find(call.path)
            if node is None:  # a file without a name cannot be found after a power loss
                return []
            kind = "write" if call.name == "write" else "truncate"
            return [_Change(node, kind, offset=call.offset, content=call.content)]
        parent, name = self.find(os.path.dirname(call.path)), os.path.basename(call.path)
        assert parent is not None
        if call.name in ("create", "mkdir"):
            node = self._new()
            if call.name == "create":
                self.now.files[node], self.certain.files[node] = b"", b""
            else:
                self.now.directories[node], self.certain.directories[node] = {}, {}
            return [_Change(parent, "link", name, node)]
        node = self.find(call.path)
        assert node is not None
        if call.name == "rename":
            to = self.find(os.path.dirname(call.target))
            assert to is not None
            return [_Change(parent, "rename", name, node, to, os.path.basename(call.target))]
        return [_Change(parent, "unlink", name, node)]

    def _sync(self, node: int | None) -> None:
        for change in [change for change in self.open_changes if change.owner == node]:
            self.certain.apply(change)
            self.open_changes.remove(change)


def images(root: Path, log: Sequence[Call], random_subsets: int, seed: int) -> Iterator[tuple[int, Image]]:
    """Disks that a power loss during a logged run may leave, each once, with how many calls were made.

    For each moment: nothing that is uncertain happened, all of it, each change alone, all but each, each
    beginning of the sequence, and random subsets in which writes are torn at sectors of 512 bytes.

    Args:
        root: the directory as it was before the run.
        log: its calls below the root, and what it said.
        random_subsets: how many at each moment.
        seed: of these.
    """
    replay = _Replay(root)
    return _images(replay, log, random_subsets, random.Random(seed))


def _images(
    replay: _Replay, log: Sequence[Call], random_subsets: int, generator: random.Random
) -> Iterator[tuple[int, Image]]:
    seen: set[tuple[bytes, int]] = set()
    said = 0
    for made, call in enumerate([None, *log]):
        if call is not None and call.name == "say":
            said += 1
        elif call is not None:
            replay.take(call)
        for chosen in _choices(replay.open_changes, random_subsets, generator):
            image = replay.certain.copy()
            for change in chosen:
                image.apply(change)
            key = (image.digest(), said)
            if key not in seen:
                seen.add(key)
                yield made, image


def _choices(
    changes: Sequence[_Change], random_subsets: int, generator: random.Random
) -> Iterator[list[_Change]]:
    everything = list(changes)
    yield []
    if not everything:
        return
    for i in range(len(everything)):
        yield everything[: i + 1]
        yield [everything[i]]
        yield everything[:i] + everything[i + 1 :]
    for _ in range(random_subsets):
        share = generator.random()
        yield [
            piece for change in everything for piece in _torn(change, generator) if generator.random() < share
        ]


def _torn(change: _Change, generator: random.Random) -> list[_Change]:
    """A write in pieces that end at sectors, the others whole."""
    if change.kind != "write" or generator.random() < 0.5:
        return [change]
    first, end = change.offset, change.offset + len(change.content)
    cuts = [first, *range((first // _SECTOR + 1) * _SECTOR, end, _SECTOR), end]
    return [
        _Change(change.owner, "write", offset=a, content=change.content[a - first : b - first])
        for a, b in itertools.pairwise(cuts)
    ]
