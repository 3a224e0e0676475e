"""Rows of a comparison: order, processes, what is shown as it comes; the amplified search's
draws.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedmf.mechanisms.amplified_noise import amplified_noise_of
from fedmf.mechanisms.amplified_search import amplified_mechanism
from fedmf.mechanisms.choice import NamedMechanism
from fedmf.mechanisms.workload import prefix
from fedmf.participation import Participation


def test_the_noise_of_a_searched_mechanism_does_not_depend_on_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The final draws have other seeds than those of the search, and the noise is a function of C
    alone.
    """
    contract = Participation(24, 3, 8)
    seeds: list[tuple[str, tuple[int, ...]]] = []
    stage = "search"
    make = np.random.default_rng

    def recorded(seed: Any = None) -> np.random.Generator:
        seeds.append((stage, tuple(np.atleast_1d(seed).tolist())))
        return make(seed)

    monkeypatch.setattr("numpy.random.default_rng", recorded)
    from fedmf.accounting import noise_level

    final = noise_level.estimate

    def watched(*args: Any, **kwargs: Any) -> Any:
        nonlocal stage
        stage = "final"
        try:
            return final(*args, **kwargs)
        finally:
            stage = "search"

    monkeypatch.setattr(noise_level, "estimate", watched)
    mechanism, noise = amplified_mechanism(
        NamedMechanism("bfr"), contract, prefix(24), "balls-in-bins", 2.0, 1e-5
    )
    search = {seed for which, seed in seeds if which == "search"}
    last = {seed for which, seed in seeds if which == "final"}
    assert search
    assert last
    assert not search & last
    alone = amplified_noise_of(
        "balls-in-bins", mechanism.factorization, contract, 2.0, 1e-5, 0.02, 2**17
    )
    assert alone == noise
