"""The privacy statement, from disk alone."""

from __future__ import annotations

import dataclasses
import json

import dp_accounting
import numpy as np
import pytest
from support.headers import DELTA, FACTORIZATION, PLANNED, make_header, read, record

from fedmf.accounting import queries as release_module
from fedmf.errors import LedgerError
from fedmf.ledger.ledger import Ledger
from fedmf.matrices.factorization import BuiltMechanism
from fedmf.matrices.sensitivity import Sensitivity
from fedmf.matrices.toeplitz import InverseToeplitz
from fedmf.participation import Participation
from fedmf.runs.directory import RunHeader
from fedmf.runs.run_statement import run_statement


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.sqlite"


def epsilon_of(rounds, released, header: RunHeader) -> float:
    """From the dense matrix, the absolute noise and the absolute shift of one user, with W."""
    plan = header.plan
    factor = {"zero-out": 1, "replace-one": 2}[plan.adjacency]
    shift = np.linalg.norm(FACTORIZATION.materialize()[:released][:, rounds].sum(axis=1))
    movement = plan.clip_norm * plan.rounding.movement
    moved = factor * plan.clip_norm * shift + movement
    return dp_accounting.get_epsilon_gaussian(plan.noise_std / moved, DELTA)


@pytest.mark.parametrize(("kind", "tested"), [("classification", True), ("flower-app", False)])
def test_only_functions_that_fedmf_runs_are_said_to_be_tested(path, kind, tested):
    header = make_header()
    record(path, dataclasses.replace(header, run={**header.run, "task": {"kind": kind}}), [])
    assumptions = " ".join(read(path).to_dict()["assumptions"])
    assert "is shared between users" in assumptions
    assert ("a test rejects functions" in assumptions) == tested


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_whole_run(path, adjacency):
    header = make_header(adjacency=adjacency)
    record(path, header, [["a", "b"], ["c"], [], ["a"], ["c"], []])
    found = read(path).to_dict()
    assert found["epsilon"] == pytest.approx(
        dp_accounting.get_epsilon_gaussian(0.7, DELTA), rel=1e-9
    )
    assert found["epsilon_so_far"] is None
    assumptions = " ".join(found["assumptions"])
    assert "epsilon_so_far" not in assumptions
    assert "or was released by a run on the same users that is accounted together" in assumptions
    assert found["epsilon_spent"] == pytest.approx(epsilon_of([0, 3], 6, header), rel=1e-9)
    assert found["epsilon_spent"] == pytest.approx(found["epsilon"], rel=1e-9)
    # Quantiles of the sorted users: two never joined, then b, c, a.
    quantiles = found["epsilon_spent_quantiles"]
    assert quantiles["0.25"] == 0.0
    assert quantiles["0.5"] == pytest.approx(epsilon_of([0], 6, header), rel=1e-9)
    assert quantiles["0.75"] == pytest.approx(epsilon_of([1, 4], 6, header), rel=1e-9)
    factor = 2 if adjacency == "replace-one" else 1
    assert found["noise_std"] == pytest.approx(0.5 * header.plan.relative_noise_std, rel=1e-12)
    least = 0.7 * (PLANNED.value * factor + header.plan.rounding.movement)
    assert header.plan.relative_noise_std == pytest.approx(least, rel=1e-9)
    assert found["unit_bits"] == [31]
    assert found["rounding"] == pytest.approx(header.plan.rounding.movement / factor, rel=1e-12)
    assert 0 < found["failure"] < 1e-80
    assert found["mu"] == pytest.approx(1 / 0.7)
    assert (found["rounds"], found["rounds_released"]) == (6, 6)
    assert (found["actual_max_participations"], found["actual_min_separation"]) == (2, 3)
    assert (found["users"], found["users_participated"]) == (5, 3)
    assert (found["unit"], found["adjacency"]) == ("user", adjacency)
    assert found["trust"] == "the server itself clips every user's update"
    assert found["noise_key"] == "ab12"
    assert found["noise_key_public"] is False
    assert not any("which round" in secret for secret in found["secret"])


def test_run_that_stopped_early(path):
    header = make_header(clipped_by="workers", key_public=True)
    record(path, header, [["a"], ["b"], ["c"], ["a"]])
    found = read(path).to_dict()
    allowed = max(epsilon_of(rounds, 4, header) for rounds in ([0, 3], [0], [1], [2], [3]))
    assert found["epsilon_so_far"] == pytest.approx(allowed, rel=1e-9)
    assert "epsilon_so_far, which counts only" in " ".join(found["assumptions"])
    assert found["epsilon_spent"] == pytest.approx(epsilon_of([0, 3], 4, header), rel=1e-9)
    assert found["epsilon_spent"] < found["epsilon"]
    assert "server receives sums of updates, and relies on these" in found["trust"].replace(
        "The ", ""
    )
    assert "ab12 (public seed: simulation only, no privacy)" in read(path).render_text()
    assert "Simulation only, no privacy" in read(path).render_text().splitlines()[0]


@pytest.mark.parametrize("released", [4, 6])
def test_spent_is_what_was_recorded_and_not_what_was_allowed(path, released):
    """Users who joined once spend less than the contract allows, at the end and on the way."""
    header = make_header()
    record(path, header, [["a"], ["b"], [], ["c"], [], []][:released])
    found = read(path).to_dict()
    worst = max(epsilon_of([t], released, header) for t in (0, 1, 3))
    assert found["epsilon_spent"] == pytest.approx(worst, rel=1e-9)
    assert found["epsilon_spent"] < 0.8 * epsilon_of([0, 3], released, header)
    assert found["epsilon_spent_quantiles"]["1"] == pytest.approx(worst, rel=1e-9)
    assert found["mu_spent"] < 0.9 * found["mu"]


def test_header_round_trips_through_json():
    given = [{"name": "classes", "value": "3", "source": "configuration"}]
    header = make_header(delta=1e-7 / 3, users_test=True, public_inputs=given)
    again = RunHeader.from_dict(json.loads(json.dumps(header.to_dict())))
    assert again.to_dict() == header.to_dict()
    assert again.privacy == header.privacy
    assert again.cohorts == header.cohorts
    assert again.plan.noise_std == header.plan.noise_std
    dense = again.plan.mechanism.factorization.materialize()
    assert np.array_equal(dense, FACTORIZATION.materialize())


def test_understated_sensitivity_is_found(path):
    header = make_header(sensitivity_value=PLANNED.value * 0.99)
    record(path, header, [["a"]])
    with pytest.raises(LedgerError, match=r"below the .* of its factorization"):
        read(path)


def test_more_spent_than_planned_is_refused(path, monkeypatch):
    """Even if the planned sensitivity were computed wrongly, the recorded users would show it."""
    header = make_header(sensitivity_value=PLANNED.value * 0.99)
    record(path, header, [["a"], [], [], ["a"], [], []])
    wrong = Sensitivity(PLANNED.value * 0.99, "exact", "doctored")
    monkeypatch.setattr(release_module, "sensitivity_of", lambda *_: wrong)
    with pytest.raises(LedgerError, match=r"epsilon_spent is .* above the planned"):
        read(path)


def test_header_and_ledger_must_agree(path):
    record(path, make_header(), [["a", "b"], ["c", "d"]])
    with Ledger.open(path, read_only=True) as ledger:
        with pytest.raises(LedgerError, match="the header plans"):
            run_statement(make_header(participation=Participation(6, 1, 3)), ledger)
        with pytest.raises(LedgerError, match="holds 4 users; the header says there are 3"):
            run_statement(make_header(users=3), ledger)
        shorter = BuiltMechanism("cgd", {}, InverseToeplitz([1.0, -0.8], 5))
        with pytest.raises(LedgerError, match="n=5 rounds"):
            run_statement(make_header(mechanism=shorter), ledger)


def test_disagreeing_accountants_make_no_statement(path, monkeypatch):
    monkeypatch.setenv("FEDMF_CACHE", "off")  # what was said before is kept
    record(path, make_header(), [["a"]])
    monkeypatch.setattr(dp_accounting, "get_epsilon_gaussian", lambda sigma, delta: 1.0)
    with pytest.raises(RuntimeError, match="accountants disagree"):
        read(path)
