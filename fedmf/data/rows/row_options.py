"""Options of data sets of rows: where they are, whose they are, and what is declared about them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedmf.data.dataset import TestOwner
from fedmf.data.options import SpreadOptions
from fedmf.data.public_input import PublicInput, in_words
from fedmf.data.rows.ownership import (
    hold_out_examples,
    hold_out_of_each_user,
    hold_out_users,
)
from fedmf.data.rows.roster import read_roster
from fedmf.values import check_sizes

__all__ = ["HeldOut", "RowOptions"]

_RANGE: Final = re.compile(r"(\d{1,9})\.\.(\d{1,9})")
_MOST_CLASSES: Final = 1_000_000
_BY_LABELS: Final = ("dirichlet", "shards")


@dataclass(frozen=True)
class HeldOut:
    """What is held out of rows with owners.

    Args:
        rows: the mask of test rows, shape (rows,).
        users: the owners that stay users, in order.
    """

    rows: NDArray[np.bool_]
    users: NDArray[np.int64]


@dataclass(frozen=True)
class RowOptions(SpreadOptions):
    """A data set of rows with named columns.

    A row whose label is missing or none of the declared ones counts for nobody; so does one whose user is
    missing or not on the roster. A row whose features cannot be read makes only its owner's update zero.

    Args:
        path: where the rows are.
        feature_columns: names of the feature columns.
        label_column: name of the label column.
        user_column: name of the column that says whose row it is; empty for none.
        class_names: the labels there are, in order; ``0..61`` stands for these whole numbers. Empty: taken
            from the rows, which a private run may not.
        input_shape: of one example, channels first; empty: as the rows have it, which a private run may not.
        roster: a file with the ids of all users: one a line, or a CSV or Parquet file with the user column.
            Empty: the users are those of the rows, which a private run may not with partition "natural".
        hold_out: the test part: "users" (all rows of a share test_fraction of the users of the user column,
            who then are no users of the run), "examples" (a share of all rows), or "auto": users with
            partition "natural", else examples.
    """

    path: str = ""
    feature_columns: tuple[str, ...] = ()
    label_column: str = "label"
    user_column: str = ""
    class_names: tuple[str, ...] = ()
    input_shape: tuple[int, ...] = ()
    roster: str = ""
    hold_out: Literal["auto", "users", "examples"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path:
            raise ValueError(f"path (of the data) must name what dataset {self.kind!r} reads; got none.")
        check_sizes("input_shape", self.input_shape)
        _check_names("feature_columns", self.feature_columns)
        _check_names("class_names", self.class_names)
        if self.class_names and len(self.classes) < 2:
            raise ValueError(f"class_names must be at least two labels; got {self.class_names[0]!r} alone.")
        if len(set(self.classes)) < len(self.classes):
            raise ValueError(f"class_names must be different; got {', '.join(self.class_names)}.")
        if not self.label_column:
            raise ValueError("label_column must be named; got none.")
        needs = [
            what
            for what, asked in (
                ("partition 'natural'", self.partition == "natural"),
                ("hold_out 'users'", self.hold_out == "users"),
                ("a roster", bool(self.roster)),
            )
            if asked
        ]
        if needs and not self.user_column:
            raise ValueError(f"user_column must be named with {needs[0]}; got none.")

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The declared labels, ranges written out."""
        names: list[str] = []
        for entry in self.class_names:
            if not (ends := _RANGE.fullmatch(entry)):
                names.append(entry)
                continue
            first, last = map(int, ends.groups())
            if not 0 <= last - first < _MOST_CLASSES:
                raise ValueError(
                    f"class_names must hold ranges of 1 to {_MOST_CLASSES} numbers; got {entry}."
                )
            names.extend(map(str, range(first, last + 1)))
        return tuple(names)

    @property
    def holds_out_users(self) -> bool:
        """Whether all rows of some users are held out, rather than some rows."""
        return self.hold_out == "users" or (self.hold_out == "auto" and self.partition == "natural")

    @property
    def test_owner(self) -> TestOwner:
        """Whose the test part is; where users are made up, none of them ever owned its rows."""
        if self.partition != "natural":
            return "nobody"
        return "held-out users" if self.holds_out_users else "training users"

    def undeclared(self) -> tuple[str, ...]:
        """See `DatasetOptions.undeclared`."""
        declared = {
            "class_names": bool(self.class_names),
            "input_shape": bool(self.input_shape),
            "feature_columns": bool(self.feature_columns),
            "roster": bool(self.roster) or not (self.partition == "natural" or self.holds_out_users),
        }
        return tuple(name for name, given in declared.items() if not given)

    def example_inputs(self) -> tuple[PublicInput, PublicInput, PublicInput]:
        """See `DatasetOptions.example_inputs`."""
        shape = in_words(self.input_shape) or "as the rows have it"
        read = "read off the rows: not for private runs"
        return (
            PublicInput(
                "classes",
                ", ".join(self.class_names) or "the labels that occur",
                "declared: class_names" if self.class_names else read,
            ),
            PublicInput("shape of an example", shape, "declared: input_shape" if self.input_shape else read),
            PublicInput("normalisation", self.normalisation, "fixed by the reader; no statistic of the rows"),
        )

    @property
    def normalisation(self) -> str:
        """How values become features."""
        return "numbers as they are, in float32"

    def public_inputs(self) -> tuple[PublicInput, ...]:
        """See `DatasetOptions.public_inputs`."""
        natural = self.partition == "natural"
        people = f"roster {self.roster}" if self.roster else "the user column: not for private runs"
        kept = "users of the roster, in its order" if self.roster else f"values of {self.user_column}"
        counted = "counted in the rows; a user's size decides that user's own batches and update only"
        dealt = (
            "computed from all labels" if self.partition in _BY_LABELS else "made from the number of rows"
        ) + " and the seed: who owns which row is taken as public"
        return (
            PublicInput("users", str(self.users), "configuration, checked against " + people)
            if natural
            else PublicInput("users", str(self.users), "configuration"),
            PublicInput("user ids", kept, people)
            if natural
            else PublicInput("user ids", "numbered", "made from the number of users"),
            PublicInput("sizes of users", "number of rows of each", counted if natural else dealt),
            *self.example_inputs(),
            PublicInput(
                "partition",
                self.partition,
                f"column {self.user_column}: a row is its user's" if natural else dealt,
            ),
            PublicInput("test part", self.test_part, self._test_source()),
        )

    @property
    def test_part(self) -> str:
        """What the test part is, in words."""
        if self.test_owner == "training users":
            return "rows of the training users themselves; without noise their evaluation is not private"
        if self.test_owner == "held-out users":
            return "all rows of people who are no users of the run"
        return "rows that no user of the run owns"

    def _test_source(self) -> str:
        drawn = "who is held out" if self.holds_out_users else "which rows are held out"
        base = "the roster" if self.roster else "the users" if self.holds_out_users else "the number of rows"
        return f"{drawn} depends on {base}, test_fraction and the public seed"

    def users_on_roster(self, held_out: bool) -> tuple[str, ...]:
        """The roster's ids in its order; none without a roster.

        Args:
            held_out: whether some of them are held out.

        Raises:
            ValueError: an unreadable roster, or ``users`` is not how many of it are left to train.
        """
        if not self.roster:
            return ()
        names = read_roster(Path(self.roster).expanduser(), self.user_column)
        held = round(self.test_fraction * len(names)) if held_out else 0
        if self.partition == "natural" and self.users != len(names) - held:
            raise ValueError(
                f"U (users) must be {len(names) - held} with this roster: it names {len(names)}, of whom "
                f"{held} are held out; got {self.users}."
            )
        return names

    def held_out(self, owner: NDArray[np.int64], users: int, rng: np.random.Generator) -> HeldOut:
        """The test rows of rows without a test split of their own.

        Args:
            owner: place of each row's user; −1 for nobody.
            users: how many users there are.
            rng: public.

        Raises:
            ValueError: test_fraction holds out too little or too much.
        """
        everybody = np.arange(users)
        if self.holds_out_users:
            gone = hold_out_users(users, self.test_fraction, rng)
            return HeldOut(np.isin(owner, gone), np.setdiff1d(everybody, gone))
        if self.partition != "natural":  # whose row it was must not decide what others own
            return HeldOut(hold_out_examples(np.zeros_like(owner), self.test_fraction, rng), everybody)
        if self.roster:
            return HeldOut(hold_out_of_each_user(owner, self.test_fraction, self.seed), everybody)
        return HeldOut(hold_out_examples(owner, self.test_fraction, rng), everybody)


def _check_names(label: str, names: tuple[str, ...]) -> None:
    if not isinstance(names, tuple) or not all(names) or len(set(names)) < len(names):
        raise ValueError(f"{label} must be a tuple of different names; got {names!r}.")
    if any("," in name or name != name.strip() for name in names):
        raise ValueError(
            f"{label} must have no commas and no blanks at their ends, so that a configuration can list "
            f"them; got {names!r}."
        )
