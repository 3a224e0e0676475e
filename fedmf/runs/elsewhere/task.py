"""What a run learns whose users are trained elsewhere, as far as records go, and a session of it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from torch import Tensor

from fedmf.accounting import UserLevel
from fedmf.cohorts import Cohorts, CyclicCohorts
from fedmf.data import PublicInput
from fedmf.errors import ConfigError
from fedmf.runs.directory import LEDGER, RunDirectory, read_header
from fedmf.runs.elsewhere.layout import ModelLayout
from fedmf.runs.execution import Execution
from fedmf.runs.plan import Plan
from fedmf.runs.run import Run, difference
from fedmf.runs.session import Session, new_directory
from fedmf.training import LocalSGD, Task


def asked_privacy(**named: Any) -> UserLevel:
    """`UserLevel` of these fields.

    Raises:
        ConfigError: one is out of its range.
    """
    try:
        return UserLevel(**named)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def asked_cohorts(cohorts: Cohorts | None, rounds: int, size: int) -> Cohorts:
    """Those that are given, or n cohorts of m users in turn.

    Raises:
        ConfigError: they do not fit the numbers beside them.
    """
    try:
        found = cohorts or CyclicCohorts(rounds=rounds, users_per_round=size)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if (found.rounds, found.users_per_round) != (rounds, size):
        raise ConfigError("cohorts must have the rounds and users_per_round that are given beside them.")
    return found


#: What of `Execution` changes what such a run does; the rest is what it must be, and no table shows it.
READ: Final = frozenset({"messages", "handshake_timeout", "min_replies"})
UNREAD: Final = frozenset(field.name for field in dataclasses.fields(Execution)) - READ


@dataclass(frozen=True, eq=False)
class TaskElsewhere:
    """The task of a program that brings updates, or of a Flower app, which the server does not know.

    Args:
        layout: of the model's arrays.
        roster: ids of all users in their order.
        identity: how users are told apart, in words.
    """

    layout: ModelLayout
    roster: Sequence[str]
    identity: str
    kind: ClassVar[str] = "aggregator"
    #: What statements call it, and where its users and its model come from.
    called: ClassVar[str] = "updates that a program brings"
    users_from: ClassVar[str] = "argument users"
    model_from: ClassVar[str] = "argument model"
    #: Why a task cannot be built here.
    unknown: ClassVar[str] = (
        "the task of an aggregator is its program's own; continue it with PrivateAggregator."
    )
    #: Training is the users' own.
    unread: ClassVar[Mapping[str, Collection[str]]] = {
        "client": {field.name for field in dataclasses.fields(LocalSGD)},
        "execution": UNREAD,
    }

    @property
    def users(self) -> int:
        """N."""
        return len(self.roster)

    def build(self) -> Task:
        """There is none on the server.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(self.unknown)

    @property
    def unit(self) -> str:
        """Clients are users."""
        return "user"

    def public_inputs(self) -> tuple[PublicInput, ...]:
        """See `TaskSource.public_inputs`."""
        arrays = f"{len(self.layout.names)} arrays, {self.layout.dimension} numbers trained"
        frozen = ", ".join(sorted(self.layout.kept)) or "none"
        return (
            PublicInput("users", str(self.users), self.users_from),
            PublicInput("user ids", self.identity, "the app"),
            PublicInput("model", arrays, self.model_from),
            PublicInput("arrays that stay", frozen, "named frozen, or of whole numbers"),
        )

    def undeclared(self) -> tuple[str, ...]:
        """Nothing is read off anybody's examples."""
        return ()

    def to_dict(self) -> dict[str, Any]:
        """What a record keeps."""
        return {
            "kind": self.kind,
            "name": self.called,
            "users": self.users,
            "roster": roster_digest(self.roster),
            "identity": self.identity,
            "arrays": self.layout.whole.fingerprint(),
        }


def roster_digest(roster: Sequence[str]) -> str:
    """SHA-256 of all user ids in order, each ended by a NUL.

    >>> roster_digest(["ab", "c"]) == roster_digest(["a", "bc"])
    False
    """
    digest = hashlib.sha256()
    for start in range(0, len(roster), 65536):
        digest.update("".join(f"{user}\0" for user in roster[start : start + 65536]).encode())
    return digest.hexdigest()


def session_of(path: Path, run: Run, task: TaskElsewhere, initial: Tensor, lasting: bool = True) -> Session:
    """Begin a run whose task only those know who train, or go on with the one that is there.

    Args:
        path: its directory.
        run: what to run.
        task: of the run.
        initial: θ_0.
        lasting: whether users are recognised when nodes come back.

    Raises:
        ConfigError: the place holds another run, or one that cannot be continued.
        LedgerError: a damaged ledger, or another process is running it.
    """
    layout = task.layout
    optimizer = run.optimizer_source.build(layout.trained_shapes, run.cohorts.rounds)
    if (path / LEDGER).is_file():
        other = difference(read_header(path).run, run.to_dict())
        if other is not None:
            raise ConfigError(f"{path} holds another run: {other}. Continue it with its own values.")
        if not lasting:
            raise ConfigError(
                f"{path} holds a run whose users are virtual nodes, which are others after a restart: it "
                "cannot go on. Use EnrolledUsers, or user_id_mod in the client app and UsersSayWho."
            )
        directory = RunDirectory.open(path)
    else:
        directory = new_directory(
            path,
            run,
            Plan.of(run, optimizer, initial.numel()),
            task.roster,
            dimension=initial.numel(),
            arrays=tuple((name, shape) for name, shape, _ in layout.trained),
            save_whole=layout.whole.save,
        )
    with contextlib.ExitStack() as held:
        held.enter_context(directory)
        session = Session(run, directory, optimizer, initial, task.roster)
        session.evaluate()  # a process may have died between a round and its row
        held.pop_all()
    return session
