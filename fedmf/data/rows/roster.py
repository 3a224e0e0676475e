"""The list of who the users are, made before anybody's rows are read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as arrow
import pyarrow.parquet as parquet

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
