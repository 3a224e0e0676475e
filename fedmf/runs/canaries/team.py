"""The canaries of a run: their directions, coins and rounds, what they add and what is seen along them."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.accounting import CanaryScores, SignedPattern, canary_scores, spread_patterns
from fedmf.errors import ConfigError, LedgerError
from fedmf.noise import NoiseKey
from fedmf.optim import ServerOptimizer, ServerSGD
from fedmf.records import write_durably
from fedmf.statements import Canaries, Plan
from fedmf.training import FixedPointSum

#: Float64, little-endian: n rows of m numbers, NaN where nothing was released yet.
CANARY_ROWS: Final = "canaries.rows"


class CanaryRows:
    """A file of n rows of m numbers, each written before its round is committed.

    A round that was not committed is written again when it is released, so rows below the rounds released
    are those of the released models.

    Args:
        folder: the run directory.
        rounds: n.
        count: m.
    """

    def __init__(self, folder: Path, rounds: int, count: int) -> None:
        self._path, self._rounds, self._count = folder / CANARY_ROWS, rounds, count

    def create(self) -> None:
        """Write the file, every number NaN."""
        write_durably(self._path, np.full((self._rounds, self._count), np.nan, "<f8").tobytes())

    def put(self, t: int, row: NDArray[np.float64]) -> None:
        """Keep row t, durably.

        Raises:
            OSError: the disk failed.
        """
        content = row.astype("<f8").tobytes()
        file = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            if os.pwrite(file, content, t * len(content)) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file)
        finally:
            os.close(file)

    def released(self, rounds: int) -> NDArray[np.float64]:
        """The rows of so many rounds, shape (rounds, m).

        Raises:
            ConfigError: the file is missing or of another size.
        """
        try:
            content = self._path.read_bytes()
        except OSError as error:
            raise ConfigError(f"cannot read {self._path}: {error.strerror}.") from None
        if len(content) != 8 * self._rounds * self._count:
            raise ConfigError(
                f"{self._path} must hold {self._rounds} rows of {self._count} numbers; it has "
                f"{len(content)} bytes."
            )
        return np.frombuffer(content, "<f8").reshape(self._rounds, self._count)[:rounds].copy()


_LABEL: Final = b"fedmf canaries, version 1\x00"
#: How much longer than the clip norm a canary's update is: a clip that clips nothing must be seen.
_EXCESS: Final = 10.0
#: Entries of updates that are formed at once.
_BLOCK: Final = 1 << 22


def coins_of(key: NoiseKey, count: int) -> NDArray[np.bool_]:
    """The fair coins of a run's canaries, True for heads: they follow from its key and are as secret.

    Args:
        key: of the run.
        count: m.
    """
    words = hashlib.shake_256(_LABEL + key.subkey("canaries")).digest(count)
    return (np.frombuffer(words, np.uint8) & 1).astype(bool)


class CanaryTeam:
    """m simulated users whose updates lie along directions of disjoint support.

    Coordinates are dealt to the canaries in a random order. Canary i's direction has entries ±1/√|S_i|, of
    random signs, at its coordinates S_i and zeros elsewhere, so directions are orthogonal, also after an
    update was clipped and rounded to integers. In the rounds of its pattern it sends ±10ζ times that.

    Args:
        canaries: how many, and the public seed of their directions.
        plan: of the run.
        key: of the run; the coins follow from it.
        dimension: d, at least m.
        folder: the run directory.

    Attributes:
        coins: True for heads; with tails a canary sends nothing, for replace-one the opposite.
        patterns: canary i has pattern i mod their number.
    """

    def __init__(self, canaries: Canaries, plan: Plan, key: NoiseKey, dimension: int, folder: Path) -> None:
        self.count, self._plan = canaries.count, plan
        seed = _LABEL + canaries.seed.to_bytes(8, "little")
        words = np.frombuffer(hashlib.shake_256(seed).digest(8 * dimension), "<u8")
        #: Row j, column i: coordinate j of canary i; the last row may be short.
        self._order = np.argsort(words, kind="stable")
        self._signs = np.where(words & np.uint64(1), 1.0, -1.0)[self._order]
        self._sizes = np.array([len(range(i, dimension, self.count)) for i in range(self.count)])
        self.coins = coins_of(key, self.count)
        self.patterns: tuple[SignedPattern, ...] = spread_patterns(
            plan.mechanism.factorization, plan.participation
        )
        self._opposite = plan.privacy.adjacency == "replace-one"
        self._file = CanaryRows(folder, plan.participation.rounds, self.count)

    def present(self, t: int) -> dict[int, float]:
        """Who sends something in round t, each with the sign of its update."""
        signs = [
            dict(zip(pattern.rounds, pattern.signs.tolist(), strict=True)).get(t, 0.0)
            for pattern in self.patterns
        ]
        tails = -1.0 if self._opposite else 0.0
        sent = {i: signs[i % len(signs)] * (1.0 if self.coins[i] else tails) for i in range(self.count)}
        return {i: sign for i, sign in sent.items() if sign}

    def join(self, t: int, total: FixedPointSum) -> FixedPointSum:
        """A round's sum with the canaries in it, by the clip and the exact sum of every other user.

        Args:
            t: 0-based round.
            total: of the users; it is left as it is.
        """
        joined = total.like()
        joined.merge(total)
        dimension = self._order.size
        present = list(self.present(t).items())
        step = max(1, _BLOCK // dimension)
        for at in range(0, len(present), step):
            block = present[at : at + step]
            rows = np.zeros((len(block), dimension), np.float32)
            for row, (i, sign) in zip(rows, block, strict=True):
                length = sign * _EXCESS * total.clip_norm / np.sqrt(self._sizes[i])
                row[self._order[i :: self.count]] = length * self._signs[i :: self.count]
            joined.add_updates(torch.from_numpy(rows))
        return joined

    def seen(
        self,
        t: int,
        rule: ServerOptimizer,
        before: tuple[Tensor, Mapping[str, Tensor]],
        after: Tensor,
        mean: Tensor | None,
    ) -> NDArray[np.float64]:
        """The released sum of round t along each direction, in units of ζ.

        Server SGD moves the model by a linear rule, so the sum is read off the two models. Of other rules it
        is the noisy mean that they are given.

        Args:
            t: 0-based round.
            rule: of the server.
            before: θ_t and the state, which follows from the models up to it.
            after: θ_{t+1}.
            mean: the noisy mean; None where a fused step never made it.
        """
        if isinstance(rule, ServerSGD) and rule.in_parts and rule.numbers(t)[3] > 0:
            mean = rule.update_between(t, *before, after)
        if mean is None:
            return np.full(self.count, np.nan)  # a round of learning rate 0 shows nothing
        entries = mean.detach().to("cpu", torch.float64).numpy()[self._order] * self._signs
        padded = np.zeros(-(-entries.size // self.count) * self.count)
        padded[: entries.size] = entries
        along = padded.reshape(-1, self.count).sum(axis=0) / np.sqrt(self._sizes)
        return along * self._plan.cohorts.size / self._plan.privacy.clip_norm

    def keep(self, t: int, row: NDArray[np.float64], commit: Callable[[], None]) -> None:
        """Keep what was seen of round t, and then commit it.

        Raises:
            LedgerError: the disk failed; nothing was committed.
        """
        try:
            self._file.put(t, row)
        except OSError as error:
            reason = f"cannot write {CANARY_ROWS}: {error.strerror}. Nothing was released."
            raise LedgerError(reason) from None
        commit()

    def scores(self, rounds: int) -> CanaryScores:
        """Of so many released rounds."""
        C = self._plan.mechanism.factorization
        return canary_scores(C, self.patterns, self._file.released(rounds))

    def noted(self, rounds: int) -> dict[str, int]:
        """What a record keeps of them after so many rounds; nothing before the first."""
        return {"canaries_judged": self.count, "canaries_guessed": self.guessed(rounds)} if rounds else {}

    def guessed(self, rounds: int) -> int:
        """N: how many of the m coins are guessed rightly from so many rounds.

        All m count, also those of canaries whose first round is still to come: how many rounds there are may
        follow from releases, so nobody may be left out because of it.
        """
        return int((self.scores(rounds).guesses() == self.coins).sum())
