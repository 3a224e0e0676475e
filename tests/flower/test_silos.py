"""The server of silos: sums in any order, replies of any kind, a restart; fedmf's own app."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp.strategy import FedAvg, FedAvgM, FedMedian
from support.silos import CLIP, TRAINING, silo_file, small_silo, start

import fedmf
from fedmf.errors import ConfigError
from fedmf.flower import InProcessGrid, Silo, SiloSums, silo_app
from fedmf.flower.compat import claim_task_identity, error_reply
from fedmf.flower.silo import client
from fedmf.runs.silo import ConfiguredSilo
from fedmf.runs.tables.configuration import run_of

pytestmark = pytest.mark.usefixtures("own_time")

DIMENSION = 7


def records(dimension: int = DIMENSION) -> ArrayRecord:
    return ArrayRecord({name: Array(value) for name, value in start(dimension).items()})


def sums(strategy: FedAvg | None = None, **changes: object) -> SiloSums:
    inner = strategy or FedAvg(min_train_nodes=1, min_available_nodes=1)
    given: Any = {"users_per_round": None, **changes}
    return SiloSums(inner, training=TRAINING, clip_norm=CLIP, **given)


def reply(numbers: object, bits: object = 31, users: object = 4) -> Message:
    """The reply of a silo, or of something that pretends to be one."""
    config = {key: value for key, value in (("bits", bits), ("users-per-round", users)) if value}
    arrays = ArrayRecord({"sum": Array(np.asarray(numbers))})
    content = RecordDict({"arrays": arrays, "config": ConfigRecord(config)})  # type: ignore
    return Message(content, 1, MessageType.TRAIN)


def aggregated(strategy: SiloSums, replies: list[Message]) -> np.ndarray | None:
    grid = InProcessGrid(lambda message, _: message, 3)
    list(strategy.configure_train(1, records(), ConfigRecord(), grid))
    arrays, _ = strategy.aggregate_train(1, replies)
    return None if arrays is None else arrays["w"].numpy()


def test_sums_are_exact_in_any_order() -> None:
    claim_task_identity()
    rng = np.random.default_rng(0)
    parts = [(rng.integers(-(2**44), 2**44, DIMENSION), bits) for bits in (31, 29, 31, 24)]
    found = set[bytes]()
    for order in itertools.permutations(parts):
        model = aggregated(sums(), [reply(*part) for part in order])
        assert model is not None
        found.add(model.tobytes())
    assert len(found) == 1
    for index, value in enumerate(np.frombuffer(found.pop(), np.float32)):
        exact = sum(Fraction(int(o[index]), 2**bits) for o, bits in parts) * Fraction(CLIP) / 16
        assert value == np.float32(float(exact))


def test_a_fixed_number_or_who_came_divides() -> None:
    claim_task_identity()
    one = np.full(DIMENSION, 2**33)
    came = aggregated(sums(), [reply(one), reply(one)])
    fixed = aggregated(sums(users_per_round=16), [reply(one), reply(one)])
    assert came is not None
    assert fixed is not None
    assert came[0] == 0.5
    assert fixed[0] == 0.25


def test_unusable_replies_are_left_out() -> None:
    claim_task_identity()
    good = reply(np.full(DIMENSION, 2**33))
    bad = [
        reply(np.zeros(DIMENSION)),
        reply(np.zeros(DIMENSION + 1, np.int64)),
        *(reply(np.zeros(DIMENSION, np.int64), bits) for bits in (None, -1, 65, 3.0, "31")),
        *(reply(np.zeros(DIMENSION, np.int64), 31, users) for users in (None, -4, 2**40, "4")),
        Message(RecordDict(), 1, MessageType.TRAIN),
        error_reply("secret", good),
    ]
    alone = aggregated(sums(), [good])
    assert alone is not None
    assert np.array_equal(alone, aggregated(sums(), [*bad, good]))  # type: ignore[arg-type]
    assert aggregated(sums(), bad) is None


def test_the_strategy_must_be_a_mean() -> None:
    with pytest.raises(ConfigError, match="aggregates by a mean"):
        sums(FedMedian())


def silos(folder: Path, away: set[tuple[int, int]]) -> InProcessGrid:
    """Three silos, each with a directory and a key of its own; some are away at some messages."""
    heard = [0, 0, 0]

    def silo(context: Context) -> Silo:
        place = int(context.node_config["partition-id"])
        heard[place] += 1
        if (place, heard[place]) in away:
            raise RuntimeError("away")
        (folder / str(place)).mkdir(exist_ok=True)
        return small_silo(silo_file(folder / str(place), privacy=""), DIMENSION)

    return InProcessGrid(silo_app(silo), 3)


def test_a_server_that_lost_everything_gets_the_same_model(tmp_path: Path) -> None:
    """Silos have keys apart; a new server with the same start is answered from the records."""
    models = list[np.ndarray]()
    for away in ({(0, 2)}, {(0, 2)}):
        strategy = sums(FedAvgM(server_momentum=0.5, min_train_nodes=3, min_available_nodes=3))
        result = strategy.start(silos(tmp_path, away), records(), num_rounds=3)
        assert result.arrays is not None
        models.append(result.arrays["w"].numpy())
    assert np.array_equal(models[0], models[1])
    assert models[0].any()
    keys = {(tmp_path / name / "silo" / "noise.key").read_bytes() for name in "012"}
    assert len(keys) == 3


TABLES = """
[data]
kind = "digits"
users = 30
[model]
kind = "mlp"
hidden-units = "4"
[client]
learning-rate = 0.5
engine = "loop"
"""


def test_fedmfs_own_app_trains_what_its_file_describes(tmp_path: Path) -> None:
    """The first release is that of a simulation with the same tables and seed."""
    file = silo_file(tmp_path, privacy="noise-seed = 3")
    file.write_text(file.read_text() + TABLES)
    silo = ConfiguredSilo(file)
    initial = silo.layout.arrays(silo._initial)
    grid = InProcessGrid(client, 1, node_configs=[{"silo": str(file)}])
    content = RecordDict(
        {
            "arrays": ArrayRecord({name: Array(value) for name, value in initial.items()}),
            "config": ConfigRecord({"server-round": 1, "training": TRAINING, "clip-norm": CLIP}),
        }
    )
    message = Message(content, grid.get_node_ids()[0], MessageType.TRAIN)
    (answer,) = grid.send_and_receive([message])
    tables = {
        "data.kind": "digits",
        "data.users": 30,
        "model.kind": "mlp",
        "model.hidden-units": "4",
        "client.learning-rate": 0.5,
        "client.engine": "loop",
        "cohorts.rounds": 8,
        "cohorts.users-per-round": 4,
        "privacy.epsilon": 8.0,
        "privacy.delta": 1e-5,
        "privacy.clip-norm": CLIP,
        "privacy.noise-seed": 3,
        "mechanism.kind": "bisr",
        "execution.keep-releases": True,
    }
    fedmf.simulate(run_of(tables), tmp_path / "run", on_round=lambda _: True)
    first = np.fromfile(tmp_path / "run" / "released" / "integers.bin", "<i8")
    assert np.array_equal(answer.content.array_records["arrays"]["sum"].numpy(), first)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (('training = "heart"', ""), "training must name"),
        (('directory = "', 'directory = "not/absolute'), "directory must be absolute"),
        (("[mechanism]", "[server]\nlearning-rate = 2.0\n[mechanism]"), r"got \[server\]"),
        (("[mechanism]", "[execution]\n[mechanism]"), r"got \[execution\]"),
        (("[mechanism]", "[clipping]\n[mechanism]"), r"got \[clipping\]"),
        (("epsilon = 8.0", 'kind = "none"'), "must add noise"),
        (("[silo]", "[silo]\nkey = 3"), "must have the keys training, directory"),
        (("[silo]", "[silo"), "cannot be read"),
    ],
)
def test_a_wrong_file_is_refused_in_a_line(
    change: tuple[str, str], error: str, tmp_path: Path
) -> None:
    file = silo_file(tmp_path)
    assert change[0] in file.read_text()
    file.write_text(file.read_text().replace(*change))
    with pytest.raises(ConfigError, match=error) as raised:
        small_silo(file, DIMENSION)
    assert "\n" not in str(raised.value)
