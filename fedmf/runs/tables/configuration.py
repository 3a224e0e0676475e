"""Configuration tables and the run that they are: one TOML file for every engine.

A table is a value of the run; ``kind`` picks its class, the other keys are its fields in kebab-case. Flower
flattens tables to dotted keys, takes text, numbers and truth values only, knows the listed keys alone and
injects every default: so the listed keys are the union over all kinds, and ``""``, ``-1`` and ``-inf`` stand
for a key that is not set.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import tomli_w

from fedmf.accounting import PRIVACY
from fedmf.cohorts import COHORTS
from fedmf.data import DATASETS
from fedmf.errors import ConfigError, one_line
from fedmf.models import MODELS
from fedmf.optim import OPTIMIZERS
from fedmf.runs.execution import Execution
from fedmf.runs.given import GIVEN, recorded_optimizer
from fedmf.runs.named_tasks import NAMED_TASKS, FunctionTask, NamedTask
from fedmf.runs.run import Run
from fedmf.runs.statistics import STATISTICS
from fedmf.runs.tables.mechanism_table import MechanismTable
from fedmf.runs.tables.value_table import ConfigurationTable, Key, Scalar, ValueTable
from fedmf.training import LocalSGD
from fedmf.values import Value, by_kind, dotted

_log = logging.getLogger("fedmf")

#: How they are called in commands: ``configs/digits.toml``.
FOLDER: Final = "configs"
_PACKAGE: Final = Path(__file__).resolve().parents[2]


def shipped_file(name: str) -> Path:
    """Where one of them, or a folder of them, is: in the package, or beside it in a checkout."""
    inside = _PACKAGE / FOLDER
    return (inside if inside.is_dir() else _PACKAGE.parent / FOLDER) / name


def found_or_shipped(path: Path) -> Path:
    """The file itself if there is something; else the shipped one that ``NAME`` or ``configs/NAME`` means.

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
    _log.warning("there is no %s here: the configuration of that name that ships with fedmf is taken", path)
    return other


def _named(task: type[NamedTask]) -> type[Value]:
    """A table that says which task [data] and [model] make, and nothing else."""
    return type(task.__name__, (Value,), {"kind": task.kind, "__doc__": task.__doc__})


TABLES: Final[dict[str, ConfigurationTable]] = {
    "task": ValueTable(
        "task", {kind: _named(task) for kind, task in NAMED_TASKS.items()} | by_kind(FunctionTask)
    ),
    "data": ValueTable("data", DATASETS),
    "model": ValueTable("model", MODELS),
    "cohorts": ValueTable("cohorts", COHORTS),
    "privacy": ValueTable("privacy", PRIVACY),
    **{name: ValueTable(name, kinds) for name, kinds in STATISTICS.items()},
    "mechanism": MechanismTable("mechanism"),
    "server": ValueTable("server", OPTIMIZERS),
    "client": ValueTable("client", by_kind(LocalSGD)),
    "execution": ValueTable("execution", by_kind(Execution)),
}
#: Most bytes of a configuration file.
_LONGEST: Final = 1 << 18
_MOST_DOTS: Final = 64
#: One of these tables a file has: what a run is about is nobody's default.
_SUBJECT: Final = ("data.", "task.")
_QUOTED: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'')
#: Public seeds that follow the seed of the data unless they are set.
_SEEDED: Final = ("model", "cohorts", "client")


def keys() -> Iterator[Key]:
    """Every key that a configuration may have, table by table."""
    for table in TABLES.values():
        yield from table.keys()


@cache
def _known() -> Mapping[str, Key]:
    """Every key by its dotted name, found once."""
    return MappingProxyType({key.dotted: key for key in keys()})


def run_of(values: Mapping[str, Any]) -> Run:
    """The run that tables describe.

    Args:
        values: nested tables, dotted keys, or both.

    Raises:
        ConfigError: an unknown key (naming the nearest known one), or a value out of range.
    """
    known = _known()
    _refuse_given(dotted(values))
    _refuse_unknown(dotted(values), known)
    given = {
        name: _joined(name, value) if known[name].is_list else value
        for name, value in dotted(values).items()
        if known[name].is_set(value)
    }
    for name, value in given.items():
        if not isinstance(value, Scalar):
            table, _, key = name.partition(".")
            raise ConfigError(f"[{table}] {key} must be text, a number or a truth value; got {value!r}.")
    by_table: dict[str, dict[str, Any]] = {name: {} for name in TABLES}
    for name, value in given.items():
        table, _, key = name.partition(".")
        by_table[table][key] = value
    if "seed" in by_table["data"]:
        for table in _SEEDED:
            if TABLES[table].takes(by_table[table].get("kind"), "seed"):
                by_table[table].setdefault("seed", by_table["data"]["seed"])
    task = TABLES["task"].parse(by_table["task"])
    if task.kind in NAMED_TASKS:
        data, model = (TABLES[name].parse(by_table[name]) for name in ("data", "model"))
        task = NAMED_TASKS[task.kind](data, model)
    elif unused := [
        name for name in given if name.startswith(("data.", "model.")) and given[name] is not False
    ]:
        table, _, key = unused[0].partition(".")
        raise ConfigError(
            f"[{table}] {key} must be left out with task {task.kind!r}, which brings its own data and model; "
            f"got {given[unused[0]]!r}."
        )
    chosen = [name for name in STATISTICS if name != "clipping"]
    others = [name for name in TABLES if name not in ("task", "data", "model", *chosen)]
    extra = tuple(TABLES[name].parse(by_table[name]) for name in chosen if by_table[name])
    return Run(task, **{name: TABLES[name].parse(by_table[name]) for name in others}, extra_releases=extra)


def _joined(name: str, value: Any) -> Any:
    """A list as the text with commas that it stands for; anything else as it is."""
    if not isinstance(value, list | tuple) or not all(isinstance(part, Scalar) for part in value):
        return value
    parts = [str(part) for part in value]
    if not parts or any("," in part for part in parts):
        table, _, key = name.partition(".")
        raise ConfigError(
            f"[{table}] {key} must list one or more values without commas; got {list(value)!r}."
        )
    return ",".join(parts)


def takes_key(values: Mapping[str, Any], name: str) -> bool:
    """Whether the kinds that dotted keys name have a key.

    >>> takes_key({"privacy.kind": "none"}, "privacy.epsilon"), takes_key({}, "privacy.epsilon")
    (False, True)
    """
    table, _, key = name.partition(".")
    if table in ("data", "model") and values.get("task.kind") == FunctionTask.kind:
        return False
    return table in TABLES and (key == "kind" or TABLES[table].takes(values.get(f"{table}.kind"), key))


def _refuse_given(dotted: Mapping[str, Any]) -> None:
    for table in TABLES:
        if dotted.get(f"{table}.kind") == GIVEN:
            raise ConfigError(
                f"[{table}] was given as an object ({dotted.get(f'{table}.name')}), which no configuration "
                "describes. Make the run in Python; fedmf.load rebuilds it from its directory."
            )


def tables_of(run: Run) -> dict[str, dict[str, Scalar]]:
    """The tables that describe a run, every key that is set.

    Objects of a user's own have no key: their table says ``kind = "given"`` and their recorded name.
    """
    tables: dict[str, dict[str, Scalar]] = {}
    task = run.task_source
    if isinstance(task, NamedTask):
        tables["task"] = {"kind": task.kind}
        tables["data"], tables["model"] = TABLES["data"].render(task.data), TABLES["model"].render(task.model)
    else:
        tables["task"] = (
            TABLES["task"].render(task) if isinstance(task, FunctionTask) else _given(task.to_dict())
        )
    values = {
        "cohorts": run.cohorts,
        "privacy": run.privacy,
        "clipping": run.clipping,
        **{statistic.name: statistic for statistic in run.extra_releases},
        "mechanism": run.noise,
        "client": run.client,
        "execution": run.execution,
    }
    tables |= {name: TABLES[name].render(value) for name, value in values.items()}
    recorded = recorded_optimizer(run.optimizer_source)
    named = recorded["kind"] in OPTIMIZERS
    tables["server"] = TABLES["server"].render(run.optimizer_source) if named else _given(recorded)
    unread = {name: {key.replace("_", "-") for key in keys} for name, keys in task.unread.items()}
    said = {
        name: {key: value for key, value in table.items() if key not in unread.get(name, ())}
        for name, table in tables.items()
    }
    return {name: table for name, table in said.items() if table or name not in unread}


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

    An override of a table's ``kind`` leaves out what only the file's kind has. Where there is no such file,
    ``configs/NAME`` and ``NAME`` mean the configuration of that name that ships with fedmf.

    Raises:
        ConfigError: unreadable, not TOML, without [data] and [task], or not a valid configuration.
    """
    values = overridden(dotted(read_toml(found_or_shipped(Path(path)))), overrides or {})
    if not any(name.startswith(_SUBJECT) for name in values):
        raise ConfigError(
            f"configuration {path} must say what is trained on; it has no table [data] and no [task]. "
            'For the digits that fedmf brings along write [data] and kind = "digits".'
        )
    try:
        return run_of(values)
    except ConfigError as error:  # which says what a value was, however long
        raise ConfigError(one_line(str(error))) from None


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file of bounded size.

    Raises:
        ConfigError: unreadable, too large or not TOML.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_LONGEST + 1)
        if len(content) > _LONGEST:
            raise ConfigError(f"configuration {path} must take at most {_LONGEST} bytes; it takes more.")
        return _parsed(content.decode("utf-8-sig"))  # editors of Windows begin with a mark
    except OSError as error:
        raise ConfigError(f"cannot read configuration {path}: {error.strerror}.") from None
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {' '.join(str(error).split())[:200]}") from None


def _parsed(text: str) -> dict[str, Any]:
    """TOML whose keys have few parts: the parser's memory grows with the square of their number."""
    for number, line in enumerate(_QUOTED.sub("", text).splitlines(), start=1):
        if line.partition("#")[0].count(".") > _MOST_DOTS:
            raise ValueError(f"line {number} has more than {_MOST_DOTS} dots outside of quotes")
    return tomllib.loads(text)


def overridden(written: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys with others over them.

    An override of a table's ``kind`` leaves out what was written for a kind that has it and the new one has
    not.
    """

    def replaced(name: str) -> bool:
        table, _, key = name.partition(".")
        kind = f"{table}.kind"
        if table not in TABLES or kind not in overrides:
            return False
        if not isinstance(overrides[kind], str) or not isinstance(written.get(kind, ""), str):
            return False  # which is refused with what is said of it
        return TABLES[table].takes(written.get(kind), key) and not TABLES[table].takes(overrides[kind], key)

    return {**{name: value for name, value in written.items() if not replaced(name)}, **overrides}


def parse_assignments(assignments: list[str]) -> dict[str, Any]:
    """``table.key=value`` pairs with TOML values; a bare word is text.

    >>> parse_assignments(["privacy.epsilon=2", "mechanism.kind=cgd", "mechanism.lambda=0.9"])
    {'privacy.epsilon': 2, 'mechanism.kind': 'cgd', 'mechanism.lambda': 0.9}
    """
    parsed: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set takes table.key=value; got {assignment!r}.")
        try:
            lines = _parsed(f"value = {value}")
        except (ValueError, RecursionError):
            lines = {"value": value.strip()}
        if set(lines) != {"value"}:
            raise ConfigError(f"--set takes one table.key=value; got {assignment!r}.")
        parsed[key.strip()] = lines["value"]
    return parsed


def _refuse_unknown(given: Mapping[str, Any], known: Mapping[str, Key]) -> None:
    for name in given:
        if name in known:
            continue
        table, _, key = name.partition(".")
        if key == "kind" and table in TABLES:
            raise ConfigError(
                f"[{table}] must have no key kind, since it has no kinds; got {one_line(repr(given[name]))}. "
                f"Leave it out; fedmf keys {table}. lists its keys."
            )
        last = {dotted.partition(".")[2]: dotted for dotted in known}
        kebab = name.replace("_", "-")
        key = kebab.rpartition(".")[2]
        near = [kebab] if kebab in known else [one for one in known if one.partition(".")[2] == key]
        near = near or difflib.get_close_matches(name, known, n=1, cutoff=0.6)
        near = near or [last[other] for other in difflib.get_close_matches(key, last, n=1)]
        meant = " or ".join(map(repr, near))
        hint = f"; did you mean {meant}?" if near else "; fedmf keys lists all"
        raise ConfigError(f"unknown configuration key {name[:100]!r}{hint}")
