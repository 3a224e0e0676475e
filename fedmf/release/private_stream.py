"""The private stream: the only place where rows of a stream are admitted, summed and released.

`StreamServer` admits rows by user and order, clips and sums them, adds noise, and commits the
release. `PrivateRows` is the part without a ledger, which `MomentStream` uses too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from fedmf.clipping.clipped_rows import clip_to_fixed_point
from fedmf.clipping.row_features import integer_features
from fedmf.ledger.ledger import Ledger
from fedmf.ledger.packed import pack, unpack
from fedmf.ledger.released_integers import DIGESTS, ReleasedIntegers, records_of
from fedmf.matrices.arrays import Array
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
        keys: the key of each row of noise; a single key serves all of them.

    Attributes:
        noises: streams of noise by their names in a saved state.

    Guarantees:
        The two noises come from different domains of the key: no keystream block serves both.
        `add_noise` returns multiples of sums of integers with noise.

    Raises:
        ValueError: the noise of the plan is smaller than its noise multiplier needs.
    """

    def __init__(self, plan: RowPlan, keys: NoiseKey | KeySchedule) -> None:
        plan.check_noise()
        self.plan = plan
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
            rows: shape (rows, d), of any values: long rows are clipped, and a row with NaN or
                infinity counts as zeros.
            steps: number of releases, which have equally many rows.

        Returns:
            Integer sums of rows, shape (steps, d), and of second moments with noise of their own.

        Raises:
            ValueError: a release has more rows than its integers have room for.
        """
        rows_of_step = len(rows) // max(steps, 1)
        if len(rows) > MOST_ROWS * max(steps, 1):
            raise ValueError(f"m (rows of a step) must be at most {MOST_ROWS}; got {len(rows)}.")
        bits = self.plan.rounding.bits
        integers, _ = clip_to_fixed_point(rows.to("cpu"), self.plan.users.norm_bound, bits[0])
        sums = [integers.view(steps, rows_of_step, integers.shape[1]).sum(dim=1)]
        if len(self.plan.factorizations) > 1:
            sums.append(integer_features(integers, self.plan.second_moment, steps, *bits))
        return sums

    def clip_and_add_means(self, means: Iterable[Sequence[Tensor]]) -> tuple[list[Tensor], int]:
        """Clip means of users' rows to integers, each moment by itself, and sum them over users.

        Only under zero-out adjacency does the sensitivity hold for such moments.

        Args:
            means: blocks of users: the means of their rows, shape (users, d), and of their second
                moments, shape (users, size), of any values. Long ones are clipped, and one with NaN
                or infinity counts as zeros.

        Returns:
            Integer sums, shapes (1, d) and (1, size), and the larger number of means in one.
        """
        sums = [torch.zeros(1, size, dtype=torch.int64) for size in self.plan.sizes]
        count = 0
        for block in means:
            for i, part in enumerate(block):
                zeta = self.plan.users.norm_bound ** (i + 1)
                integers, _ = clip_to_fixed_point(part, zeta, self.plan.rounding.bits[i])
                sums[i] += integers.sum(dim=0)
            count += max(map(len, block))
        return sums, count

    def add_noise(self, sums: Sequence[Tensor]) -> list[Tensor]:
        """Add a row of noise to the sum of each step, in place, and only then make it numbers."""
        noisy = []
        for total, noise, unit in zip(sums, self.noises.values(), self.plan.units, strict=True):
            noise.release_rows(total)
            noisy.append(total.to(torch.float64).mul_(unit))
        return noisy


class Estimates(Protocol):
    """Post-processing of the noisy sums of a stream, which costs no privacy."""

    def extend(self, noisy: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the first and second moments of the next steps, a row for each."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state, a function of releases."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        ...


@dataclass(frozen=True)
class Admission:
    """The rows that take a step.

    Args:
        rows: their places.
        end: the first place that was not considered.
        beyond_k: number of other rows, of users who gave k rows before.
        within_b: number of other rows, less than b steps after a row of their user.
    """

    rows: list[int]
    end: int
    beyond_k: int
    within_b: int


class StreamServer:
    """Admits the rows of a stream, and releases and commits their sums with noise, each once.

    Args:
        plan: of the rows.
        guarantee: the (ε, δ) that the stream states to each user.
        estimates: post-processing of noisy sums.
        ledger: of the stream, open for writing; its (n, k, b) is that of rows.
        key: of the noise of the stream.
        records: number of releases in the ledger.
        with_vectors: whether commits hold past noise; if not, it is drawn again when a stream
            continues.
        released_integers: file of released integers, written after every commit; None for none.

    Attributes:
        keys: the key of each row of noise.
        step: number of rows that took a step, committed or not; of rounds that were committed.

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
        released_integers: ReleasedIntegers | None = None,
    ) -> None:
        guarantee.check(plan, ledger.participation)
        self.ledger = ledger
        self.keys = KeySchedule.of_record(key, ledger, records)
        self.step = ledger.released
        self._rows = PrivateRows(plan, self.keys)
        self._every = guarantee.release_every
        self._estimates = estimates
        self._with_vectors = with_vectors
        self._released_integers = released_integers
        self._records = records
        # Users of admitted rows whose steps are not committed, and how many of these are released.
        self._admitted: list[str | None] = []
        self._released = 0
        self._integers = list[Tensor]()  # of releases that are not committed

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
            last = _records_in(state)
        if self._released_integers is not None:
            digests = self.ledger.about.get(DIGESTS, {})
            self._released_integers.restore(self._records, last, digests)

    @property
    def waiting(self) -> int:
        """Number of admitted rows that are in no release yet; they end with this process."""
        return len(self._admitted) - self._released

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Take steps; after any error this process takes no more.

        Raises:
            LedgerError: a step failed, now or before. Open the stream again.
        """
        with self.ledger.guard.releasing(f"step {self.step + 1}"):
            yield

    def admit(self, users: Sequence[str | None], start: int, most: int) -> Admission:
        """Give the next steps to rows whose users are within (k, b), in their order.

        Admission depends on users and order alone, never on values.

        Args:
            users: user of each row; None for a row that is no user's.
            start: the first row to consider.
            most: largest number of rows to admit; fewer if the horizon has fewer steps left.
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
        """Release admitted rows: clip and sum them, and add noise.

        Args:
            rows: the next of the admitted rows, shape (rows, d); they are clipped.
            steps: number of releases; each has R rows, and the last of the stream the rest.

        Returns:
            First and second moments, a row a release. They must not leave before they are
            committed.

        Raises:
            ValueError: more rows than were admitted, or another number than releases have.
        """
        self._check_rows(len(rows), steps)
        self.keys.ensure_opened(self.ledger)
        sums = self._rows.clip_and_add(rows, steps)
        noisy = self._rows.add_noise(sums)
        if self._released_integers is not None:
            self._integers.append(torch.cat(sums, dim=1))
        self._released += len(rows)
        return self._estimates.extend(noisy)

    def release_means(
        self,
        users: Sequence[str] | None,
        means: Iterable[Sequence[Tensor]],
        about: Mapping[str, Any],
    ) -> Array:
        """Release and commit the next round of a stream whose ledger has rounds of many users.

        Args:
            users: of the round, each once; None if every row is of another user.
            means: of the rows of each user, as `PrivateRows.clip_and_add_means` takes them.
            about: facts about the round, JSON-able.

        Returns:
            The first and the packed second moment, which are durable.

        Raises:
            ParticipationViolation, HorizonExceededError, LedgerError: as `Ledger.commit_round`.
            ValueError: more means than users, or a plan for another adjacency than zero-out.
        """
        listed = users or ()
        self.ledger.check_round(self.step, listed)
        if self._rows.plan.users.adjacency != "zero-out":
            raise ValueError("adjacency (of a stream of means) must be zero-out.")
        self.keys.ensure_opened(self.ledger)
        sums, count = self._rows.clip_and_add_means(means)
        if users is not None and count > len(users):
            raise ValueError(f"means must be at most {len(users)}, one a user; got {count}.")
        noisy = self._rows.add_noise(sums)
        if self._released_integers is not None:
            self._integers.append(torch.cat(sums, dim=1))
        numbers = torch.cat(self._estimates.extend(noisy), dim=1)[0].numpy()
        state = self._state()
        content = numbers.astype("<f8").tobytes()
        about = {**about, **self._digests(state)}
        self.ledger.commit_round(self.step, listed, pack(state), about, content)
        self.step += 1
        self._finish(state)
        return numbers

    def _check_rows(self, count: int, steps: int) -> None:
        """Reject a number of rows for which the contract of releases does not hold."""
        if count > self.waiting:
            raise ValueError(
                f"rows (of a release) must be admitted; got {count} of {self.waiting}."
            )
        rows_left = self.ledger.participation.rounds - self.ledger.released - self._released
        is_last = steps == 1 and count == rows_left and count < self._every
        if count != steps * self._every and not is_last:
            raise ValueError(
                f"rows (of {steps} releases) must be {self._every} each, as planned; got {count}."
            )

    def commit(
        self, about: Mapping[str, Any], content: bytes, records: int, pushes: bytes = b""
    ) -> None:
        """Make releases final, with the users of their rows.

        Args:
            about: facts about the block, JSON-able.
            content: the releases; empty for none.
            records: number of releases after it.
            pushes: digests of the rows that were pushed.

        Raises:
            LedgerError: this process takes a step and recorded no opening; or the disk failed, now
                or before. Opening the state again tells whether the block is final.
        """
        users = self._admitted[: self._released]
        state = self._state()
        about = {**about, **self._digests(state)}
        self.ledger.commit_steps(users, about, content, records, pack(state), pushes)
        del self._admitted[: self._released]
        self._released = 0
        self._finish(state)

    def _state(self) -> dict[str, Any]:
        """The state after the releases that are not committed, with their integers."""
        state = state_of(self._rows, self._estimates, self._with_vectors)
        if self._integers:
            state["released"] = torch.cat(self._integers)
        return state

    def _digests(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the digests of the files of released integers, for a commit of this state."""
        if self._released_integers is None:
            return {}
        return {DIGESTS: self._released_integers.digests(_records_in(state))}

    def _finish(self, state: Mapping[str, Any]) -> None:
        """Write the integers of the releases that were committed."""
        self._integers = []
        if self._released_integers is not None and "released" in state:
            self._released_integers.append(_records_in(state))


def _records_in(state: Mapping[str, Any]) -> bytes:
    """Return the released integers that a state makes final, as `ReleasedIntegers` takes them."""
    if "released" not in state:
        return b""
    return records_of([state["released"]])


def state_of(rows: PrivateRows, estimates: Estimates, with_vectors: bool = False) -> dict[str, Any]:
    """Return the step, the state of the estimates and the positions of the noise; never the key.

    Args:
        rows: with the noise.
        estimates: post-processing of its noisy sums.
        with_vectors: include the vectors of the noise, so that continuing needs no replay. They are
            past noise, to be kept as secret as the key.
    """
    noises = dict[str, dict[str, Any]]()
    for name, noise in rows.noises.items():
        noises[name] = noise.state_dict(with_vectors=with_vectors)
    return {"t": noises[_NAMES[0]]["t"], **estimates.state_dict(), **noises}


def restore_state(rows: PrivateRows, estimates: Estimates, state: Mapping[str, Any]) -> int:
    """Continue from a saved state: the noise continues with its next row.

    Returns:
        t, the number of steps before the state.

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
