"""`PrivateAggregator`: the mechanism without a host gives what it gives around a Flower
strategy.
"""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray
from support.child_processes import in_child
from support.mean_norms import MeanNorm
from support.wrapped_apps import (
    CLIP,
    COHORT,
    PRIVACY,
    ROUNDS,
    SEED,
    SHAPES,
    USERS,
    adding,
    model,
    private,
    update_of,
)

import fedmf
from fedmf.cohorts import BallsInBinsCohorts
from fedmf.errors import ConfigError, HorizonExceededError, LedgerError
from fedmf.flower import InProcessGrid
from fedmf.optim import Adam, JmeAdam, Sgd
from fedmf.runs.statistics import QuantileClipping

EXAMPLE = Path(__file__).parents[2] / "docs/examples/aggregator.py"
IDS = [f"user-{user:02d}" for user in range(USERS)]
START = {name: array.numpy() for name, array in model().items()}


def named(update: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """A vector as arrays of the model's shapes."""
    ends = np.cumsum([int(np.prod(shape)) for shape in SHAPES.values()])[:-1]
    return {
        name: part.reshape(SHAPES[name])
        for name, part in zip(SHAPES, np.split(update, ends), strict=True)
    }


def received(user: int, current: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """What a client of `adding` changes, in float32: it sends a model, and a server takes the
    difference.
    """
    sent = {
        name: (current[name] + part).astype(np.float32)
        for name, part in named(update_of(user)).items()
    }
    return {name: array - current[name] for name, array in sent.items()}


def aggregator(place: Path, **keys: Any) -> fedmf.PrivateAggregator:
    privacy = {"epsilon": 8.0, "delta": 1e-5, "clip_norm": CLIP, "noise_seed": SEED}
    privacy |= {name: keys.pop(name) for name in PRIVACY & keys.keys()}
    asked: dict[str, Any] = {
        "cohorts": fedmf.CyclicCohorts(rounds=ROUNDS, users_per_round=COHORT),
        "users": IDS,
        "mechanism": "bisr",
        "run_dir": place,
        **keys,
    }
    return fedmf.PrivateAggregator(fedmf.UserLevel(**privacy), **asked)


def carried_on(opened: fedmf.PrivateAggregator, rounds: int = ROUNDS) -> dict[str, NDArray[Any]]:
    for t in range(opened.t, rounds):
        current = opened.model
        for user in opened.cohort(t):
            assert opened.add(user, received(IDS.index(user), current)) is None
        opened.release()
    return opened.model


OPTIONS: dict[str, dict[str, Any]] = {
    "steps along the mean": {"server_optimizer": Sgd(learning_rate=1.0, momentum=0.0)},
    "Adam": {"server_optimizer": Adam(learning_rate=0.05)},
    "a second moment": {"server_optimizer": JmeAdam(learning_rate=0.05)},
    "a moving clip norm, another statistic": {
        "server_optimizer": Sgd(),
        "clipping": QuantileClipping(rounds_per_update=1),
        "extra_releases": [MeanNorm(budget_share=0.1)],
    },
    "sampled cohorts": {
        "server_optimizer": Sgd(),
        "cohorts": BallsInBinsCohorts(rounds=ROUNDS, users_per_round=COHORT, min_separation=3),
        "amplified": True,
    },
}


@pytest.mark.usefixtures("mean_norms")
@pytest.mark.parametrize("name", OPTIONS)
def test_models_are_those_of_the_wrapper_bit_for_bit(name: str, tmp_path: Path) -> None:
    options = OPTIONS[name]
    strategy = private(FedAvg(), tmp_path / "app", **options)
    grid = InProcessGrid(adding(lambda user, _: update_of(user)), nodes=USERS)
    theirs = strategy.start(grid=grid, initial_arrays=model(), num_rounds=ROUNDS).arrays
    strategy.close()
    with aggregator(tmp_path / "run", **options).begin(START) as opened:
        mine = carried_on(opened)
        said = opened.statement().to_dict()
    assert theirs is not None
    for key, array in theirs.items():
        np.testing.assert_array_equal(mine[key], array.numpy())
    other = fedmf.account(tmp_path / "app").to_dict()
    for key in ("noise_std", "sensitivity", "epsilon_spent", "users", "mechanism"):
        assert said[key] == other[key], key


def test_a_stopped_run_goes_on_in_the_middle_of_a_round(tmp_path: Path) -> None:
    with aggregator(tmp_path / "whole").begin(START) as opened:
        whole = carried_on(opened)
    with aggregator(tmp_path / "run").begin(START) as opened:
        carried_on(opened, 3)
        opened.add(opened.cohort(3)[0], named(np.ones(21)))  # of a round that is never released
    with aggregator(tmp_path / "run").begin(START) as opened:
        assert opened.t == 3
        resumed = carried_on(opened)
        with pytest.raises(HorizonExceededError):
            opened.release()
        with pytest.raises(ConfigError, match=f"t must be below the number of rounds, {ROUNDS}"):
            opened.cohort(ROUNDS)
    assert all(np.array_equal(whole[name], resumed[name]) for name in whole)
    with pytest.raises(ConfigError, match="holds another run"):
        aggregator(tmp_path / "run", epsilon=4.0).begin(START)


HOSTILE: dict[str, Any] = {
    "has no array 'head'": {
        name: np.zeros(shape) for name, shape in SHAPES.items() if name != "head"
    },
    "must be numbers of shape": {**named(np.zeros(21)), "head": np.zeros((5, 1))},
    "got <U1": {**named(np.zeros(21)), "head": np.array(list("abcde"))},
    "got object": {**named(np.zeros(21)), "head": np.array([None] * 5)},
    "got complex": {**named(np.zeros(21)), "head": np.zeros(5, complex)},
    "NaN or infinity": {**named(np.zeros(21)), "head": np.array([0, 0, np.nan, 0, 0])},
    "not iterable": None,
}


def test_an_update_that_is_wrong_in_any_way_is_zero_for_its_user_alone(tmp_path: Path) -> None:
    zero = named(np.zeros(21))
    for reason, update in HOSTILE.items():
        released = []
        for what in (update, zero):
            place = tmp_path / f"{len(list(tmp_path.iterdir()))}"
            with aggregator(place).begin(START) as opened:
                first, *others = opened.cohort(0)
                told = opened.add(first, what)
                assert (told is None) == (what is zero)
                assert what is zero or reason in str(told)
                for user in others:
                    opened.add(user, named(update_of(IDS.index(user))))
                released.append(opened.release())
            failures = (
                (place / "failures.jsonl").read_text()
                if (place / "failures.jsonl").exists()
                else ""
            )
            assert (first in failures) == (what is not zero)
        assert all(np.array_equal(released[0][name], released[1][name]) for name in SHAPES)


DEVICES = fedmf.AvailableCohorts(5, users_per_round=2, max_participations=2, min_separation=2)


def test_cohorts_are_of_connected_users_whom_k_and_b_admit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A round without any is not released while others may take part, and is counted for nobody
    who was not added.
    """
    zero = named(np.zeros(21))
    with aggregator(tmp_path / "run", cohorts=DEVICES).begin(START) as opened:
        for call in (lambda: opened.cohort(0), opened.release, lambda: opened.add(IDS[0], zero)):
            with pytest.raises(ConfigError, match=r"^connected \(of cohort\) must be .*; got None"):
                call()
        with pytest.raises(ConfigError, match="connected must hold ids among users; got 'eve'"):
            opened.cohort(0, ["eve"])
        assert opened.cohort(0, IDS[:1]) == IDS[:1]
        assert sorted(opened.cohort(0, IDS[:2])) == IDS[:2]
        opened.add(IDS[0], zero)
        assert sorted(opened.cohort(0, IDS[5:])) == IDS[:2]  # no longer drawn anew
        opened.release()
        assert opened.cohort(1, IDS[:1]) == []
        nobody = (
            "round 2: .* got 1 connected, 0 may take part now, 1 again .*, the first in round 3"
        )
        with pytest.raises(ConfigError, match=nobody):
            opened.release()
        assert opened.t == 1
        assert not caplog.records
        assert opened.cohort(1, IDS[1:2]) == IDS[1:2]  # absent in round 0, which does not count
        opened.release()
        assert caplog.messages == [
            "round 2: nobody contributed, and noise alone was released: of 12 users, 11 may take"
            " part now, 1 again in later rounds, the first in round 3."
        ]
    said = fedmf.account(tmp_path / "run").to_dict()
    assert (said["rounds_released"], said["users_participated"]) == (2, 1)
    with (
        aggregator(tmp_path / "other").begin(START) as opened,
        pytest.raises(ConfigError, match=r"be omitted with other cohorts; got \['user-00'\]"),
    ):
        opened.cohort(0, IDS[:1])


def test_rounds_for_which_nobody_is_left_are_released_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cohorts = fedmf.AvailableCohorts(3, users_per_round=2, max_participations=1, min_separation=1)
    with aggregator(tmp_path / "run", cohorts=cohorts, users=IDS[:2]).begin(START) as opened:
        for t in range(3):
            for user in opened.cohort(t, IDS[:2]):
                opened.add(user, named(np.zeros(21)))
            opened.release()
    assert [text.split(":")[0] for text in caplog.messages] == ["round 2", "round 3"]
    assert "of 2 users, 0 may take part now, 2 in no further round" in caplog.text


def interrupted() -> None:
    raise KeyboardInterrupt


def test_slips_of_programs_are_refused_and_add_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = aggregator(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"begin\(model\) must be called first"):
        run.cohort(0)
    for keys, message in (
        ({"users": "abc"}, "users must be a sequence of ids"),
        ({"users": ["a", "a"]}, "users must name each user once"),
        ({"users": [1, 2]}, "users must be a sequence of ids"),
        ({"mechanism": "nothing"}, "mechanism"),
    ):
        with pytest.raises(ConfigError, match=message):
            aggregator(tmp_path / "other", **keys)
    with run.begin(START) as opened:
        with pytest.raises(ConfigError, match="begin must be called only once"):
            opened.begin(START)
        with pytest.raises(ConfigError, match="t must be the next round, 0, of an open run; got 1"):
            opened.cohort(1)
        first = opened.cohort(0)[0]
        stranger = next(user for user in IDS if user not in opened.cohort(0))
        opened.add(first, named(update_of(0)))
        for user in (first, stranger, "nobody"):
            with pytest.raises(ConfigError, match=re.escape(f"not added yet; got {user!r}")):
                opened.add(user, named(update_of(0)))
        with pytest.raises(LedgerError, match="process"):
            aggregator(tmp_path / "run").begin(START)
        monkeypatch.setattr(opened._open.server, "new_sum", interrupted)
        with pytest.raises(KeyboardInterrupt):
            opened.release()
        for slip in (opened.release, lambda: opened.cohort(1)):  # the sum of a round is in no other
            with pytest.raises(ConfigError, match="t must be the next round, 1"):
                slip()
    said = fedmf.account(tmp_path / "run").to_dict()
    assert (said["rounds_released"], said["users_participated"]) == (1, 1)


WITHOUT_FLOWER = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("flwr", "ray"):
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Absent())
sys.argv = ["aggregator.py", sys.argv[1]]
exec(compile(open(%r).read(), "aggregator.py", "exec"), {"__name__": "__main__"})
print("modules of flwr:", sum(name.partition(".")[0] == "flwr" for name in sys.modules))
"""


def dying_in_round_seven(folder: Path) -> None:
    release = fedmf.PrivateAggregator.release

    def dying(self: fedmf.PrivateAggregator) -> dict[str, np.ndarray]:
        if self.t == 7:
            os._exit(9)
        return release(self)

    fedmf.PrivateAggregator.release = dying  # type: ignore[method-assign]
    sys.argv = ["aggregator.py", str(folder)]
    runpy.run_path(str(EXAMPLE), run_name="__main__")


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_the_example_runs_where_flower_is_not_installed(tmp_path: Path) -> None:
    """Killed in a round, it goes on; by callbacks of another host it learns the same model."""
    assert in_child(lambda: dying_in_round_seven(tmp_path)) == 9
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_FLOWER % str(EXAMPLE), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert "the same by callbacks: True" in done.stdout
    assert "modules of flwr: 0" in done.stdout
    slope, offset = map(float, re.findall(r"slope ([-\d.]+), offset ([-\d.]+)", done.stdout)[0])
    assert abs(slope - 3) < 0.5
    assert abs(offset + 1) < 0.5
