"""AUC from counts in bins is the exact AUC of rounded scores."""

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
    bins, labels = zip(*rows, strict=True)
    scores = np.array(bins) * WIDTH
    true = np.array(labels)
    assume(0 < true.sum() < len(true))
    expected = roc_auc_score(true, binned(scores))
    logits = torch.tensor(scores, dtype=torch.float32)
    assert math.isclose(
        AUC.of(logits[:, None], torch.tensor(true[:, None]).float()), expected, abs_tol=1e-12
    )
    two = torch.stack([torch.zeros_like(logits), logits], dim=1)
    assert math.isclose(AUC.of(two, torch.tensor(true).long()), expected, abs_tol=1e-12)
