"""Files of frames: what did not arrive is left out, what was damaged is refused, whatever the place."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedmf.records.frames import Damaged, Field, FrameWriter, State, read_frames, read_state

#: Long and short pieces, among them one of zeros and one of a single set bit.
STATES = (
    State.of([b"small"]),
    None,
    State.of([bytes(3000), b"\1" + bytes(510), b"", np.arange(700).tobytes()]),
)
FIELDS: tuple[tuple[Field, ...], ...] = (
    ("round", 0, b"\0\1", ""),
    ("metrics", 1, "ä" * 400, b""),
    ("round", -3),
)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    writer = FrameWriter(tmp_path / "frames", 0o600)
    for fields, state in zip(FIELDS, STATES, strict=True):
        writer.append(fields, state)
    writer.close()
    return tmp_path / "frames"


def ends(path: Path) -> list[int]:
    return [frame.end for frame in read_frames(path)]


def test_frames_are_read_back(whole: Path) -> None:
    frames = read_frames(whole)
    assert [frame.fields for frame in frames] == list(FIELDS)
    for frame, state in zip(frames, STATES, strict=True):
        assert frame.digest == (b"" if state is None else state.digest)
        if state is not None:
            assert read_state(whole, frame) == [bytes(piece) for piece in state.pieces]
    assert whole.stat().st_size == frames[-1].end
    assert whole.stat().st_size % 512 == 0


def test_a_state_larger_than_the_buffer(tmp_path: Path) -> None:
    writer = FrameWriter(tmp_path / "f", 0o600)
    for size in (2048 * 511 - 1, 2048 * 511, 2048 * 511 + 1, 5_000_001):
        state = State.of([os.urandom(size), os.urandom(100)])
        writer.append(("x",), state)
        assert read_state(tmp_path / "f", read_frames(tmp_path / "f")[-1]) == [*map(bytes, state.pieces)]


def lacking(content: bytes, begin: int) -> Iterator[tuple[bytes, bool]]:
    """Each sector of the last frame missing alone, each beginning, random subsets; is anything missing?"""
    count = (len(content) - begin) // 512
    draw = random.Random(1)
    subsets = [{i} for i in range(count)] + [set(range(i, count)) for i in range(count)]
    subsets += [{i for i in range(count) if draw.random() < 0.5} for _ in range(50)]
    for missing in subsets:
        changed = bytearray(content)
        for i in missing:
            changed[begin + 512 * i : begin + 512 * (i + 1)] = bytes(512)
        while missing and max(missing) == len(changed[begin:]) // 512 - 1:  # or lies beyond the end
            missing = missing - {max(missing)}
            if draw.random() < 0.5:
                break
            del changed[-512:]
        yield bytes(changed), bytes(changed) != content


def test_an_end_that_did_not_arrive_is_left_out(whole: Path) -> None:
    content, before = whole.read_bytes(), ends(whole)
    for changed, missing in lacking(content, before[1]):
        whole.write_bytes(changed)
        assert ends(whole) == before[: 2 if missing else 3]


def test_every_flipped_bit_of_the_last_frame_is_refused(whole: Path) -> None:
    """Nothing of it may change without a word, nor make it look unfinished."""
    content = whole.read_bytes()
    for place in range(ends(whole)[1], len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        whole.write_bytes(changed)
        with pytest.raises(Damaged):
            read_frames(whole)


def test_a_sector_lost_before_the_last_frame_is_damage(whole: Path) -> None:
    content = bytearray(whole.read_bytes())
    content[: ends(whole)[0]] = bytes(ends(whole)[0])
    whole.write_bytes(content)
    with pytest.raises(Damaged, match="is lost"):
        read_frames(whole)


@pytest.mark.parametrize("size", [0, 1, 511])
def test_less_than_a_sector_is_nothing(tmp_path: Path, size: int) -> None:
    (tmp_path / "f").write_bytes(b"x" * size)
    assert read_frames(tmp_path / "f") == []


def test_what_is_read_is_on_the_disk(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer may have died between writing and flushing."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    assert len(read_frames(whole)) == 3
    assert len(synced) == 1
