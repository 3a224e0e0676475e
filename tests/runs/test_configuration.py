"""Configurations and the run that they describe: both ways, files, overrides, ranges, what is
generated.
"""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
from flwr.common.config import flatten_dict, fuse_dicts

from fedmf.cohorts import AvailableCohorts
from fedmf.data import Hub, Synthetic
from fedmf.errors import ConfigError
from fedmf.mechanisms.choice import NamedMechanism
from fedmf.models import Logistic, Mlp
from fedmf.optim import Adam, JmeAdam
from fedmf.participation import Participation
from fedmf.runs.run import Execution, MechanismConfig, Run
from fedmf.runs.tables.configuration import (
    TABLES,
    dotted_keys,
    known_keys,
    load_run,
    parse_assignments,
    render_toml,
    run_of,
)
from fedmf.runs.tables.reference import configuration_page, with_flower_keys
from fedmf.runs.tasks import Classification, FunctionTask
from fedmf.statements.privacy import NoPrivacy, UserLevel
from fedmf.training import LocalSGD
from fedmf.values import Field, ValueField, fields_of

ROOT = Path(__file__).resolve().parents[2]
UNSET = dict.fromkeys(known_keys(), "")
#: Every field of every kind of every table.
FIELDS = [
    pytest.param(field, id=f"{table}-{kind}-{name}")
    for table, kinds in TABLES.items()
    for kind, cls in kinds.items()
    for name, field in fields_of(cls).items()
]


def refusal(values: dict[str, Any]) -> str:
    """The message with which tables are refused; always a single line."""
    with pytest.raises(ConfigError) as caught:
        run_of(values)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def same(run: Run, other: Run) -> bool:
    return run.to_dict() == other.to_dict()


def read_back(run: Run, path: Path) -> Run:
    path.write_text(render_toml(run), encoding="utf-8")
    return load_run(path)


def test_every_field_says_what_it_is_and_refuses_other_types_and_numbers_out_of_its_range() -> None:
    """One table for all keys: whatever is accepted is of the type and within the range that is
    declared.
    """
    for field in (param.values[0] for param in FIELDS):
        assert isinstance(field, ValueField)
        assert field.info.description
        if field.default is not None and field.default != "":
            assert field.checked(field.default) == field.default
        wrong = {
            bool: [0, "true"],
            int: [True, 2.5, math.nan],
            float: [True, [0.5]],
            str: [1, b"a"],
        }
        if "tuple" not in str(field.hint):
            for value in wrong[field.type]:
                with pytest.raises(ValueError, match=rf"{field.name}\)? must be .*; got "):
                    field.checked(value)
        if "Literal" in str(field.hint) or get_args(field.hint)[:1] == ("constant",):
            with pytest.raises(ValueError, match=r"must be '.+'; got 'no such"):
                field.checked("no such choice")
        for value in (math.nan, math.inf, -math.inf, 10**400) if field.type is float else ():
            with pytest.raises(ValueError, match="must be "):
                field.checked(value)


@pytest.mark.parametrize(
    ("about", "inside", "outside"),
    [
        (Field(gt=0), [5e-324, 1e300, 3], [0.0, -1.0, math.inf]),
        (Field(ge=0), [0.0, 0], [-5e-324]),
        (Field(gt=0, lt=1), [0.5], [0.0, 1.0]),
        (Field(ge=0, lt=1), [0.0], [1.0]),
    ],
    ids=["positive", "not negative", "open", "half open"],
)
def test_ranges_of_numbers_end_where_they_say(
    about: Field, inside: list[Any], outside: list[Any]
) -> None:
    field = ValueField("x", float, 0.5, about)
    assert all(type(field.checked(value)) is float for value in inside)
    for value in outside:
        with pytest.raises(ValueError, match=r"x must be (a finite|greater|less)"):
            field.checked(value)
    whole = ValueField("x", int | None, None, Field(ge=2, le=5))
    assert [whole.checked(value) for value in (None, 2, 5)] == [None, 2, 5]
    for value in (1, 6, 2**80, True, "3"):
        with pytest.raises(ValueError, match=r"x must be (a valid integer|greater|less)"):
            whole.checked(value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"privacy.epsilon": -1}, "[privacy] ε (epsilon) must be greater than 0; got -1."),
        ({"privacy.delta": 1.0}, "[privacy] δ (delta) must be less than 1; got 1.0."),
        ({"privacy.clip-norm": 0}, "[privacy] ζ (clip_norm) must be greater than 0; got 0."),
        (
            {"privacy.adjacency": "both"},
            "adjacency must be 'zero-out' or 'replace-one'; got 'both'.",
        ),
        ({"cohorts.rounds": 0}, "n (rounds) must be greater than or equal to 1; got 0."),
        (
            {"cohorts.rounds": 5, "mechanism.bands": 6, "data.users": 36},
            "(p) must be at most rounds n=5",
        ),
        (
            {"cohorts.kind": "available", "privacy.amplified": True},
            "must be sampled for an amplified run",
        ),
        ({"cohorts.kind": "cycle"}, "[cohorts] kind must be one of cyclic, cyclic-poisson, "),
        ({"cohorts.kind": [["x"]]}, "[cohorts] kind must be one of cyclic, cyclic-poisson, "),
        ({"mechanism.kind": "bsrr"}, "got 'bsrr'. Did you mean 'bsr'?"),
        (
            {"mechanism.params": "lambda=0.5"},
            "must be one that banded-toeplitz takes",
        ),
        ({"mechanism.params": "lambda"}, "[mechanism] params must be name=number; got 'lambda'."),
        (
            {"model.hidden-units": "8,x"},
            "hidden_units[1] must be a valid integer; got 'x'.",
        ),
        (
            {"model.hidden-units": [8, 0]},
            "hidden_units[1] must be greater than or equal to 1; got 0.",
        ),
        (
            {"data": {"kind": "table"}},
            "must name what dataset 'table' reads; got none.",
        ),
        (
            {"task.kind": "function", "task.function": "a:b:c"},
            "must read package.module:function; got",
        ),
        (
            {"privacy.kind": "none", "privacy.epsilon": 3.0},
            "is a key of user-level, not of kind 'none'.",
        ),
        (
            {"mechanism.lambda": 0.5},
            "did you mean 'mechanism.params'?",
        ),
        (
            {"momentum": 1},
            "key 'momentum'; did you mean 'server.momentum' or 'client.momentum'?",
        ),
        (
            {"epsilon": 1},
            "key 'epsilon'; did you mean 'privacy.epsilon'?",
        ),
        ({"batch_size": 1}, "did you mean 'client.batch-size'?"),
        ({"privacy.rounds": 1}, "did you mean 'cohorts.rounds'?"),
        ({"zzz": 1}, "unknown configuration key 'zzz'; tables are task, data"),
        ({"privacy": 3}, "unknown configuration key 'privacy'; did you mean 'privacy."),
        (
            {"execution.kind": "x"},
            "[execution] must have no key kind, since it has no kinds; got 'x'.",
        ),
    ],
    ids=range(25),
)
def test_what_cannot_be_run_is_one_line_that_says_why(values: dict[str, Any], message: str) -> None:
    assert message in refusal(values)


def test_a_misspelt_key_names_the_nearest() -> None:
    for name in known_keys():
        table, _, key = name.partition(".")
        misspelt = f"{table}.{key[0]}q{key[1:]}"
        meant = "mechanism.params" if table == "mechanism" else name
        assert (
            refusal({misspelt: 1})
            == f"unknown configuration key {misspelt!r}; did you mean {meant!r}?"
        )
        if "-" in name and table != "mechanism":
            assert f"did you mean {name!r}?" in refusal({name.replace("-", "_"): 1})


MNIST = Hub(
    path="ylecun/mnist", feature_columns=("none",), class_names=("0..9",), input_shape=(1, 28, 28)
)
RUNS = {
    "all of it": Run(
        task=Classification(Synthetic(users=40, test_fraction=0.1 + 0.2, seed=3), Logistic()),
        cohorts=AvailableCohorts(9, 4, min_separation=5, max_participations=2),
        privacy=UserLevel(
            clip_norm=0.1 + 0.2, delta=1e-300, adjacency="replace-one", noise_seed=2**60
        ),
        mechanism=MechanismConfig(
            NamedMechanism("bifr", {"bands": 4, "gamma": 0.1 + 0.2}), "auto", "max", 0.5
        ),
        server=JmeAdam(schedule="cosine", warmup=3),
        client=LocalSGD(epochs=3, learning_rate=0.25, proximal=0.125, engine="loop", micro_batch=7),
        execution=Execution("per-user", 3, 0.5, output_dir='a "b"\n\\c é'),
    ),
    "no hidden layers": Run(task=Classification(model=Mlp(hidden_units=()))),
    "a list": Run(task=Classification(model=Mlp(hidden_units=[16, 8]))),  # type: ignore[arg-type]
    "no privacy": Run(privacy=NoPrivacy(noise_seed=0)),
    "a hub": Run(task=Classification(MNIST)),
    "a function": Run(task=FunctionTask("a.b:c", 360, 5)),
    "a parameter": Run(mechanism=MechanismConfig(NamedMechanism("cgd", {"lambda": 0.5}))),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_made_in_python_survives_a_file_and_flower(name: str, tmp_path: Path) -> None:
    """Flower injects all listed keys, flat: those of other kinds do no harm."""
    run = RUNS[name]
    again = read_back(run, tmp_path / "config.toml")
    assert same(again, run)
    assert again.difference(run) is None
    assert same(run_of({**UNSET, **dotted_keys(run)}), run)


def test_the_defaults_can_be_run_and_an_empty_string_is_as_good_as_nothing() -> None:
    assert same(run_of({}), Run())
    assert same(run_of(UNSET), Run())
    assert Run().participation == Participation(240, 24, 10)


def test_overrides_win_and_a_kind_leaves_out_what_only_that_of_the_file_has(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        "data.kind = 'digits'\n[privacy]\nepsilon = 4\n"
        "[mechanism]\nkind = 'bsr'\nbands = 4\nworkload = 'average'\n"
        "[server]\nmomentum = 0.5\nlearning-rate = 0.2\n"
    )
    assert load_run(path).privacy.requested_epsilon == 4.0
    there = [
        "privacy.kind=none",
        "mechanism.kind=cgd",
        "mechanism.params=lambda=0.5",
        "server.kind=adam",
    ]
    assert same(
        load_run(path, parse_assignments(there)),
        Run(
            privacy=NoPrivacy(),
            mechanism=MechanismConfig(NamedMechanism("cgd", {"lambda": 0.5}), workload="average"),
            server=Adam(learning_rate=0.2),
        ),
    )
    assert load_run(path, {"mechanism.kind": "bisr"}).mechanism_config.choice == NamedMechanism(
        "bisr", {"bands": 4}
    )
    with pytest.raises(ConfigError, match="epsilon is a key of user-level"):
        load_run(path, {"privacy.kind": "none", "privacy.epsilon": 3.0})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must name the data; it has no table [data]"),
        (b"[privacy]\nepsilon = 1\nepsilon = 2\n", "is not TOML: "),
        (b"\xff\xfe\x00", "is not TOML: "),
        (b"privacy.epsilon = 1" + b"0" * 5000, "is not TOML: "),
        (b"data.path = [[1, 2]]", "[data] path is a key of table, hub, on-nodes"),
        (b"data.seed = 2020-01-01", "[data] seed must be a valid integer; got "),
    ],
    ids=range(6),
)
def test_files_that_are_no_configuration_are_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load_run(path)
    assert "\n" not in str(caught.value)
    for absent in (tmp_path / "absent.toml", tmp_path, tmp_path / ("n" * 300)):
        with pytest.raises(
            ConfigError, match=f"cannot read configuration {re.escape(str(absent))}: "
        ):
            load_run(absent)


def test_what_is_generated_is_what_is_committed_and_flower_takes_the_shipped_files() -> None:
    """`python -m fedmf.runs.tables.reference` would change nothing."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert with_flower_keys(project) == project
    assert (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8") == configuration_page()
    declared = flatten_dict(tomllib.loads(project)["tool"]["flwr"]["app"]["config"])
    assert declared == UNSET
    for path in (ROOT / "configs").glob("*.toml"):
        values = flatten_dict(tomllib.loads(path.read_text(encoding="utf-8")))
        assert same(run_of(fuse_dicts(declared, values)), load_run(path))
