"""G1, G4, G5, G8, G9 and G10 at a silo, whatever its server does: what leaves is one private run.

The server of these tests sees nothing but the wire. Integers are compared with a
`PrivateAggregator` and with exact clipping; the silo opens its directory anew for each answer.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import MessageType
from numpy.typing import NDArray
from support.silos import (
    CLIP,
    PEOPLE,
    ROUNDS,
    TRAINING,
    Asking,
    rows,
    silo_file,
    small_silo,
    start,
)

import fedmf
from fedmf.clipping.clipped_sum import ClippedSum
from fedmf.errors import HorizonExceededError
from fedmf.flower import Silo
from fedmf.flower.silo import REFUSAL
from fedmf.ledger.ledger import Ledger
from fedmf.noise.key import NoiseKey
from fedmf.noise.noise_stream import NoiseStream
from fedmf.runs.run_statement import account, costs_of_run
from fedmf.statements.composition import compose
from guarantees import test_g4_once as once
from guarantees.small import bisr, covariance_fits
from guarantees.system_calls import SUPPORTED

DIMENSION = 4_000


def sums(silo: Silo, dimension: int, rounds: int = ROUNDS, first: int = 0) -> NDArray[np.float64]:
    """What a silo sends for rounds of a server that counts as it likes, as numbers."""
    sent = list[NDArray[np.float64]]()
    for t in range(first, rounds):
        answer = silo.answer(TRAINING, 1000 - 7 * t, start(dimension))
        sent.append(answer.integers.astype(np.float64) * (CLIP * 2.0**-answer.bits))
    return np.stack(sent)


def exact_sums(directory: Path, dimension: int) -> NDArray[np.float64]:
    """The sums of clipped updates by the silo's record of who took part."""
    x = rows(dimension)
    total = np.zeros((ROUNDS, dimension))
    with Ledger.open(directory / "ledger.sqlite", read_only=True) as ledger:
        names = ledger.histories.names
        for t, user in zip(*ledger.participations(), strict=True):
            update = x[names[user]].astype(np.float64)
            total[t] += update * min(1.0, CLIP / np.linalg.norm(update))
    return total


def stated(directory: Path) -> tuple[NDArray[np.float64], float]:
    """C, and the standard deviation of what is streamed through C⁻¹, by the statement alone."""
    said = account(directory).to_dict()
    std = said["clip_norm"] * said["noise_multiplier"] * said["sensitivity"]
    return bisr(said["rounds"], said["params"]["bands"]), std


def check_covariance(folder: Path) -> None:
    silo = small_silo(silo_file(folder), DIMENSION)
    sent = sums(silo, DIMENSION)
    noise = sent - exact_sums(silo.directory, DIMENSION)
    assert covariance_fits(noise, *stated(silo.directory))


def test_what_is_sent_has_the_stated_covariance(tmp_path: Path) -> None:
    check_covariance(tmp_path)


def test_a_wrong_sigma_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = NoiseStream.__init__

    def wrong(self, keys, domain, inverse, rounds, dimension, std):
        right(self, keys, domain, inverse, rounds, dimension, 1.1 * std)

    monkeypatch.setattr(NoiseStream, "__init__", wrong)
    with pytest.raises(AssertionError):
        check_covariance(tmp_path)


def test_answers_are_those_of_one_uninterrupted_run(tmp_path: Path) -> None:
    """G8: an aggregator of the same seed, open all the time, releases the same integers."""
    silo = small_silo(silo_file(tmp_path), 50)
    sent = [silo.answer(TRAINING, t, start(50)).integers for t in range(ROUNDS)]
    aggregator = fedmf.PrivateAggregator(
        fedmf.UserLevel(epsilon=8.0, delta=1e-5, clip_norm=CLIP, noise_seed=7),
        fedmf.CyclicCohorts(rounds=ROUNDS, users_per_round=4),
        users=PEOPLE,
        run_dir=tmp_path / "aggregator",
        mechanism="bisr",
    )
    previous = np.zeros(50)
    with aggregator.begin(start(50)) as opened:
        for t in range(ROUNDS):
            for user in opened.cohort(t):
                opened.add(user, {"w": rows(50)[user]})
            model = opened.release()["w"].astype(np.float64)
            mean = sent[t] * (CLIP * 2.0**-31) / 4
            assert np.abs(model - previous - mean).max() < 1e-5  # models are float32
            previous = model


def answers(place: Path, say: int) -> tuple[dict[int, bytes], int]:
    """A job of G4: three rounds, each asked from the first on, as a server that lost everything."""
    place.mkdir(exist_ok=True)
    found = 0
    if (place / "silo" / "ledger.sqlite").exists():
        with Ledger.open(place / "silo" / "ledger.sqlite", read_only=True) as ledger:
            found = ledger.released
    silo = small_silo(silo_file(place, once.ROUNDS), once.DIMENSION)
    shown = dict[int, bytes]()
    for t in range(1, once.ROUNDS + 1):
        shown[t] = silo.answer(TRAINING, t, start(once.DIMENSION)).integers.tobytes()
        once.tell(say, t, shown[t])
    return shown, found


@pytest.mark.skipif(not SUPPORTED, reason="system calls are traced on Linux and x86-64 alone")
def test_a_kill_before_calls_around_the_send_repeats_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(once.STRIDE, "SIGKILL", 41)
    assert once.check_faults(answers, tmp_path, "SIGKILL") > 1


@pytest.mark.weekly
@pytest.mark.skipif(not SUPPORTED, reason="system calls are traced on Linux and x86-64 alone")
def test_a_kill_before_any_call_repeats_bytes(tmp_path: Path) -> None:
    assert once.check_kills(answers, tmp_path) > 100


@pytest.mark.weekly
@pytest.mark.skipif(not SUPPORTED, reason="system calls are traced on Linux and x86-64 alone")
@pytest.mark.parametrize("fault", ["ENOSPC", "EIO"])
def test_a_fault_before_a_call_repeats_bytes(fault: str, tmp_path: Path) -> None:
    assert once.check_faults(answers, tmp_path, fault) > 6


def check_copies(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two copies on two machines: their noise is independent, and both send what was sent."""
    copied = 3
    silo = small_silo(silo_file(folder, privacy=""), DIMENSION)
    before = sums(silo, DIMENSION, copied)
    parts = list[NDArray[np.float64]]()
    for machine in "ab":
        place = folder / machine
        place.mkdir()
        shutil.copytree(silo.directory, place / "silo")
        monkeypatch.setenv("XDG_STATE_HOME", str(place / "state"))
        copy = small_silo(silo_file(place, privacy=""), DIMENSION)
        assert np.array_equal(sums(copy, DIMENSION, copied), before)
        parts.append(sums(copy, DIMENSION, first=copied))
    C, std = stated(folder / "a" / "silo")
    assert covariance_fits(parts[0] - parts[1], C[copied:, copied:], math.sqrt(2) * std)


def test_copies_add_independent_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_copies(tmp_path, monkeypatch)


def test_a_reused_sub_key_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opening = NoiseKey.opening
    monkeypatch.setattr(NoiseKey, "opening", lambda self, _: opening(self, bytes(32)))
    with pytest.raises(AssertionError):
        check_copies(tmp_path, monkeypatch)


def test_an_older_copy_is_refused(tmp_path: Path) -> None:
    silo = small_silo(silo_file(tmp_path, privacy=""), 5)
    silo.answer(TRAINING, 1, start(5))
    shutil.copytree(silo.directory, tmp_path / "older")
    silo.answer(TRAINING, 2, start(5))
    shutil.rmtree(silo.directory)
    (tmp_path / "older").rename(silo.directory)
    with pytest.raises(ValueError, match="older copy"):
        silo.answer(TRAINING, 2, start(5))


#: The integers of an answer, or the text of an error.
Heard = NDArray[np.int64] | str
#: Rounds of a hostile server: it skips, reorders, lies, and asks again and again.
LABELS = (5, 5, -3, 2**62, 5, 1, 2, 3, 4, 2, 6, 7, 8, 9)


def hostile(asking: Asking, dimension: int) -> tuple[list[Heard], list[Heard]]:
    """Everything that a server may try, the same in each world, while releases are left.

    Returns:
        What is heard of requests that no silo may answer, and of `LABELS`.
    """
    model = start(dimension)
    other = {**model, "w": model["w"] + 1}
    answered = [asking.ask(label, model) for label in LABELS[:2]]
    refused = list[Heard]()
    changes: dict[str, Any]
    for changes in (
        {"training": "another"},
        {"training": None},
        {"clip_norm": 100.0},
        {"clip_norm": None},
    ):
        refused.append(asking.ask(20, model, **changes))
    for wrong in (
        {**model, "w": np.zeros(dimension + 1, np.float32)},
        {**model, "w": np.zeros(dimension)},
        {**model, "w": np.full(dimension, np.nan, np.float32)},
        {**model, "w": np.full(dimension, np.inf, np.float32)},
        {**model, "more": np.zeros(2)},
        {"w": model["w"]},
        {},
    ):
        refused.append(asking.ask(21, wrong))
    refused += [asking.ask(5, other), asking.ask("5", model), asking.ask(None, model)]
    refused += [asking.ask(23, model, kind) for kind in (MessageType.EVALUATE, MessageType.QUERY)]
    answered += [asking.ask(label, model) for label in LABELS[2:]]
    return refused, answered


#: What a hostile run config says.
RUN_CONFIG = {
    "privacy.noise-seed": 1,
    "privacy.epsilon": 1e6,
    "privacy.clip-norm": 1e6,
    "silo": "/etc/passwd",
    "execution.output-dir": "/tmp/elsewhere",
}


def test_a_hostile_server_gets_one_private_run(tmp_path: Path) -> None:
    file = silo_file(tmp_path, privacy="")
    asking = Asking(lambda _: small_silo(file, 6), RUN_CONFIG)
    refused, answered = hostile(asking, 6)
    assert all(isinstance(text, str) for text in refused)
    assert refused[:-2] == [REFUSAL] * (len(refused) - 2)  # the last are Flower's: no function
    by_label = dict[int, NDArray[np.int64]]()
    for label, sent in zip(LABELS, answered, strict=True):
        if len(by_label) == ROUNDS and label not in by_label:
            assert sent == REFUSAL
        else:
            assert isinstance(sent, np.ndarray)
            assert np.array_equal(by_label.setdefault(label, sent), sent)
    assert len(by_label) == ROUNDS
    said = account(tmp_path / "silo").to_dict()
    assert said["rounds_released"] == ROUNDS
    assert said["actual_max_participations"] <= said["max_participations"] == 3
    assert said["actual_min_separation"] >= said["min_separation"] == 3
    assert said["epsilon"] <= 8.0
    assert not said["noise_key_public"]
    assert "server and other silos" in said["trust"]


def test_no_answer_tells_how_many_people_are_in_it(tmp_path: Path) -> None:
    """Each cohort is drawn at random, and so is its size."""
    silo = small_silo(silo_file(tmp_path, cohorts='kind = "cyclic-poisson"'), 6)
    answers = [silo.answer(TRAINING, t, start(6)) for t in range(ROUNDS)]
    with Ledger.open(silo.directory / "ledger.sqlite", read_only=True) as ledger:
        rounds, _ = ledger.participations()
    assert len(set(np.bincount(rounds, minlength=ROUNDS))) > 1
    assert {each.users_per_round for each in answers} == {4}
    assert len({(each.bits, each.integers.shape) for each in answers}) == 1


#: What the data of one person may make of training.
BROKEN = {
    "other": lambda: {"w": np.full(6, 0.1, np.float32)},
    "NaN": lambda: {"w": np.full(6, np.nan, np.float32)},
    "huge": lambda: {"w": np.full(6, 3e38, np.float32)},
    "shape": lambda: {"w": np.zeros((7, 1000), np.float32)},
    "nothing": dict,
    "text": lambda: {"w": "secret"},
    "exit": lambda: exit(3),
    "error": lambda: 1 / 0,
}


def clipped(update: object) -> NDArray[np.int64]:
    """The integers of one person's update by the one clip; zero for what is no update."""
    total = ClippedSum(6, CLIP)
    array = np.asarray(update)
    if array.dtype.kind == "f" and array.shape == (6,):
        total.add_updates(torch.from_numpy(array)[None])
    return total.fixed_point.numpy()


def in_world(folder: Path, update: Any) -> list[dict[str, Any]]:
    """All that crosses the wire if the update of one person is this; noise is public and equal."""
    folder.mkdir()
    file = silo_file(folder)
    given = rows(6)

    def train(user: str, model: Mapping[str, Any]) -> Any:
        model["w"][:] = 1.0  # what a person does to its copy of the model is nobody else's
        return update() if user == PEOPLE[4] else {"w": given[user]}

    asking = Asking(lambda _: small_silo(file, 6, train), RUN_CONFIG)
    hostile(asking, 6)
    return [wire(reply) for reply in asking.replies]


def wire(reply: Any) -> dict[str, Any]:
    """The content of a message, and all of its metadata but ids and times."""
    said = {
        name: getattr(reply.metadata, name)
        for name in ("run_id", "src_node_id", "dst_node_id", "group_id", "message_type")
    }
    if reply.has_error():
        return {**said, "error": (reply.error.code, reply.error.reason)}
    records = {}
    for name, record in reply.content.items():
        for key, value in record.items():
            records[name, key] = value
    return {**said, **records}


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The world in which everybody's data are fine."""
    folder = tmp_path_factory.mktemp("worlds") / "usual"
    return in_world(folder, lambda: {"w": rows(6)[PEOPLE[4]]})


@pytest.mark.parametrize("kind", BROKEN)
def test_one_person_changes_that_persons_integers_alone(
    kind: str, usual: list[dict[str, Any]], tmp_path: Path
) -> None:
    """G9 and G10: two worlds differ in a person; the wire differs by that person's integers."""
    broken = in_world(tmp_path / "broken", BROKEN[kind])
    difference = -clipped(rows(6)[PEOPLE[4]])
    if kind in ("other", "huge"):
        difference = difference + clipped(BROKEN[kind]()["w"])  # type: ignore[index]
    changed = 0
    keys = {("arrays", "sum"), ("config", "bits"), ("config", "users-per-round")}
    for one, other in zip(usual, broken, strict=True):
        assert one.keys() == other.keys()
        assert keys <= one.keys() or "error" in one
        for name, value in one.items():
            if name != ("arrays", "sum"):
                assert other[name] == value
                continue
            assert len(other[name].data) == len(value.data)
            moved = other[name].numpy() - value.numpy()
            assert not moved.any() or np.array_equal(moved, difference)
            changed += int(moved.any())
    assert changed >= 2


def test_the_squares_of_mu_add_for_a_person_in_two_silos(tmp_path: Path) -> None:
    places = list[Path]()
    for name in "ab":
        (tmp_path / name).mkdir()
        silo = small_silo(silo_file(tmp_path / name, rounds=3, privacy=""), 5)
        sums(silo, 5, rounds=3)
        places.append(silo.directory)
    one = account(places[0]).to_dict()
    both = compose([costs_of_run(place) for place in places])
    assert both["mu"] == pytest.approx(math.sqrt(2) * one["mu"], rel=1e-9)
    assert both["users_in_several"] == len(PEOPLE)


def test_releases_end_at_the_horizon(tmp_path: Path) -> None:
    silo = small_silo(silo_file(tmp_path), 5)
    last = sums(silo, 5)
    with pytest.raises(HorizonExceededError, match="all 8 releases of the silo are spent"):
        silo.answer(TRAINING, 0, start(5))
    assert np.array_equal(sums(silo, 5), last)
    assert (silo.directory / "statement.json").is_file()
