"""AUC from counts in bins: exact for rounded scores, within its stated distance of the real one otherwise."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from fedmf.training import AUC

laws = settings(derandomize=True, max_examples=80, deadline=None, database=None)
WIDTH = 1 / 8


def binned(scores: np.ndarray) -> np.ndarray:
    return np.minimum(255, np.floor((np.clip(scores, -16, 16) + 16) / WIDTH))


@laws
@given(st.lists(st.tuples(st.integers(-130, 130), st.booleans()), min_size=2, max_size=60))
def test_it_is_that_of_scikit_learn_on_rounded_scores(rows: list[tuple[int, bool]]) -> None:
    scores, true = np.array([score for score, _ in rows]) * WIDTH, np.array([label for _, label in rows])
    assume(0 < true.sum() < len(true))
    expected = roc_auc_score(true, binned(scores))
    logits = torch.tensor(scores, dtype=torch.float32)
    assert math.isclose(AUC.of(logits[:, None], torch.tensor(true[:, None]).float()), expected, abs_tol=1e-12)
    two = torch.stack([torch.zeros_like(logits), logits], dim=1)
    assert math.isclose(AUC.of(two, torch.tensor(true).long()), expected, abs_tol=1e-12)


def test_several_labels_are_averaged_and_one_without_both_kinds_left_out() -> None:
    rng = np.random.default_rng(1)
    scores, true = rng.standard_normal((200, 3)), rng.random((200, 3)) < 0.5
    true[:, 2] = True
    each = [roc_auc_score(true[:, i], binned(scores[:, i])) for i in (0, 1)]
    outputs, labels = torch.tensor(scores), torch.tensor(true).float()
    assert math.isclose(AUC.of(outputs, labels), float(np.mean(each)), abs_tol=1e-12)
    sums = np.add(AUC.sums(outputs[:77], labels[:77]), AUC.sums(outputs[77:], labels[77:]))
    assert AUC.value(tuple(sums.tolist()), 200) == AUC.of(outputs, labels)
    assert math.isclose(AUC.value(tuple((sums / 200).tolist()), 1), AUC.of(outputs, labels), abs_tol=1e-12)
    assert math.isnan(AUC.of(outputs[:, 2:], labels[:, 2:]))
