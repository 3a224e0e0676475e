"""Small runs whose noise counts on secret cohorts."""

USERS = 24
ROUNDS = 12
BINS = 4
EPSILON = 1.0
DELTA = 1e-2
#: Cohorts of 6 fill four bins; the other samplers need room for chance.
COHORT = {"cyclic-poisson": 3, "balls-in-bins": 6, "b-min-sep": 3}
ACCOUNTANTS = list(COHORT)


def keys(accountant: str, /, **changes: object) -> dict[str, object]:
    """Words for `small_run`; a word that is changed to None is left out."""
    values: dict[str, object] = {
        "schedule": accountant,
        "amplified": True,
        "cohort_size": COHORT[accountant],
        "min_separation": BINS,
        "mechanism": "bsr",
        "bands": BINS,
        "epsilon": EPSILON,
        "delta": DELTA,
    }
    return {name: value for name, value in {**values, **changes}.items() if value is not None}
