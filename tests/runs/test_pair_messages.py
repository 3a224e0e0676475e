"""The pair in whole runs: hostile workers, both kinds of message, resuming, budgets of single
users.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message
from numpy.typing import NDArray
from support.ledgers import participants
from support.pair_runs import RecordedPair, pair_run
from support.small_runs import client_for, linear_task, run_small, tampering

import fedmf
from fedmf.errors import ConfigError
from fedmf.ledger.ledger import Ledger
from fedmf.moments import BlockEnergies
from fedmf.runs.loop import RoundReport

FORMS = ("per-user", "squared-mean")
DIMENSION = 30
TASK = linear_task(24, DIMENSION)
BLOCKS = BlockEnergies([10, 20])
UNIT = 2**40


def with_parts(request: Message, reply: Message, **parts: NDArray[np.generic]) -> Message:
    arrays = {name: array.numpy() for name, array in reply.content.array_records["arrays"].items()}
    sent = {name: value for name, value in {**arrays, **parts}.items() if value is not None}
    reply.content["arrays"] = ArrayRecord({name: Array(value) for name, value in sent.items()})
    return Message(reply.content, reply_to=request)


BAD_SLICES = {
    "no second": ({"second": None}, "no array 'second'"),
    "too much energy": ({"second": np.array([4 * UNIT, 3 * UNIT])}, "add up to at most"),
    "inflated sum": ({"sum": np.full(DIMENSION, 2**45)}, "norm at most"),
}


@pytest.mark.parametrize("kind", BAD_SLICES)
def test_a_hostile_slice_is_refused_whole_and_uses_up_both_rows_of_noise(
    kind: str, tmp_path: Path
) -> None:
    keys = {"workers": 2}
    spoilt: list[set[str]] = []
    reports: list[RoundReport] = []

    def tamper(request: Message, reply: Message) -> Message:
        users = set(request.content.config_records["config"]["users"])  # type: ignore[arg-type]
        if request.content.config_records["config"]["round"] != 3 or spoilt:
            return reply
        spoilt.append(users)
        return with_parts(request, reply, **BAD_SLICES[kind][0])  # type: ignore[arg-type]

    bad = RecordedPair(BLOCKS)
    good = RecordedPair(BLOCKS)
    spoiling = pair_run(bad, TASK, **keys)
    run_small(
        tmp_path / "bad", spoiling, lambda s: tampering(client_for(s), tamper), reports.append
    )
    failures = [failure for report in reports for failure in report.failures]
    assert {failure.user for failure in failures} == spoilt[0]
    assert all(re.search(BAD_SLICES[kind][1], failure.reason) for failure in failures)
    run_small(tmp_path / "good", pair_run(good, TASK, **keys))
    with Ledger.open(tmp_path / "bad" / "ledger.sqlite", read_only=True) as ledger:
        assert spoilt[0] <= set(participants(ledger, 3))
    x = TASK.dataset.features.double().numpy()
    x = 0.3 * x / np.linalg.norm(x, axis=1, keepdims=True)
    gone = x[[int(user[1:]) for user in spoilt[0]]]
    missing = np.array([np.sum(gone[:, :10] ** 2), np.sum(gone[:, 10:] ** 2)]) / 6
    difference = good.seconds() - bad.seconds()
    np.testing.assert_allclose(difference[3], missing, atol=1e-7)
    # The same noise all the time; updates lose bits of float32 to the size of the model.
    np.testing.assert_allclose(np.delete(difference, 3, axis=0), 0.0, atol=1e-8)


@pytest.mark.parametrize("form", FORMS)
def test_a_run_is_resumed_with_its_own_second_moment_only(form: str, tmp_path: Path) -> None:
    """Other blocks of the same number, or another form, would be calibrated all the same."""
    run = pair_run(RecordedPair(BLOCKS, form), TASK)  # type: ignore[arg-type]
    run_small(tmp_path / "run", run)
    for moment, other in ((BlockEnergies([15, 15]), form), (BLOCKS, *(set(FORMS) - {form}))):
        changed = replace(run, server=RecordedPair(moment, other))  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"holds another run: its server\."):
            fedmf.resume(changed, tmp_path / "run")
    with fedmf.resume(run, tmp_path / "run") as session:
        assert session.server.t == 12
