"""The run directory: everything a run needs to continue, and everything it reports."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from fedmf.cohorts import COHORTS, Cohorts
from fedmf.errors import ConfigError, LedgerError, rebuilding
from fedmf.ledger.durable_files import create_directory, load_key, save_key, tighten, write_durably
from fedmf.ledger.ledger import Ledger
from fedmf.noise.key import NoiseKey
from fedmf.release.plan import Plan
from fedmf.runs.asked import law_of, numbers_of
from fedmf.runs.statistics import Statistic, statistics_from
from fedmf.statements.privacy import PRIVACY, UNITS, Privacy, Unit
from fedmf.values import value_of
from fedmf.version import SOFTWARE

if TYPE_CHECKING:
    from fedmf.accounting.sampling import CohortLaw
    from fedmf.data import PublicInput
    from fedmf.optim import ServerOptimizer
    from fedmf.runs.run import Run
    from fedmf.training import Task, UserFailure

_log = logging.getLogger("fedmf")
#: Raised when a field changes its meaning.
_FORMAT: Final = 1
#: How users are known whose nodes have keys.
ENROLLED: Final = (
    "keys of SuperNodes, by a file of node keys; true if the SuperLink authenticates SuperNodes "
    "(--enable-supernode-auth) over TLS, which a server app cannot see"
)


@dataclass(frozen=True, eq=False)
class RunHeader:
    """The description of a run that its ledger keeps; enough to account for it, and to rebuild it,
    from disk.

    Args:
        run: what `fedmf.Run.to_dict` wrote: each value's own kind and fields.
        plan: the calibrated mechanism.
        arrays: name and shape of each tensor of the model in the order of its flat vector.
        key_fingerprint: short public id of the noise key; None for a run without privacy.
        key_public: whether the noise follows from a published seed.
        clipped_by: "server" (it clips every user's update again) or "workers" (they clip and sum).
        users_test: whether the central test part belongs to users whose data train the model.
        public_inputs: what about the data is taken as public: dicts of the strings name, value,
            source.
        software: name and version of what the run was started with.
        tied: further names of tensors of the model, each with the name in ``arrays``.

    >>> RunHeader.from_dict({"format": 1, "users": 10})
    Traceback (most recent call last):
        ...
    ValueError: header (run description) must be as fedmf wrote it; it is damaged (KeyError: 'run').
    """

    run: Mapping[str, Any]
    plan: Plan
    arrays: tuple[tuple[str, tuple[int, ...]], ...]
    key_fingerprint: str | None
    key_public: bool
    clipped_by: Literal["server", "workers"]
    users_test: bool = False
    public_inputs: Sequence[Mapping[str, str]] = ()
    software: str = SOFTWARE
    tied: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls,
        run: Run,
        plan: Plan,
        key: NoiseKey,
        arrays: tuple[tuple[str, tuple[int, ...]], ...],
        test_owner: str = "nobody",
        constants: Sequence[PublicInput] = (),
        tied: Mapping[str, str] = MappingProxyType({}),
    ) -> Self:
        """What the ledger must remember to account for a run and to continue it exactly.

        Args:
            run: as it was asked for.
            plan: made for it.
            key: of its noise.
            arrays: name and shape of each tensor of the model, in the order of its flat vector.
            test_owner: the owner of the examples of the central test part, as `Dataset.test_owner`.
            constants: what else stays (`Task.constant_inputs`).
            tied: further names of these tensors.
        """
        inputs = [*map(dataclasses.asdict, (*run.task_source.public_inputs(), *constants))]
        if run.execution.node_keys:
            inputs.append(
                {"name": "nodes of users", "value": ENROLLED, "source": "key execution.node-keys"}
            )
        return cls(
            run=run.to_dict(),
            plan=plan,
            arrays=arrays,
            key_fingerprint=key.fingerprint if run.is_private else None,
            key_public=key.public,
            clipped_by="server" if run.execution.messages == "per-user" else "workers",
            users_test=test_owner == "training users",
            public_inputs=inputs,
            tied=dict(tied),
        )

    @property
    def dimension(self) -> int:
        """d, the number of model parameters that receive noise."""
        return sum(math.prod(shape) for _, shape in self.arrays)

    @cached_property
    def privacy(self) -> Privacy:
        """The guarantee that the run asked for."""
        return value_of(PRIVACY, self.run.get("privacy", {}))

    @cached_property
    def cohorts(self) -> Cohorts:
        """Who takes part when."""
        return value_of(COHORTS, self.run.get("cohorts", {}))

    @cached_property
    def statistics(self) -> tuple[Statistic, ...]:
        """Statistics that are released with the model."""
        return _statistics_of(self.run)

    @property
    def unit(self) -> Unit:
        """The unit of protection."""
        return UNITS[self.plan.unit]

    def law(self) -> CohortLaw | None:
        """The law by which secret cohorts are drawn; None where no amplification is claimed.

        Raises:
            LedgerError: the cohorts have no such law.
        """
        if self.plan.amplification is None:
            return None
        try:
            return law_of(self.cohorts, self.plan.users, self.plan.participation)
        except ValueError as error:
            raise LedgerError(f"the header's amplification does not hold: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict; floats survive JSON bit for bit."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {"format": _FORMAT, **fields, "plan": self.plan.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote.

        Raises:
            ValueError: another format, or a field is missing, unknown or out of its range.
        """
        if values.get("format") != _FORMAT:
            raise ValueError(
                f"header (run description) must have format {_FORMAT}; got"
                f" {values.get('format')!r:.40}. Use the fedmf version that wrote it."
            )
        given = {name: value for name, value in values.items() if name != "format"}
        with rebuilding("header (run description)"):
            privacy = value_of(PRIVACY, given["run"].get("privacy", {}))
            cohorts = value_of(COHORTS, given["run"].get("cohorts", {}))
            asked = numbers_of(privacy, cohorts, _statistics_of(given["run"]))
            plan = Plan.from_dict(given["plan"], **asked)
            arrays = tuple((str(name), tuple(map(int, shape))) for name, shape in given["arrays"])
            return cls(**{**given, "plan": plan, "arrays": arrays})


def _statistics_of(run: Mapping[str, Any]) -> tuple[Statistic, ...]:
    return tuple(value for value in statistics_from(run).values() if isinstance(value, Statistic))


KEY = "noise.key"
LEDGER = "ledger.sqlite"
CONFIG = "config.toml"
#: All arrays of a model of which only some are trained.
WHOLE_MODEL = "whole-model.npz"
#: Which users failed when, and why: a JSON object a line. It tells about users' data: as secret as
#: the key.
FAILURES = "failures.jsonl"


class RunDirectory:
    """An open run directory; at most one process can hold it for writing.

    Use :meth:`create` or :meth:`open`, preferably as a context manager.

    Guarantees:
        A directory either holds a complete run or does not exist: it is built next to its place and
        renamed. Only its owner may enter it (mode 0700; files 0600), whatever the umask, and
        opening one that others could read takes that from them.
    """

    def __init__(self, path: Path, header: RunHeader, key: NoiseKey, ledger: Ledger) -> None:
        self.path = path
        self.header = header
        self.key = key
        self.ledger = ledger

    @classmethod
    def create(
        cls,
        path: Path,
        run: Run,
        header: RunHeader,
        key: NoiseKey,
        save_whole: Callable[[Path], None] | None = None,
    ) -> Self:
        """Create the directory of a new run.

        Args:
            path: where; must not exist, or be empty.
            run: what to run, from which ``config.toml`` is rendered.
            header: of the run, for the ledger.
            key: of its noise.
            save_whole: writes the file of a model of which only some arrays are trained.

        Raises:
            ConfigError: the place is taken or cannot be written.
        """
        from fedmf.runs.tables.configuration import render_toml

        path = path.resolve()
        if os.path.exists(path / LEDGER):  # False for an impossible name, which is refused below
            raise ConfigError(
                f"output directory {path} already holds a run: resume it (--resume), or choose"
                " another."
            )

        def fill(building: Path) -> None:
            write_durably(building / CONFIG, render_toml(run).encode())
            if save_whole is not None:
                save_whole(building / WHOLE_MODEL)
            write_durably(building / FAILURES, b"")
            save_key(building / KEY, key)
            Ledger.create(building / LEDGER, header.plan.participation, header.to_dict(), key)

        create_directory(path, "output directory", fill)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the directory of a run that was started before.

        Raises:
            ConfigError, LedgerError, ValueError: not a run directory, damaged, held by another
                process, or behind what this machine has seen of its run.
        """
        path = path.resolve()
        ledger, header = open_ledger(path)
        tighten(path)
        return cls(path, header, load_key(path / KEY), ledger)

    def close(self) -> None:
        """Let another process have the directory."""
        self.ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def note_failures(self, t: int, failures: Sequence[UserFailure]) -> None:
        """Append the failures of round t (0-based); a full disk loses them, which must not stop the
        run.
        """
        if not failures:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with (
            contextlib.suppress(OSError),
            open(os.open(self.path / FAILURES, flags, 0o600), "a", encoding="utf-8") as file,
        ):
            file.writelines(
                json.dumps({"round": t + 1, **one.to_dict()}) + "\n" for one in failures
            )


def read_header(path: Path) -> RunHeader:
    """The header that a run directory's ledger keeps.

    Raises:
        ConfigError: it is not a run directory.
        LedgerError, ValueError: a damaged ledger, or one of another format.
    """
    with opened_record(path) as (header, _):
        return header


def recorded_run(
    path: str | Path, task: Task | None = None, optimizer: ServerOptimizer | None = None
) -> Run:
    """The run that a directory holds, rebuilt from its header.

    Args:
        path: its directory.
        task: the task, where it was given as an object.
        optimizer: likewise.

    Raises:
        ConfigError: not a run directory, or an object of the user's own is missing or another one.
    """
    from fedmf.runs.run import Run  # readers of records load no framework

    return Run.from_dict(read_header(Path(path)).run, task, optimizer)


def open_ledger(path: Path, read_only: bool = False) -> tuple[Ledger, RunHeader]:
    """The ledger of a run directory, verified, and the header that it keeps.

    Raises:
        ConfigError: it is not a run directory, or its key cannot be used.
        LedgerError, ValueError: a damaged ledger, or one that holds less than was released.
    """
    if not (path / LEDGER).is_file():
        why = f"it has no {LEDGER}" if path.is_dir() else "there is no such directory"
        raise ConfigError(f"{path} is not a run directory: {why}.")
    key = load_key(path / KEY) if not read_only or (path / KEY).exists() else None
    ledger = Ledger.open(path / LEDGER, key, read_only)
    try:
        header = RunHeader.from_dict(ledger.header)
        if key is not None and header.key_public is not key.public:
            raise LedgerError(
                f"key_public of the header must be as for {path / KEY}; it is {header.key_public}."
            )
    except BaseException:
        ledger.close()
        raise
    return ledger, header


@contextlib.contextmanager
def opened_record(path: Path) -> Iterator[tuple[RunHeader, Ledger]]:
    """A run's header and ledger for reading, all reads of the same rounds: every reader has them
    from here. A process that continues the run is not disturbed, and what it commits meanwhile is
    not seen. Logs a warning where the key is not there: anybody could have written the rows.

    Raises:
        ConfigError, LedgerError, ValueError: as `open_ledger`.
    """
    ledger, header = open_ledger(path, read_only=True)
    with ledger:
        if not ledger.authenticated:
            _log.warning("%s: without noise.key the ledger cannot be authenticated", path)
        yield header, ledger
