"""What must be told before a stream begins, and what its first lines say: header and settings decide."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from fedmf.streaming.plans import StreamPlan
from fedmf.streaming.rows import InputError, Layout
from fedmf.streaming.settings import Settings

_MOST_NAMES: Final = 20
_SEPARATORS: Final = re.compile("[;\t|]")
#: Names of columns that hardly hold numbers of which a mean makes sense: whose a row is, and when.
_NO_NUMBERS: Final = re.compile(
    r"(user|person|client|customer|patient|member|subject|device|account)s?([_ -]?(id|uid|name|number|no))?"
    r"|id|uid|uuid|e?-?mail|name|(.*[_ -])?(time|timestamp|date|datetime|day)([_ -]utc)?",
    re.IGNORECASE,
)


def check_told(settings: Settings, layout: Layout, each_row_a_user: bool) -> None:
    """Whether it was said whose the rows are, and the header can be that of rows.

    Args:
        settings: of a new stream.
        layout: of its rows.
        each_row_a_user: whether every row was said to be another user's.

    Raises:
        InputError: it was not, or both were.
    """
    names = layout.columns
    if settings.schema is None and len(names) == 1 and (found := _SEPARATORS.search(names[0])):
        raise InputError(
            f"cells must be separated by commas; got {found.group()!r} in the header {names[0][:100]!r}."
        )
    if each_row_a_user and settings.user_column is not None:
        raise InputError(
            "--each-row-a-user must be left out where a column names the users; got "
            f"{settings.user_column!r}."
        )
    if settings.user_column is None and not each_row_a_user:
        raise InputError(
            "users of the rows must be told: --user-column NAME for the column that says whose a row is, or "
            "--each-row-a-user where every row is another person's; got neither."
        )
    if each_row_a_user and settings.max_participations not in (None, 1):
        raise InputError(
            "k (max_participations) must be 1 where every row is another user's (--each-row-a-user); got "
            f"{settings.max_participations}."
        )
    unnamed = settings.columns is None and settings.schema is None
    if unnamed and (odd := [name for name in names if _NO_NUMBERS.fullmatch(name.strip())]):
        raise InputError(
            "columns of numbers must be named, --columns A,B, or declared, --schema FILE, where a column "
            f"is called {odd[0][:100]!r}: its values would be released as numbers, or make all rows zeros."
        )


def first_lines(plan: StreamPlan, layout: Layout) -> list[str]:
    """What a stream says before its first step; the same whatever the rows hold.

    Args:
        plan: of the stream.
        layout: of its rows.
    """
    settings, lines = plan.settings, []
    k = plan.participation.max_participations
    if settings.user_column is not None:
        rows = "one row of each user takes" if k == 1 else f"{k} rows of each user take"
        lines.append(
            f"Unit: a user (column `{settings.user_column}`); at most {rows} a step, further ones are "
            "refused and count for nothing (--max-participations, --min-separation)."
        )
    elif k == 1:
        lines.append("Unit: a row, each as another user's. Of a person with several rows less is protected.")
    else:
        lines.append(
            f"Unit: a user of at most {k} rows, which nobody checks, as no column says whose a row is."
        )
    if settings.rounds is not None:
        lines.append(f"Horizon: {settings.rounds} rows take a step; rows beyond them are refused.")
    if settings.columns is None and settings.schema is None and not layout.vector:
        lines.append(
            f"Columns: {_shown(layout.columns)}, all that no option names, must be numbers: a column that "
            "holds text makes every row count as zeros (--columns names them, a schema declares them)."
        )
    return [*lines, *_of_cells(settings)]


def _of_cells(settings: Settings) -> list[str]:
    if settings.schema is None:
        return [
            "Missing cells: a row in which a number is missing or cannot be read counts as zeros, so that "
            "means are biased towards 0; with a schema (fedmf schema, nullable) it is left out.",
            f"Units: numbers are taken as they are, and rows longer than {settings.norm_bound:g} are "
            "shortened (--norm-bound). Columns of different size need a schema, which scales them.",
        ]
    if settings.count_weight:
        return [
            "Missing cells: a row in which a cell is missing or cannot be read is left out; means are of the "
            "valid rows, which are counted with noise."
        ]
    return [
        "Missing cells: a row in which a cell is missing or cannot be read counts for nobody, as if it held "
        "every column's center, so that means are biased towards it; nullable = true in the schema "
        "leaves such rows out."
    ]


def _shown(names: Sequence[str]) -> str:
    few = ", ".join(repr(name[:100]) for name in names[:_MOST_NAMES])
    return few + (f", … ({len(names)} in all)" if len(names) > _MOST_NAMES else "")
