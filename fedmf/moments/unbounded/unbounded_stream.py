"""Moments of a stream without an end, released one step after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch

from fedmf.moments.moment_stream import MomentBlock, MomentStream
from fedmf.moments.running import RunningWorkload
from fedmf.moments.second_moment import SecondMoment
from fedmf.moments.unbounded.segments import SegmentMechanisms, Segments
from fedmf.noise import KeySchedule, NoiseKey
from fedmf.workload import window


@final
class UnboundedStream:
    """Rows made private segment by segment, and one running workload over all of them.

    Args:
        segments: the cut of time.
        mechanisms: of the segments.
        second_moment: which one.
        running: of both moments; a workload applied to the private rows without an end.
        averaged: of both moments: whether its sums are divided by t.
        key: of the stream; each segment has sub-keys of its own.

    Guarantees:
        As `MomentStream`; the bits of a step do not depend on which rows came together.
        Memory: that of the workloads and of one segment's noise.
    """

    def __init__(
        self,
        segments: Segments,
        mechanisms: SegmentMechanisms,
        second_moment: SecondMoment,
        running: tuple[RunningWorkload, RunningWorkload],
        averaged: tuple[bool, bool],
        key: NoiseKey | KeySchedule,
    ) -> None:
        self._segments, self._mechanisms, self._second_moment = segments, mechanisms, second_moment
        self._running, self._averaged, self._keys = running, averaged, KeySchedule.of(key)
        self._t, self._whole = 0, True
        self._current: tuple[int, MomentStream] | None = None
        #: Of the segment that was under way when a state was saved; taken up once keys are open.
        self._saved: Mapping[str, Any] | None = None

    @property
    def t(self) -> int:
        """Steps released so far."""
        return self._t

    def extend(self, x: torch.Tensor) -> MomentBlock:
        """Take in one row a step.

        Args:
            x: shape (steps, d); ‖row‖ ≤ ζ, finite.

        Raises:
            ValueError: a row is unfit; then nothing more is released until a saved state is loaded.
        """
        if not self._whole:
            raise RuntimeError("t (step) must follow a finished step. Load a saved state.")
        start, self._whole = self._t, False
        d, size = self._second_moment.dimension, self._second_moment.size
        first, second = torch.empty(len(x), d).double(), torch.empty(len(x), size).double()
        while (done := self._t - start) < len(x):
            segment = self._segments.of_step(self._t)
            stop = min(len(x), self._segments.start(segment + 1) - start)
            private = self._stream(segment).extend(x[done:stop])
            steps = torch.arange(self._t + 1, start + stop + 1, dtype=torch.float64)[:, None]
            for out, rows, running, averaged in zip(
                (first, second), (private.first, private.second), self._running, self._averaged, strict=True
            ):
                sums = running.extend(rows)
                out[done:stop] = sums / steps if averaged else sums
            self._t = start + stop
        self._whole = True
        return MomentBlock(start + 1, first, second)

    def _stream(self, segment: int) -> MomentStream:
        """Private rows of a segment, as far as the stream is."""
        if self._current is None and self._saved is not None:
            self._current = self._saved["segment"], self._restored(self._saved)
        if self._current is None or self._current[0] != segment:
            stream, memory = self._fresh(segment), self._segments.memory(segment)
            if self._current is not None and memory:
                stream.load_state_dict(_carried(self._current[1], stream, memory, self._part(segment)))
            self._current = segment, stream
        return self._current[1]

    def _fresh(self, segment: int) -> MomentStream:
        rounds = self._segments.rounds(segment)
        keys = self._part(segment)
        return MomentStream(self._mechanisms.of(segment), self._second_moment, window(1, rounds), key=keys)

    def _part(self, segment: int) -> KeySchedule:
        """The keys of a segment's rows, which are counted from the first that its noise goes back to."""
        first = self._segments.start(segment) - self._segments.memory(segment)
        return self._keys.part(f"segment {segment}", first)

    def _restored(self, state: Mapping[str, Any]) -> MomentStream:
        stream = self._fresh(state["segment"])
        stream.load_state_dict(state["rows"])
        return stream

    def state_dict(self, *, kept_vectors: bool = False) -> dict[str, Any]:
        """As `MomentStream.state_dict`, with the vectors kept where segments go on from them."""
        first, second = self._running
        segment: dict[str, Any] = {}
        if self._current is not None:
            number, stream = self._current
            kept = kept_vectors or self._segments.memory(number + 1) > 0
            segment = {"segment": number, "rows": stream.state_dict(kept_vectors=kept)}
        elif self._saved is not None:
            segment = {name: self._saved[name] for name in ("segment", "rows")}
        sums = {"first": first.state_dict(), "second": second.state_dict()}
        return {"t": self._t, **sums, "mechanisms": self._mechanisms.added(), **segment}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state.

        Raises:
            ValueError: the state is of another stream, or of noise from another key.
        """
        self._mechanisms.load(state["mechanisms"])
        if state["t"]:
            memory, start = (of(state["segment"]) for of in (self._segments.memory, self._segments.start))
            if state["rows"]["t"] != state["t"] - start + memory:
                raise ValueError(f"t (state) must be the same in all parts; got {state['t']} and another.")
            self._restored(state)
        for running, name in zip(self._running, ("first", "second"), strict=True):
            if state[name]["t"] != state["t"]:
                raise ValueError(f"t (state) must be the same in all parts; got {state['t']} and another.")
            running.load_state_dict(state[name])
        self._current, self._saved = None, state if state["t"] else None
        self._t, self._whole = int(state["t"]), True


def _carried(before: MomentStream, after: MomentStream, memory: int, keys: KeySchedule) -> dict[str, Any]:
    """The state of a segment whose noise goes on from the last rows of the one before."""
    past, state = before.state_dict(kept_vectors=True), after.state_dict()
    for name, entry in state.items():
        if name.endswith("_noise"):
            kept = {part: past[name][part] for part in ("kept", "start", "stop") if part in past[name]}
            state[name] = {**entry, **kept, "t": memory, "eras": keys.digest(memory)}
        elif isinstance(entry, dict):
            state[name] = {**entry, "t": memory}
    return {**state, "t": memory}
