"""The run configuration: what is accepted, what is refused and how, and what is derived."""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
import tomli_w
from annotated_types import Ge, Gt, Le, Lt
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmf.cohorts.fixed import CyclicSchedule, RandomSchedule
from fedmf.errors import ConfigError
from fedmf.participation import Participation
from fedmf.runs.config import Config, load_config, parse_assignments
from fedmf.runs.keys.parameters import parse_parameters

ROOT = Path(__file__).resolve().parents[2]
laws = settings(derandomize=True, max_examples=200, deadline=None, database=None)

DEFAULTS = Config().to_flat()
KEYS = sorted(DEFAULTS)
FIELDS = {name.replace("_", "-"): field for name, field in Config.model_fields.items()}
OF_TYPE = {kind: [key for key in KEYS if FIELDS[key].annotation is kind] for kind in (bool, int, float, str)}
CHOICES = {key: get_args(field.annotation) for key, field in FIELDS.items() if get_args(field.annotation)}


def companions(key: str, value: object) -> dict[str, Any]:
    """Other keys without which a value is refused: an accountant needs the schedule of its name."""
    if (key, value) == ("dataset", "hub"):
        return {"data-path": "cifar10"}
    if (key, value) in {("dataset", "table"), ("partition", "natural"), ("hold-out", "users")}:
        return {"dataset": "table", "data-path": "rows.csv", "user-column": "who"}
    if key == "server-optimizer" and str(value).startswith("fed"):
        return {"server-epsilon": 1e-3}
    return {"schedule": value} if key == "accountant" and value in CHOICES["schedule"] else {}


def refusal(values: dict[str, Any]) -> str:
    """The message with which a configuration is refused; always a single line."""
    with pytest.raises(ConfigError) as caught:
        Config.from_mapping(values)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_key_has_a_kind() -> None:
    assert sorted([*(key for keys in OF_TYPE.values() for key in keys), *CHOICES]) == KEYS


def test_the_defaults_can_be_run() -> None:
    assert Config.from_mapping({}) == Config()
    assert Config.from_mapping(DEFAULTS) == Config()
    assert Config().participation == Participation(240, 24, 10)


@pytest.mark.parametrize("key", KEYS)
def test_a_misspelt_key_names_the_nearest(key: str) -> None:
    misspelt = ("q" if key[0] != "q" else "x") + key[1:]
    assert refusal({misspelt: 1}) == f"unknown configuration key {misspelt!r}; did you mean {key!r}?"


@pytest.mark.parametrize("key", [key for key in KEYS if "-" in key])
def test_snake_case_is_not_a_key_but_names_it(key: str) -> None:
    assert f"did you mean {key!r}?" in refusal({key.replace("-", "_"): DEFAULTS[key]})


def test_a_key_like_no_other_points_to_the_list() -> None:
    assert refusal({"zzz": 1}) == "unknown configuration key 'zzz'; see docs/configuration.md for all keys"


WRONG: dict[type, list[Any]] = {
    bool: [0, 1, "true", 1.0, [True]],
    int: [True, False, 2.0, 2.5, "3", [3], {"a": 1}, math.nan],
    float: [True, "0.5", [0.5], math.nan, math.inf, -math.inf, 10**400, -(10**400)],
    str: [1, True, 1.5, ["a"]],
}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (key, value)
        for kind, keys in OF_TYPE.items()
        for key in keys
        for value in WRONG[kind]
        if not (key == "hidden-units" and type(value) is int)  # one layer
    ],
    ids=lambda value: repr(value)[:30],
)
def test_values_of_another_type_are_refused(key: str, value: Any) -> None:
    assert refusal({key: value}).startswith(f"{key} is invalid: ")


@pytest.mark.parametrize("key", CHOICES)
def test_choices_are_closed(key: str) -> None:
    for choice in CHOICES[key]:
        assert Config.from_mapping({**companions(key, choice), key: choice}).to_flat()[key] == choice
    for value in ("", CHOICES[key][0].upper(), CHOICES[key][0] + " ", 0, True):
        message = refusal({key: value})
        assert message.startswith(f"{key} is invalid: ")
        assert all(repr(choice) in message for choice in CHOICES[key])


@pytest.mark.parametrize("key", OF_TYPE[float])
def test_an_integer_is_fine_where_a_real_is_meant(key: str) -> None:
    """``epsilon = 8`` and ``epsilon = 8.0`` are the same; where 1 is out of range, 0 is not or neither is."""
    accepted = [value for value in (1, 0) if not _refused(key, value)]
    for value in accepted:
        stored = Config.from_mapping({key: value}).to_flat()[key]
        assert stored == float(value)
        assert type(stored) is float
    assert all(_refused(key, value) == _refused(key, float(value)) for value in (1, 0))


def _refused(key: str, value: float) -> bool:
    try:
        Config.from_mapping({key: value})
    except ConfigError:
        return True
    return False


RANGES = {
    "dirichlet-alpha": ([1e-9, 1e9], [0.0, -1.0]),
    "test-fraction": ([0.01, 0.99], [0.0, 1.0, -0.1]),
    "epsilon": ([1e-3, 1e3], [0.0, -1.0]),
    "delta": ([1e-300, 0.99], [0.0, 1.0, -1e-5]),
    "max-epsilon": ([0.0, 4.0], [-1.0]),
    "second-moment-importance": ([0.0, 1e9], [-1.0]),
    "clip-norm": ([1e-9, 1e9], [0.0, -0.3]),
    "local-learning-rate": ([1e-9, 1e9], [0.0, -0.3]),
    "local-momentum": ([0.0, 0.999], [1.0, -0.1]),
    "local-proximal": ([0.0, 1e9], [-0.1]),
    "server-learning-rate": ([1e-9, 1e9], [0.0, -0.3]),
    "server-momentum": ([0.0, 0.999], [1.0, -0.1]),
    "server-beta1": ([0.0, 0.999], [1.0, -0.1]),
    "server-beta2": ([0.0, 0.999], [1.0, -0.1]),
    "server-epsilon": ([0.0, 1e9], [-1e-9]),
    "server-relative-epsilon": ([0.0, 1e9], [-1e-9]),
    "server-update-clip": ([0.0, 1e9], [-1.0]),
    "server-weight-decay": ([0.0, 9.9], [-0.1, 10.1]),
    "round-timeout": ([0.1, 1e6], [0.0, -1.0]),
    "users": ([360, 10**6], [0, -1, 2**31, 10**30]),
    "size-exponent": ([1.001, 50.0], [1.0, 0.0, -2.0]),
    "shards-per-user": ([1, 5], [0, -1, 2**31]),
    "examples-per-user": ([1, 10**6], [0, -1, 2**31]),
    "features": ([1, 10**6], [0, -1, 2**31]),
    "classes": ([2, 10**6], [1, 0, -1, 2**31]),
    "clusters": ([1, 1000], [0, -1, 1001]),
    "synthetic-alpha": ([0.0, 1e6], [-0.1]),
    "synthetic-beta": ([0.0, 1e6], [-0.1]),
    "seed": ([0, 2**63 - 1], [-1, 2**63]),
    "rounds": ([1, 10**6], [0, -1, 2**31]),
    "cohort-size": ([1, 360], [0, -1, 361, 2**31]),
    "min-separation": ([0, 1, 10], [-1, 11, 241]),
    "max-participations": ([0, 24], [-1, 23, 25, 10**30]),
    "bands": ([0, 240], [-1, 241]),
    "noise-seed": ([-1, 0, 10**30], [-2]),
    "local-epochs": ([1, 100], [0, -1, 2**31]),
    "local-batch-size": ([1, 10**6], [0, -1, 2**31]),
    "server-warmup": ([0, 239], [-1, 240]),
    "workers": ([1, 100], [0, -1, 2**31]),
    "worker-cpus": ([0.25, 8.0], [0.0, -1.0, math.inf, math.nan]),
    "worker-gpus": ([0.0, 0.5, 2.0], [-0.1, math.inf, math.nan]),
    "evaluate-every": ([1, 10**6], [0, -1, 2**31]),
    "checkpoint-every": ([1, 10**6], [0, -1, 2**31]),
}


def test_every_number_has_a_tested_range() -> None:
    assert sorted(RANGES) == sorted(OF_TYPE[int] + OF_TYPE[float])


@pytest.mark.parametrize("key", RANGES)
def test_ranges(key: str) -> None:
    inside, outside = RANGES[key]
    for value in inside:
        assert Config.from_mapping({key: value}).to_flat()[key] == value
    for value in outside:
        assert repr(value) in refusal({key: value}).replace("k=", "").replace("m=", "").replace("b=", "")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"users": 100, "cohort-size": 101},
            r"m \(cohort size\) must lie in 1..100, the number of users; got 101",
        ),
        (
            {"users": 100, "cohort-size": 10, "rounds": 40, "min-separation": 11},
            r"m \(cohort size\) .* got m=10, but with 100 users and b=11 only 9 are sure to be eligible",
        ),
        (  # the derived k would not fit either, but nobody asked for it
            {"users": 100, "cohort-size": 10, "rounds": 40, "min-separation": 20},
            r"m \(cohort size\) .* got m=10, but with 100 users and b=20 only 5 are sure to be eligible",
        ),
        (
            {"users": 100, "cohort-size": 10, "rounds": 40, "min-separation": 10, "max-participations": 5},
            r"k \(max_participations\) must satisfy .*; got k=5, b=10, n=40\. With b=10 at most k=4",
        ),
        (
            {"users": 100, "cohort-size": 10, "rounds": 40, "max-participations": 3},
            r"must allow n\*m = 400 participations; got k=3 for 100 users. Use k of at least 4",
        ),
        ({"rounds": 5, "bands": 6, "users": 36}, r"bands \(p\) must be at most rounds n=5; got 6"),
        ({"rounds": 5, "server-warmup": 5}, r"server-warmup must be below rounds n=5; got 5"),
        (
            {"server-nesterov": True, "server-momentum": 0.0},
            r"server-momentum must be positive with server-nest",
        ),
        (
            {"server-nesterov": True, "server-optimizer": "adam"},
            r"server-optimizer must be 'sgd' with server-nesterov = true; got 'adam'",
        ),
        ({"server-optimizer": "fedyogi"}, r"server-epsilon \(τ\) must be positive .* 'fedyogi'; got 0"),
        (
            {"server-optimizer": "jme-adam", "server-relative-epsilon": 0.0},
            r"server-epsilon or server-relative-epsilon must be positive .*; got 0 for both",
        ),
        ({"workload": "sums"}, r"A \(workload\) must be one of prefix"),
        ({"second-workload": "prefix*step"}, r"has no such schedule"),
        ({"mechanism-params": "lambda"}, r"mechanism parameters must read name=number; got 'lambda'"),
        (
            {"schedule": "random", "users": 9, "cohort-size": 3, "rounds": 30, "min-separation": 2}
            | {"max-participations": 10},
            r"a random order runs out in round \d+ of 30",
        ),
    ],
    ids=range(15),
)
def test_combinations_that_cannot_be_run_say_why(values: dict[str, Any], message: str) -> None:
    assert re.search(message, refusal(values))


@laws
@given(
    st.integers(1, 60),
    st.integers(1, 12),
    st.integers(1, 40),
    st.integers(0, 12),
    st.integers(0, 12),
    st.sampled_from(["cyclic", "random"]),
)
def test_whatever_is_accepted_can_be_scheduled(
    users: int, m: int, n: int, b: int, k: int, schedule: str
) -> None:
    """Given values are kept; zeros are replaced by values that fit; everything else is one clear line."""
    values = {"users": users, "cohort-size": m, "rounds": n, "min-separation": b, "max-participations": k}
    try:
        config = Config.from_mapping({**values, "schedule": schedule})
    except ConfigError as error:
        message = str(error)
    else:
        contract = config.participation
        assert contract.rounds == n
        assert contract.min_separation == (b or min(users // m, n))
        assert contract.max_participations == k or k == 0
        kind = {"cyclic": CyclicSchedule, "random": RandomSchedule}[schedule]
        assert isinstance(config.cohort_schedule(), kind)
        return
    assert "\n" not in message
    assert re.match(r"[mk] \((cohort size|max_participations)\) must ", message)
    assert b or k or m > users


def test_the_derived_contract_is_tight_for_cyclic_and_loose_for_random_schedules() -> None:
    values = {"users": 35, "cohort-size": 10, "rounds": 14}
    assert Config.from_mapping(values).participation == Participation(14, 4, 3)
    random = Config.from_mapping({**values, "schedule": "random"})
    assert random.participation == Participation(14, 5, 3)
    assert Config.from_mapping({**values, "min-separation": 2}).participation == Participation(14, 4, 2)
    assert Config.from_mapping({**values, "max-participations": 5}).participation == Participation(14, 5, 3)


def test_the_schedule_is_that_of_the_configuration() -> None:
    config = Config.from_mapping({"users": 30, "cohort-size": 5, "rounds": 8, "seed": 3})
    expected = CyclicSchedule(30, 5, config.participation, 3)
    assert [config.cohort_schedule().cohort(t).tolist() for t in range(8)] == [
        expected.cohort(t).tolist() for t in range(8)
    ]


@pytest.mark.parametrize("key", KEYS)
def test_two_configurations_compute_the_same_unless_a_key_that_matters_differs(key: str) -> None:
    changed = {
        **dict.fromkeys(OF_TYPE[bool], True),
        "private": False,
        "mechanism": "cgd",
        "mechanism-params": "lambda=0.9",
        "output-dir": "elsewhere",
        "user-budgets": "budgets.csv",
        "ray-address": "auto",
        "second-workload": "prefix",
        "workload": "auto",
        "task": "tasks:make",
        "data-path": "rows.csv",
        "feature-columns": "a,b",
        "label-column": "y",
        "user-column": "who",
        "input-shape": "1,8,8",
        "hidden-units": "8,4",
        "dataset": "digits",
        "cohort-size": 18,
        "max-participations": 24,
        **{name: choices[-1] for name, choices in CHOICES.items()},
    }
    value = changed.get(key, RANGES[key][0][0] if key in RANGES else None)
    if value == DEFAULTS[key]:
        value = RANGES[key][0][-1] if key in RANGES else value
    same = {name: given for name, given in companions(key, value).items() if name != key}
    config, other = Config.from_mapping(same), Config.from_mapping({**same, key: value})
    if key in {"output-dir", "resume"} or value == DEFAULTS[key]:
        assert key in {"output-dir", "resume", "dataset"}
        assert config.computes_the_same_as(other)
    else:
        assert not config.computes_the_same_as(other)
        assert not other.computes_the_same_as(config)
        assert config.difference(other) == f"its {key} is {DEFAULTS[key]!r}, not {other.to_flat()[key]!r}"


def test_a_configuration_survives_a_file(tmp_path: Path) -> None:
    config = Config.from_mapping(
        {"epsilon": 0.1 + 0.2, "delta": 1e-300, "output-dir": 'a "b"\n\\c é', "noise-seed": 2**80}
    )
    path = tmp_path / "config.toml"
    path.write_text(tomli_w.dumps(config.to_flat()), encoding="utf-8")
    assert load_config(path) == config


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("epsilon = 4\nrounds = 100\n")
    assert load_config(path).epsilon == 4.0
    config = load_config(path, parse_assignments(["epsilon=2", "mechanism=cgd"]))
    assert (config.epsilon, config.rounds, config.mechanism) == (2.0, 100, "cgd")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"epsilon = \n", "is not TOML: "),
        (b"epsilon = 1\nepsilon = 2\n", "is not TOML: "),
        (b"\xff\xfe\x00", "is not TOML: "),
        (b"not toml at all", "is not TOML: "),
        (b"[privacy]\nepsilon = 1\n", "unknown configuration key 'privacy'"),
        (b"epsilon = 1" + b"0" * 5000, "is not TOML: "),
    ],
    ids=range(6),
)
def test_files_that_are_not_flat_toml_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load_config(path)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.toml", tmp_path, tmp_path / ("n" * 300)):
        with pytest.raises(ConfigError, match=f"cannot read configuration {re.escape(str(path))}: "):
            load_config(path)


def test_assignments() -> None:
    assert parse_assignments(
        ["a=1", "b=1.5", "c=true", "d=word", "e='q'", "f=a=b", "g=", " h = 2 ", "a=3", "i=x y", "j=/tmp/x"]
    ) == {
        "a": 3,
        "b": 1.5,
        "c": True,
        "d": "word",
        "e": "q",
        "f": "a=b",
        "g": "",
        "h": 2,
        "i": "x y",
        "j": "/tmp/x",
    }
    assert parse_assignments([]) == {}
    for bad in ("epsilon", "=3", " =3", "", "epsilon=1\nrounds=3"):
        with pytest.raises(ConfigError, match=r"--set takes (one )?key=value; got "):
            parse_assignments([bad])


def test_mechanism_parameters() -> None:
    assert parse_parameters("") == parse_parameters(" , ") == {}
    assert parse_parameters(" lambda = 0.9 ,c=-1e-2,") == {"lambda": 0.9, "c": -0.01}
    for bad in ("lambda", "=1", "lambda=", "lambda=x", "lambda=nan", "lambda=inf", "a=1;b=2"):
        with pytest.raises(ConfigError, match="mechanism parameters must read name=number; got "):
            parse_parameters(bad)
    with pytest.raises(ConfigError, match="given once each; got 'c' twice"):
        parse_parameters("c=1,lambda=2, c =3")


def documented() -> dict[str, list[str]]:
    """Rows of the tables in docs/configuration.md by key: type, default, range."""
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z0-9-]+)` \|(.*)\|$", text, flags=re.MULTILINE)
    assert len({key for key, _ in rows}) == len(rows)
    return {key: [cell.strip() for cell in rest.split("|")] for key, rest in rows}


def documented_range(key: str) -> str:
    """The range column that a key's constraints ask for."""
    if key in CHOICES:
        return ", ".join(f"`{choice}`" for choice in CHOICES[key])
    signs = {Ge: ("ge", "≥ {}"), Gt: ("gt", "> {}"), Le: ("le", "≤ {}"), Lt: ("lt", "< {}")}
    powers = {2**31 - 1: "2³¹ − 1", 2**63: "2⁶³", -1: "−1"}
    parts = []
    for bound in FIELDS[key].metadata:
        if type(bound) in signs:
            name, template = signs[type(bound)]
            value = getattr(bound, name)
            parts.append(template.format(powers.get(value, value)))
    return ", ".join(parts)


def test_the_documentation_lists_every_key_in_order_with_type_default_and_range() -> None:
    table = documented()
    assert list(table) == list(DEFAULTS)
    for key, (kind, default, bounds, meaning) in table.items():
        names = {bool: "boolean", int: "integer", float: "real", str: "string"}
        assert kind == names.get(FIELDS[key].annotation, "string"), key
        written = tomllib.loads(f"value = {default.strip('`')}")["value"]
        assert (written, type(written)) == (DEFAULTS[key], type(DEFAULTS[key])), key
        assert bounds == documented_range(key), key
        assert meaning.endswith("."), key


def test_the_flower_app_declares_the_same_keys_and_defaults() -> None:
    """``flwr run`` accepts only the keys that the app's own table declares."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    declared = project["tool"].get("flwr", {}).get("app", {}).get("config")
    if declared is not None:
        assert declared == DEFAULTS
        assert {key: type(value) for key, value in declared.items()} == {
            key: type(value) for key, value in DEFAULTS.items()
        }


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda path: path.name)
def test_the_shipped_configurations_are_valid(path: Path) -> None:
    assert isinstance(load_config(path), Config)


@pytest.mark.parametrize("text", ["8,x", "0", "-3", "8,,4", "1.5", "8;4", "2147483648", "٣"])
@pytest.mark.parametrize("key", ["hidden-units", "input-shape"])
def test_lists_of_counts_are_checked(key: str, text: str) -> None:
    assert refusal({key: text}) == f"{key} must be positive whole numbers separated by commas; got {text!r}."


def test_hidden_units_may_be_one_integer() -> None:
    assert Config.from_mapping({"hidden-units": 64}) == Config.from_mapping({"hidden-units": "64"})
    assert "whole numbers" in refusal({"hidden-units": 0})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dataset": "table"}, "data-path must name the file of dataset 'table'; got none."),
        (
            {"partition": "natural"},
            "partition 'natural' needs dataset 'table' or 'hub' and a user-column; got 'digits'",
        ),
        ({"hold-out": "users"}, "hold-out 'users' needs dataset 'table' and a user-column; got 'digits'"),
        (
            {"dataset": "synthetic", "partition": "shards"},
            "must be iid (equal sizes) or power-law; got 'shards'",
        ),
        ({"dataset": "synthetic", "input-shape": "60"}, "input-shape must be empty with dataset 'synthetic'"),
        ({"feature-columns": "a,,b"}, "feature-columns must be different names separated by commas"),
        ({"feature-columns": "a,a"}, "feature-columns must be different names separated by commas"),
        ({"task": "module"}, "task is invalid"),
        ({"task": "os:system()"}, "task is invalid"),
        ({"task": ":f"}, "task is invalid"),
    ],
)
def test_data_keys_fit_together(values: dict[str, Any], message: str) -> None:
    assert message in refusal(values)
