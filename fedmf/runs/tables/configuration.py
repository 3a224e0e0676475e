"""Configuration tables and the run that they describe: one TOML file for every engine.

A table is a value of the run: ``kind`` selects its class, and the other keys are its fields in
kebab-case. Flower flattens tables to dotted keys, accepts only strings, numbers and Booleans, and
only keys that pyproject.toml lists: all keys of all kinds, each with an empty string, which means
that it is not set.
"""

from __future__ import annotations

import difflib
import logging
import os
import tomllib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

import tomli_w

from fedmf.cohorts import COHORTS
from fedmf.data import DATASETS
from fedmf.errors import ConfigError, one_line
from fedmf.functions import search_in
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
from fedmf.runs.statistics import STATISTICS, Statistic, table_of
from fedmf.runs.tasks import GIVEN, NAMED_TASKS, FunctionTask, NamedTask, TaskSource
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
    """A strategy matrix C by name; parameters that are not set are optimized for the run."""

    kind: Annotated[  # type: ignore[misc]
        str, Field("name of the mechanism, as in fedmf design")
    ] = "banded-toeplitz"
    bands: Annotated[int | None, Field("number of diagonals of C or of its inverse", "p", ge=1)] = (
        None
    )
    params: Annotated[tuple[str, ...], Field("other parameters, such as lambda=0.9")] = ()
    workload: Annotated[
        str,
        Field("workload A₁ of C: prefix, momentum:β, window:w, …; auto: from the optimizer"),
    ] = "prefix"
    objective: Annotated[
        str, Field("error that C minimizes: rmse, max, last or weights:w1,w2,…")
    ] = "rmse"
    second_moment_weight: Annotated[
        float,
        Field(
            "if w > 0, the errors of both moments are minimized, the second one with weight w",
            "w",
            ge=0,
        ),
    ] = 0.0

    @classmethod
    def of(cls, config: MechanismConfig) -> MechanismTable:
        """The keys that describe a mechanism; of a factorization its name alone."""
        choice = config.choice
        parameters = dict(getattr(choice, "params", {}))
        bands = parameters.pop("bands", None)
        if bands is not None:
            bands = int(bands)
        kind = GIVEN
        if not isinstance(choice, GivenFactorization):
            kind = choice.name
        params = tuple(f"{name}={value!r}" for name, value in parameters.items())
        return cls(
            kind,
            bands,
            params,
            config.workload,
            config.objective,
            config.second_moment_weight,
        )

    def mechanism(self) -> MechanismConfig:
        """The mechanism that the keys describe.

        Raises:
            ValueError: an unknown name, or a parameter that the mechanism does not take.
        """
        params = parse_parameters(self.params)
        if self.bands is not None:
            params["bands"] = self.bands
        choice = NamedMechanism(self.kind, params)
        return MechanismConfig(choice, self.workload, self.objective, self.second_moment_weight)


def _named(task: type[NamedTask]) -> type[Value]:
    """A table that states which task [data] and [model] form, and has no other key."""
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
#: The tables that are arguments of `Run` by themselves.
_PARTS: Final = ["cohorts", "privacy", "clipping", "mechanism", "server", "client", "execution"]
#: In one line: tomllib takes seconds for a key with so many, and minutes for ten times as many.
_MOST_DOTS: Final = 10_000
#: A file has at least one of these tables, because the data of a run have no default.
_SUBJECT: Final = ("data.", "task.")


def shipped_file(name: str) -> Path:
    """The path of a configuration that ships with fedmf, in the package or next to it."""
    folder = _PACKAGE / FOLDER
    if not folder.is_dir():
        folder = _PACKAGE.parent / FOLDER
    return folder / name


def configuration_path(path: Path) -> Path:
    """The path itself if it exists; else the shipped file that ``[configs/]NAME`` means.

    >>> configuration_path(Path("configs/no-such.toml")) == Path("configs/no-such.toml")
    True
    >>> configuration_path(Path("configs/million.toml")).is_file()
    True
    """
    parts = path.parts
    if parts[:1] == (FOLDER,):
        parts = parts[1:]
    if os.path.exists(path) or path.is_absolute() or not parts or ".." in parts:
        return path
    shipped = shipped_file("/".join(parts))
    if not os.path.isfile(shipped):  # False, and no error, for an impossible name
        return path
    _log.warning(
        "%s does not exist here; using the configuration of this name that ships with fedmf", path
    )
    return shipped


@cache
def known_keys() -> Mapping[str, None]:
    """Every key that a configuration may have, by its dotted name, table by table."""
    keys = dict[str, None]()
    for table, kinds in TABLES.items():
        if len(kinds) > 1:
            keys[f"{table}.kind"] = None
        for cls in kinds.values():
            for field in fields_of(cls).values():
                keys[f"{table}.{field.key}"] = None
    return keys


def run_of(values: Mapping[str, Any], task: TaskSource | None = None) -> Run:
    """The run that tables describe.

    Args:
        values: nested tables, dotted keys, or both; an empty string is a key that is not set.
        task: a task in place of the one that the tables describe.

    Raises:
        ConfigError: an unknown key (naming the nearest known one), or a value out of range.
    """
    given = _tables(dotted(values))
    parts: dict[str, Any] = {"task": task or _task(given)}
    for name in _PARTS:
        parts[name] = _value(name, given[name])
    try:
        parts["mechanism"] = parts["mechanism"].mechanism()
    except ValueError as error:
        raise ConfigError(f"[mechanism] {error}") from None
    statistics = list[Statistic]()
    for name in STATISTICS:
        if name != "clipping" and given[name]:
            statistics.append(_value(name, given[name]))
    return Run(**parts, extra_releases=tuple(statistics))


def _tables(flat: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Sort dotted keys into their tables, without those that are not set.

    Raises:
        ConfigError: an unknown key, or a table that stands for an object.
    """
    for table in TABLES:
        if flat.get(f"{table}.kind") == GIVEN:
            raise ConfigError(
                f"[{table}] was given as an object ({flat.get(f'{table}.name')}), which no"
                " configuration describes. Make the run in Python; fedmf.recorded_run rebuilds it"
                " from its directory."
            )
    given = defaultdict[str, dict[str, Any]](dict)
    for name, value in flat.items():
        if name not in known_keys():
            raise ConfigError(_unknown(name, value))
        if not (isinstance(value, str) and value == ""):
            table, _, key = name.partition(".")
            given[table][key] = value
    return given


def _task(given: Mapping[str, Mapping[str, Any]]) -> NamedTask | FunctionTask:
    kind = given["task"].get("kind", next(iter(NAMED_TASKS)))
    if isinstance(kind, str) and kind in NAMED_TASKS:
        data = _value("data", given["data"])
        model = _value("model", given["model"])
        _value("task", given["task"])  # only to check that it has no other key
        return NAMED_TASKS[kind](data, model)
    task = _value("task", given["task"])
    for table in ("data", "model"):
        for key, value in given[table].items():
            raise ConfigError(
                f"[{table}] {key} must be left out with task {kind!r}, which has its own"
                f" data and model; got {value!r}."
            )
    return task


def _value(table: str, given: Mapping[str, Any]) -> Any:
    """The value that a table describes.

    Raises:
        ConfigError: an unknown kind, a key that the kind does not have, or a value out of range.
    """
    kinds = TABLES[table]
    fields = dict(given)
    kind = next(iter(kinds))
    if len(kinds) > 1:
        kind = fields.pop("kind", kind)
    if not isinstance(kind, str) or kind not in kinds:
        raise ConfigError(f"[{table}] kind must be one of {', '.join(kinds)}; got {kind!r}.")
    for key in fields:
        if not takes(table, kind, key):
            takers = ", ".join(other for other in kinds if takes(table, other, key))
            raise ConfigError(
                f"[{table}] {key} is a key of {takers}, not of kind {kind!r}. Leave it out."
            )
    arguments = {key.replace("-", "_"): value for key, value in fields.items()}
    try:
        return kinds[kind](**arguments)
    except ValueError as error:
        raise ConfigError(f"[{table}] {error}") from None


def takes(table: str, kind: object, key: str) -> bool:
    """Whether values of a kind, or of the default one, have a key.

    >>> takes("privacy", "none", "epsilon"), takes("mechanism", "cgd", "bands")
    (False, False)
    """
    if table == "mechanism" and kind is not None and key in ("bands", "params"):
        return _mechanism_takes(str(kind), key)
    kinds = TABLES[table]
    cls = next(iter(kinds.values()))
    if len(kinds) > 1 and kind is not None:
        if str(kind) not in kinds:
            return False
        cls = kinds[str(kind)]
    return any(field.key == key for field in fields_of(cls).values())


def _mechanism_takes(kind: str, key: str) -> bool:
    name = canonical_name(kind)
    if name not in names():
        return False
    parameters = {*accepted_parameters(name), *optional_parameters(name)}
    if key == "bands":
        return "bands" in parameters
    return bool(parameters - {"bands"})


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
    near = ["mechanism.params"]
    if table != "mechanism":
        near = _nearest(name)
    hint = "; fedmf options lists all."
    if table not in TABLES:
        hint = f"; tables are {', '.join(TABLES)}. fedmf options lists all keys."
    if near:
        hint = f"; did you mean {' or '.join(map(repr, near))}?"
    return f"unknown configuration key {name[:100]!r}{hint}"


def _nearest(name: str) -> list[str]:
    """The known keys that a misspelt one may mean, best guesses first."""
    kebab = name.replace("_", "-")
    if kebab in known_keys():
        return [kebab]
    key = kebab.rpartition(".")[2]
    by_key = dict[str, list[str]]()
    for known in known_keys():
        by_key.setdefault(known.partition(".")[2], []).append(known)
    if key in by_key:
        return by_key[key]
    near = difflib.get_close_matches(name, known_keys(), n=1, cutoff=0.6)
    if near:
        return near
    if name.partition(".")[0] in TABLES:
        for other in difflib.get_close_matches(key, by_key, n=1):
            return by_key[other][-1:]
    return []


def tables_of(run: Run) -> dict[str, dict[str, Scalar]]:
    """The tables that describe a run, every key that is set.

    Objects of a user's own have no key: their table says ``kind = "given"`` and their recorded
    name.
    """
    task = run.task_source
    tables = _task_tables(task)
    tables["cohorts"] = rendered("cohorts", run.cohorts)
    tables["privacy"] = rendered("privacy", run.privacy)
    tables["clipping"] = rendered("clipping", run.clipping)
    for number, statistic in enumerate(run.extra_releases, start=1):
        table = table_of(statistic)
        name = table
        if table in tables:  # a run from a configuration has one of each
            name = f"{table}-{number}"
        tables[name] = rendered(table, statistic)
    tables["mechanism"] = rendered("mechanism", MechanismTable.of(run.mechanism_config))
    if isinstance(run.mechanism_config.choice, GivenFactorization):
        tables["mechanism"]["name"] = run.mechanism_config.choice.name
    tables["client"] = rendered("client", run.client)
    tables["execution"] = rendered("execution", run.execution)
    server = run.optimizer_source
    if isinstance(server, Value):
        tables["server"] = rendered("server", server)
    else:
        tables["server"] = _given(recorded_optimizer(server))
    for name, ignored in task.ignored_keys.items():
        for key in ignored:
            tables[name].pop(key.replace("_", "-"), None)
        if not tables[name]:
            del tables[name]
    return tables


def _task_tables(task: TaskSource) -> dict[str, dict[str, Scalar]]:
    if isinstance(task, NamedTask):
        return {
            "task": {"kind": task.kind},
            "data": rendered("data", task.data),
            "model": rendered("model", task.model),
        }
    if isinstance(task, FunctionTask):
        return {"task": rendered("task", task)}
    return {"task": _given(task.to_dict())}


def rendered(table: str, value: Value) -> dict[str, Scalar]:
    """The table that describes a value: every field that is set, lists as text with commas."""
    keys = dict[str, Scalar]()
    if len(TABLES[table]) > 1:
        keys["kind"] = value.kind
    for name, field in fields_of(type(value)).items():
        content = getattr(value, name)
        if isinstance(content, tuple):
            content = ",".join(map(str, content))
            if not content and field.default:
                content = EMPTY
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
    file = configuration_path(Path(path))
    tables = read_toml(file)
    for name in STATISTICS:
        if name != "clipping" and tables.get(name) == {}:  # it would release nothing
            raise ConfigError(f"table [{name}] must have a key, such as budget-share; got none.")
    values = overridden(dotted(tables), overrides or {})
    search_next_to(file, values)
    if not any(name.startswith(_SUBJECT) for name in values):
        raise ConfigError(
            f"configuration {path} must name the data; it has no table [data] and no [task]. "
            'For the included digits, write [data] and kind = "digits".'
        )
    try:
        return run_of(values)
    except ConfigError as error:  # it quotes a value, however long
        raise ConfigError(one_line(str(error))) from None


def search_next_to(file: Path, values: Mapping[str, Any]) -> None:
    """Let the function of a task be imported from the folder of the file that names it."""
    if "task.function" in values:
        search_in(file.resolve().parent)


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        ConfigError: unreadable, or not TOML.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")  # Windows editors write a byte order mark
        if any(line.count(".") > _MOST_DOTS for line in text.splitlines()):
            raise ValueError(f"a line has more than {_MOST_DOTS} dots")
        return tomllib.loads(text)
    except OSError as error:
        raise ConfigError(
            f"cannot read configuration {path}: {error.strerror}. fedmf init writes one."
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {' '.join(str(error).split())[:200]}") from None


def overridden(written: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Apply overrides to dotted keys.

    An override of a table's ``kind`` drops the keys of the former kind that the new one lacks.
    """
    result = dict[str, Any]()
    for name, value in written.items():
        table, _, key = name.partition(".")
        changed = table in TABLES and f"{table}.kind" in overrides
        taken = changed and takes(table, written.get(f"{table}.kind"), key)
        if not taken or takes(table, overrides[f"{table}.kind"], key):
            result[name] = value
    return {**result, **overrides}


def parse_assignments(assignments: list[str]) -> dict[str, Any]:
    """Read ``table.key=value`` pairs with TOML values; a bare word is a string.

    So is a number where the key takes strings.

    >>> parse_assignments(["privacy.epsilon=2", "mechanism.kind=cgd"])
    {'privacy.epsilon': 2, 'mechanism.kind': 'cgd'}
    >>> parse_assignments(["mechanism.params=lambda=0.9"])
    {'mechanism.params': 'lambda=0.9'}
    >>> parse_assignments(["data.class-names=7", "data.label-column=2020-01-01"])
    {'data.class-names': '7', 'data.label-column': '2020-01-01'}
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
        if _takes_strings(key.strip()) and not isinstance(lines["value"], str | list | dict):
            parsed[key.strip()] = value.strip()
    return parsed


def _takes_strings(name: str) -> bool:
    """Whether a key takes a string in every kind of its table."""
    table, _, key = name.partition(".")
    written = set[type]()
    for cls in TABLES.get(table, {}).values():
        for field in fields_of(cls).values():
            if field.key == key:
                written.add(field.type)
    return written == {str}
