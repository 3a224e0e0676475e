"""The canaries of a run: their directions, coins and rounds, what they add and what is seen along them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray

from fedmf.accounting import CanaryScores, SignedPattern, canary_scores, spread_patterns
from fedmf.errors import ConfigError
from fedmf.noise import NoiseKey
from fedmf.optim import ServerSGD
from fedmf.parts.part import FileRow, LivePart, Stage, Step
from fedmf.training import FixedPointSum

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


class CanaryTeam(LivePart):
    """m simulated users whose updates lie along directions of disjoint support.

    Coordinates are dealt to the canaries in a random order. Canary i's direction has entries ±1/√|S_i|, of
    random signs, at its coordinates S_i and zeros elsewhere, so directions are orthogonal, also after an
    update was clipped and rounded to integers. In the rounds of its pattern it sends ±10ζ times that.

    Args:
        name: of the part.
        count: m, at most d.
        seed: public, of their directions.
        file: which keeps what was seen, as `Canaries.files` has it.
        stage: of the run; the coins follow from its key.

    Attributes:
        coins: True for heads; with tails a canary sends nothing, for replace-one the opposite.
        patterns: canary i has pattern i mod their number.
    """

    keeps_state: ClassVar[bool] = False

    def __init__(self, name: str, count: int, seed: int, file: str, stage: Stage) -> None:
        self.name, self.state, self.count, self._file, self._stage = name, {}, count, file, stage
        dimension = stage.dimension
        label = _LABEL + seed.to_bytes(8, "little")
        words = np.frombuffer(hashlib.shake_256(label).digest(8 * dimension), "<u8")
        #: Row j, column i: coordinate j of canary i; the last row may be short.
        self._order = np.argsort(words, kind="stable")
        self._signs = np.where(words & np.uint64(1), 1.0, -1.0)[self._order]
        self._sizes = np.array([len(range(i, dimension, self.count)) for i in range(self.count)])
        self.coins = coins_of(stage.keys.root, self.count)
        self.patterns: tuple[SignedPattern, ...] = spread_patterns(stage.factorization, stage.participation)
        self._opposite = stage.adjacency == "replace-one"

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

    def after(self, t: int, total: FixedPointSum) -> Mapping[str, Any]:
        """Nothing: what canaries do follows from the plan and the key."""
        del t, total
        return self.state

    def state_dict(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Nothing is kept."""
        return dict(state)

    def load_state(self, saved: Mapping[str, Any]) -> None:
        """Nothing was kept."""

    def rows(self, t: int, step: Step) -> Sequence[FileRow]:
        """See `LivePart.rows`: a round that was not committed is written again when it is released."""
        content = self.seen(t, step).astype("<f8").tobytes()
        return [FileRow(self._file, t * len(content), content)]

    def seen(self, t: int, step: Step) -> NDArray[np.float64]:
        """The released sum of round t along each direction, in units of ζ.

        Server SGD moves the model by a linear rule, so the sum is read off the two models. Of other rules it
        is the noisy mean that they are given.
        """
        rule, mean = step.rule, step.mean
        if isinstance(rule, ServerSGD) and rule.in_parts and rule.numbers(t)[3] > 0:
            mean = rule.update_between(t, step.before, step.state, step.after)
        if mean is None:
            return np.full(self.count, np.nan)  # a round of learning rate 0 shows nothing
        entries = mean.detach().to("cpu", torch.float64).numpy()[self._order] * self._signs
        padded = np.zeros(-(-entries.size // self.count) * self.count)
        padded[: entries.size] = entries
        along = padded.reshape(-1, self.count).sum(axis=0) / np.sqrt(self._sizes)
        return along * self._stage.size / self._stage.clip_norm

    def scores(self, rounds: int, read: Callable[[str], bytes]) -> CanaryScores:
        """Of so many released rounds.

        Raises:
            ConfigError: the file is of another size.
        """
        content, n = read(self._file), self._stage.participation.rounds
        if len(content) != 8 * n * self.count:
            raise ConfigError(
                f"{self._file} must hold {n} rows of {self.count} numbers; it has {len(content)} bytes."
            )
        rows = np.frombuffer(content, "<f8").reshape(n, self.count)[:rounds].copy()
        return canary_scores(self._stage.factorization, self.patterns, rows)

    def when_stated(self, rounds: int, read: Callable[[str], bytes]) -> Mapping[str, float]:
        """How many coins were guessed, and how many rightly; nothing before the first round."""
        if not rounds:
            return {}
        return {"canaries_judged": self.count, "canaries_guessed": self.guessed(rounds, read)}

    def guessed(self, rounds: int, read: Callable[[str], bytes]) -> int:
        """N: how many of the m coins are guessed rightly from so many rounds.

        All m count, also those of canaries whose first round is still to come: how many rounds there are may
        follow from releases, so nobody may be left out because of it.
        """
        return int((self.scores(rounds, read).guesses() == self.coins).sum())
