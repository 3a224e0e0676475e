"""Data in LEAF's JSON format, such as FEMNIST: users with their own rows."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedmf.data.memory import InMemoryDataset
from fedmf.data.rows.labelled_rows import LabelledRows

#: Strings of JSON, and what stands between values.
_STRUCTURE = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}:,]', re.DOTALL)


@dataclass
class _Rows:
    """Rows as they come."""

    features: list[NDArray[np.float32]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    users: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Leaf(LabelledRows):
    """JSON files as LEAF's scripts write them: ``train/*.json`` and ``test/*.json``, each with
    ``user_data``, from a user's id to lists ``x`` and ``y`` of as many examples and labels.

    For FEMNIST: input_shape (1, 28, 28), class_names 0..61. Users are those of train; rows of test that
    belong to them are left out, unless ``hold_out`` is "examples". Without a folder test, ``hold_out`` says
    what is held out. HDF5 files, as TensorFlow Federated has them, are not read.

    Args:
        path: of the folder that has the folder train.
        feature_columns: not used: features are ``x``.
        label_column: not used: labels are ``y``.
        user_column: not used: ids are the keys of ``user_data``; also the roster's column.

    References:
        Caldas et al. (2018), "LEAF: A Benchmark for Federated Settings".
    """

    kind: ClassVar[str] = "leaf"
    partition: Literal["natural"] = "natural"
    feature_columns: tuple[str, ...] = ("x",)
    label_column: str = "y"
    user_column: str = "user"

    def load(self) -> InMemoryDataset:
        """See `DatasetOptions.load`."""
        folder = Path(self.path).expanduser()
        tested = (folder / "test").is_dir()
        people = self.users_on_roster(self.holds_out_users and not tested)
        rows = _read(folder / "train", people)
        classes = self.classes or tuple(sorted(set(rows.labels), key=lambda name: (len(name), name)))
        if len(classes) < 2:
            raise ValueError(f"{self.path} must hold at least two labels; got {', '.join(classes)}.")
        shape = self.input_shape or next((x.shape for x in rows.features if x.size), (1,))
        users = people or tuple(dict.fromkeys(rows.users))
        features, labels, owner = _stacked(rows, classes, users, math.prod(shape))
        dealt = self.dealt(owner, users, labels, np.random.default_rng([self.seed, 0x1EAF]), tested)
        test_x, test_y, candidates = features, labels, dealt.tests
        if tested:
            test_x, test_y, of_user = _stacked(_read(folder / "test", ()), classes, users, math.prod(shape))
            candidates = self.may_test(of_user >= 0)
        tests = np.flatnonzero(candidates & (test_y >= 0) & np.isfinite(test_x).all(axis=1))
        if not tests.size:
            raise ValueError(
                f"the test part must have a row that can be read and is of no user of the run; got none in "
                f"{self.path}. With LEAF's split by sample say hold_out 'examples', whose "
                "evaluation is not private."
            )
        return InMemoryDataset(
            features=torch.from_numpy(features).reshape(-1, *shape),
            labels=torch.from_numpy(labels),
            owned=dealt.owned.keeping(labels >= 0),
            user_ids=dealt.user_ids,
            test_features=torch.from_numpy(test_x[tests]).reshape(-1, *shape),
            test_labels=torch.from_numpy(test_y[tests]),
            classes=len(classes),
            test_owner=self.test_owner,
        )


def _read(folder: Path, people: Sequence[str]) -> _Rows:
    """All rows of a folder's files, in the order of their names; of these users only, if any are named."""
    files = sorted(folder.glob("*.json")) if folder.is_dir() else []
    if not files:
        hdf5 = any(folder.parent.glob("*.h5")) or any(folder.parent.glob("*.hdf5"))
        hint = " HDF5 is not read: take LEAF's JSON." if hdf5 else ""
        raise ValueError(
            f"path must hold {folder.name}/*.json, as LEAF writes them; got {folder.parent}.{hint}"
        )
    rows, allowed = _Rows(), set(people)
    for file in files:
        for user, own in _users_of(file).items():
            if not allowed or user in allowed:
                _add(rows, user, own)
    return rows


def _users_of(file: Path) -> dict[str, Any]:
    try:
        content = file.read_bytes()
        try:
            whole = json.loads(content)
        except (ValueError, RecursionError):  # one user's number of too many digits, or nesting too deep
            return _user_by_user(content)
    except (OSError, ValueError, RecursionError):
        raise ValueError(f"path must hold readable JSON; got {file}, which is not.") from None
    users = whole.get("user_data") if isinstance(whole, dict) else None
    if not isinstance(users, dict):
        raise ValueError(f"path must hold files with an object user_data; got none in {file}.")
    return users


def _user_by_user(content: bytes) -> dict[str, Any]:
    """user_data, each user's value by itself: what cannot be read is that user's loss alone.

    Raises:
        ValueError: it is not certain what is whose: brackets do not match, or something else is wrong.
    """
    whole = _members(content, content.find(b"{"))
    begin, end = next(((begin, end) for key, begin, end in whole if key == b'"user_data"'), (0, 0))
    json.loads(content[:begin] + b"{}" + content[end:])  # all else must be as it should
    users: dict[str, Any] = {}
    for name, start, stop in _members(content, content.find(b"{", begin, end)):
        user = json.loads(name)
        try:
            users[user] = json.loads(content[start:stop])
        except (ValueError, RecursionError):
            users[user] = None
    return users


def _members(content: bytes, start: int) -> Iterator[tuple[bytes, int, int]]:
    """Keys of the object that begins at ``start``, and where their values begin and end."""
    depth, key, begin = 0, b"", 0
    for token in _STRUCTURE.finditer(content, start) if start >= 0 else ():
        if token[0] in (b"{", b"["):
            depth += 1
        elif token[0] in (b"}", b"]"):
            depth -= 1
        elif depth == 1 and token[0] == b":":
            begin = token.end()
        elif depth == 1 and token[0] != b"," and not begin:
            key = token[0]
        if begin and (depth == 0 or (depth == 1 and token[0] == b",")):
            yield key, begin, token.start()
            key, begin = b"", 0
        if depth == 0:
            return
    raise ValueError("an object must end.")


def _add(rows: _Rows, user: str, own: Any) -> None:
    """A user's examples; whatever stands there decides this user's rows only."""
    xs, ys = (own.get(name) if isinstance(own, dict) else None for name in ("x", "y"))
    if not isinstance(ys, list):
        return
    xs = xs if isinstance(xs, list) and len(xs) == len(ys) else [None] * len(ys)
    for x, y in zip(xs, ys, strict=True):
        rows.features.append(_numbers(x))
        rows.labels.append(str(y) if isinstance(y, str) or type(y) is int else "")
        rows.users.append(user)


def _numbers(x: Any) -> NDArray[np.float32]:
    """The numbers of one example; none of what is no flat list of numbers."""
    if not isinstance(x, list) or not all(type(value) in (int, float) for value in x):
        return np.zeros(0, dtype=np.float32)
    try:
        with np.errstate(over="ignore"):
            return np.array(x, dtype=np.float32)
    except (OverflowError, ValueError):
        return np.zeros(0, dtype=np.float32)


def _stacked(
    rows: _Rows, classes: Sequence[str], users: Sequence[str], width: int
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Features, places of labels and places of users; −1 for what is not among them."""
    features = np.full((len(rows.features), width), np.nan, dtype=np.float32)
    for place, x in zip(features, rows.features, strict=True):
        if x.size == width and np.isfinite(x).all():
            place[...] = x
    class_at, user_at = ({name: i for i, name in enumerate(names)} for names in (classes, users))
    labels = np.array([class_at.get(name, -1) for name in rows.labels], dtype=np.int64)
    return features, labels, np.array([user_at.get(name, -1) for name in rows.users], dtype=np.int64)
