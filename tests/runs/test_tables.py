"""Configuration tables and the run that they are: both ways, files, overrides, and what is generated."""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from flwr.common.config import flatten_dict, fuse_dicts
from support.table_cases import KEYS, RANGES, accepted, by_table, needed

from fedmf.accounting import NoPrivacy, UserLevel
from fedmf.cohorts import CyclicCohorts, RandomCohorts
from fedmf.data import Hub, Synthetic
from fedmf.errors import ConfigError
from fedmf.mechanisms.choice import NamedMechanism
from fedmf.mechanisms.registry import accepted_parameters, names, optional_parameters
from fedmf.mechanisms.toeplitz import Toeplitz
from fedmf.models import Logistic, Mlp
from fedmf.optim import Adam, JmeAdam
from fedmf.participation import Participation
from fedmf.runs import (
    Classification,
    Execution,
    FunctionTask,
    NoiseMechanism,
    Run,
    dotted_keys,
    load_run,
    parse_assignments,
    run_of,
)
from fedmf.runs.tables import render_toml, tables_of
from fedmf.runs.tables.reference import configuration_page, flower_keys, with_flower_keys
from fedmf.training import LocalSGD

ROOT = Path(__file__).resolve().parents[2]
#: What Flower injects for a key that nobody sets.
UNSET = {name: key.unset for name, key in KEYS.items()}


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


def test_a_list_of_toml_is_the_text_with_commas_that_it_stands_for(tmp_path: Path) -> None:
    text = '[data]\nkind = "digits"\n[model]\nkind = "mlp"\nhidden-units = {}\n'
    runs = []
    for written in ("[16, 8]", '"16,8"'):
        (tmp_path / "run.toml").write_text(text.format(written))
        runs.append(load_run(tmp_path / "run.toml"))
    assert same(*runs)
    for wrong in ([], ["16,8"], [[16]]):
        assert refusal({"model.hidden-units": wrong}).startswith("[model] hidden-units must ")
    assert "whole numbers" in refusal({"model.hidden-units": ["a"]})


@pytest.mark.parametrize("name", [name for name in names() if not name.startswith("normalized-")])
def test_a_mechanism_made_in_python_is_read_back_with_its_parameters(name: str, tmp_path: Path) -> None:
    """What a run writes as its configuration, `fedmf simulate` takes."""
    taken = dict.fromkeys((*accepted_parameters(name), *optional_parameters(name)))
    values = {symbol: RANGES[f"mechanism.{symbol}"][0][0] for symbol in taken}
    choice = NamedMechanism(name, values)
    run = dataclasses.replace(run_of({}), mechanism=NoiseMechanism(choice))
    assert set(choice.params) == set(values)
    assert same(read_back(run, tmp_path / "config.toml"), run)


def test_the_defaults_can_be_run() -> None:
    assert same(run_of({}), Run())
    assert Run().participation == Participation(240, 24, 10)


def test_what_stands_for_not_set_is_as_good_as_nothing() -> None:
    assert {type(value): repr(value) for value in UNSET.values()} == {
        str: "''",
        int: "-1",
        float: "-inf",
        bool: "False",
    }
    assert same(run_of(UNSET), Run())


@pytest.mark.parametrize("table", by_table(KEYS))
def test_every_key_survives_a_file_and_flower(table: str, tmp_path: Path) -> None:
    for name in by_table(KEYS)[table]:
        for value in accepted(name):
            check_survives(name, value, tmp_path)


def check_survives(name: str, value: Any, folder: Path) -> None:
    """File → Run → file → Run, and the key says in both what it said.

    Flower injects all listed keys, flat; those of other kinds do no harm.
    """
    table, _, key = name.partition(".")
    given = {**needed(name, value), name: value}
    run = run_of(given)
    again = read_back(run, folder / "config.toml")
    assert same(again, run)
    assert again.difference(run) is None
    written = tables_of(run)
    assert tables_of(again) == written
    assert (written[table].get(key), type(written[table].get(key))) == (value, KEYS[name].type)
    assert same(run_of({**UNSET, **given}), run)


MNIST = Hub(path="ylecun/mnist", feature_columns=("none",), class_names=("0..9",), input_shape=(1, 28, 28))
RUNS = {
    "all of it": Run(
        task=Classification(Synthetic(users=40, alpha=0.1 + 0.2, seed=3), Logistic(seed=4)),
        cohorts=RandomCohorts(
            rounds=9, users_per_round=4, min_separation=5, max_participations=2, seed=2**63 - 1
        ),
        privacy=UserLevel(0.1 + 0.2, 1e-300, "replace-one", 2**80, "people"),
        mechanism=NoiseMechanism(
            NamedMechanism("bifr", {"bands": 4, "gamma": 0.5}),
            workload="auto",
            second_workload="window:2",
            second_moment_importance=0.5,
        ),
        server=JmeAdam(schedule="cosine", warmup=3, update_clip=2.0, second_form="squared-mean"),
        client=LocalSGD(
            epochs=3,
            batch_size=4,
            learning_rate=0.25,
            momentum=0.5,
            proximal=0.125,
            engine="loop",
            micro_batch=7,
            seed=11,
        ),
        execution=Execution(messages="per-user", worker_gpus=0.5, output_dir='a "b"\n\\c é', resume=True),
    ),
    "no hidden layers": Run(task=Classification(model=Mlp(hidden_units=()))),
    "no privacy": Run(privacy=NoPrivacy(noise_seed=0)),
    "a hub": Run(task=Classification(MNIST)),
    "a function": Run(task=FunctionTask("a.b:c", 360, 5, "x = 3")),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_made_in_python_survives_a_file_and_flower(name: str, tmp_path: Path) -> None:
    run = RUNS[name]
    assert same(read_back(run, tmp_path / "config.toml"), run)
    assert same(run_of({**UNSET, **dotted_keys(run)}), run)


def test_objects_have_no_key_but_their_name() -> None:
    """A configuration cannot hold coefficients; the header does, and no table claims to rebuild them."""
    run = Run(cohorts=CyclicCohorts(rounds=12), mechanism=Toeplitz([1.0, 0.5], 12))
    assert tables_of(run)["mechanism"]["kind"] == "given"
    with pytest.raises(ConfigError, match=r"\[?(mechanism|unknown)"):
        run_of(tables_of(run))


def test_a_misspelt_key_names_the_nearest() -> None:
    for name in KEYS:
        table, _, key = name.partition(".")
        misspelt = f"{table}.{key[0]}q{key[1:]}"
        assert refusal({misspelt: 1}) == f"unknown configuration key {misspelt!r}; did you mean {name!r}?"


def test_snake_case_is_not_a_key_but_names_it() -> None:
    for name in (name for name in KEYS if "-" in name):
        assert f"did you mean {name!r}?" in refusal({name.replace("-", "_"): KEYS[name].unset})


def test_unknown_keys() -> None:
    for key, meant in {
        "epsilon": "'privacy.epsilon' or 'server.epsilon'",
        "batch_size": "'client.batch-size'",
        "rounds": "'cohorts.rounds'",
        "privacy.rounds": "'cohorts.rounds'",
        "users": "'task.users' or 'data.users'",
    }.items():
        assert refusal({key: 1}) == f"unknown configuration key {key!r}; did you mean {meant}?"
    assert refusal({"zzz": 1}) == "unknown configuration key 'zzz'; fedmf keys lists all"
    assert "unknown configuration key 'privacy.epsilon.x'" in refusal({"privacy": {"epsilon": {"x": 1}}})
    assert refusal({"privacy": 3}).startswith("unknown configuration key 'privacy'; did you mean 'privacy.")


def test_a_key_of_another_kind_is_refused_and_says_whose_it_is() -> None:
    assert refusal({"privacy.kind": "none", "privacy.epsilon": 3.0}) == (
        "[privacy] epsilon is a key of user-level, not of kind 'none'. Leave it out, or unset "
        "it: --set privacy.epsilon=-inf."
    )
    assert "clusters is a key of synthetic, not of kind 'digits'" in refusal({"data.clusters": 2})
    assert "lambda (parameter) must be one that bsr takes: bands; got lambda=0.5" in refusal(
        {"mechanism.kind": "bsr", "mechanism.lambda": 0.5}
    )
    for injected in (True, "", 0):
        assert refusal({"privacy.kind": "none", "privacy.amplified": injected}).endswith(
            "not of kind 'none'. Leave it out, or unset it: --set privacy.amplified=false."
        )
    unset = {"privacy.kind": "none", "privacy.epsilon": -math.inf, "privacy.amplified": False}
    assert same(run_of(unset), Run(privacy=NoPrivacy()))


def test_a_function_brings_its_own_data_and_model() -> None:
    task = {"task.kind": "function", "task.function": "tasks:make"}
    assert same(run_of(task), Run(task=FunctionTask("tasks:make")))
    for name, value in {"data.users": 7, "model.kind": "cnn"}.items():
        table, _, key = name.partition(".")
        assert refusal({**task, name: value}) == (
            f"[{table}] {key} must be left out with task 'function', which brings its own data and model; "
            f"got {value!r}."
        )


def test_seeds_follow_that_of_the_data_unless_they_are_set() -> None:
    run = run_of({"data.seed": 5, "client.seed": 6, "cohorts.kind": "random"})
    assert isinstance(run.task, Classification)
    assert isinstance(run.cohorts, RandomCohorts)
    assert (run.task.data.seed, run.task.model.seed, run.cohorts.seed, run.client.seed) == (5, 5, 5, 6)
    sampled = run_of({"data.seed": 5, "cohorts.kind": "balls-in-bins"})  # no seed of its own
    assert "seed" not in tables_of(sampled)["cohorts"]


@pytest.mark.parametrize("text", ["", "[privacy]\nepsilon = 4.0\n"])
def test_a_file_that_does_not_say_what_is_trained_on_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"must say what is trained on; it has no table \[data\]"):
        load_run(path)
    assert load_run(path, {"data.kind": "digits"}).cohorts.rounds > 0


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        "privacy.epsilon = 4\ndata.users = 40\n[cohorts]\nrounds = 100\n"
        "[mechanism]\nkind = 'bsr'\nbands = 4\n"
    )
    assert load_run(path).privacy.requested_epsilon == 4.0
    set_there = ["privacy.epsilon=2", "mechanism.kind=cgd", "mechanism.bands=-1", "mechanism.lambda=0.5"]
    run = load_run(path, parse_assignments(set_there))
    assert (run.privacy.requested_epsilon, run.cohorts.rounds) == (2.0, 100)
    assert run.noise.choice == NamedMechanism("cgd", {"lambda": 0.5})


def test_an_override_of_a_kind_leaves_out_what_only_the_kind_of_the_file_has(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        "[data]\nkind = 'digits'\n[privacy]\nepsilon = 4.0\n"
        "[mechanism]\nkind = 'bsr'\nbands = 4\nworkload = 'average'\n"
        "[server]\nmomentum = 0.5\nlearning-rate = 0.2\n"
    )
    run = load_run(path, parse_assignments(["privacy.kind=none", "mechanism.kind=cgd", "server.kind=adam"]))
    assert same(run, Run(privacy=NoPrivacy(), mechanism=NoiseMechanism(
        NamedMechanism("cgd"), workload="average"), server=Adam(learning_rate=0.2)))  # fmt: skip
    assert load_run(path, {"mechanism.kind": "bisr"}).noise.choice == NamedMechanism("bisr", {"bands": 4})
    with pytest.raises(ConfigError, match="epsilon is a key of user-level"):
        load_run(path, {"privacy.kind": "none", "privacy.epsilon": 3.0})
    path.write_text("[data]\nkind = 'digits'\n[privacy]\nkind = 'none'\nepsilon = 4.0\n")
    with pytest.raises(ConfigError, match="epsilon is a key of user-level"):
        load_run(path, {"privacy.kind": "none"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"epsilon = \n", "is not TOML: "),
        (b"[privacy]\nepsilon = 1\nepsilon = 2\n", "is not TOML: "),
        (b"\xff\xfe\x00", "is not TOML: "),
        (b"not toml at all", "is not TOML: "),
        (
            b"epsilon = 1\ndata.seed = 1\n",
            "unknown configuration key 'epsilon'; did you mean 'privacy.epsilon' or 'op",
        ),
        (b"privacy.epsilon = 1" + b"0" * 5000, "is not TOML: "),
        (b"data.path = [[1, 2]]", "[data] path must be text, a number or a truth value; got [[1, 2]]."),
        (
            b"data.seed = 1\nmodel.kind = [['mlp']]",
            "[model] kind must be text, a number or a truth value; got [['mlp']].",
        ),
        (b"data.seed = 2020-01-01", "[data] seed must be text, a number or a truth value; got "),
    ],
    ids=range(9),
)
def test_files_that_are_no_tables_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load_run(path)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.toml", tmp_path, tmp_path / ("n" * 300)):
        with pytest.raises(ConfigError, match=f"cannot read configuration {re.escape(str(path))}: "):
            load_run(path)


def test_assignments() -> None:
    given = "a=1|b=1.5|c=true|d=word|e='q'|f=a=b|g=| h = 2 |a=3|i=x y|j=/tmp/x|k.l=nan"
    parsed = parse_assignments(given.split("|"))
    assert math.isnan(parsed.pop("k.l"))
    assert parsed == {
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
        with pytest.raises(ConfigError, match=r"--set takes (one )?table\.key=value; got "):
            parse_assignments([bad])


def test_what_is_generated_is_what_is_committed() -> None:
    """`python -m fedmf.runs.tables.reference` would change nothing."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert with_flower_keys(project) == project
    assert flower_keys() in project
    assert (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8") == configuration_page()


def test_flower_is_declared_every_key_and_takes_the_shipped_files() -> None:
    """``flwr run`` accepts only the keys that the app's own table declares, and fuses a file into them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    declared = flatten_dict(project["tool"]["flwr"]["app"]["config"])
    assert {name: (type(value), repr(value)) for name, value in declared.items()} == {
        name: (type(value), repr(value)) for name, value in UNSET.items()
    }
    shipped = sorted((ROOT / "configs").glob("*.toml"))
    assert len(shipped) >= 3
    for path in shipped:
        values = flatten_dict(tomllib.loads(path.read_text(encoding="utf-8")))
        assert same(run_of(fuse_dicts(declared, values)), load_run(path))
