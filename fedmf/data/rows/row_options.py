"""Options of data sets of rows: where they are, whose they are, and what is declared about them."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedmf.data.dataset import NumberedUsers, TestOwner
from fedmf.data.options import PublicInput, SpreadOptions
from fedmf.data.partitions import (
    Partition,
    hold_out_examples,
    hold_out_of_each_user,
    hold_out_users,
    partition_by_owner,
)
from fedmf.data.rows.cells import SUFFIXES, TextColumn, name_columns
from fedmf.data.user_ids import canonical_id
from fedmf.values import Field

_BY_LABELS: Final = ("dirichlet", "shards")


@dataclass(frozen=True)
class Dealt:
    """Rows spread over users.

    Args:
        owned: for each user its rows.
        user_ids: unique, stable names.
        tests: the mask of test rows, shape (rows,).
    """

    owned: Partition
    user_ids: Sequence[str]
    tests: NDArray[np.bool_]


@dataclass(frozen=True)
class RowOptions(SpreadOptions):
    """A data set of rows with named columns.

    A row whose user is missing or not on the roster counts for nobody.
    """

    path: Annotated[str, Field("where the rows are")] = ""
    user_column: Annotated[str, Field("name of the column that says whose row it is")] = ""
    roster: Annotated[
        str, Field("file with the ids of all users; needed for privacy with partition natural")
    ] = ""
    hold_out: Annotated[
        Literal["auto", "users", "examples"],
        Field("test part: all rows of some users, some examples, or auto: users with partition natural"),
    ] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path:
            raise ValueError(f"path (of the data) must name what dataset {self.kind!r} reads; got none.")
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
            **self.declared(),
            "roster": bool(self.roster) or not (self.partition == "natural" or self.holds_out_users),
        }
        return tuple(name for name, given in declared.items() if not given)

    @abstractmethod
    def declared(self) -> dict[str, bool]:
        """Keys about single rows that a private run must give, and whether they are given."""

    def public_inputs(self) -> tuple[PublicInput, ...]:
        """See `DatasetOptions.public_inputs`."""
        natural = self.partition == "natural"
        people = f"roster {self.roster}" if self.roster else "the user column: not for private runs"
        kept = "users of the roster, in its order" if self.roster else f"values of {self.user_column}"
        counted = "counted in the rows; a user's size decides that user's own batches and update only"
        dealt = (
            "computed from all labels" if self.partition in _BY_LABELS else "made from the number of rows"
        ) + " and the seed: who owns which row is taken as public"
        owners = (
            (
                PublicInput("users", str(self.users), "configuration, checked against " + people),
                PublicInput("user ids", kept, people),
                PublicInput("sizes of users", "number of rows of each", counted),
            )
            if natural
            else self.made_up_owners("number of rows of each", dealt)
        )
        return (
            *owners,
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

    def dealt(
        self,
        owner: NDArray[np.int64],
        names: Sequence[str],
        labels: NDArray[np.int64],
        rng: np.random.Generator,
        tested: bool = False,
    ) -> Dealt:
        """Hold rows out, and spread the others over users.

        Args:
            owner: place of each row's user among the names; −1 for nobody.
            names: of the users of the rows.
            labels: class of each row, for partitions by label; negative ones count as class 0.
            rng: public.
            tested: whether the test part is elsewhere, so that no row is held out.

        Raises:
            ValueError: test_fraction holds out too little or too much, or the partition does not fit.
        """
        users, tests = np.arange(len(names)), np.zeros(owner.size, dtype=bool)
        if tested:
            pass
        elif self.holds_out_users:
            gone = hold_out_users(len(names), self.test_fraction, rng)
            users, tests = np.setdiff1d(users, gone), np.isin(owner, gone)
        elif self.partition != "natural":  # whose row it was must not decide what others own
            tests = hold_out_examples(np.zeros_like(owner), self.test_fraction, rng)
        elif self.roster:
            tests = hold_out_of_each_user(owner, self.test_fraction, self.seed)
        else:
            tests = hold_out_examples(owner, self.test_fraction, rng)
        if self.partition == "natural":
            owned = partition_by_owner(np.where(tests, -1, owner), users)
            return Dealt(owned, tuple(names[int(u)] for u in users), tests)
        trained = np.flatnonzero(~tests)
        parts = self.split(np.maximum(labels[trained], 0), rng)
        return Dealt(Partition(trained[parts.order], parts.edges), NumberedUsers(self.users), tests)


def read_roster(path: Path, column: str) -> tuple[str, ...]:
    """User ids in the order of a file, as `canonical_id` writes them.

    A roster is public, so what is wrong with it is said.

    Args:
        path: a CSV or Parquet file with the column, or any other text file with one id a line.
        column: the user column.

    Raises:
        ValueError: unreadable, nobody, an id that is missing or occurs twice.
    """
    if path.suffix in SUFFIXES and path.is_file():
        names = TextColumn.of(name_columns(path, [("user_column", column)], "roster")[column])
        missing = (names.codes < 0).nonzero()[0]
        if missing.size:
            raise ValueError(
                f"roster must name a user in each row; got none in row {missing[0] + 1} of {path}."
            )
        users = tuple(names.values[code] for code in names.codes)
    else:
        try:
            lines = [line.strip() for line in path.read_text("utf-8-sig").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"roster must be a readable file of user ids; got {path}: {reason}") from None
        users = tuple(map(canonical_id, filter(None, lines)))
        if not all(users):
            raise ValueError(
                f"roster must write ids as text or whole numbers; got a float in {path} whose last digits "
                "are lost. Write it in full."
            )
    twice = [name for name, count in Counter(users).items() if count > 1]
    if twice or not users:
        wrong = f"{twice[0]!r} more than once" if twice else "nobody"
        raise ValueError(f"roster must name each user once; got {wrong} in {path}.")
    return users
