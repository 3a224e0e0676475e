"""Which rows are held out for central evaluation, and whose the others are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from fedmf.data.keyed_draws import KeyedDraws
from fedmf.data.partitions import Partition
from fedmf.data.rows.csv_lines import csv_batches
from fedmf.data.rows.text_column import TextColumn, bytes_of


def read_roster(path: Path, column: str) -> tuple[str, ...]:
    """User ids in the order of a file; it is public, so what is wrong with it is said.

    Args:
        path: a CSV or Parquet file with the column, or any other text file with one id a line.
        column: the user column.

    Raises:
        ValueError: unreadable, nobody, an id that is missing or occurs twice.
    """
    try:
        if path.suffix == ".parquet":
            chunks = parquet.read_table(path, columns=[column]).column(0).chunks
            users = _of_column([bytes_of(chunk, f"column {column!r} of {path}") for chunk in chunks], path)
        elif path.suffix == ".csv":
            batches = csv_batches(path, lambda present: _checked(path, column, present), (column,))
            users = _of_column([bytes_of(batch.column(0).combine_chunks(), "") for batch in batches], path)
        else:
            users = tuple(filter(None, (line.strip() for line in path.read_text("utf-8").splitlines())))
    except (OSError, UnicodeDecodeError, arrow.ArrowException, IndexError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"roster must be a readable file of user ids; got {path}: {reason}") from None
    twice = [name for name, count in Counter(users).items() if count > 1]
    if twice or not users:
        wrong = f"{twice[0]!r} more than once" if twice else "nobody"
        raise ValueError(f"roster must name each user once; got {wrong} in {path}.")
    return users


def _checked(path: Path, column: str, present: list[str]) -> list[str]:
    if present.count(column) != 1:
        raise ValueError(f"roster must have one column {column!r}; got {', '.join(present)} in {path}.")
    return [column]


def _of_column(chunks: list[arrow.Array], path: Path) -> tuple[str, ...]:
    column = TextColumn.of(chunks)
    missing = (column.codes < 0).nonzero()[0]
    if missing.size:
        raise ValueError(f"roster must name a user in each row; got none in row {missing[0] + 1} of {path}.")
    return tuple(column.values[code] for code in column.codes)


def hold_out_examples(
    owner: NDArray[np.int64], fraction: float, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """A random share of all examples, but never the last one of an owner.

    Args:
        owner: who owns each example, shape (examples,).
        fraction: of all examples, in (0, 1).
        rng: decides which.

    Returns:
        The mask of held-out examples, shape (examples,).

    Raises:
        ValueError: no example would be held out, or every owner would have to give its last one.

    >>> hold_out_examples(np.array([0, 0, 0, 1]), 0.5, np.random.default_rng(0)).sum()
    np.int64(2)
    """
    order = rng.permutation(owner.size)
    last = np.zeros(owner.size, dtype=bool)
    last[order[np.unique(owner[order], return_index=True)[1]]] = True
    spare = order[~last[order]]
    wanted = round(fraction * owner.size)
    if not 1 <= wanted <= spare.size:
        raise ValueError(
            f"test_fraction must hold out between 1 and {spare.size} of {owner.size} examples, so that every "
            f"user keeps one; got {fraction}, which is {wanted}."
        )
    mask = np.zeros(owner.size, dtype=bool)
    mask[spare[:wanted]] = True
    return mask


def hold_out_of_each_user(owner: NDArray[np.int64], fraction: float, seed: int) -> NDArray[np.bool_]:
    """Each example with probability ``fraction``, but never a user's first.

    Guarantees: which examples of a user are held out depends on the seed, the user's place and how many the
    user owns, not on anybody else.

    Args:
        owner: who owns each example, shape (examples,); −1 for nobody, whose examples are not held out.
        fraction: in (0, 1).
        seed: public.

    >>> hold_out_of_each_user(np.array([0, 7, 0, 0, -1, 0]), 0.999, 0).tolist()
    [False, False, True, True, False, True]
    """
    order = np.argsort(owner, kind="stable")
    edges = np.flatnonzero(np.diff(owner[order], prepend=-2))
    first = np.repeat(edges, np.diff(edges, append=owner.size))
    place = np.empty(owner.size, dtype=np.int64)
    place[order] = np.arange(owner.size) - first
    words = KeyedDraws(seed, "held-out rows").words(owner, place[:, None])[:, 0]
    return (owner >= 0) & (place > 0) & (words < np.uint64(fraction * 2.0**64))


def hold_out_users(users: int, fraction: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """A random share of the users 0..U − 1.

    Raises:
        ValueError: nobody would be held out, or everybody.

    >>> hold_out_users(4, 0.5, np.random.default_rng(0)).tolist()
    [2, 0]
    """
    wanted = round(fraction * users)
    if not 1 <= wanted < users:
        raise ValueError(
            f"test_fraction must hold out between 1 and {users - 1} of {users} users; got {fraction}, "
            f"which is {wanted}."
        )
    return rng.permutation(users)[:wanted]


def partition_by_owner(owner: NDArray[np.int64], users: NDArray[np.int64]) -> Partition:
    """Each row belongs to its owner; rows of others to nobody.

    Args:
        owner: shape (rows,).
        users: the owners that are users, in order.

    >>> partition_by_owner(np.array([3, 0, -1, 3]), np.array([0, 2, 3]))[2].tolist()
    [0, 3]
    """
    place = np.full(max(int(owner.max(initial=-1)), int(users.max(initial=-1))) + 2, -1, dtype=np.int64)
    place[users] = np.arange(users.size)
    user = place[owner]
    rows = np.flatnonzero(user >= 0)
    order = rows[np.argsort(user[rows], kind="stable")]
    return Partition(order, np.searchsorted(user[order], np.arange(users.size + 1)))
