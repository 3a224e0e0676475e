"""Methods and second moments by name: complete values that describe themselves."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.moment_methods import cs, ime, pp
from support.oracles import patterns

from fedmf.matrices.joint_sensitivity import UserRange
from fedmf.mechanisms.closed_forms import square_root
from fedmf.mechanisms.registry import build
from fedmf.moments.methods import METHODS, MomentMechanism, jme, mechanism_from_dict
from fedmf.participation import Participation

PART = Participation(16, 2, 8)
USERS = UserRange(0.5, 3)
SIGMA = 0.7
C = square_root(16)
D = build("bsr", PART, bands=4).factorization
MADE = {
    "jme": (jme(C, D, PART, USERS, SIGMA), jme(C, D, PART, USERS, SIGMA, 0.3)),
    "ime": (ime(C, D, PART, USERS, SIGMA), ime(C, D, PART, USERS, SIGMA, share=0.3)),
    "cs": (cs(C, PART, USERS, SIGMA), cs(C, PART, USERS, SIGMA, scale=0.3)),
    "pp": (pp(C, PART, USERS, SIGMA),),
}
FIELDS = (
    "name",
    "first_std",
    "second_std",
    "noise_multiplier",
    "sensitivity",
    "weight",
    "debiased",
)


def same(one: MomentMechanism, other: MomentMechanism) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in FIELDS)


@pytest.mark.parametrize("name", MADE)
def test_a_mechanism_survives_json_and_knows_stricter_contracts(name: str) -> None:
    for made in MADE[name]:
        again = mechanism_from_dict(json.loads(json.dumps(made.to_dict())))
        assert same(again, made)
        assert (again.second is again.first) == (made.second is made.first)
        stricter = Participation(16, 1, 16)
        assert again.multiplier_under(stricter) == made.multiplier_under(stricter) > SIGMA
        assert made.multiplier_under(PART) == pytest.approx(SIGMA, rel=1e-12)


@pytest.mark.parametrize("name", MADE)
def test_a_method_refuses_what_it_does_not_take(name: str) -> None:
    method = METHODS[name]
    with pytest.raises(ValueError, match="once, or twice"):
        method.check(3, None)
    if method.matrices == 1:
        with pytest.raises(ValueError, match=f"must be one for method {name}; got two"):
            method.mechanism([C, D], PART, USERS, SIGMA)
    for weight in (0.0, -1.0, float("nan"), float("inf"), 1.0):
        if weight == 1.0 and name in ("jme", "cs"):
            method.check(1, weight)
            continue
        with pytest.raises(ValueError, match=r"must be (left out|positive|in)"):
            method.check(1, weight)


ROOT = 2**0.5
#: τ₁ over ζ·sens(C) and τ₂ over ζ²·sens(C) at σ = 1, with the default weight, d = 2 and
#: replace-one.
LEVELS = {
    "jme": (2.0, 2 * ROOT),
    "ime": (2 * ROOT, 2.0),
    "cs": (2 * ROOT, 2 * ROOT),
    "pp": (2.0, None),
}


@pytest.mark.parametrize("name", MADE)
def test_noise_levels_are_those_of_the_worst_user_by_enumeration(name: str) -> None:
    made = METHODS[name].mechanism([C], PART, UserRange(0.5, 2, "replace-one"), SIGMA)
    dense = C.materialize()
    worst = max(float(np.linalg.norm(dense[:, list(p)].sum(axis=1))) for p in patterns(16, 2, 8))
    first, second = LEVELS[name]
    assert made.first_std == pytest.approx(SIGMA * worst * first * 0.5, rel=1e-12)
    assert made.second_std == (second and pytest.approx(SIGMA * worst * second * 0.25, rel=1e-12))


def test_the_weight_of_the_second_moment_has_its_price_under_zero_out() -> None:
    """s² = ζ²sens²(1 + λζ²) for C₁ = C₂."""
    made = jme(C, C, PART, UserRange(0.5, 2, "zero-out"), SIGMA, 3.0)
    dense = C.materialize()
    worst = max(float(np.linalg.norm(dense[:, list(p)].sum(axis=1))) for p in patterns(16, 2, 8))
    assert made.first_std == pytest.approx(SIGMA * worst * 0.5 * (1 + 3 * 0.25) ** 0.5, rel=1e-12)
    assert made.second_std == pytest.approx(made.first_std / 3**0.5, rel=1e-12)
