"""Flower apps as anyone writes them, wrapped: their clients, and what must come out by dense
matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi

from fedmf.cohorts import CyclicCohorts
from fedmf.flower import CorrelatedNoise, user_id_mod
from fedmf.noise.key import Domain, NoiseKey
from fedmf.participation import Participation
from fedmf.statements.privacy import UserLevel
from support.normals import normals

USERS = 12
COHORT = 4
ROUNDS = 6
CLIP = 0.5
SEED = 3
SHAPES = {"body.weight": (4, 3), "body.bias": (4,), "head": (5,)}
DIMENSION = 21
PRIVACY = {"epsilon", "delta", "clip_norm", "noise_seed", "adjacency", "amplified"}
Next = Callable[[Message, Context], Message]
INNER: dict[str, Callable[[], FedAvg]] = {
    "FedAvg": FedAvg,
    "FedProx": lambda: FedProx(proximal_mu=0.1),
    "FedAvgM": lambda: FedAvgM(server_learning_rate=0.5, server_momentum=0.9),
    "FedAdagrad": FedAdagrad,
    "FedAdam": FedAdam,
    "FedYogi": lambda: FedYogi(eta=0.1),
}


def model(dtype: str = "float32") -> ArrayRecord:
    rng = np.random.default_rng(1)
    return ArrayRecord(
        {name: Array(rng.standard_normal(shape).astype(dtype)) for name, shape in SHAPES.items()}
    )


def update_of(user: int, dimension: int = DIMENSION) -> np.ndarray:
    """What a client adds to what it receives; for some users longer than the clip norm."""
    x = np.random.default_rng([7, user]).standard_normal(dimension)
    return x / np.linalg.norm(x) * (0.2 + 0.1 * user)


def flat(arrays: ArrayRecord) -> np.ndarray:
    return np.concatenate(
        [array.numpy().astype(np.float64).reshape(-1) for array in arrays.values()]
    )


def half_right(user: int) -> dict[str, Any]:
    """What a client reports of a model."""
    return {"accuracy": 0.5, "num-examples": 4}


def adding(
    change: Callable[[int, Context], np.ndarray | None],
    says: Callable[[int], dict[str, Any]] = half_right,
    **options: object,
) -> ClientApp:
    """A client app like any other: it knows arrays, metrics and its partition, and nothing of
    privacy.
    """
    app = ClientApp(**options)  # type: ignore[arg-type]

    @app.train()
    def train(message: Message, context: Context) -> Message:
        received = message.content["arrays"]
        added = change(int(context.node_config["partition-id"]), context)
        assert isinstance(received, ArrayRecord)
        sent = {}
        start = 0
        for name, array in received.items():
            value = array.numpy()
            if added is not None and value.dtype.kind == "f" and name != "stays":
                value = (value + added[start : start + value.size].reshape(value.shape)).astype(
                    value.dtype
                )
                start += value.size
            sent[name] = Array(value)
        metrics = MetricRecord(
            {"train_loss": 0.25, "num-examples": 3 + int(context.node_config["partition-id"])}
        )
        return Message(
            RecordDict({"arrays": ArrayRecord(sent), "metrics": metrics}), reply_to=message
        )

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord(says(int(context.node_config["partition-id"])))
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def private(inner: FedAvg, path: Path, **keys: object) -> CorrelatedNoise:
    """Around a strategy; values of privacy by their names."""
    privacy = {"epsilon": 8.0, "delta": 1e-5, "clip_norm": CLIP, "noise_seed": SEED}
    privacy |= {name: keys.pop(name) for name in PRIVACY & keys.keys()}
    arguments: dict[str, object] = {
        "cohorts": CyclicCohorts(rounds=ROUNDS, users_per_round=COHORT),
        "users": USERS,
        "mechanism": "bisr",
        "run_dir": path,
        **keys,
    }
    return CorrelatedNoise(inner, UserLevel(**privacy), **arguments)  # type: ignore[arg-type]


def noisy_means(
    change: Callable[[int], np.ndarray], std: float, C: np.ndarray, dimension: int
) -> np.ndarray:
    """(Σ clip(x_u) + C⁻¹z)/m by dense matrices, shape (n, d)."""
    z = normals(SEED, Domain.TRAINING, ROUNDS, dimension)
    cohorts = CyclicCohorts(rounds=ROUNDS, users_per_round=COHORT)
    contract = Participation(ROUNDS, 2, 3)
    schedule = cohorts.schedule(USERS, contract, 0, NoiseKey.from_seed(SEED).cohort_seed())
    rows = []
    for t in range(ROUNDS):
        total = np.zeros(dimension)
        for user in map(int, schedule.cohort(t)):
            x = change(user)
            total += x * min(1.0, CLIP / max(float(np.linalg.norm(x)), 1e-300))
        rows.append(total)
    return (np.stack(rows) + std * np.linalg.solve(C, z)) / COHORT


def dense_c(statement: dict[str, object]) -> np.ndarray:
    """BISR's C from its definition: C⁻¹ holds the first p coefficients of (1 − x)^(1/2)."""
    bands = int(statement["params"]["bands"])  # type: ignore[index]
    series = [1.0]
    for j in range(1, ROUNDS):
        series.append(series[-1] * (j - 1.5) / j)
    inverse = np.array(
        [
            [series[i - j] if 0 <= i - j < bands else 0.0 for j in range(ROUNDS)]
            for i in range(ROUNDS)
        ]
    )
    return np.linalg.inv(inverse)


def saying(
    change: Callable[[int, Context], np.ndarray | None],
    says: Callable[[int], dict[str, Any]] = half_right,
) -> ClientApp:
    """The same with the one line that tells users apart."""
    mod = user_id_mod(lambda context: f"clinic-{context.node_config['partition-id']}")
    return adding(change, says, mods=[mod])


USER_LIST = [f"clinic-{u}" for u in range(USERS)]
