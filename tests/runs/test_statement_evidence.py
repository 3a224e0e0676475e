"""What a published statement shows, and that every figure of it follows from that."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from support.amplified_runs import keys
from support.headers import FACTORIZATION, make_header, record
from support.ledgers import KEY
from support.small_runs import small_run

import fedmf
from fedmf.accounting import LostRounds, PairRelease, SecondStream, Verdict
from fedmf.errors import ConfigError
from fedmf.noise import NoiseKey
from fedmf.participation import Participation
from fedmf.records import Ledger, Seal, SigningKey, signed_by
from fedmf.records.ledger.schema import LEDGER
from fedmf.runs import (
    StatementRefused,
    public_statement,
)
from fedmf.runs.planning import plan_run
from fedmf.runs.publication import signed_document
from fedmf.runs.publication.verification import recompute
from fedmf.runs.recorded import header_of
from fedmf.statements import (
    RunHeader,
    adjacencies,
    allowed_patterns,
    as_json,
    build_statement,
    evidence_of,
    planned_statement,
)

BUSY = [["ann", "bob"], ["eve"], [], [], ["ann", "bob"], []]
IDLE = [[], [], [], ["zoe"], [], []]


#: Words for `small_run`: a run of each kind of plan.
PLANS = {
    "cyclic": {},
    "replace-one": {"adjacency": "replace-one"},
    "balls-in-bins": keys("balls-in-bins"),
    "cyclic-poisson": keys("cyclic-poisson"),
    "pair": {"server_optimizer": "jme-adam"},
    "kept noise rounded": {"mechanism": "blt", "storage_dtype": "float32"},
    "dense": {"mechanism": "dense"},
    "evaluated": {"evaluation": "private"},
    "no privacy": {"private": False},
    "limits": {"max_epsilon": 100.0},
}


@pytest.mark.parametrize("kind", PLANS)
def test_statements_of_every_kind_of_plan_follow_from_their_evidence(kind: str) -> None:
    run = small_run(None, **{"noise_seed": -1, **PLANS[kind]})
    optimizer = run.optimizer_source.build([(3,)], run.cohorts.rounds)
    plan = plan_run(run, optimizer, 3, {"loss": (0.0, 5.0)})
    header = header_of(run, plan, NoiseKey.from_os(), 3)
    for rounds, lost in ((0, ()), (5, ()), (12, ()), (5, (LostRounds(3, 5, "ab", ((), ())),))):
        if lost and plan.without_losses:
            continue
        document = json.loads(as_json(public_statement(planned_statement(header, rounds, lost=lost))))
        shown = recompute(document)[0]
        assert set(adjacencies(shown.plan)) == (
            set() if kind == "no privacy" else {"zero-out", "replace-one"}
        )
        if kind == "cyclic" and not lost:
            document["rounds_released"] = (rounds + 6) % 12  # ε so far is that of other rounds
            with pytest.raises(StatementRefused):
                recompute(document)


def test_a_weaker_mechanism_that_is_consistent_is_stated_as_it_is(tmp_path: Path) -> None:
    """Less noise in the evidence is found by the calibration, a larger stated sensitivity by the factors."""
    run = small_run(users=8, cohort_size=2, rounds=8, epsilon=3.0, noise_seed=-1)
    with fedmf.start(run, tmp_path / "run") as session:
        header = session.directory.header
    document = json.loads(as_json(public_statement(planned_statement(header, 0))))
    recompute(document)
    for name, value in (("noise_multiplier", 0.9), ("sensitivity", 0.9)):
        forged = json.loads(json.dumps(document))
        plan = forged["evidence"]["plan"]
        target, field = (plan, name) if name == "noise_multiplier" else (plan["sensitivity"], "value")
        target[field] *= value
        forged[name] *= value
        with pytest.raises(StatementRefused, match=f"{name} of the header"):
            recompute(forged)


def public_of(folder: Path, header: RunHeader, cohorts: list[list[str]], key: SigningKey) -> dict:
    folder.mkdir()
    record(folder / "ledger.sqlite", header, cohorts)
    with Ledger.open(folder / "ledger.sqlite", KEY, read_only=True) as ledger:
        statement = build_statement(RunHeader.from_dict(ledger.header), ledger)
        return public_statement(replace(statement, verdict=Verdict()), ledger, {}, key)


def test_what_is_published_of_the_record_is_keyed(tmp_path: Path) -> None:
    """No chain value, against which guesses of cohorts could be tested, nor its code: a PRF of it."""
    operator, header = SigningKey.create(tmp_path / "key"), make_header()
    busy = public_of(tmp_path / "busy", header, BUSY, operator)
    idle = public_of(tmp_path / "idle", header, IDLE, operator)
    differing = {name for name in busy if busy[name] != idle[name]}
    assert differing == {"record", "signature"}
    with Ledger.open(tmp_path / "busy" / "ledger.sqlite", KEY, read_only=True) as ledger:
        head, chains = ledger.head(), [chain for _, chain in ledger.chains()]
        assert ledger.published_at(busy["record"]["rounds"]) == 6
        assert ledger.published_at("0" * 64) is None
    text = as_json(busy)
    for chain in [head, *chains]:
        codes = Seal.of(LEDGER, KEY)
        assert chain.hex() not in text
        assert codes.code(chain).hex() not in text
    assert Seal.of(LEDGER, NoiseKey.from_os()).published(head) != busy["record"]["rounds"]
    with pytest.raises(ValueError, match="must be at hand"):
        Seal.of(LEDGER, None).published(head)
    for name in ("ann", "bob", "eve"):
        assert f'"{name}"' not in text


def test_a_public_noise_key_keys_no_digest(tmp_path: Path) -> None:
    key = SigningKey.create(tmp_path / "key")
    shown = public_of(tmp_path / "run", make_header(key_public=True), BUSY, key)
    assert shown["record"] is None
    assert signed_by(key.public_key, shown["signature"]["value"], signed_document(shown))
    with Ledger.open(tmp_path / "run" / "ledger.sqlite", read_only=True) as ledger:
        statement = build_statement(RunHeader.from_dict(ledger.header), ledger)
        with pytest.raises(ConfigError, match=r"noise\.key must be in the run directory"):
            public_statement(statement, ledger, {}, key)


def test_what_a_run_computes_elsewhere_is_no_evidence() -> None:
    header = make_header()
    run = {**header.run, "task": {"kind": "x", "path": "/home/ann"}, "optimizer": {"learning_rate": 0.1}}
    run["execution"] = {"messages": "slice", "output_dir": "/home/ann", "enrolment": "/secret"}
    run["privacy"] = {**run["privacy"], "user_budgets": "/home/ann/budgets.csv"}
    privacy = dataclasses.replace(header.plan.privacy, user_budgets="/home/ann/budgets.csv")
    plan = dataclasses.replace(header.plan, privacy=privacy)
    shown = evidence_of(dataclasses.replace(header, run=run, plan=plan, budgets="ab" * 32))
    assert "/home/ann" not in json.dumps(shown)
    assert "abab" not in json.dumps(shown)
    again = RunHeader.from_dict(shown)
    assert planned_statement(again, 3).public() == planned_statement(header, 3).public()


def test_what_evidence_leaves_out_is_taken_for_the_worst() -> None:
    """Who takes away what an assumption follows from does not get rid of the assumption."""
    run = small_run(None, noise_seed=-1)
    plan = plan_run(run, run.optimizer_source.build([(3,)], run.cohorts.rounds), 3, {"loss": (0.0, 5.0)})
    shown = evidence_of(header_of(run, plan, NoiseKey.from_os(), 3))
    shown["run"]["local"]["engine"], shown["run"]["execution"]["worker_gpus"] = "vectorised", 0.0

    def assumptions(evidence: dict) -> set[str]:
        return {*planned_statement(RunHeader.from_dict(evidence), 5).to_dict()["assumptions"]}

    assumed = assumptions(shown)
    assert any("rounding of other" in text for text in assumed)
    for table in ("local", "execution"):
        for name in set(shown["run"][table]) - {"messages"}:
            without = json.loads(json.dumps(shown))
            del without["run"][table][name]
            assert assumed <= assumptions(without), name


def test_the_figures_of_the_other_adjacency_are_bounds() -> None:
    single = adjacencies(make_header().plan)
    assert single["replace-one"]["mu"] == pytest.approx(2 * single["zero-out"]["mu"], rel=1e-12)
    second = SecondStream("per-user", "diagonal", 3, 3, 0.5, "cgd", {"lambda": 0.8}, FACTORIZATION)
    for own in ("zero-out", "replace-one"):
        large = make_header(second=second, sensitivity_value=10.0, adjacency=own).plan
        tight = large.release.stated(large.participation).value
        plan = make_header(second=second, sensitivity_value=tight, adjacency=own).plan
        shown = adjacencies(plan)
        for adjacency, row in shown.items():
            pair = PairRelease(plan.mechanism.factorization, second, plan.privacy.clip_norm, adjacency, 2)
            factor = {"zero-out": 1, "replace-one": 2}[adjacency]
            moved = pair.stated(plan.participation).value * factor
            assert row["mu"] >= moved / plan.relative_noise_std * (1 - 1e-12)
            assert row["kind"] == (plan.sensitivity.kind if adjacency == own else "upper_bound")


@pytest.mark.parametrize(("n", "k", "b"), [(1, 1, 1), (6, 2, 3), (7, 3, 2), (5, 5, 1), (8, 4, 2)])
def test_allowed_patterns_are_all_that_can_be_listed(n: int, k: int, b: int) -> None:
    listed = [
        pattern
        for size in range(k + 1)
        for pattern in combinations(range(n), size)
        if all(later - earlier >= b for earlier, later in pairwise(pattern))
    ]
    assert allowed_patterns(Participation(n, k, b)) == len(listed)
