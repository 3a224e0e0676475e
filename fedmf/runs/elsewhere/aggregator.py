"""Private aggregation for any program: it brings updates, this clips, sums, noises, steps and commits."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from fedmf.cohorts import Cohorts
from fedmf.errors import ConfigError
from fedmf.mechanisms.choice import MechanismChoice
from fedmf.mechanisms.matrix import Factorization
from fedmf.optim import ChosenOptimizer, ServerOptimizer, Sgd
from fedmf.participation import Adjacency
from fedmf.records import PrivacyStatement
from fedmf.runs.elsewhere.layout import ModelLayout
from fedmf.runs.elsewhere.task import TaskElsewhere, asked_cohorts, asked_privacy, session_of
from fedmf.runs.execution import Execution
from fedmf.runs.mechanism import NoiseMechanism
from fedmf.runs.run import Run
from fedmf.runs.session import Session
from fedmf.runs.statistics import FixedClipping, QuantileClipping, Statistic
from fedmf.training import FixedPointSum, UserFailure

if TYPE_CHECKING:
    from torch import Tensor

#: Of one user: what it changed, by the names of the model's arrays. Arrays of NumPy or torch.
Arrays = Mapping[str, Any]

_MEAN: Final = Sgd(learning_rate=1.0, momentum=0.0)
_LONGEST_REASON: Final = 200


class PrivateAggregator:
    """User-level differential privacy for any program that trains users: no Flower, no messages, no loop.

    In each round the program asks whom to train (`cohort`), brings what each of them changed (`add`), and
    gets the next model (`release`). The updates are clipped together over all trained arrays, summed exactly,
    divided by ``users_per_round`` and noised; the round is committed before `release` returns.

    Args:
        epsilon: ε for all rounds together.
        delta: δ.
        clipping_norm: ζ, the largest ℓ₂ norm of one user's update.
        users: stable ids of all N users, in an order that stays.
        users_per_round: m, how many are asked in a round.
        num_rounds: n, the most rounds there will ever be.
        run_dir: where ledger, key and statement are; a run that is there is continued.
        mechanism: name of a mechanism, or a factorization.
        server_optimizer: rule of the server; by default the noisy mean is added to the model.
        noise_seed: public seed: a simulation that anyone can undo; None draws a key from the operating
            system.
        adjacency: "zero-out" or "replace-one".
        cohorts: who takes part when, instead of ``users_per_round`` in turn.
        amplified: count the secrecy of sampled ``cohorts``.
        frozen: arrays that are neither trained nor noised: names, or patterns.
        tied: groups of names under which one array stands; None asks if equal arrays are one.
        adaptive_clipping: lets ζ follow a quantile of norms.
        extra_releases: statistics such as `fedmf.OwnStatistic` that are released under the same ε.

    Raises:
        ConfigError: values that do not fit together.

    Guarantees:
        Whatever one user's update is (wrong shapes, NaN, huge), it changes that user's own contribution and
        nothing else. A process that dies leaves a directory that the same calls continue: what was released
        counts, and no row of noise is used twice.
    """

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float,
        clipping_norm: float,
        users: Sequence[str],
        users_per_round: int,
        num_rounds: int,
        run_dir: str | Path,
        mechanism: str | Factorization | MechanismChoice | NoiseMechanism = "banded-toeplitz",
        server_optimizer: ChosenOptimizer | ServerOptimizer = _MEAN,
        noise_seed: int | None = None,
        adjacency: Adjacency = "zero-out",
        cohorts: Cohorts | None = None,
        amplified: bool = False,
        frozen: Sequence[str] = (),
        tied: Sequence[Sequence[str]] | None = None,
        adaptive_clipping: QuantileClipping | None = None,
        extra_releases: Sequence[Statistic] = (),
    ) -> None:
        names = list(users)
        if isinstance(users, str) or not all(isinstance(user, str) and user for user in names):
            raise ConfigError(f"users must be a sequence of ids, each a text; got {users!r:.80}.")
        if len(set(names)) < len(names):
            raise ConfigError("users must name each user once.")
        self._users = names
        self._privacy = asked_privacy(
            clip_norm=clipping_norm,
            delta=delta,
            adjacency=adjacency,
            noise_seed=noise_seed,
            epsilon=epsilon,
            amplified=amplified,
        )
        self._cohorts = asked_cohorts(cohorts, num_rounds, users_per_round)
        self._mechanism, self._optimizer = mechanism, server_optimizer
        self._clipping, self._extra_releases = adaptive_clipping or FixedClipping(), tuple(extra_releases)
        self._frozen, self._tied = tuple(frozen), tied
        self._path = Path(run_dir).expanduser().resolve()
        self._lock = threading.Lock()
        self._opened: _Opened | None = None

    @property
    def run_dir(self) -> Path:
        """Where ledger, key and statement are."""
        return self._path

    def begin(self, model: Arrays) -> Self:
        """Plan the run and make its directory, or open the one that is there where it stopped.

        Args:
            model: the initial arrays by name; also on continuing, where only names, shapes, types and what is
                not trained must be those of before.

        Raises:
            ConfigError: a model that cannot be trained, another run in the place, or a place that cannot be
                used; nothing is left there.
            LedgerError: a damaged ledger, or another process is running it.
        """
        if self._opened is not None:
            raise ConfigError("begin must be called once; the run is open.")
        arrays = {name: _array(name, value) for name, value in model.items()}
        layout = ModelLayout.of_arrays(arrays, self._frozen, self._tied)
        task = TaskElsewhere(layout, self._users, "ids that the program gives")
        run = Run(
            task=task,
            cohorts=self._cohorts,
            privacy=self._privacy,
            mechanism=self._mechanism,
            server=self._optimizer,
            execution=Execution(messages="per-user", users_per_message=1),
            clipping=self._clipping,
            extra_releases=self._extra_releases,
        )
        session = session_of(self._path, run, task, layout.flat_of(arrays).float())
        self._opened = _Opened(session, layout)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write reports and let another process continue the run. What was added to the coming round is
        forgotten.

        Raises:
            ConfigError: the disk failed when the reports were written; the run is closed all the same.
        """
        if self._opened is None:
            return
        session, self._opened = self._opened.session, None
        try:
            session.write_reports()
        finally:
            session.directory.close()

    @property
    def t(self) -> int:
        """The coming round, 0-based; as many rounds were released."""
        return self._open.session.server.t

    @property
    def rounds_left(self) -> int:
        """How many more rounds may be released."""
        return max(0, self._open.session.server.horizon - self.t)

    @property
    def model(self) -> dict[str, NDArray[Any]]:
        """The model after the rounds released so far, all arrays by name, each of its own type."""
        opened = self._open
        return opened.layout.arrays(opened.session.server.parameters)

    def cohort(self, t: int) -> list[str]:
        """Who is to be trained in round t, on `model`; the same as often as it is asked.

        Raises:
            ConfigError: t is not the coming round.
        """
        with self._lock:
            return list(self._open.cohort(t))

    def add(self, user: str, update: Arrays) -> str | None:
        """Clip what a user of the cohort changed and add it to the round's sum.

        Args:
            user: one of the cohort who was not added yet.
            update: what the user's training changed: trained minus received arrays, by name; others are not
                looked at.

        Returns:
            None, or in one line why the user's contribution is zero: a wrong shape or type, NaN. It is kept
            for the operator. It tells about data: show it to nobody else.

        Raises:
            ConfigError: nobody of the cohort, or somebody for the second time; nothing is added.
        """
        with self._lock:
            return self._open.add(user, update)

    def release(self) -> dict[str, NDArray[Any]]:
        """Release the round: noise, server rule, commit. Users who were not added count as zeros.

        Returns:
            `model`.

        Raises:
            HorizonExceededError: no round may be released any more.
            LedgerError: the disk failed, now or before. Close and begin again.
        """
        with self._lock:
            self._open.release()
        return self.model

    @property
    def metrics(self) -> Mapping[int, Mapping[str, Any]]:
        """By number of released rounds: ε so far, and what parts released."""
        return self._open.session.metrics

    def statement(self) -> PrivacyStatement:
        """What was promised and what was released so far."""
        return self._open.session.statement()

    @property
    def _open(self) -> _Opened:
        if self._opened is None:
            raise ConfigError("begin must be called first, with the model.")
        return self._opened


class _Opened:
    """An open run and the sum of the coming round."""

    def __init__(self, session: Session, layout: ModelLayout) -> None:
        self.session, self.layout = session, layout
        self._begin_round()

    def _begin_round(self) -> None:
        self._cohort: list[str] | None = None
        self._total: FixedPointSum = self.session.server.new_sum()
        self._added, self._failures = list[str](), list[UserFailure]()

    def cohort(self, t: int) -> list[str]:
        if t != self.session.server.t:
            raise ConfigError(f"t must be the coming round, {self.session.server.t}; got {t!r}.")
        if self._cohort is None:
            if t >= self.session.server.horizon:
                raise ConfigError(f"t must be below {self.session.server.horizon}, all rounds; got {t}.")
            self._cohort = list(self.session.cohort(t).values())
        return self._cohort

    def add(self, user: str, update: Arrays) -> str | None:
        if user not in self.cohort(self.session.server.t) or user in self._added:
            t = self.session.server.t
            raise ConfigError(f"user must be one of cohort({t}) who was not added yet; got {user!r}.")
        self._added.append(user)
        try:
            finite = bool(self._total.add_updates(self._row(update)[None]).all())
            reason = None if finite else "update holds NaN or infinity"
        except Exception as error:  # whatever a user's arrays may cause
            self._total.add_nothing(1)
            reason = (str(error) or type(error).__name__)[:_LONGEST_REASON]
        if reason is not None:
            self._failures.append(UserFailure(user, "update", reason))
        return reason

    def _row(self, update: Arrays) -> Tensor:
        """The update as one vector, shape (d,): float32 where model and update are.

        Raises:
            ValueError: an array is missing, or of another shape or kind.
        """
        arrays = dict[str, NDArray[Any]]()
        for name, shape, _ in self.layout.trained:
            if name not in update:
                raise ValueError(f"update has no array {name[:100]!r}")
            arrays[name] = _array(name, update[name])
            if arrays[name].shape != shape or arrays[name].dtype.kind not in "fiu":
                raise ValueError(
                    f"array {name[:100]!r} must be numbers of shape {shape}; got "
                    f"{arrays[name].dtype} of shape {arrays[name].shape}"
                )
        narrow = all(array.dtype == np.float32 for array in arrays.values())
        return self.layout.flat_of(arrays, self.layout.number if narrow else np.float64)

    def release(self) -> None:
        t, server = self.session.server.t, self.session.server
        if t < self.session.server.horizon:
            self.cohort(t)
        server.release(self._total, self._added)
        failures, present = self._failures, len(self._added)
        self._begin_round()
        self.session.note_failures(t, failures, present)
        self.session.evaluate()


def _array(name: str, value: Any) -> NDArray[Any]:
    """An array of NumPy or torch.

    Raises:
        ConfigError: it is none.
    """
    try:
        held = value.detach().cpu() if hasattr(value, "detach") else value
        return np.asarray(held)
    except Exception as error:  # whatever a stranger's object may do
        raise ConfigError(
            f"array {name!r} must be one of NumPy or torch; got {type(value).__name__}."
        ) from error
