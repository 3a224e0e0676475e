"""One public seed, one result: every optimizer, part, model, kind of cohorts, each on a path by
turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.triton_worker import needs_gpu

from conformance.paths import AGGREGATED, ON_GPU, PATHS, REFERENCE, WRAPPED, Path
from conformance.subjects import PLAIN, Subject, singles
from conformance.table import carried_out as released
from conformance.table import cells, judged, ulps
from fedmf.training.local import LocalTrainer

#: What is refused, by the beginning of the reason.
REFUSED = (
    "model must be one that torch.func can batch with engine 'vmap'",
    "form (of the second moment) must be 'per-user' or 'squared-mean'; got 'joint-clip'",
    "clipping must be 'fixed' for an optimizer that needs a second moment",
    "statistic 'mean_norms' must be left out with an optimizer that needs a second moment",
)


def by_turns() -> dict[Subject, tuple[Path, ...]]:
    """The plain run on every path; each other value on the default path and on one of the
    others.
    """
    others = [path for path in (*PATHS, WRAPPED, AGGREGATED) if path != REFERENCE]
    found = {PLAIN: (*PATHS, WRAPPED, AGGREGATED)}
    changed = [subject for subject in singles() if subject != PLAIN]
    found |= {subject: (others[i % len(others)],) for i, subject in enumerate(changed)}
    return found | {Subject(model="hostile users", optimizer="jme-adam"): (PATHS[1], WRAPPED)}


TURNS = by_turns()


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")


@pytest.mark.usefixtures("mean_norms")
@pytest.mark.filterwarnings("ignore")  # of torch.func about a module that it cannot batch
@pytest.mark.parametrize("subject", TURNS, ids=str)
def test_values_have_one_result(subject: Subject) -> None:
    check(subject, TURNS[subject])


@needs_gpu
@pytest.mark.usefixtures("mean_norms")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("subject", singles()[::5], ids=str)
def test_a_gpu_has_the_same_result(subject: Subject) -> None:
    check(subject, ON_GPU)


def check(subject: Subject, paths: Sequence[Path]) -> None:
    found = cells(subject, paths)
    wrong = [f"{cell.path}: {cell.reason}" for cell in found if cell.verdict == "differs"]
    wrong += [
        f"{cell.path} is refused: {cell.reason}"
        for cell in found
        if cell.verdict == "refused" and not cell.reason.startswith(REFUSED)
    ]
    assert not wrong, "\n".join(wrong)


def test_a_user_left_out_of_one_sum_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """So would the table see a path that forgets somebody, or a feature of somebody."""
    expected = released(PLAIN, REFERENCE)
    inner = LocalTrainer.add_updates

    def forgetful(trainer: Any, parameters: Any, users: Any, t: int, total: Any, *more: Any) -> Any:
        kept = list(users) if t != 1 else list(users)[:-1]
        failed = inner(trainer, parameters, kept, t, total, *more)
        total.add_nothing(len(users) - len(kept))
        return failed

    monkeypatch.setattr(LocalTrainer, "add_updates", forgetful)
    cell = judged(PLAIN, REFERENCE, released(PLAIN, REFERENCE), expected)
    assert cell.verdict == "differs"
    assert cell.ulps > 1e4


def test_distances_are_in_units_of_the_last_place() -> None:
    ones = np.ones(3, np.float32)
    assert ulps(ones, ones) == 0
    assert ulps(np.nextafter(ones, 2), ones) == 1
    assert ulps(ones * np.nan, ones) == np.inf
    assert ulps(ones[:2], ones) == np.inf
