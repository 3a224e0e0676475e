"""Strategies of other libraries: their formats, and stated sensitivities that are too small."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.oracles import ltt, vector_sensitivity

from fedmf.mechanisms.imported import import_strategy
from fedmf.participation import Participation

CONTRACT = Participation(6, 2, 2)
COLUMN = np.array([1.0, 0.6, 0.2])
TRUE = vector_sensitivity(ltt(COLUMN, 6), 2, 2)


def recipe(stated: float) -> Any:
    """A strategy with the interface of Opake."""
    return SimpleNamespace(
        coefficients=lambda n_steps, min_sep, max_participations: COLUMN,
        sensitivity=lambda n_steps, min_sep, max_participations: stated,
    )


@pytest.mark.parametrize("strategy", [COLUMN, ltt(COLUMN, 6), recipe(TRUE)])
def test_coefficients_matrices_and_recipes_are_judged_by_all_patterns(strategy: Any) -> None:
    imported = import_strategy(strategy, CONTRACT)
    assert imported.sensitivity.value == pytest.approx(TRUE, rel=1e-6)
    assert not imported.under_noised


def test_a_blt_is_its_coefficients() -> None:
    blt = SimpleNamespace(buf_decay=[0.5], output_scale=[0.25])
    column = [1.0, 0.25, 0.125, 0.0625, 0.03125, 0.015625]
    imported = import_strategy(blt, CONTRACT)
    assert imported.sensitivity.value == pytest.approx(
        import_strategy(column, CONTRACT).sensitivity.value
    )


def test_noise_for_the_norm_of_a_column_is_too_small_for_two_participations() -> None:
    norm = float(np.linalg.norm(COLUMN))
    assert import_strategy(recipe(norm), CONTRACT).under_noised
    assert import_strategy(COLUMN, CONTRACT, stated=norm).under_noised
    assert not import_strategy(recipe(norm), CONTRACT, stated=TRUE).under_noised


def test_what_is_no_strategy_is_rejected() -> None:
    with pytest.raises(ValueError, match="must be coefficients, a matrix, a BLT or a recipe"):
        import_strategy(1.0, CONTRACT)
