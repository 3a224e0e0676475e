"""What values a configuration takes: types, ranges, choices, and values that do not fit together."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.table_cases import KEYS, RANGES, by_table, needed

from fedmf.cohorts import COHORTS, CyclicSchedule
from fedmf.data import Table
from fedmf.errors import ConfigError
from fedmf.participation import Participation
from fedmf.runs import dotted_keys, run_of

laws = settings(derandomize=True, max_examples=200, deadline=None, database=None)


def refusal(values: dict[str, Any]) -> str:
    """The message with which tables are refused; always a single line."""
    with pytest.raises(ConfigError) as caught:
        run_of(values)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def label(name: str) -> str:
    """How a message about one key begins."""
    table, _, key = name.partition(".")
    return f"[{table}] {key} "


WRONG: dict[type, list[Any]] = {
    bool: [0, 1, "true", 1.0, [True]],
    int: [True, False, 2.5, "3", [3], math.nan],
    float: [True, "0.5", [0.5]],
    str: [1, True, 1.5, ["a"]],
}
#: Lists, of which a single number is one.
LISTS = ("data.input-shape", "model.hidden-units")


@pytest.mark.parametrize("table", by_table(KEYS))
def test_values_of_another_type_are_refused(table: str) -> None:
    for name in by_table(KEYS)[table]:
        check_values_of_another_type_are_refused(name)


def check_values_of_another_type_are_refused(name: str) -> None:
    for value in WRONG[KEYS[name].type]:
        if name in (*LISTS, "cohorts.zones") and type(value) is int:
            continue
        if KEYS[name].is_list and value == ["a"]:
            continue  # what `test_a_list_may_be_an_array` reads
        message = refusal({**needed(name), name: value})
        assert message.startswith(f"[{name.partition('.')[0]}] ")
        assert repr(value) in message
        if KEYS[name].table != "mechanism":  # whose parameters have letters
            assert re.match(re.escape(label(name)) + "(is invalid: |must be )", message)


@pytest.mark.parametrize("table", by_table(RANGES))
def test_out_of_range_is_one_line_that_names_the_value(table: str) -> None:
    for name in by_table(RANGES)[table]:
        check_out_of_range_is_one_line_that_names_the_value(name)


def check_out_of_range_is_one_line_that_names_the_value(name: str) -> None:
    inside, outside = RANGES[name]
    extremes = [math.inf, math.nan] if KEYS[name].type is float else []
    for value in (*outside, *extremes):
        message = refusal({**needed(name), name: value})
        assert re.search(rf"[ =(]{re.escape(repr(value))}\b|[ =]{re.escape(f'{value:g}')}\b", message), (
            message
        )
    assert inside


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"data.users": 100, "cohorts.users-per-round": 101},
            r"m \(cohort size\) must lie in 1..100, the number of users; got 101",
        ),
        (
            {
                "data.users": 100,
                "cohorts.users-per-round": 10,
                "cohorts.rounds": 40,
                "cohorts.min-separation": 11,
            },
            r"m \(cohort size\) .* got m=10, but with 100 users and b=11 only 9 are sure to be eligible",
        ),
        (  # the derived k would not fit either, but nobody asked for it
            {
                "data.users": 100,
                "cohorts.users-per-round": 10,
                "cohorts.rounds": 40,
                "cohorts.min-separation": 20,
            },
            r"m \(cohort size\) .* got m=10, but with 100 users and b=20 only 5 are sure to be eligible",
        ),
        (
            {
                "data.users": 100,
                "cohorts.users-per-round": 10,
                "cohorts.rounds": 40,
                "cohorts.min-separation": 10,
            }
            | {"cohorts.max-participations": 5},
            r"k \(max_participations\) must satisfy .*; got k=5, b=10, n=40\. With b=10 at most k=4",
        ),
        (
            {
                "data.users": 100,
                "cohorts.users-per-round": 10,
                "cohorts.rounds": 40,
                "cohorts.max-participations": 3,
            },
            r"must allow n\*m = 400 participations; got k=3 for 100 users. Use k of at least 4",
        ),
        (
            {"cohorts.rounds": 5, "mechanism.bands": 6, "data.users": 36},
            r"bands \(p\) must be at most rounds n=5; got 6",
        ),
        (
            {"cohorts.rounds": 5, "server.warmup": 5},
            r"w \(warm-up rounds\) must lie in 0\.\.4; got 5",
        ),
        (
            {"server.nesterov": True, "server.momentum": 0.0},
            r"\[optimizer\] .*momentum.* must be positive .*nesterov",
        ),
        (
            {"server.nesterov": True, "server.kind": "adam"},
            r"\[optimizer\] nesterov is a key of sgd, not of kind 'adam'",
        ),
        (
            {"server.kind": "fedyogi", "server.epsilon": 0.0},
            r"\[optimizer\] τ \(epsilon\) must be positive and finite; got 0.0",
        ),
        (
            {"server.kind": "jme-adam", "server.epsilon": 0.0, "server.relative-epsilon": 0.0},
            r"\[optimizer\] .*epsilon.* must",
        ),
        ({"mechanism.workload": "sums"}, r"A \(workload\) must be one of prefix"),
        (
            {"mechanism.second-workload": "prefix*step"},
            r"A \(workload\) 'prefix\*step' has no such schedule: schedule .* one of .*; got 'step'\.$",
        ),
        ({"mechanism.lambda": 0.5}, r"lambda \(parameter\) must be one that banded-toeplitz takes: bands"),
        ({"mechanism.kind": "bsrr"}, r"\[mechanism\] .*got 'bsrr'\. Did you mean 'bsr'\?"),
        (
            {"cohorts.kind": "random", "data.users": 9, "cohorts.users-per-round": 3, "cohorts.rounds": 30}
            | {"cohorts.min-separation": 2, "cohorts.max-participations": 10},
            r"a random order runs out in round \d+ of 30",
        ),
        (
            {"cohorts.kind": "random", "privacy.amplified": True},
            r"cohorts must be sampled for an amplified run; got 'random'",
        ),
    ],
    ids=range(17),
)
def test_combinations_that_cannot_be_run_say_why(values: dict[str, Any], message: str) -> None:
    assert re.search(message, refusal(values))


@laws
@given(
    st.integers(1, 60),
    st.integers(1, 12),
    st.integers(1, 40),
    st.integers(1, 12) | st.just(-1),
    st.integers(1, 12) | st.just(-1),
    st.sampled_from(["cyclic", "random"]),
)
def test_whatever_is_accepted_can_be_scheduled(
    users: int, m: int, n: int, b: int, k: int, schedule: str
) -> None:
    """Given values are kept; -1 is replaced by values that fit; everything else is one clear line."""
    cohorts = {"kind": schedule, "size": m, "rounds": n, "min-separation": b, "max-participations": k}
    try:
        run = run_of({"data.users": users, "cohorts": cohorts})
    except ConfigError as error:
        message = str(error)
    else:
        contract = run.participation
        assert contract.rounds == n
        assert contract.min_separation == (b if b > 0 else min(users // m, n))
        assert contract.max_participations == k or k == -1
        drawn = run.cohorts.schedule(users, contract, secret_seed=1)
        assert type(drawn) is COHORTS[schedule].schedule_class
        assert all(len(drawn.cohort(t)) == m for t in range(n))
        return
    assert "\n" not in message
    assert re.match(r"[mk] \((cohort size|max_participations)\) must ", message)
    assert b > 0 or k > 0 or m > users


def test_the_derived_contract_is_tight_for_cyclic_and_loose_for_random_schedules() -> None:
    values = {"data.users": 35, "cohorts.users-per-round": 10, "cohorts.rounds": 14}
    assert run_of(values).participation == Participation(14, 4, 3)
    assert run_of({**values, "cohorts.kind": "random"}).participation == Participation(14, 5, 3)
    assert run_of({**values, "cohorts.min-separation": 2}).participation == Participation(14, 4, 2)
    assert run_of({**values, "cohorts.max-participations": 5}).participation == Participation(14, 5, 3)


def test_the_schedule_is_that_of_the_tables() -> None:
    run = run_of({"data.users": 30, "cohorts.users-per-round": 5, "cohorts.rounds": 8, "data.seed": 3})
    expected = CyclicSchedule(30, 5, run.participation, 3)
    drawn = run.cohorts.schedule(30, run.participation, secret_seed=99)
    assert [drawn.cohort(t).tolist() for t in range(8)] == [expected.cohort(t).tolist() for t in range(8)]


@pytest.mark.parametrize("text", ["8,x", "0", "1.5", "2147483648", "٣"])
@pytest.mark.parametrize("name", LISTS[:1])
def test_lists_of_counts_are_checked(name: str, text: str) -> None:
    key = name.partition(".")[2]
    pattern = rf"{key} must be whole numbers separated by commas|{key.replace('-', '_')} must be a tuple of "
    assert re.search(rf"^\[(data|model)\] ({pattern}).*; got ", refusal({name: text}))


def test_hidden_units_may_be_one_integer_or_none() -> None:
    one, text = (run_of({"model.hidden-units": units}) for units in (64, "64"))
    assert one.difference(text) is None
    assert "hidden_units must be a tuple of positive whole numbers; got (0,)" in refusal(
        {"model.hidden-units": 0}
    )
    empty = run_of({"model.hidden-units": "none"})
    assert empty.to_dict()["task"]["model"]["hidden_units"] == []
    assert dotted_keys(empty)["model.hidden-units"] == "none"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"kind": "table"}, "path (of the data) must name what dataset 'table' reads; got none."),
        ({"partition": "natural"}, "partition is invalid: Input should be 'iid', "),
        (
            {"kind": "table", "path": "x", "partition": "natural"},
            "user_column must be named with partition 'natural'; got none.",
        ),
        (
            {"kind": "table", "path": "x", "hold-out": "users"},
            "user_column must be named with hold_out 'users'; got none.",
        ),
        (
            {"kind": "synthetic", "partition": "shards"},
            "partition is invalid: Input should be 'iid' or 'power-law'; got 'shards'",
        ),
        (
            {"kind": "synthetic", "input-shape": "60"},
            "input-shape is a key of digits, table, ",
        ),
        (
            {"kind": "table", "path": "x", "feature-columns": "a,,b"},
            "feature_columns must be a tuple of diff",
        ),
        ({"kind": "table", "path": "x", "feature-columns": "a,a"}, "feature_columns must be a tuple of"),
        ({"kind": "hub", "path": "x", "feature-columns": "a,b"}, "feature_columns must name one column"),
    ],
    ids=range(9),
)
def test_data_keys_fit_together(keys: dict[str, Any], message: str) -> None:
    assert refusal({"data": keys}).startswith(f"[data] {message}")


def test_names_that_a_table_cannot_list_are_refused() -> None:
    """Otherwise a run made in Python would be written down as another one."""
    for column in ("a,b", " a", "a "):
        with pytest.raises(ValueError, match="must have no commas and no blanks at their ends"):
            Table(path="rows.csv", feature_columns=(column,))


@pytest.mark.parametrize("text", ["module", "os:system()", ":f", "a:b:c", "a b:c"])
def test_a_function_is_named_by_its_module(text: str) -> None:
    message = refusal({"task.kind": "function", "task.function": text})
    assert message == f"[task] function (of the task) must read package.module:function; got {text!r}."


def test_two_runs_differ_where_a_key_that_matters_does() -> None:
    run = run_of({})
    for name, value in (("privacy.epsilon", 3.0), ("client.batch-size", 5), ("cohorts.rounds", 7)):
        assert re.match(
            rf"its [\w.]*{name.partition('.')[2].replace('-', '_')} is .*, not ",
            str(run.difference(run_of({name: value}))),
        )
    assert run.difference(run_of({"execution.output-dir": "elsewhere"})) is None
