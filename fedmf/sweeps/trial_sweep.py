"""A sweep of which the best run alone is released, after a random number of trials that stays secret."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from fedmf.accounting import (
    DifferentialPrivacy,
    NegativeBinomialTrials,
    SelectionPrivacy,
    Trials,
    selection_epsilon,
)
from fedmf.errors import ConfigError, one_line
from fedmf.runs import Run, Scalar, dotted_keys, run_of
from fedmf.sweeps.composition import least_multiplier
from fedmf.sweeps.overlays import check_last, check_lists, described, layered
from fedmf.values import dotted


@dataclass(frozen=True)
class TrialSweep:
    """Trials of configurations drawn at random, of which the best is released.

    A trial draws one value of each list and carries out that run, with noise from a secret key of its own.
    How many trials there are is drawn too, and nobody is told: what is released is the best run by its score,
    at the price that docs/theory/composition.md proves.

    Args:
        base: the configuration: tables, dotted keys, or a run that keys can describe.
        tuned: values of each key, all combinations equally likely; they may not depend on data.
        trials: law of the number of trials.
        metric: the score, computed from the released models on examples that are no user's, or private; the
            task's first metric if left out.
        last: the score is a mean of so many evaluations at the end of a run.

    Raises:
        ConfigError: an unknown key, a run without noise, amplified or from a public seed, or runs whose
            promises have different units, adjacencies, namespaces or δ.

    >>> sweep = TrialSweep({}, {"optimizer.learning-rate": (0.5, 1.0, 2.0)}, NegativeBinomialTrials(mean=5.0))
    >>> len(sweep.candidates), round(sweep.privacy.epsilon, 2)
    (3, 11.03)
    """

    base: Mapping[str, Any] | Run
    tuned: Mapping[str, Sequence[Scalar]]
    trials: Trials = field(default_factory=NegativeBinomialTrials)
    metric: str = ""
    last: int = 1

    def __post_init__(self) -> None:
        base = dotted_keys(self.base) if isinstance(self.base, Run) else dotted(self.base)
        object.__setattr__(self, "base", base)
        tuned = {name: tuple(values) for name, values in dotted(self.tuned).items()}
        object.__setattr__(self, "tuned", tuned)
        check_last(self.last)
        check_lists("tuned", tuned)
        used = {name for keys in self.candidates for name in keys}
        if strangers := sorted(tuned.keys() - used):
            run_of({strangers[0]: 0})  # refuses it and names the nearest key
            raise ConfigError(f"[tuned] {strangers[0]} must be a key of some candidate's kinds; none has it.")
        _check_promises(self.promises)

    @cached_property
    def candidates(self) -> tuple[dict[str, Scalar], ...]:
        """The configuration of each combination, by dotted key."""
        assert isinstance(self.base, Mapping)
        combinations = itertools.product(*self.tuned.values())
        return tuple(layered(self.base, dict(zip(self.tuned, one, strict=True))) for one in combinations)

    @cached_property
    def promises(self) -> tuple[DifferentialPrivacy, ...]:
        """What each candidate promises by itself."""
        promises = []
        for keys in self.candidates:
            try:
                privacy = run_of(keys).privacy
            except ConfigError as error:
                raise ConfigError(one_line(f"trial of {self.named(keys)}: {error}")) from None
            if not isinstance(privacy, DifferentialPrivacy):
                raise ConfigError(
                    f"privacy must add noise in every trial; got {privacy.kind!r} for {self.named(keys)}."
                )
            promises.append(privacy)
        return tuple(promises)

    def named(self, keys: Mapping[str, Scalar]) -> str:
        """The drawn values of a candidate, for people."""
        return described({name: value for name, value in keys.items() if name in self.tuned}) or "the base"

    @cached_property
    def one_mu(self) -> float:
        """μ of a trial: that of the candidate that promises least."""
        return 1 / least_multiplier(self.promises) * (1 + 2.0**-50)

    @cached_property
    def privacy(self) -> SelectionPrivacy:
        """Of what is released."""
        return selection_epsilon(self.trials, self.one_mu, self.promises[0].delta)

    def to_dict(self) -> dict[str, Any]:
        """All of it, JSON-able."""
        return {**asdict(self), "trials": self.trials.to_dict()}

    @cached_property
    def digest(self) -> str:
        """By which an interrupted sweep is known again."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()


def _check_promises(promises: Sequence[DifferentialPrivacy]) -> None:
    for name, values in {
        "δ (delta)": {promise.delta for promise in promises},
        "adjacency": {promise.adjacency for promise in promises},
        "kind (of privacy)": {promise.kind for promise in promises},
        "user_namespace": {promise.user_namespace for promise in promises},
    }.items():
        if len(values) > 1:
            raise ConfigError(f"{name} must be the same in all trials; got {sorted(values)}.")
    if any(promise.amplified for promise in promises):
        raise ConfigError(
            "amplified must be false in trials: no theorem here turns an amplified run into the best of many."
        )
    if any(promise.noise_seed is not None for promise in promises):
        raise ConfigError(
            "noise_seed must be unset in trials; got one. Trials of one configuration would be one run, and "
            "its noise would protect nobody."
        )
