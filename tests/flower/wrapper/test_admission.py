"""What `CorrelatedNoise` refuses, and why, before anybody is asked."""

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.server import strategy as older
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM

from fedmf.errors import ConfigError
from fedmf.flower import CorrelatedNoise, InProcessGrid, UsersSayWho

ARGUMENTS = {
    "epsilon": 8.0,
    "delta": 1e-5,
    "clipping_norm": 1.0,
    "num_users": 4,
    "users_per_round": 2,
    "num_rounds": 4,
    "noise_seed": 0,
}
MODEL = ArrayRecord({"w": Array(np.zeros(3, np.float32))})


def private(inner: object = None, **keys: object) -> CorrelatedNoise:
    return CorrelatedNoise(inner or FedAvg(), **{**ARGUMENTS, **keys})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum", "Bulyan", "QFedAvg"])
def test_aggregations_that_are_no_means_are_refused(name: str) -> None:
    """Of one reply a median is that reply: nothing but the code tells the difference."""
    make = getattr(flower, name)
    arguments = {"client_learning_rate": 0.1} if name == "QFedAvg" else {}
    with pytest.raises(ConfigError, match=f"{name} of Flower aggregates by something else than a mean"):
        private(make(**arguments), trusted_subclass=True)


def test_what_is_no_federated_average_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be one whose aggregation is a mean"):
        private(flower.DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 2))


def test_a_strategy_of_the_older_interface_is_told_from_the_one_of_its_name() -> None:
    """Also one of an app's own, and one that is private already."""

    class Own(older.FedAvg):
        pass

    private_one = older.DifferentialPrivacyClientSideFixedClipping(older.FedAvg(), 1.0, 1.0, 2)
    for inner in (older.FedAvg(), Own(), private_one):
        said = f"got {type(inner).__name__} of Flower's older interface, flwr.server.strategy"
        with pytest.raises(ConfigError, match=said):
            private(inner)


class Saving(FedAvg):
    """Looks at results, as tutorials do."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        self.saved = super().aggregate_train(server_round, replies)
        return self.saved


def test_a_subclass_is_admitted_only_if_somebody_vouches_for_it() -> None:
    with pytest.raises(ConfigError, match=re.escape("say trusted_subclass=True")):
        private(Saving())
    assert private(Saving(), trusted_subclass=True).inner


@pytest.mark.parametrize("memory", ["momentum_vector", "current_arrays"])
def test_a_used_strategy_is_refused(memory: str) -> None:
    used = FedAvgM()
    setattr(used, memory, [np.zeros(3)])
    with pytest.raises(ConfigError, match="must be new"):
        private(used)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"epsilon": 0.0}, "ε"),
        ({"delta": 1.0}, "δ"),
        ({"clipping_norm": -1.0}, "ζ"),
        ({"num_users": 5, "identity": UsersSayWho(["a", "b"])}, "num_users must be that of the identity"),
    ],
)
def test_impossible_values_are_one_line(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        private(**keys)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("arrays", "keys", "message"),
    [
        ({"bn.running_mean": np.zeros(2, np.float32)}, {}, "statistics of a normalisation layer"),
        ({"w": np.zeros(2, np.complex64)}, {}, "floating type up to 64 bits"),
        ({"n": np.zeros(2, np.int64)}, {}, "at least one of a floating type"),
        ({"w": np.zeros(2, np.float32)}, {"frozen": ("v",)}, "frozen must name arrays of the model; got 'v'"),
    ],
)
def test_impossible_models_are_refused_and_leave_nothing(
    arrays: dict[str, np.ndarray], keys: dict[str, object], message: str, tmp_path: Path
) -> None:
    record = ArrayRecord({name: Array(value) for name, value in arrays.items()})
    strategy = private(run_dir=tmp_path / "run", **keys)
    with pytest.raises(ConfigError, match=message):
        strategy.start(grid=InProcessGrid(ClientApp(), nodes=4), initial_arrays=record)
    assert not (tmp_path / "run").exists()


def test_more_rounds_than_planned_are_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    strategy = private(FedAdam(), run_dir=tmp_path / "run")
    with pytest.raises(ConfigError, match="num_rounds must be at most the horizon n=4; got 5"):
        strategy.start(grid=InProcessGrid(ClientApp(), nodes=4), initial_arrays=MODEL, num_rounds=5)


def test_more_nodes_than_users_are_refused(tmp_path: Path) -> None:
    strategy = private(run_dir=tmp_path / "run")
    with pytest.raises(ConfigError, match="num_users must be the number of nodes"):
        strategy.start(grid=InProcessGrid(ClientApp(), nodes=5), initial_arrays=MODEL)
