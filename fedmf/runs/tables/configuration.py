"""Configuration tables and the run that they describe: one TOML file for every engine.

A table is a value of the run; ``kind`` picks its class, the other keys are its fields in
kebab-case. Flower flattens tables to dotted keys, takes strings, numbers and Booleans only, and
knows the listed keys alone: pyproject.toml lists the union over all kinds, each with an empty
string, which is a key that is not set.
"""

from __future__ import annotations

import difflib
import logging
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

import tomli_w

from fedmf.cohorts import COHORTS
from fedmf.data import DATASETS
from fedmf.errors import ConfigError, one_line
from fedmf.mechanisms.choice import GivenFactorization, NamedMechanism
from fedmf.mechanisms.registry import (
    accepted_parameters,
    canonical_name,
    names,
    optional_parameters,
)
from fedmf.models import MODELS
from fedmf.optim import OPTIMIZERS
from fedmf.runs.run import Execution, MechanismConfig, Run, recorded_optimizer
from fedmf.runs.statistics import STATISTICS
from fedmf.runs.tasks import GIVEN, NAMED_TASKS, FunctionTask, NamedTask
from fedmf.statements.privacy import PRIVACY
from fedmf.training import LocalSGD
from fedmf.values import EMPTY, Field, Value, by_kind, dotted, fields_of, parse_parameters

_log = logging.getLogger("fedmf")

Scalar = str | int | float | bool

#: How they are called in commands: ``configs/digits.toml``.
FOLDER: Final = "configs"
_PACKAGE: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class MechanismTable(Value):
    """A strategy matrix C by name, with its parameters; those that are not set are optimised for
    the run.
    """

    kind: Annotated[str, Field("name of the mechanism, as in fedmf design")] = "banded-toeplitz"  # type: ignore[misc]
    bands: Annotated[int | None, Field("number of diagonals of C or of its inverse", "p", ge=1)] = (
        None
    )
    params: Annotated[tuple[str, ...], Field("other parameters, such as lambda=0.9")] = ()
    workload: Annotated[
        str,
        Field("workload A₁ of C: prefix, momentum:β, window:w, …; auto: from the optimizer"),
    ] = "prefix"
    objective: Annotated[
        str, Field("error that C minimises: rmse, max, last or weights:w1,w2,…")
    ] = "rmse"
    second_moment_weight: Annotated[
        float,
        Field(
            "if w > 0, the errors of both moments are minimised, the second one with weight w",
            "w",
            ge=0,
        ),
    ] = 0.0

    @classmethod
    def of(cls, noise: MechanismConfig) -> MechanismTable:
        """The keys that describe a mechanism; of a factorization its name alone."""
        choice = noise.choice
        params = dict(getattr(noise.choice, "params", {}))
        bands = params.pop("bands", None)
        return cls(
            GIVEN if isinstance(choice, GivenFactorization) else choice.name,
            None if bands is None else int(bands),
            tuple(f"{name}={value!r}" for name, value in params.items()),
            noise.workload,
            noise.objective,
            noise.second_moment_weight,
        )

    def mechanism(self) -> MechanismConfig:
        """The mechanism that the keys describe.

        Raises:
            ValueError: an unknown name, or a parameter that the mechanism does not take.
        """
        params = parse_parameters(self.params) | (
            {} if self.bands is None else {"bands": self.bands}
        )
        use = self.workload, self.objective, self.second_moment_weight
        return MechanismConfig(NamedMechanism(self.kind, params), *use)


def _named(task: type[NamedTask]) -> type[Value]:
    """A table that says which task [data] and [model] make, and nothing else."""
    return type(task.__name__, (Value,), {"kind": task.kind, "__doc__": task.__doc__})


#: What may stand in each table, by kind; the first is the default.
TABLES: Final[dict[str, Mapping[str, type[Value]]]] = {
    "task": {kind: _named(task) for kind, task in NAMED_TASKS.items()} | by_kind(FunctionTask),
    "data": DATASETS,
    "model": MODELS,
    "cohorts": COHORTS,
    "privacy": PRIVACY,
    **STATISTICS,
    "mechanism": by_kind(MechanismTable),
    "server": OPTIMIZERS,
    "client": by_kind(LocalSGD),
    "execution": by_kind(Execution),
}
#: Of a line; tomllib takes seconds for a key of so many, and minutes for one of ten times as many.
_MOST_DOTS: Final = 10_000
#: One of these tables a file has: what a run is about is nobody's default.
_SUBJECT: Final = ("data.", "task.")


def shipped_file(name: str) -> Path:
    """Where a configuration that ships with fedmf is: in the package, or next to it in a
    checkout.
    """
    inside = _PACKAGE / FOLDER
    return (inside if inside.is_dir() else _PACKAGE.parent / FOLDER) / name


def found_or_shipped(path: Path) -> Path:
    """The file itself if there is something; else the shipped one that ``NAME`` or ``configs/NAME``
    means.

    >>> found_or_shipped(Path("configs/no-such.toml")) == Path("configs/no-such.toml")
    True
    >>> found_or_shipped(Path("configs/million.toml")).is_file()
    True
    """
    parts = path.parts[1:] if path.parts[:1] == (FOLDER,) else path.parts
    if os.path.exists(path) or path.is_absolute() or not parts or ".." in parts:
        return path
    other = shipped_file("/".join(parts))
    if not os.path.isfile(other):  # which an impossible name does not make raise
        return path
    _log.warning(
        "%s does not exist here; using the configuration of this name that ships with fedmf", path
    )
    return other


@cache
def known_keys() -> Mapping[str, None]:
    """Every key that a configuration may have, by its dotted name, table by table."""
    return {
        f"{table}.{key}": None
        for table, kinds in TABLES.items()
        for key in [
            *(["kind"] if len(kinds) > 1 else []),
            *(name.replace("_", "-") for cls in kinds.values() for name in fields_of(cls)),
        ]
    }


def run_of(values: Mapping[str, Any]) -> Run:
    """The run that tables describe.

    Args:
        values: nested tables, dotted keys, or both; an empty string is a key that is not set.

    Raises:
        ConfigError: an unknown key (naming the nearest known one), or a value out of range.
    """
    flat = dotted(values)
    given: dict[str, dict[str, Any]] = {table: {} for table in TABLES}
    for table in TABLES:
        if flat.get(f"{table}.kind") == GIVEN:
            raise ConfigError(
                f"[{table}] was given as an object ({flat.get(f'{table}.name')}), which no"
                " configuration describes. Make the run in Python; fedmf.recorded_run rebuilds it"
                " from its directory."
            )
    for name, value in flat.items():
        if name not in known_keys():
            raise ConfigError(_unknown(name, value))
        if not (isinstance(value, str) and value == ""):
            table, _, key = name.partition(".")
            given[table][key] = value
    made: dict[str, Any] = {}
    chosen = given["task"].get("kind", next(iter(NAMED_TASKS)))
    if chosen in NAMED_TASKS:
        made["task"] = NAMED_TASKS[chosen](
            *(_value(name, given[name]) for name in ("data", "model"))
        )
        _value("task", given["task"])  # which has no other key
    else:
        made["task"] = _value("task", given["task"])
        for table in ("data", "model"):
            for key, value in given[table].items():
                raise ConfigError(
                    f"[{table}] {key} must be left out with task {chosen!r}, which brings its own"
                    f" data and model; got {value!r}."
                )
    extra = [name for name in STATISTICS if name != "clipping"]
    for table in TABLES:
        if table not in ("task", "data", "model", *extra):
            made[table] = _value(table, given[table])
    try:
        made["mechanism"] = made["mechanism"].mechanism()
    except ValueError as error:
        raise ConfigError(f"[mechanism] {error}") from None
    return Run(
        **made, extra_releases=tuple(_value(name, given[name]) for name in extra if given[name])
    )


def _value(table: str, given: Mapping[str, Any]) -> Any:
    """The value that a table describes.

    Raises:
        ConfigError: an unknown kind, a key that the kind does not have, or a value out of range.
    """
    kinds = TABLES[table]
    fields = dict(given)
    kind = fields.pop("kind", next(iter(kinds))) if len(kinds) > 1 else next(iter(kinds))
    if not isinstance(kind, str) or kind not in kinds:
        raise ConfigError(f"[{table}] kind must be one of {', '.join(kinds)}; got {kind!r}.")
    for key in fields:
        if not takes(table, kind, key):
            takers = ", ".join(other for other in kinds if takes(table, other, key))
            raise ConfigError(
                f"[{table}] {key} is a key of {takers}, not of kind {kind!r}. Leave it out."
            )
    try:
        return kinds[kind](**{key.replace("-", "_"): value for key, value in fields.items()})
    except ValueError as error:
        raise ConfigError(f"[{table}] {error}") from None


def takes(table: str, kind: object, key: str) -> bool:
    """Whether values of a kind, or of the default one, have a key.

    >>> takes("privacy", "none", "epsilon"), takes("mechanism", "cgd", "bands")
    (False, False)
    """
    kinds = TABLES[table]
    if table == "mechanism" and kind is not None and key in ("bands", "params"):
        name = canonical_name(str(kind))
        free = (
            {*accepted_parameters(name), *optional_parameters(name)} if name in names() else set()
        )
        return key in free if key == "bands" else bool(free - {"bands"})
    cls = (
        kinds.get(str(kind), None)
        if len(kinds) > 1 and kind is not None
        else next(iter(kinds.values()))
    )
    return cls is not None and key.replace("-", "_") in fields_of(cls) and "_" not in key


def takes_key(values: Mapping[str, Any], name: str) -> bool:
    """Whether the kinds that dotted keys name have a key.

    >>> takes_key({"privacy.kind": "none"}, "privacy.epsilon"), takes_key({}, "privacy.epsilon")
    (False, True)
    """
    table, _, key = name.partition(".")
    if table in ("data", "model") and values.get("task.kind") == FunctionTask.kind:
        return False
    return table in TABLES and (key == "kind" or takes(table, values.get(f"{table}.kind"), key))


def _unknown(name: str, value: object) -> str:
    """The error for an unknown key, with the one that may be meant."""
    table, _, key = name.partition(".")
    if key == "kind" and table in TABLES:
        return (
            f"[{table}] must have no key kind, since it has no kinds; got {one_line(repr(value))}."
            f" Leave it out; 'fedmf options {table}' lists its keys."
        )
    known = list(known_keys())
    last = {one.partition(".")[2]: one for one in known}
    kebab = name.replace("_", "-")
    key = kebab.rpartition(".")[2]
    near = [kebab] if kebab in known else [one for one in known if one.partition(".")[2] == key]
    near = near or difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    near = near or [last[other] for other in difflib.get_close_matches(key, last, n=1)]
    meant = " or ".join(map(repr, ["mechanism.params"] if table == "mechanism" else near))
    hint = f"; did you mean {meant}?" if near else "; fedmf options lists all"
    return f"unknown configuration key {name[:100]!r}{hint}"


def tables_of(run: Run) -> dict[str, dict[str, Scalar]]:
    """The tables that describe a run, every key that is set.

    Objects of a user's own have no key: their table says ``kind = "given"`` and their recorded
    name.
    """
    task = run.task_source
    tables = dict[str, dict[str, Scalar]]()
    if isinstance(task, NamedTask):
        tables["task"] = {"kind": task.kind}
        tables["data"], tables["model"] = rendered("data", task.data), rendered("model", task.model)
    else:
        tables["task"] = (
            rendered("task", task) if isinstance(task, FunctionTask) else _given(task.to_dict())
        )
    values = {
        "cohorts": run.cohorts,
        "privacy": run.privacy,
        "clipping": run.clipping,
        **{statistic.name: statistic for statistic in run.extra_releases},
        "mechanism": MechanismTable.of(run.mechanism_config),
        "client": run.client,
        "execution": run.execution,
    }
    tables |= {name: rendered(name, value) for name, value in values.items()}
    if isinstance(run.mechanism_config.choice, GivenFactorization):
        tables["mechanism"]["name"] = run.mechanism_config.choice.name
    server = run.optimizer_source
    tables["server"] = (
        rendered("server", server)
        if isinstance(server, Value)
        else _given(recorded_optimizer(server))
    )
    ignored_keys = {
        name: {key.replace("_", "-") for key in keys} for name, keys in task.ignored_keys.items()
    }
    said = {
        name: {key: value for key, value in table.items() if key not in ignored_keys.get(name, ())}
        for name, table in tables.items()
    }
    return {name: table for name, table in said.items() if table or name not in ignored_keys}


def rendered(table: str, value: Value) -> dict[str, Scalar]:
    """The table that describes a value: every field that is set, lists as text with commas."""
    keys: dict[str, Scalar] = {"kind": value.kind} if len(TABLES[table]) > 1 else {}
    for name, field in fields_of(type(value)).items():
        content = getattr(value, name)
        if isinstance(content, tuple):
            content = ",".join(map(str, content)) or (EMPTY if field.default else "")
        if content not in (None, ""):
            keys[field.key] = content
    return keys


def _given(recorded: Mapping[str, Any]) -> dict[str, Scalar]:
    return {"kind": recorded["kind"], "name": recorded["name"]}


def dotted_keys(run: Run) -> dict[str, Scalar]:
    """The tables of a run by dotted key, as Flower passes them on."""
    return dotted(tables_of(run))


def render_toml(run: Run) -> str:
    """The run as a configuration file."""
    return tomli_w.dumps(tables_of(run))


def load_run(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Run:
    """Read a TOML file and apply overrides by dotted key.

    An override of a table's ``kind`` leaves out what only the file's kind has. Where there is no
    such file, ``configs/NAME`` and ``NAME`` mean the configuration of that name that ships with
    fedmf.

    Raises:
        ConfigError: unreadable, not TOML, without [data] and [task], or not a valid configuration.
    """
    values = overridden(dotted(read_toml(found_or_shipped(Path(path)))), overrides or {})
    if not any(name.startswith(_SUBJECT) for name in values):
        raise ConfigError(
            f"configuration {path} must name the data; it has no table [data] and no [task]. "
            'For the included digits, write [data] and kind = "digits".'
        )
    try:
        return run_of(values)
    except ConfigError as error:  # which says what a value was, however long
        raise ConfigError(one_line(str(error))) from None


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        ConfigError: unreadable, or not TOML.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")  # editors of Windows begin with a mark
        if any(line.count(".") > _MOST_DOTS for line in text.splitlines()):
            raise ValueError(f"a line has more than {_MOST_DOTS} dots")
        return tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot read configuration {path}: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {' '.join(str(error).split())[:200]}") from None


def overridden(written: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys with others over them.

    An override of a table's ``kind`` leaves out what was written for a kind that has it and the new
    one has not.
    """

    def replaced(name: str) -> bool:
        table, _, key = name.partition(".")
        if table not in TABLES or f"{table}.kind" not in overrides:
            return False
        return takes(table, written.get(f"{table}.kind"), key) and not takes(
            table, overrides[f"{table}.kind"], key
        )

    return {**{name: value for name, value in written.items() if not replaced(name)}, **overrides}


def parse_assignments(assignments: list[str]) -> dict[str, Any]:
    """``table.key=value`` pairs with TOML values; a bare word is text.

    >>> parse_assignments(["privacy.epsilon=2", "mechanism.kind=cgd", "mechanism.params=lambda=0.9"])
    {'privacy.epsilon': 2, 'mechanism.kind': 'cgd', 'mechanism.params': 'lambda=0.9'}
    """
    parsed: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set takes table.key=value; got {assignment!r}.")
        try:
            lines = tomllib.loads(f"value = {value}")
        except (ValueError, RecursionError):
            lines = {"value": value.strip()}
        if set(lines) != {"value"}:
            raise ConfigError(f"--set takes one table.key=value; got {assignment!r}.")
        parsed[key.strip()] = lines["value"]
    return parsed
