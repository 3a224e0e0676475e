"""What is generated from the configuration tables: the keys that Flower may pass on, and their page.

``python -m fedmf.runs.tables.reference`` in the project's root writes both; a test compares them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

from fedmf.mechanisms.registry import accepted_parameters, names, optional_parameters
from fedmf.runs.tables.configuration import TABLES
from fedmf.runs.tables.value_table import Key, Scalar, ValueTable

#: The keys that most runs set, in the order in which they are decided, and the question that each answers.
FIRST: Final = {
    "privacy.epsilon": "How strict is the promise to each user? Smaller is stricter",
    "privacy.delta": "With which probability may it fail? Well below one over the number of users",
    "privacy.clip-norm": "How long may one user's update be? About the median length on public data",
    "cohorts.rounds": "How many rounds are there? This is the horizon; it cannot grow",
    "cohorts.users-per-round": "How many users are asked in a round? More of them is what buys accuracy",
    "mechanism.kind": "How is the noise correlated? `identity` is independent noise",
    "data.kind": "Where do examples come from?",
    "data.path": "In which file or folder are they?",
    "data.users": "How many users are there?",
    "data.user-column": "Which column says whose a row is?",
    "data.roster": "Which file lists all users?",
    "data.schema": "Which file says what columns may hold?",
    "data.partition": "Who owns which examples? `natural` for people's own rows",
    "model.kind": "Which model?",
    "server.learning-rate": "How far does the server step?",
    "client.learning-rate": "How far does a user step?",
    "client.epochs": "How often does a user go through its examples in a round?",
    "client.batch-size": "How many examples are in a user's step?",
    "execution.evaluate-every": "After how many rounds is the model evaluated?",
    "execution.output-dir": "Where is the run kept?",
}

#: What one may want beyond these, and the keys that decide it.
WANTED: Final = {
    "a claim of secret cohorts (amplification)": "cohorts.kind privacy.amplified",
    "single examples protected instead of users": "data.partition",
    "the other adjacency": "privacy.adjacency",
    "noise that can be repeated, in a simulation": "privacy.noise-seed",
    "other seeds of data, model, cohorts, batches": "data.seed model.seed cohorts.seed client.seed",
    "an adaptive clip norm": "clipping.kind clipping.quantile clipping.unit-steps",
    "less memory for noise": "mechanism.bands mechanism.buffers",
    "participation that is limited otherwise": "cohorts.min-separation cohorts.max-participations",
    "users that come when they can": "cohorts.kind cohorts.seed",
    "another server optimizer": "server.kind server.momentum server.schedule server.warmup",
    "users that own very unequal data, made up": "data.partition data.dirichlet-alpha data.size-exponent",
    "rows of a table without a schema": (
        "data.feature-columns data.label-column data.class-names data.input-shape"
    ),
    "another task than classes": "task.kind task.function data.label-columns data.text-column",
    "a model to start from": "model.initial",
    "FedProx or momentum on clients": "client.proximal client.momentum",
    "less memory for training": "client.micro-batch client.precision execution.checkpoint-every",
    "more processes, GPUs, machines": "execution.workers execution.worker-gpus execution.ray-address",
    "a statistic of one's own": "own.function own.bound own.share",
    "deployment on nodes": "execution.messages execution.enrolment execution.round-timeout data.test-path",
    "replies that are not waited for": "execution.min-replies",
    "a stopped run continued under `flwr run`": "execution.resume",
}


def keys_by_want(keys: Mapping[str, Key], defaults: Mapping[str, str]) -> Iterator[str]:
    """Two tables in Markdown: the keys to begin with, then keys by purpose.

    Args:
        keys: every key by its whole name, ``table.key``.
        defaults: what stands in the column "default" of its table.
    """
    yield f"## The {len(FIRST)} keys to begin with"
    yield ""
    yield "| key | default | the question |"
    yield "|---|---|---|"
    for name, question in FIRST.items():
        yield f"| {_linked(name, keys)} | {defaults[name]} | {question}. |".replace("?. |", "? |")
    yield ""
    yield "## Keys by what you want"
    yield ""
    yield "| you want | keys |"
    yield "|---|---|"
    for want, answer in WANTED.items():
        yield f"| {want} | {', '.join(_linked(name, keys) for name in answer.split())} |"


def _linked(name: str, keys: Mapping[str, Key]) -> str:
    return f"[`{name}`](#{keys[name].table})"


#: From so many kinds on a default stands alone, and kinds are named as all but the missing ones, if few are.
_MANY: Final = 4
_FEW: Final = 3
_BEGIN: Final = "# BEGIN generated by fedmf.runs.tables.reference"
_END: Final = "# END generated by fedmf.runs.tables.reference"


def flower_keys() -> str:
    """The section of pyproject.toml that lists every key, each with the value that stands for "not set"."""
    lines = [_BEGIN]
    for name, table in TABLES.items():
        keys = list(table.keys())
        if keys:
            lines += ["", f"[tool.flwr.app.config.{name}]"]
            lines += [f"{key.name} = {_toml(key.unset)}" for key in keys]
    return "\n".join([*lines, "", _END])


def with_flower_keys(pyproject: str) -> str:
    """A pyproject.toml with its section of keys made anew."""
    before, _, rest = pyproject.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{flower_keys()}{after}"


def configuration_page() -> str:
    """docs/configuration.md."""
    known = {f"{name}.{key.name}": key for name, table in TABLES.items() for key in list(table.keys())}
    defaults = {name: _first_default(key) for name, key in known.items()}
    lines = [_INTRODUCTION, "", *keys_by_want(known, defaults)]
    for name, table in TABLES.items():
        lines += ["", f"## [{name}]", ""]
        if isinstance(table, ValueTable):
            lines += [f"* `{kind}`: {_summary(cls)}" for kind, cls in table.kinds.items() if cls.__doc__]
        else:
            lines += [*_mechanisms()]
        lines += ["", "| key | type | default | what it is |", "|---|---|---|---|"]
        lines += map(_row, table.keys())
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write both files in the current folder."""
    pyproject, page = Path("pyproject.toml"), Path("docs/configuration.md")
    pyproject.write_text(with_flower_keys(pyproject.read_text(encoding="utf-8")), encoding="utf-8")
    page.write_text(configuration_page(), encoding="utf-8")


_INTRODUCTION: Final = """\
# Configuration

<!-- Generated by `python -m fedmf.runs.tables.reference`: change the docstrings, not this page. -->

A run is one TOML file with a table for each of its values. The same file serves every engine:

    fedmf simulate configs/digits.toml --set privacy.epsilon=2 --set mechanism.kind=bisr
    flwr run . --run-config configs/digits.toml

Each table is a value of `fedmf.Run`: `kind` picks its class, the other keys are its fields. A key that the
chosen kind lacks is an error. Where a table gives a default or description without naming a kind, it applies
to all kinds not listed. Flower passes strings, numbers and Booleans only, so an empty string, `-1` for an
integer and `-inf` for a float mean "not set". Lists are strings with commas: `"64,32"`; `"none"` is an empty
list. The seeds of `[model]`, `[cohorts]` and `[client]` default to that of `[data]`."""


def _mechanisms() -> Iterator[str]:
    yield "The names and their parameters; a parameter that is not set is optimised for the run:"
    yield ""
    for name in names():
        if name.startswith("normalized-"):
            continue
        symbols = ", ".join(
            f"`{symbol}`" for symbol in (*accepted_parameters(name), *optional_parameters(name))
        )
        yield f"* `{name}`" + (f": {symbols}" if symbols else "")
    yield ""
    yield "With the prefix `normalized-` the columns of the strategy matrix are normalised."


def _row(key: Key) -> str:
    written = {None: "", **{kind: _shown(key, value) for kind, value in key.defaults.items()}}
    differing = {text for kind, text in written.items() if kind is not None}
    default = next(iter(differing)) if len(differing) == 1 else _differing(written)
    table = TABLES[key.table]
    some = isinstance(table, ValueTable) and 0 < len(key.defaults) < len(table.kinds) and key.name != "kind"
    of = f"*{_kinds(key.defaults, table.kinds)}*: " if some and isinstance(table, ValueTable) else ""
    said = " ".join(f"*{', '.join(kinds)}*: {text}" if kinds else text for kinds, text in key.meanings())
    meaning = re.sub(r"\s*\|\s*", " or ", said)
    return f"| `{key.name}` | {_TYPES[key.type]} | {default} | {of}{meaning} |"


def _differing(written: Mapping[str | None, str]) -> str:
    """Defaults that depend on the kind, each with its kinds; that of most kinds comes first and alone."""
    kinds: dict[str, list[str]] = {}
    for kind, text in written.items():
        if kind is not None and text:
            kinds.setdefault(text, []).append(kind)
    usual = max(kinds, key=lambda text: len(kinds[text]))
    first = [usual] if len(kinds[usual]) >= _MANY else []
    return ", ".join(
        [*first, *(f"{text} ({', '.join(of)})" for text, of in kinds.items() if text not in first)]
    )


def _kinds(some: Collection[str | None], every: Collection[str]) -> str:
    missing = [kind for kind in every if kind not in some]
    if len(some) >= _MANY and len(missing) <= _FEW:
        return f"all but {', '.join(missing)}"
    return ", ".join(str(kind) for kind in some)


def _first_default(key: Key) -> str:
    return _shown(key, next(iter(key.defaults.values())))


_TYPES: Final = {str: "string", int: "integer", float: "float", bool: "Boolean"}


def _shown(key: Key, value: Scalar | None) -> str:
    if value is None or value == "":
        return "not set"
    return f"`{_toml(value)}`" if not isinstance(value, str) else f"`{value}`"


def _toml(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _summary(cls: type) -> str:
    return inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0].replace("\n", " ")


if __name__ == "__main__":
    main()
