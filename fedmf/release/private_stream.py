"""The private stream: the one place where rows of a stream are admitted, summed, noised and
committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from fedmf.clipping.clipped_rows import clip_to_fixed_point
from fedmf.clipping.row_features import integer_features
from fedmf.ledger.ledger import Ledger
from fedmf.ledger.packed import pack, unpack
from fedmf.ledger.released_integers import ReleasedIntegers, records_of
from fedmf.noise.key import Domain, NoiseKey
from fedmf.noise.noise_stream import NoiseStream
from fedmf.noise.schedule import KeySchedule
from fedmf.release.row_plan import MOST_ROWS, RowPlan, StreamGuarantee

_NAMES: Final = ("first_noise", "second_noise")
_DOMAINS: Final = (Domain.FIRST_MOMENT, Domain.SECOND_MOMENT)


class PrivateRows:
    """Sums of clipped rows and of their second moments, each plus a row of noise of its own.

    Args:
        plan: of the rows.
        keys: which key makes which row of noise; a key alone makes all.

    Guarantees:
        The two noises come from different domains of the key: no keystream block serves both. What
        leaves `add_noise` are sums of integers with noise, in numbers.

    Raises:
        ValueError: the noise of the plan is smaller than its noise multiplier needs.
    """

    def __init__(self, plan: RowPlan, keys: NoiseKey | KeySchedule) -> None:
        plan.check_noise()
        self.plan = plan
        #: What draws noise, by its name in a saved state.
        self.noises: dict[str, NoiseStream] = {}
        for i, C in enumerate(plan.factorizations):
            self.noises[_NAMES[i]] = NoiseStream(
                keys,
                _DOMAINS[i],
                C.streaming_inverse(),
                C.rounds,
                plan.sizes[i],
                plan.rounding.parts[i].std,
            )

    def clip_and_add(self, rows: Tensor, steps: int) -> list[Tensor]:
        """Clip rows to integers and sum those of each step, and their second moments.

        Args:
            rows: shape (rows, d), whatever they hold: long ones are clipped, and NaN counts as
                zeros.
            steps: how many releases; each has as many rows as the others.

        Raises:
            ValueError: more rows a release than its integers have room for.
        """
        if len(rows) > MOST_ROWS * max(steps, 1):
            raise ValueError(f"m (rows of a step) must be at most {MOST_ROWS}; got {len(rows)}.")
        bits = self.plan.rounding.bits
        integers, _ = clip_to_fixed_point(rows.to("cpu"), self.plan.users.norm_bound, bits[0])
        sums = [integers.view(steps, len(rows) // max(steps, 1), integers.shape[1]).sum(dim=1)]
        if len(self.plan.factorizations) > 1:
            sums.append(integer_features(integers, self.plan.second_moment, steps, *bits))
        return sums

    def add_noise(self, sums: Sequence[Tensor]) -> list[Tensor]:
        """Add a row of noise to the sum of each step, in place, and only then make numbers of
        it.
        """
        noisy = []
        for total, noise, unit in zip(sums, self.noises.values(), self.plan.units, strict=True):
            noise.release_rows(total)
            noisy.append(total.to(torch.float64).mul_(unit))
        return noisy


class Estimates(Protocol):
    """What is made of the noisy sums of a stream: post-processing, which costs no privacy."""

    def extend(self, noisy: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The first and second moments that are released for some steps, a row each."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Its state, a function of what was released."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        ...


@dataclass(frozen=True)
class Admission:
    """Which rows take a step.

    Args:
        rows: their places.
        end: the first place that was not looked at.
        beyond_k: how many others were of users who gave k rows.
        within_b: how many others came less than b steps after another row of their user.
    """

    rows: list[int]
    end: int
    beyond_k: int
    within_b: int


class StreamServer:
    """Admits the rows of a stream, releases their sums with noise, and commits them, each exactly
    once.

    Args:
        plan: of the rows.
        guarantee: what the stream states to each user.
        estimates: what is made of noisy sums.
        ledger: of the stream, open for writing; its (n, k, b) is that of rows.
        key: of the noise of the stream.
        records: how many releases the ledger holds.
        with_vectors: whether past noise is kept with a commit; if not, it is drawn again when a
            stream continues.
        kept: where released integers are kept after every commit; None to keep none.

    Attributes:
        keys: which key makes which row of noise.
        step: rows that took a step, committed or not.

    Guarantees:
        Only rows that were admitted are released, and each once. With a secret key each process
        draws its noise with a key of its own, from random bits that are durable before the first,
        so copies of a state directory add independent noise. Before the first, the needed noise is
        computed again from matrices, contract and units.

    Raises:
        ValueError: the plan has less noise than the guarantee needs.
    """

    def __init__(
        self,
        plan: RowPlan,
        guarantee: StreamGuarantee,
        estimates: Estimates,
        ledger: Ledger,
        key: NoiseKey,
        records: int,
        with_vectors: bool = False,
        kept: ReleasedIntegers | None = None,
    ) -> None:
        guarantee.check(plan, ledger.participation)
        self.ledger = ledger
        self.keys = KeySchedule.of_record(key, ledger, records)
        self.step = ledger.released
        self._rows = PrivateRows(plan, self.keys)
        self._every = guarantee.release_every
        self._estimates = estimates
        self._with_vectors = with_vectors
        self._kept = kept
        self._records = records
        self._integers = list[Tensor]()  # of releases that were not committed
        self._admitted: list[str | None] = []  # users of the steps that were not committed
        self._released = 0  # how many of these are in a release

    def restore(self) -> None:
        """Continue where the ledger ends; to be called before the first step of a process.

        Raises:
            LedgerError: released integers are missing.
            ValueError: the state was written with other noise than this plan and key make.
        """
        content = self.ledger.state()
        last = b""
        if content is not None:
            state = unpack(content)
            restore_state(self._rows, self._estimates, state)
            if "released" in state:
                last = records_of([state["released"]])
        if self._kept is not None:
            self._kept.restore(self._records, last)

    @property
    def waiting(self) -> int:
        """Rows that were admitted and are in no release yet; with this process they are
        forgotten.
        """
        return len(self._admitted) - self._released

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """The right to take steps; one that does not end well is the last of this process.

        Raises:
            LedgerError: a step failed, now or before. Open the stream again.
        """
        with self.ledger.guard.releasing(f"step {self.step + 1}"):
            yield

    def admit(self, users: Sequence[str | None], start: int, most: int) -> Admission:
        """Give the next steps to rows whose users are within (k, b), in their order; no value
        decides.

        Args:
            users: of the rows; None for a row that is no user's.
            start: the first row to look at.
            most: rows to admit, at most; never more than the horizon has steps left.
        """
        histories = self.ledger.histories
        contract = self.ledger.participation
        room = min(most, contract.rounds - self.step)
        rows = list[int]()
        beyond_k = 0
        within_b = 0
        end = start
        while end < len(users):
            user = users[end]
            if user is not None and not histories.admits(user, self.step + 1):
                if histories.row(user)[1] >= contract.max_participations:
                    beyond_k += 1
                else:
                    within_b += 1
            elif len(rows) == room:
                break
            else:
                self.step += 1
                if user is not None:
                    histories.record(user, self.step)
                self._admitted.append(user)
                rows.append(end)
            end += 1
        return Admission(rows, end, beyond_k, within_b)

    def release(self, rows: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Release rows that wait: clip and add, noise.

        Args:
            rows: the next of the rows that were admitted, shape (rows, d); they are clipped.
            steps: how many releases; each has R rows, and the last of the stream the rest.

        Returns:
            First and second moments, a row a release. They must not leave before they are
            committed.

        Raises:
            ValueError: more rows than were admitted, or another number than releases have.
        """
        if len(rows) > self.waiting:
            raise ValueError(
                f"rows (of a release) must be admitted; got {len(rows)} of {self.waiting}."
            )
        left = self.ledger.participation.rounds - self.ledger.released - self._released
        rest = steps == 1 and len(rows) == left < self._every
        if len(rows) != steps * self._every and not rest:
            raise ValueError(
                f"rows (of {steps} releases) must be {self._every} each, as planned; got"
                f" {len(rows)}."
            )
        self.keys.ensure_opened(self.ledger)
        sums = self._rows.clip_and_add(rows, steps)
        noisy = self._rows.add_noise(sums)
        if self._kept is not None:
            self._integers.append(torch.cat(sums, dim=1))
        self._released += len(rows)
        return self._estimates.extend(noisy)

    def commit(
        self, about: Mapping[str, Any], content: bytes, records: int, pushes: bytes = b""
    ) -> None:
        """Make what was released final, with the users of its rows.

        Args:
            about: a note on the block, JSON-able.
            content: what it releases; empty for nothing.
            records: how many releases there are after it.
            pushes: digests of the rows that were pushed.

        Raises:
            LedgerError: this process takes a step and recorded no opening; or the disk failed, now
                or before, and whether the block is final is found when the state is opened again.
        """
        users = self._admitted[: self._released]
        state = state_of(self._rows, self._estimates, self._with_vectors)
        if self._integers:
            state["released"] = torch.cat(self._integers)
        self.ledger.commit_steps(users, about, content, records, pack(state), pushes)
        del self._admitted[: self._released]
        self._released = 0
        self._integers = []
        if self._kept is not None and "released" in state:
            self._kept.append(records_of([state["released"]]))


def state_of(rows: PrivateRows, estimates: Estimates, with_vectors: bool = False) -> dict[str, Any]:
    """Step, states of the estimates (private outputs) and noise positions; never the key.

    Args:
        rows: with the noise.
        estimates: made of it.
        with_vectors: include the vectors of the noise, so that continuing needs no replay. They are
            past noise, to be kept as secret as the key.
    """
    noises = {
        name: noise.state_dict(with_vectors=with_vectors) for name, noise in rows.noises.items()
    }
    return {"t": noises[_NAMES[0]]["t"], **estimates.state_dict(), **noises}


def restore_state(rows: PrivateRows, estimates: Estimates, state: Mapping[str, Any]) -> int:
    """Continue from a saved state: the noise continues with the rows it would have used.

    Returns:
        t, how many steps it follows.

    Raises:
        ValueError: the state is of another stream, or of noise from another key.
    """
    times = [part["t"] for part in state.values() if isinstance(part, Mapping)]
    if any(t != state["t"] for t in times):
        raise ValueError(
            f"t (state) must be the same in all parts; got {state['t']} and"
            f" {', '.join(map(str, times))}."
        )
    for name, noise in rows.noises.items():
        noise.load_state(state[name])
    estimates.load_state_dict(state)
    return int(state["t"])
