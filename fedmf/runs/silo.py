"""A silo: it clips, sums, noises and counts for its own people, and trusts nobody with them.

A silo is a run of its own. Whatever a server asks for, and in whichever round, the silo answers
with the next row of its own noise (docs/theory/noise.md, "A silo's own clock").
"""

from __future__ import annotations

import dataclasses
import hashlib
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.clipping.clipped_sum import SumSpec
from fedmf.data import PublicInput
from fedmf.errors import ConfigError, HorizonExceededError
from fedmf.ledger.released_integers import FOLDER, INTEGERS
from fedmf.optim import Sgd
from fedmf.runs.aggregator import ExternalTask, checked_users, session_of
from fedmf.runs.directory import LEDGER
from fedmf.runs.loop import Reply
from fedmf.runs.model_layout import Arrays, ModelLayout, as_array, named_copies
from fedmf.runs.run import Execution
from fedmf.runs.session import Session
from fedmf.runs.simulation import Request
from fedmf.runs.tables.configuration import run_of
from fedmf.training import LocalTrainer, UserFailure, preflight
from fedmf.training.user_failures import described, pass_interrupt
from fedmf.values import Field, Value, fields_of

#: From a user's id and a copy of the model, by name, to what training changed, by name.
Train = Callable[[str, dict[str, NDArray[Any]]], Arrays]

#: Tables of a silo's file, and those that describe data and training for fedmf's own client app.
_TABLES: Final = ("cohorts", "privacy", "mechanism")
_TASK_TABLES: Final = ("task", "data", "model", "client")
#: Every release is kept, so that it can be sent again, and committed with the request it answers.
_EXECUTION: Final = Execution(messages="one-user", keep_releases=True, checkpoint_every=1)
#: The key of answered requests in the state that every release commits.
_ANSWERED: Final = "answered"


@dataclass(frozen=True)
class SiloTable(Value):
    """The table [silo] of a silo's file.

    Raises:
        ValueError: no training, or a directory that is not absolute.
    """

    kind: ClassVar[str] = "silo"
    training: Annotated[
        str, Field("name of the only training that the silo serves, which its server must give")
    ] = ""
    directory: Annotated[
        str, Field("absolute path of the directory of its ledger, key and statement")
    ] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.training:
            raise ValueError("training must name the training that the silo serves; got none.")
        if not Path(self.directory).is_absolute():
            raise ValueError(f"directory must be absolute; got {self.directory!r}.")


@dataclass(frozen=True, eq=False)
class SiloTask(ExternalTask):
    """The task of a silo: its people, the arrays of the model, and the training that it serves."""

    kind: ClassVar[str] = SiloTable.kind
    label: ClassVar[str] = "people of a silo, which adds its own noise"
    users_from: ClassVar[str] = "the silo's app"
    model_from: ClassVar[str] = "the silo's app"
    continued_by: ClassVar[str] = "Silo"
    training: str = ""
    #: Facts about the data of a silo whose file describes them.
    data_inputs: Sequence[PublicInput] = ()

    def public_inputs(self) -> tuple[PublicInput, ...]:
        training = PublicInput("training", self.training, "the silo's file")
        return (*super().public_inputs(), training, *self.data_inputs)

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "training": self.training}


@dataclass(frozen=True, eq=False)
class SiloAnswer:
    """A release of a silo, and the public numbers by which its integers are understood.

    Args:
        integers: G + X, the sum of clipped updates and its row of noise, shape (d,), int64, in
            units of ζ·2⁻ᴮ.
        bits: B.
        users_per_round: the planned number of users in the sum.
    """

    integers: NDArray[np.int64]
    bits: int
    users_per_round: int


class Silo:
    """People who are protected against everyone outside of their silo, its server included.

    Each answer trains the silo's next cohort on a received model, clips and sums the updates, adds
    the next row of the silo's own noise, and is committed before it is returned. Everything that
    the guarantee depends on is in the silo's own file and code.

    Args:
        file: the silo's TOML file: table ``[silo]`` (`SiloTable`), and ``[cohorts]``,
            ``[privacy]`` and ``[mechanism]`` as in any configuration. n, k and b count the silo's
            own releases.
        users: stable ids of all people, in a fixed order.
        model: arrays by name, of the names, shapes and types that are trained; values matter only
            for arrays that are not trained.
        train: from a user's id and a copy of the model to trained minus received arrays. An error
            is that user's zero.
        frozen: arrays that are neither trained nor sent: names, or patterns.
        tied: whether equal arrays are one array with several names.

    Raises:
        ConfigError: a file that cannot be read, or values that do not fit together.

    Guarantees:
        All answers together are (ε, δ)-private for each user, whatever is asked, in whichever order
        and however often. A request that was answered gets the same bytes again.
    """

    #: Tables that the file may have next to ``[silo]``.
    tables: ClassVar[Sequence[str]] = _TABLES

    def __init__(
        self,
        file: str | Path,
        *,
        users: Sequence[str],
        model: Arrays,
        train: Train,
        frozen: Sequence[str] = (),
        tied: bool | None = None,
    ) -> None:
        if not callable(train):
            raise ConfigError(f"train must be a function; got {type(train).__name__}.")
        self._train = train
        tables = _read(Path(file))
        for name in tables:
            if name not in ("silo", *self.tables):
                raise ConfigError(
                    f"tables of a silo's file must be silo, {', '.join(self.tables)}; got [{name}]."
                )
        self.table = _table(tables.pop("silo", {}))
        arrays = {name: as_array(name, value) for name, value in model.items()}
        self.layout = ModelLayout.of_arrays(arrays, frozen, tied)
        self._initial = self.layout.flat_of(arrays)
        task = SiloTask(
            self.layout,
            checked_users(users),
            training=self.table.training,
            data_inputs=self.data_inputs(),
        )
        own = {name: tables[name] for name in _TABLES if name in tables}
        # No use is made of the sum of all releases, which this optimizer keeps.
        server = Sgd(learning_rate=1.0, momentum=0.0)
        self.run = dataclasses.replace(run_of(own, task), execution=_EXECUTION, server=server)
        if not self.run.is_private:
            raise ConfigError("[privacy] of a silo must add noise; got kind 'none'.")

    def data_inputs(self) -> Sequence[PublicInput]:
        """Facts about the data that are taken as public."""
        return ()

    @property
    def directory(self) -> Path:
        """The directory of ledger, key and statement."""
        return Path(self.table.directory)

    @property
    def clip_norm(self) -> float:
        """ζ, whose fractions are the units of answers."""
        return self.run.privacy.clip_norm

    def answer(self, training: str, server_round: int, model: Arrays) -> SiloAnswer:
        """Return the release for a request: the recorded one, or else the silo's next.

        Args:
            training: the training, as the server names it.
            server_round: the server's number of the round; it only tells requests apart.
            model: received arrays by name; values of those that are not trained are ignored.

        Raises:
            ConfigError: another training, a model of other arrays or that is not finite, or a round
                that was answered for another model; nothing is released.
            HorizonExceededError: all releases are spent.
            LedgerError: the record is damaged or in use, or the disk failed.
        """
        if training != self.table.training:
            raise ConfigError(
                f"training must be {self.table.training!r}, as the silo's file says; got"
                f" {training!r:.80}."
            )
        received = self.layout.flat_of(self._checked(model))
        digest = hashlib.sha256(received.numpy().tobytes()).hexdigest()
        with session_of(self.directory, self.run, self._initial) as session:
            answered = dict[int, str](session.server.program.get(_ANSWERED, ()))
            if answered.setdefault(server_round, digest) != digest:
                raise ConfigError(
                    f"round {server_round} was answered, and must be requested again with the same"
                    " model; got another one. Request another round."
                )
            t = list(answered).index(server_round)
            if t == session.server.t:
                self._release(session, received, answered)
            return self._recorded(session, t)

    def _checked(self, model: Arrays) -> dict[str, NDArray[Any]]:
        """Return the trained arrays of a received model."""
        if set(model) != set(self.layout.names):
            raise ConfigError("model must have the arrays of the silo's app; got other names.")
        arrays = dict[str, NDArray[Any]]()
        for name, shape, dtype in self.layout.trained:
            array = as_array(name, model[name])
            if array.shape != shape or array.dtype.name != dtype:
                raise ConfigError(
                    f"array {name!r} must be {dtype} of shape {shape}; got {array.dtype.name} of"
                    f" shape {array.shape}."
                )
            if not np.isfinite(array).all():
                raise ConfigError(f"array {name!r} must be finite; got NaN or infinity.")
            arrays[name] = array
        return arrays

    def _release(self, session: Session, received: Tensor, answered: Mapping[int, str]) -> None:
        """Make the next release; the requests answered so far are committed with it."""
        server = session.server
        if server.t >= server.horizon:
            raise HorizonExceededError(f"all {server.horizon} releases of the silo are spent.")
        server.program_state = lambda: {_ANSWERED: list(answered.items())}
        users = tuple(session.cohort(server.t).values())
        request = Request(received, server.t, users, True, server.clip_norm, server.bits)
        failures = list[UserFailure]()
        total = server.new_sum()
        for reply in self.replies(request, server.sums):
            failures += reply.add_to(total)
        server.release(total, sorted(users))
        session.note_failures(request.t, failures, len(users))
        session.evaluate()
        if server.t == server.horizon:
            session.write_reports()

    def replies(self, request: Request, sums: SumSpec) -> Iterator[Reply]:
        """Yield the contribution of each user of a request."""
        del sums
        for user in request.users:
            try:
                row = self.layout.row(self._train(user, self.layout.arrays(request.parameters)))
                yield Reply((user,), row[None])
            except BaseException as error:  # a user's data may raise anything
                pass_interrupt(error)
                yield Reply((user,), described(error), fault="training failed")

    def _recorded(self, session: Session, t: int) -> SiloAnswer:
        """Return a release from the file of all releases."""
        plan = session.plan
        integers = np.fromfile(
            self.directory / FOLDER / INTEGERS, "<i8", plan.dimension, offset=8 * plan.dimension * t
        )
        return SiloAnswer(integers, plan.bits_of(0), plan.users_per_round)


class ConfiguredSilo(Silo):
    """A silo whose file has the tables ``[data]``, ``[model]`` and ``[client]`` too.

    Args:
        file: the silo's TOML file.

    Raises:
        ConfigError: a file that cannot be read, or values that do not fit together.
    """

    tables = (*_TABLES, *_TASK_TABLES)

    def __init__(self, file: str | Path) -> None:
        tables = _read(Path(file))
        directory = Path(_table(tables.pop("silo", {})).directory)
        self._described = run_of(tables)
        task = self._described.task_source.build()
        if not (directory / LEDGER).is_file():
            preflight(task, self._described.client)
        self._trainer = LocalTrainer(task, self._described.client)
        arrays = named_copies(task.model.initial(), task.model.arrays, {})
        super().__init__(
            file,
            users=task.dataset.user_ids,
            model=arrays,
            train=lambda _user, _model: {},
            tied=False,
        )

    def data_inputs(self) -> Sequence[PublicInput]:
        return self._described.task_source.public_inputs()

    def replies(self, request: Request, sums: SumSpec) -> Iterator[Reply]:
        """Yield the exact sum over the users of a request."""
        model = request.parameters.to(torch.float32)
        yield dataclasses.replace(request, parameters=model).reply(self._trainer, sums)


def _read(file: Path) -> dict[str, Any]:
    """Return the tables of a silo's file."""
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the silo's file {file} cannot be read: {error}.") from None


def _table(values: Mapping[str, Any]) -> SiloTable:
    known = fields_of(SiloTable)
    for name in values:
        if name not in known:
            raise ConfigError(f"[silo] must have the keys {', '.join(known)}; got {name!r:.80}.")
    try:
        return SiloTable(**values)
    except ValueError as error:
        raise ConfigError(f"[silo] {error}") from None
