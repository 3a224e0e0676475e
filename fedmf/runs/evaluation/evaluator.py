"""The one place where users' judgements of a released model become a private estimate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedmf.errors import LedgerError
from fedmf.noise import Domain, GaussianSource, KeySchedule, NoiseKey, NoiseStream
from fedmf.parts import EvaluationPlan
from fedmf.records import Ledger, load_state, pack_state, with_head, without_head
from fedmf.runs.evaluation.kinds import Evaluation, private_columns
from fedmf.training import FixedPointSum

_Judge = TypeVar("_Judge")


class NoEvaluator:
    """What releases the private evaluations of a run that has none."""

    #: Why there is no figure of users' own examples that may be shown.
    before_the_first: ClassVar[str] = (
        'nothing public judges the model; [evaluation] kind = "private" does, under the same ε'
    )
    #: Of the metrics table, what users say of a model.
    columns: Sequence[str] = ()

    @property
    def released(self) -> int:
        """How many evaluations were released."""
        return 0

    def planned(self, rounds: int) -> bool:
        """Whether users judge the model after so many rounds."""
        del rounds
        return False

    def estimates(self, begin: int) -> list[tuple[int, dict[str, float]]]:
        """What evaluation ``begin`` and later ones show: the rounds before each, and its row of metrics."""
        del begin
        return []

    def judges(self, asked: Evaluation, users: int, e: int) -> Sequence[int]:
        """Whom evaluation e asks, of so many users by index."""
        del asked, users, e
        return ()

    def judge(self, private: Callable[[PrivateEvaluator], _Judge], other: Callable[[], _Judge]) -> _Judge:
        """Who judges released models: with noise, or as there is none."""
        del private
        return other()


class PrivateEvaluator(NoEvaluator):
    """Adds noise to sums of users' judgements and keeps what was released, exactly once an evaluation.

    A user's row holds, for the loss and each metric, (x − c)/h with x the user's own value clamped to the
    public range [c − h, c + h]; it lies in [−1, 1]^q, so its norm is at most √q. Evaluation e turns the sum
    G_e of rows into

        Y_e = (G_e + √q·σ_e·sens(C_e)·f·[C_e⁻¹z]_e)/m_e,

    f the adjacency factor and z of a domain of the key that nothing else uses, and shows
    c + h·(A Y)_e/(A 1)_e. Users that fail, do not answer or own nothing count as rows of zeros: m_e is fixed.

    Args:
        plan: contract and noise, and the public range of each number.
        adjacency: "zero-out" or "replace-one".
        key: of the run.
        ledger: of the evaluations.

    Raises:
        ValueError: what is kept was made with other noise than this plan and key make.

    Guarantees:
        `release` returns after the noisy row and its participants are durable. A process killed before that
        has shown nothing; one killed after it finds the row again and never asks for it again. With a secret
        key each process draws its rows with a key of its own (`KeySchedule`).
    """

    before_the_first: ClassVar[str] = "no private evaluation was released yet"

    def __init__(
        self,
        plan: EvaluationPlan,
        adjacency: str,
        key: NoiseKey,
        ledger: Ledger,
    ) -> None:
        self.plan, self.dimension, self._adjacency = plan, len(plan.ranges), adjacency
        self.columns = [column for name, _, _ in plan.ranges for column in private_columns(name)]
        self._ledger = ledger
        self._std = plan.norm * plan.relative_noise_std(adjacency)
        committed = ledger.checkpoint()
        self._keys = KeySchedule.of_record(key, ledger, 0 if committed is None else committed[0] + 1)
        source = GaussianSource(self._keys, self.dimension, Domain.EVALUATION)
        self._noise = NoiseStream(source, plan.mechanism.factorization.recurrence(), plan.count)
        self._released = self._restored()

    def _restored(self) -> NDArray[np.float64]:
        """Y_0, …, Y_{e−1}, shape (e, q)."""
        committed = self._ledger.checkpoint()
        if committed is None:
            return np.zeros((0, self.dimension))
        e, name, digest = committed
        rows, _, noise = load_state(self._ledger, name, digest)
        self._noise.load_state(without_head(noise, self._ledger))
        if rows.shape != (e + 1, self.dimension) or self._noise.t != e + 1:
            raise ValueError(
                f"what was released (evaluations) must be {e + 1} rows of {self.dimension} numbers; got "
                f"shape {tuple(rows.shape)}. Restore ledger and evaluations from the same copy."
            )
        return rows.numpy()

    @property
    def released(self) -> int:
        """How many evaluations were released."""
        return len(self._released)

    def planned(self, rounds: int) -> bool:
        """See `NoEvaluator.planned`."""
        return self.plan.due(rounds) is not None

    def estimates(self, begin: int) -> list[tuple[int, dict[str, float]]]:
        """See `NoEvaluator.estimates`."""
        return [(self.plan.after(e), self.estimate(e)) for e in range(begin, self.released)]

    def judges(self, asked: Evaluation, users: int, e: int) -> Sequence[int]:
        """See `NoEvaluator.judges`."""
        return asked.judges(self.plan, users, e)

    def judge(self, private: Callable[[PrivateEvaluator], _Judge], other: Callable[[], _Judge]) -> _Judge:
        """See `NoEvaluator.judge`."""
        del other
        return private(self)

    def due(self, rounds: int) -> int | None:
        """The evaluation of the model after so many rounds, if it is planned and was not released yet.

        Raises:
            LedgerError: the evaluations before it are not all on record: its noise may have been used.
        """
        e = self.plan.due(rounds)
        if e is None or e < self.released:
            return None
        if e > self.released:
            raise LedgerError(
                f"the ledger of evaluations ends after {self.released}, and {e} belong to the rounds "
                "released. Restore it from the same copy as the run's ledger."
            )
        return e

    def check_reached(self, rounds: int) -> None:
        """Refuse records of which one is older than the other.

        Raises:
            LedgerError: evaluations are missing that were released before the last round, or there are some
                of rounds to come.
        """
        reached = self.plan.released_by(rounds)
        before = self.plan.least_released_by(rounds)
        if not before <= self.released <= reached:
            raise LedgerError(
                f"the ledger of evaluations holds {self.released}; after {rounds} rounds there must be "
                f"{before}{f' or {reached}' if reached > before else ''}. Restore it from the same copy "
                "as the run's ledger."
            )

    def new_sum(self) -> FixedPointSum:
        """An empty sum of rows."""
        return FixedPointSum(self.dimension, self.plan.norm)

    def release(self, e: int, total: FixedPointSum, users: Sequence[str]) -> dict[str, float]:
        """Release evaluation e: add its row of noise, commit.

        Args:
            e: the next evaluation.
            total: the sum of the rows of ``users``, made by `new_sum`.
            users: who took part, those that failed included.

        Returns:
            The estimates by column. They were committed before this returns.

        Raises:
            ParticipationViolation: it is not e's turn, or a user may not take part; nothing is released.
            LedgerError: the disk failed, now or before: this process releases nothing more, and no rounds
                either (`ReleaseRight`).
        """
        if total.users != len(users):
            raise ValueError(
                f"sum must hold exactly the listed users; got {total.users} rows for {len(users)} users."
            )
        self._ledger.check_round(e, users)
        with self._ledger.right.exercise(f"evaluation {e + 1}"):
            self._keys.open_in(self._ledger)
            noisy = total.total()
            self._noise.seek(e)
            self._noise.add_(noisy, self._std)
            rows = np.vstack([self._released, (noisy / self.plan.size).numpy()[None]])
            noise = with_head(self._noise.state_dict(), self._ledger)
            state, status = pack_state(torch.from_numpy(rows), {}, noise), "released" if users else "empty"
            name = f"after-evaluation-{e + 1:07d}"
            self._ledger.commit_round(e, users, name, state.digest.hex(), status, state)
            self._released = rows
        return self.estimate(e)

    def estimate(self, e: int) -> dict[str, float]:
        """`shown` by column."""
        row: dict[str, float] = {}
        for name, (value, std) in self.shown(e).items():
            row.update(zip(private_columns(name), (value, std), strict=True))
        return row

    def shown(self, e: int) -> dict[str, tuple[float, float]]:
        """What evaluation e shows by name: the estimate, and the standard deviation of its noise."""
        means = self.plan.weights(e) @ self._released[: e + 1]
        stds = self.plan.stds(e, self._adjacency)
        return {
            name: ((low + high) / 2 + (high - low) / 2 * mean, stds[name])
            for (name, low, high), mean in zip(self.plan.ranges, means.tolist(), strict=True)
        }
