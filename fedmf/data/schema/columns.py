"""What may be declared of a column: its kind, and what its cells may hold."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, ClassVar, Final, final

import numpy as np
import pyarrow as arrow
from numpy.typing import NDArray

#: Largest size of a bound or scale, far from overflow.
_LARGEST: Final = 1e30
_MOST_CATEGORIES: Final = 10_000
_LONGEST_CATEGORY: Final = 255
#: What a cell is never read with.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_MOST_STEPS: Final = 10**9
_STEP: Final = re.compile(r"(\d+) ?(s|min|h|d)")
_SECONDS: Final = {"s": 1, "min": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True)
class Column(ABC):
    """One column; abstract. Its fields are what a schema says of it, without a default where it must."""

    kind: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """Kind and fields, JSON-able."""
        given = {one.name: getattr(self, one.name) for one in fields(self) if one.init}
        given = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
        return {"kind": self.kind, **{name: value for name, value in given.items() if value is not None}}


@dataclass(frozen=True, kw_only=True)
class Encoded(Column):
    """A column that becomes coordinates of a vector; abstract.

    Args:
        nullable: whether cells are expected to be missing, so that valid rows are counted, with noise.
    """

    nullable: bool = False

    @property
    @abstractmethod
    def endings(self) -> tuple[str, ...]:
        """What the coordinates are called, behind the column's name."""

    @property
    @abstractmethod
    def center_and_scale(self) -> tuple[float, float]:
        """(center, scale): a coordinate z stands for center + scale·z."""

    @property
    @abstractmethod
    def bounds(self) -> tuple[float, float]:
        """Least and largest value of a coordinate in the column's own units."""

    @property
    @abstractmethod
    def largest_square(self) -> float:
        """The largest that the squares of the coordinates of one cell add up to."""

    @abstractmethod
    def encode(self, cells: list[str]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Coordinates of each cell, shape (cells, coordinates), and which cells can be read.

        Guarantees: what a cell becomes depends on that cell alone; one that cannot be read becomes zeros.
        """


@final
@dataclass(frozen=True)
class Number(Encoded):
    """A number, clipped into its bounds; x becomes (x − center)/scale.

    Args:
        lower: least value that counts.
        upper: largest value that counts.
        center: what becomes 0; None for the middle of the bounds.
        scale: what becomes 1; None for half the width of the bounds.
        fill: public value that stands for a missing cell; None: its row counts for nobody.
    """

    kind: ClassVar[str] = "number"
    lower: float
    upper: float
    center: float | None = None
    scale: float | None = None
    fill: float | None = None

    def __post_init__(self) -> None:
        for name in ("lower", "upper", "center", "scale", "fill"):
            _check_real(name, getattr(self, name), name in ("lower", "upper"))
        if not self.lower < self.upper:
            raise ValueError(f"lower (bound) must be less than upper; got {self.lower} and {self.upper}.")
        if self.scale is not None and not self.scale > 0:
            raise ValueError(f"scale must be positive; got {self.scale}.")
        for name in ("center", "fill"):
            value = getattr(self, name)
            if value is not None and not self.lower <= value <= self.upper:
                raise ValueError(f"{name} must lie within {self.lower}..{self.upper}; got {value}.")
        _check_rule(self.fill, self.nullable)

    @property
    def endings(self) -> tuple[str, ...]:
        """See `Encoded.endings`."""
        return ("",)

    @property
    def center_and_scale(self) -> tuple[float, float]:
        """See `Encoded.center_and_scale`."""
        center = (self.lower + self.upper) / 2 if self.center is None else self.center
        return center, (self.upper - self.lower) / 2 if self.scale is None else self.scale

    @property
    def bounds(self) -> tuple[float, float]:
        """See `Encoded.bounds`."""
        return self.lower, self.upper

    @property
    def largest_square(self) -> float:
        """See `Encoded.largest_square`."""
        center, scale = self.center_and_scale
        return (max(self.upper - center, center - self.lower) / scale) ** 2

    def encode(self, cells: list[str]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """See `Encoded.encode`; what is neither empty nor a finite number cannot be read.

        >>> Number(0.0, 10.0, fill=5.0).encode(["0", "20", "", "many"])[0].ravel().tolist()
        [-1.0, 1.0, 0.0, 0.0]
        """
        given = cells if self.fill is None else [cell or str(self.fill) for cell in cells]
        numbers = numbers_of_cells(given)
        valid = np.isfinite(numbers)
        center, scale = self.center_and_scale
        numbers = np.clip(np.where(valid, numbers, center), self.lower, self.upper)
        return np.where(valid, (numbers - center) / scale, 0.0)[:, None], valid


@final
@dataclass(frozen=True)
class Category(Encoded):
    """One of some categories; each category has a coordinate that is 1 in its rows and 0 in others.

    Args:
        categories: all that there are, in order.
        fill: the category that stands for a missing cell; None: its row counts for nobody.
    """

    kind: ClassVar[str] = "category"
    categories: tuple[str, ...]
    fill: str | None = None

    def __post_init__(self) -> None:
        categories = self.categories
        good = isinstance(categories, tuple) and all(
            isinstance(category, str) and category for category in categories
        )
        if not good or not 2 <= len(categories) <= _MOST_CATEGORIES or len(set(categories)) < len(categories):
            raise ValueError(
                f"categories must be 2 to {_MOST_CATEGORIES} different texts; got {list(categories)!r:.300}."
            )
        unfit = [
            category
            for category in categories
            if len(category) > _LONGEST_CATEGORY or category != category.strip() or _CONTROL.search(category)
        ]
        if unfit:
            raise ValueError(
                f"categories must have at most {_LONGEST_CATEGORY} characters, no blank ends and no "
                f"control characters, which no cell is read with; got {unfit[0][:40]!r}."
            )
        if self.fill is not None and self.fill not in categories:
            raise ValueError(f"fill must be one of categories; got {self.fill!r:.100}.")
        _check_rule(self.fill, self.nullable)

    @property
    def endings(self) -> tuple[str, ...]:
        """See `Encoded.endings`."""
        return tuple(f"={category}" for category in self.categories)

    @property
    def center_and_scale(self) -> tuple[float, float]:
        """See `Encoded.center_and_scale`: shares of rows stay shares."""
        return 0.0, 1.0

    @property
    def bounds(self) -> tuple[float, float]:
        """See `Encoded.bounds`."""
        return 0.0, 1.0

    @property
    def largest_square(self) -> float:
        """See `Encoded.largest_square`."""
        return 1.0

    def places(self, cells: list[str]) -> NDArray[np.int64]:
        """Place of each cell's category, −1 for one that is none of them."""
        known = {category: i for i, category in enumerate(self.categories)}
        given = (cell.strip() for cell in cells)
        return np.array([known.get(cell or self.fill or "", -1) for cell in given], dtype=np.int64)

    def encode(self, cells: list[str]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """See `Encoded.encode`; what is none of the categories cannot be read.

        >>> Category(("no", "yes")).encode(["yes", "perhaps"])[0].tolist()
        [[0.0, 1.0], [0.0, 0.0]]
        """
        places = self.places(cells)
        return (places[:, None] == np.arange(len(self.categories))).astype(np.float64), places >= 0


@final
@dataclass(frozen=True)
class Time(Column):
    """A time on a public grid: start, start + step, … before end. A row chooses only its own step.

    Args:
        start: the first time, as ISO 8601.
        end: the first time that is too late.
        step: width of the grid: a number and s, min, h or d, such as "15 min".
    """

    kind: ClassVar[str] = "time"
    start: str
    end: str
    step: str
    steps: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        first, last = self._ends
        if (first.tzinfo is None) != (last.tzinfo is None) or not first < last:
            raise ValueError(f"start must lie before end, in the same zone; got {self.start} and {self.end}.")
        steps = math.ceil((last - first) / self._width)
        if steps > _MOST_STEPS:
            raise ValueError(f"step must leave at most {_MOST_STEPS} steps; got {steps}.")
        object.__setattr__(self, "steps", steps)

    @cached_property
    def _ends(self) -> tuple[datetime, datetime]:
        ends = []
        for name in ("start", "end"):
            given = getattr(self, name)
            if (at := _time(given)) is None:
                raise ValueError(f"{name} must be a time such as 2026-01-31T12:00; got {given!r:.100}.")
            ends.append(at)
        return ends[0], ends[1]

    @cached_property
    def _width(self) -> timedelta:
        parts = _STEP.fullmatch(self.step) if isinstance(self.step, str) else None
        seconds = int(parts[1]) * _SECONDS[parts[2]] if parts else 0
        if not 0 < seconds <= 10**9:
            raise ValueError(
                f"step must be a number and s, min, h or d, such as '15 min'; got {self.step!r:.100}."
            )
        return timedelta(seconds=seconds)

    def steps_of(self, cells: list[str]) -> NDArray[np.int64]:
        """The step of each cell's time, from 0; −1 for what is no time of the grid.

        >>> Time("2026-01-01", "2026-01-02", "1 h").steps_of(["2026-01-01T01:59", "2025-12-31", "soon"])
        array([ 1, -1, -1])
        """
        first, last = self._ends
        steps = np.full(len(cells), -1, dtype=np.int64)
        for i, cell in enumerate(cells):
            at = _time(cell)
            if at is not None and (at.tzinfo is None) == (first.tzinfo is None) and first <= at < last:
                steps[i] = (at - first) // self._width
        return steps

    def label(self, step: int) -> str:
        """The beginning of a step, or nothing for −1."""
        return "" if step < 0 else (self._ends[0] + step * self._width).isoformat()


@final
@dataclass(frozen=True)
class FreeText(Column):
    """Any text; no vector holds it."""

    kind: ClassVar[str] = "text"


@final
@dataclass(frozen=True)
class User(Column):
    """The id of the user whose row it is."""

    kind: ClassVar[str] = "user"


@final
@dataclass(frozen=True)
class Ignored(Column):
    """A column that nothing reads."""

    kind: ClassVar[str] = "ignore"


#: What a column may be, by kind.
KINDS: Final[dict[str, type[Column]]] = {
    one.kind: one for one in (Number, Category, FreeText, Time, User, Ignored)
}


def numbers_of_cells(cells: list[str]) -> NDArray[np.float64]:
    """Numbers from text, NaN for what is none; each cell by itself, though together where that is quicker."""
    try:
        return arrow.array(cells, arrow.string()).cast(arrow.float64()).to_numpy(zero_copy_only=False)
    except arrow.ArrowException:
        return np.array([_number(cell) for cell in cells], dtype=np.float64)


def _number(cell: str) -> float:
    try:
        return math.nan if "_" in cell else float(cell)
    except ValueError:
        return math.nan


def _time(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(text.strip()) if isinstance(text, str) else None
    except ValueError:
        return None


def _check_real(name: str, value: object, needed: bool) -> None:
    if value is None and not needed:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
        raise ValueError(f"{name} must be a number; got {value!r:.100}.")


def _check_rule(fill: object, nullable: object) -> None:
    if not isinstance(nullable, bool):
        raise ValueError(f"nullable must be true or false; got {nullable!r:.100}.")
    if nullable and fill is not None:
        raise ValueError(f"fill must be left out with nullable: no cell is missing then; got {fill!r:.100}.")
