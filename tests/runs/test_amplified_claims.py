"""What a run or its header may claim of secret cohorts: only what they drew, and enough noise for
it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from support.amplified_runs import ACCOUNTANTS, keys
from support.small_runs import run_small, small_run

import fedmf
from fedmf.errors import ConfigError, LedgerError
from fedmf.ledger.ledger import Ledger
from fedmf.runs.directory import RunHeader
from fedmf.runs.run_statement import run_statement


def changed(header: Mapping[str, Any], place: str, value: object) -> dict[str, Any]:
    """A copy of a header with one field replaced, by dotted name."""
    copy = json.loads(json.dumps(header))
    *tables, name = place.split(".")
    table = copy
    for part in tables:
        table = table[part]
    table[name] = value
    return copy


@pytest.fixture(scope="module", params=ACCOUNTANTS)
def recorded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ledger]:
    """The ledger of a finished run; its own header has a statement."""
    path = tmp_path_factory.mktemp(request.param) / "run"
    run_small(path, small_run(**keys(request.param)))
    with Ledger.open(path / "ledger.sqlite", read_only=True) as ledger:
        run_statement(RunHeader.from_dict(ledger.header), ledger)
        yield ledger


def test_too_little_noise_is_found_in_the_header(recorded: Ledger) -> None:
    header = recorded.header
    for name in ("noise_multiplier", "relative_noise_std"):
        header = changed(header, f"plan.{name}", 0.85 * header["plan"][name])
    with pytest.raises(
        LedgerError, match=r"the header's amplification does not hold: noise .* must give"
    ):
        run_statement(RunHeader.from_dict(header), recorded)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": "cyclic"}, r"cohorts must be sampled for an amplified run; got 'cyclic'"),
        (
            {"private": False, "epsilon": None},
            r"amplified is a key of user-level, not of kind 'none'\. Leave it out\.",
        ),
        ({"max_participations": 2}, r"k \(max_participations\) must be 3"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_an_accountant_does_not_cover_is_refused(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        small_run(**keys("balls-in-bins", **changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("accountant", "changes", "message"),
    [
        ("cyclic-poisson", {"bands": 5}, r"p \(bands\) must be at most b=4 .*; got 5"),
        (
            "cyclic-poisson",
            {"mechanism": "square-root", "bands": None},
            r"p \(bands\) must be at most b=4",
        ),
        (
            "balls-in-bins",
            {"server_optimizer": "jme-adam"},
            r"amplified must be false for .* second moment",
        ),
        (
            "balls-in-bins",
            {"mechanism": "cgd", "bands": None, "lambda": -0.5},
            r"C \(strategy\) must have no negative|lambda",
        ),
    ],
    ids=range(4),
)
def test_mechanisms_that_an_accountant_does_not_cover_are_refused(
    accountant: str, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        fedmf.plan(small_run(**keys(accountant, **changes)))
    assert "\n" not in str(caught.value)
