"""The run directory: everything a run needs to continue, and everything it reports.

`RunHeader` describes a run in its ledger; `RunDirectory` creates and opens the directory; readers
of records use `opened_record` and load no framework.
"""

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
from fedmf.runs.plan_fields import cohort_law, plan_fields
from fedmf.runs.statistics import Statistic, clipping_from, extra_releases_from
from fedmf.statements.privacy import PRIVACY, UNITS, Privacy, Unit
from fedmf.values import value_of
from fedmf.version import SOFTWARE

if TYPE_CHECKING:
    from fedmf.accounting.sampling import CohortLaw
    from fedmf.data import PublicInput
    from fedmf.data.dataset import TestOwner
    from fedmf.optim import ServerOptimizer
    from fedmf.runs.run import Run
    from fedmf.training import Task, UserFailure

_log = logging.getLogger("fedmf")
#: Increased if a field changes its meaning.
_FORMAT: Final = 1
#: How users are identified if their nodes have keys.
ENROLLED: Final = (
    "keys of SuperNodes, by a file of node keys; true if the SuperLink authenticates SuperNodes "
    "(--enable-supernode-auth) over TLS, which a server app cannot see"
)


@dataclass(frozen=True, eq=False)
class RunHeader:
    """The description of a run in its ledger: enough to account for it, and to rebuild it.

    Args:
        run: the result of `fedmf.Run.to_dict`: kind and fields of each value.
        configuration: the content of ``config.toml``.
        plan: the calibrated mechanism.
        arrays: name and shape of each tensor of the model in the order of its flat vector.
        key_fingerprint: short public id of the noise key; None for a run without privacy.
        key_public: whether the noise follows from a published seed.
        clipped_by: "server" (it clips every user's update again) or "workers" (they clip and sum).
        users_test: whether the central test part belongs to users whose data train the model.
        public_inputs: facts about the data that are taken as public: dicts of the strings name,
            value, source.
        software: name and version of the software that started the run.
        tied: further names of tensors of the model, each with the name in ``arrays``.
        whole_model: fingerprint of the stored layout with frozen parameters and buffers, if any.

    >>> RunHeader.from_dict({"format": 1, "users": 10})
    Traceback (most recent call last):
        ...
    ValueError: header (run description) must be as fedmf wrote it; it is damaged (KeyError: 'run').
    """

    run: Mapping[str, Any]
    configuration: str
    plan: Plan
    arrays: tuple[tuple[str, tuple[int, ...]], ...]
    key_fingerprint: str | None
    key_public: bool
    clipped_by: Literal["server", "workers"]
    users_test: bool = False
    public_inputs: Sequence[Mapping[str, str]] = ()
    software: str = SOFTWARE
    tied: Mapping[str, str] = dataclasses.field(default_factory=dict)
    whole_model: str = ""

    @classmethod
    def of(
        cls,
        run: Run,
        plan: Plan,
        key: NoiseKey,
        arrays: tuple[tuple[str, tuple[int, ...]], ...],
        test_owner: TestOwner = "nobody",
        constants: Sequence[PublicInput] = (),
        tied: Mapping[str, str] = MappingProxyType({}),
        whole_model: str = "",
    ) -> Self:
        """The header of a new run.

        Args:
            run: the run.
            plan: its plan.
            key: the key of its noise.
            arrays: name and shape of each tensor of the model, in the order of its flat vector.
            test_owner: the owner of the examples of the central test part, as `Dataset.test_owner`.
            constants: constants of the task that are public (`Task.constant_inputs`).
            tied: further names of these tensors.
            whole_model: fingerprint of the stored layout of the whole model.
        """
        from fedmf.data.dataset import TEST_PARTS  # readers load no framework
        from fedmf.runs.tables.configuration import render_toml

        inputs = list[Mapping[str, str]]()
        for each in (*run.task_source.public_inputs(), *constants):
            inputs.append(dataclasses.asdict(each))
        if all(each["name"] != "test part" for each in inputs):
            inputs.append(
                {
                    "name": "test part",
                    "value": TEST_PARTS[test_owner],
                    "source": "declared by the task",
                }
            )
        if run.execution.node_keys:
            inputs.append(
                {"name": "nodes of users", "value": ENROLLED, "source": "key execution.node-keys"}
            )
        return cls(
            run=run.to_dict(),
            configuration=render_toml(run),
            plan=plan,
            arrays=arrays,
            key_fingerprint=key.fingerprint if run.is_private else None,
            key_public=key.public,
            clipped_by="workers" if run.execution.messages == "aggregate" else "server",
            users_test=test_owner == "training users",
            public_inputs=inputs,
            tied=dict(tied),
            whole_model=whole_model,
        )

    @property
    def dimension(self) -> int:
        """d, the number of model parameters that receive noise."""
        return sum(math.prod(shape) for _, shape in self.arrays)

    @cached_property
    def privacy(self) -> Privacy:
        """The requested guarantee."""
        return value_of(PRIVACY, self.run.get("privacy", {}))

    @cached_property
    def cohorts(self) -> Cohorts:
        """The participants of each round."""
        return value_of(COHORTS, self.run.get("cohorts", {}))

    @cached_property
    def statistics(self) -> tuple[Statistic, ...]:
        """Statistics that are released with the model."""
        return _statistics_of(self.run)

    @property
    def is_silo(self) -> bool:
        """True for the run of a silo, which protects its people against the server too."""
        return self.run.get("task", {}).get("kind") == "silo"

    @property
    def trains_elsewhere(self) -> bool:
        """True if a Flower app or another program trains the users, with code of its own."""
        return self.run.get("task", {}).get("kind") in ("flower-app", "aggregator")

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
            return cohort_law(self.cohorts, self.plan.users, self.plan.participation)
        except ValueError as error:
            raise LedgerError(f"the header's amplification does not hold: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict; floats survive JSON bit for bit."""
        values: dict[str, Any] = {"format": _FORMAT}
        for field in dataclasses.fields(self):
            values[field.name] = getattr(self, field.name)
        values["plan"] = self.plan.to_dict()
        return values

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
        fields = dict(values)
        del fields["format"]
        with rebuilding("header (run description)"):
            run = fields["run"]
            privacy = value_of(PRIVACY, run.get("privacy", {}))
            cohorts = value_of(COHORTS, run.get("cohorts", {}))
            from_run = plan_fields(privacy, cohorts, _statistics_of(run))
            fields["plan"] = Plan.from_dict(fields["plan"], **from_run)
            arrays = list[tuple[str, tuple[int, ...]]]()
            for name, shape in fields["arrays"]:
                arrays.append((str(name), tuple(map(int, shape))))
            fields["arrays"] = tuple(arrays)
            return cls(**fields)


def _statistics_of(run: Mapping[str, Any]) -> tuple[Statistic, ...]:
    clipping = clipping_from(run)
    if isinstance(clipping, Statistic):
        return (clipping, *extra_releases_from(run))
    return extra_releases_from(run)


KEY = "noise.key"
LEDGER = "ledger.sqlite"
CONFIG = "config.toml"
#: A copy of the schema of the data, if they have one.
SCHEMA = "schema.toml"
#: All arrays of a model with constant arrays.
WHOLE_MODEL = "whole-model.npz"
#: Which users failed in which round and why, one JSON object per line: as secret as the key, since
#: it depends on users' data.
FAILURES = "failures.jsonl"


class RunDirectory:
    """An open run directory; at most one process can hold it for writing.

    Use :meth:`create` or :meth:`open`, preferably as a context manager.

    Guarantees:
        A directory either holds a complete run or does not exist: it is built under another name
        and renamed. Only its owner may enter it (mode 0700; files 0600), whatever the umask;
        opening a directory restores these modes.
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
        header: RunHeader,
        key: NoiseKey,
        save_whole: Callable[[Path], None] | None = None,
    ) -> Self:
        """Create the directory of a new run.

        Args:
            path: must not exist, or be empty.
            header: the header of the ledger.
            key: the key of the noise.
            save_whole: writes the file of a model with constant arrays.

        Raises:
            ConfigError: the path is in use or cannot be written.
        """
        path = path.resolve()
        if os.path.exists(path / LEDGER):  # False for an impossible name, which is rejected below
            raise ConfigError(
                f"output directory {path} already holds a run: resume it (--resume), or choose"
                " another."
            )

        def fill(building: Path) -> None:
            write_durably(building / CONFIG, header.configuration.encode())
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
            ConfigError, LedgerError, ValueError: not a run directory, damaged, open in another
                process, or an older copy of one that this machine has continued.
        """
        path = path.resolve()
        ledger, header = open_ledger(path)
        try:
            _require_files(path, header)
        except ConfigError:
            ledger.close()
            raise
        tighten(path)
        return cls(path, header, load_key(path / KEY), ledger)

    def restore_configuration(self) -> None:
        """Write ``config.toml`` again if it is missing; the ledger has its content."""
        if not (self.path / CONFIG).exists():
            write_durably(self.path / CONFIG, self.header.configuration.encode())

    def close(self) -> None:
        """Let another process open the directory."""
        self.ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def note_failures(self, t: int, failures: Sequence[UserFailure]) -> None:
        """Append the failures of round t (from 0); an error of the disk does not stop the run."""
        if not failures:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with (
            contextlib.suppress(OSError),
            open(os.open(self.path / FAILURES, flags, 0o600), "a", encoding="utf-8") as file,
        ):
            for failure in failures:
                file.write(json.dumps({"round": t + 1, **failure.to_dict()}) + "\n")


def _require_files(path: Path, header: RunHeader) -> None:
    """Reject a directory without a file that nothing else can replace."""
    stored = header.whole_model or "arrays" in header.run["task"]
    if stored and not (path / WHOLE_MODEL).is_file():
        raise ConfigError(f"{path / WHOLE_MODEL} (the whole model) is missing. Restore it.")
    if not (path / FAILURES).is_file():
        raise ConfigError(
            f"{path / FAILURES} (failures of users) is missing. Restore it, or create an empty file"
            " to continue without the earlier ones."
        )


def read_header(path: Path) -> RunHeader:
    """The header in the ledger of a run directory.

    Raises:
        ConfigError: it is not a run directory.
        LedgerError, ValueError: a damaged ledger, or one of another format.
    """
    ledger, header = open_ledger(path, read_only=True)
    ledger.close()
    return header


def recorded_run(
    path: str | Path, task: Task | None = None, optimizer: ServerOptimizer | None = None
) -> Run:
    """The run of a directory, rebuilt from its header.

    Args:
        path: the run directory.
        task: the task, if it was given as an object.
        optimizer: likewise.

    Raises:
        ConfigError: not a run directory, or an object of the user's own is missing or another one.
    """
    from fedmf.runs.run import Run  # readers of records load no framework

    return Run.from_dict(read_header(Path(path)).run, task, optimizer)


def open_ledger(path: Path, read_only: bool = False) -> tuple[Ledger, RunHeader]:
    """The verified ledger of a run directory, and its header.

    Raises:
        ConfigError: it is not a run directory, or its key cannot be used.
        LedgerError, ValueError: a damaged ledger, or one that holds less than was released.
    """
    if not path.is_dir():
        raise ConfigError(f"{path} is not a run directory: there is no such directory.")
    if not (path / LEDGER).is_file():
        raise ConfigError(f"{path} is not a run directory: it has no {LEDGER}.")
    key = None
    if not read_only or (path / KEY).exists():
        key = load_key(path / KEY)
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
    """Open the header and ledger of a run for reading; all reads are of the same rounds.

    Every reader of records uses this function. A process that continues the run is not disturbed,
    and the rounds that it commits meanwhile are not seen. Logs a warning if the key is missing,
    because the rows could then be anybody's.

    Raises:
        ConfigError, LedgerError, ValueError: as `open_ledger`.
    """
    ledger, header = open_ledger(path, read_only=True)
    with ledger:
        if not ledger.authenticated:
            _log.warning("%s: without noise.key the ledger cannot be authenticated", path)
        yield header, ledger
