"""Any Flower app made private: released models are those of the definitions, clients are unchanged."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi
from scipy import stats

from fedmf.cohorts import CyclicCohorts
from fedmf.errors import ConfigError
from fedmf.flower import CorrelatedNoise, InProcessGrid, UsersSayWho, user_id_mod
from fedmf.noise import Domain, GaussianSource, NoiseKey
from fedmf.participation import Participation

USERS, COHORT, ROUNDS, CLIP, SEED = 12, 4, 6, 0.5, 3
SHAPES = {"body.weight": (4, 3), "body.bias": (4,), "head": (5,)}
DIMENSION = 21
FALSE_ALARM = 1e-6
Next = Callable[[Message, Context], Message]


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
    return np.concatenate([array.numpy().astype(np.float64).reshape(-1) for array in arrays.values()])


def adding(change: Callable[[int, Context], np.ndarray | None], **options: object) -> ClientApp:
    """A client app like any other: it knows arrays, metrics and its partition, and nothing of privacy."""
    app = ClientApp(**options)  # type: ignore[arg-type]

    @app.train()
    def train(message: Message, context: Context) -> Message:
        received, added = message.content["arrays"], change(int(context.node_config["partition-id"]), context)
        assert isinstance(received, ArrayRecord)
        sent, start = {}, 0
        for name, array in received.items():
            value = array.numpy()
            if added is not None and value.dtype.kind == "f" and name != "stays":
                value = (value + added[start : start + value.size].reshape(value.shape)).astype(value.dtype)
                start += value.size
            sent[name] = Array(value)
        metrics = MetricRecord(
            {"train_loss": 0.25, "num-examples": 3 + int(context.node_config["partition-id"])}
        )
        return Message(RecordDict({"arrays": ArrayRecord(sent), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(
            RecordDict({"metrics": MetricRecord({"accuracy": 0.5, "num-examples": 4})}), reply_to=message
        )

    return app


def private(inner: FedAvg, path: Path, **keys: object) -> CorrelatedNoise:
    arguments: dict[str, object] = {
        "epsilon": 8.0,
        "delta": 1e-5,
        "clipping_norm": CLIP,
        "num_users": USERS,
        "users_per_round": COHORT,
        "num_rounds": ROUNDS,
        "mechanism": "bisr",
        "noise_seed": SEED,
        "run_dir": path,
        **keys,
    }
    return CorrelatedNoise(inner, **arguments)  # type: ignore[arg-type]


def noisy_means(change: Callable[[int], np.ndarray], std: float, C: np.ndarray, dimension: int) -> np.ndarray:
    """(Σ clip(x_u) + C⁻¹z)/m by dense matrices, shape (n, d)."""
    key = NoiseKey.from_seed(SEED)
    source = GaussianSource(key, dimension, Domain.TRAINING)
    z = torch.stack([source.block(t, 0, dimension) for t in range(ROUNDS)]).numpy()
    cohorts = CyclicCohorts(rounds=ROUNDS, size=COHORT)
    contract = Participation(ROUNDS, 2, 3)
    schedule = cohorts.schedule(USERS, contract, key.cohort_seed())
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
        [[series[i - j] if 0 <= i - j < bands else 0.0 for j in range(ROUNDS)] for i in range(ROUNDS)]
    )
    return np.linalg.inv(inverse)


def by_hand(kind: str, start: np.ndarray, means: np.ndarray) -> np.ndarray:
    """The server rules as Reddi et al. (2021) and Hsu et al. (2019) write them, in float64."""
    theta, m, v = start.copy(), np.zeros_like(start), np.zeros_like(start)
    for t, u in enumerate(means):
        if kind in ("FedAvg", "FedProx"):
            theta = theta + u
        elif kind == "FedAvgM":
            m = 0.9 * m - u
            theta = theta - 0.5 * m
        else:
            beta_1 = 0.0 if kind == "FedAdagrad" else 0.9
            m = beta_1 * m + (1 - beta_1) * u
            if kind == "FedAdagrad":
                v = v + u**2
            elif kind == "FedAdam":
                v = 0.99 * v + 0.01 * u**2
            else:
                v = v - 0.01 * u**2 * np.sign(v - u**2)
            # Flower's correction of FedAdam's bias has one round more in its powers than Kingma and Ba.
            rate = 0.1 * np.sqrt(1 - 0.99 ** (t + 2)) / (1 - 0.9 ** (t + 2)) if kind == "FedAdam" else 0.1
            theta = theta + rate * m / (np.sqrt(v) + 1e-3)
    return theta


INNER: dict[str, Callable[[], FedAvg]] = {
    "FedAvg": FedAvg,
    "FedProx": lambda: FedProx(proximal_mu=0.1),
    "FedAvgM": lambda: FedAvgM(server_learning_rate=0.5, server_momentum=0.9),
    "FedAdagrad": FedAdagrad,
    "FedAdam": FedAdam,
    "FedYogi": lambda: FedYogi(eta=0.1),
}


@pytest.mark.parametrize("kind", INNER)
def test_released_models_are_the_inner_rule_of_dense_noisy_means(kind: str, tmp_path: Path) -> None:
    strategy = private(INNER[kind](), tmp_path / "run")
    grid = InProcessGrid(adding(lambda user, _: update_of(user)), nodes=USERS)
    result = strategy.start(grid=grid, initial_arrays=model(), num_rounds=ROUNDS)
    assert result.arrays is not None
    statement = strategy.statement().to_dict()
    means = noisy_means(update_of, float(statement["noise_std"]), dense_c(statement), DIMENSION)
    expected = by_hand(kind, flat(model()), means)
    # Models are float32 and of size about 1.
    np.testing.assert_allclose(flat(result.arrays), expected, atol=2e-5 if kind.startswith("FedA") else 2e-4)
    assert {name: array.dtype for name, array in result.arrays.items()} == dict.fromkeys(SHAPES, "float32")
    assert {name: tuple(array.shape) for name, array in result.arrays.items()} == SHAPES
    state = {name: torch.from_numpy(array.numpy()) for name, array in result.arrays.items()}
    assert result.arrays.to_torch_state_dict().keys() == state.keys()


def test_the_noise_of_clients_that_return_what_they_got_is_the_statements(tmp_path: Path) -> None:
    """Σ over tensors and rounds of the whitened increments is χ²; a noise of ×1.1 is rejected."""
    size = 20_000
    start = ArrayRecord(
        {"a": Array(np.zeros((100, 150), np.float32)), "b": Array(np.zeros(5000, np.float32))}
    )
    models = [flat(start)]
    strategy = private(FedAvg(), tmp_path / "run")
    strategy.start(
        grid=InProcessGrid(adding(lambda _user, _context: None), nodes=USERS),
        initial_arrays=start,
        num_rounds=ROUNDS,
        evaluate_fn=lambda t, arrays: models.append(flat(arrays)) if t else None,
    )
    statement = strategy.statement().to_dict()
    noise = np.diff(np.stack(models), axis=0) * COHORT
    z = dense_c(statement) @ noise / float(statement["noise_std"])

    def fits(values: np.ndarray) -> bool:
        """Variances of both tensors and all covariances of rounds; false alarm 10⁻⁶ together."""
        tests = 2 + ROUNDS * (ROUNDS - 1) // 2
        level = FALSE_ALARM / tests / 2
        for part in (values[:, :15_000], values[:, 15_000:]):
            low, high = stats.chi2.ppf([level, 1 - level], part.size)
            if not low <= float((part**2).sum()) <= high:
                return False
        bound = stats.norm.isf(level) * np.sqrt(size)
        products = values @ values.T
        return bool((np.abs(products[np.triu_indices(ROUNDS, 1)]) < 1.05 * bound).all())

    assert fits(z)
    assert not fits(1.1 * z)
    assert not fits(z / 1.1)
    assert not fits(np.stack([z[0], z[0], *z[2:]]))


def test_everything_that_flower_documents_arrives(tmp_path: Path) -> None:
    seen: list[tuple[str, dict[str, object]]] = []

    def note(message: Message, context: Context, call_next: Next) -> Message:
        seen.append((message.metadata.message_type, dict(message.content.config_records["config"])))
        return call_next(message, context)

    strategy = private(FedProx(proximal_mu=0.2), tmp_path / "run", client_evaluation="not-private")
    app = adding(lambda user, _: update_of(user), mods=[note])
    result = strategy.start(
        grid=InProcessGrid(app, nodes=USERS),
        initial_arrays=model(),
        num_rounds=2,
        train_config=ConfigRecord({"lr": 0.5}),
        evaluate_config=ConfigRecord({"batch": 7}),
        evaluate_fn=lambda t, _: MetricRecord({"round": float(t)}),
    )
    train = [config for kind, config in seen if kind == "train"]
    assert len(train) == 2 * COHORT
    assert train[0] == {"lr": 0.5, "server-round": 1, "proximal-mu": 0.2}
    assert {kind for kind, _ in seen} == {"train", "evaluate"}
    assert next(config for kind, config in seen if kind == "evaluate")["batch"] == 7
    assert {t: dict(m) for t, m in result.evaluate_metrics_serverapp.items()} == {
        t: {"round": float(t)} for t in range(3)
    }
    assert {t: dict(m) for t, m in result.evaluate_metrics_clientapp.items()} == {
        t: {"accuracy_not_private": 0.5} for t in (1, 2)
    }
    assert not result.train_metrics_clientapp
    assert any("federated evaluation" in line for line in strategy.statement().to_dict()["not_covered"])


def test_client_evaluation_is_off_unless_asked_for(tmp_path: Path) -> None:
    strategy = private(FedAvg(), tmp_path / "run")
    grid = InProcessGrid(adding(lambda user, _: update_of(user)), nodes=USERS)
    result = strategy.start(grid=grid, initial_arrays=model(), num_rounds=1)
    assert not result.evaluate_metrics_clientapp


def saying(change: Callable[[int, Context], np.ndarray | None]) -> ClientApp:
    return adding(change, mods=[user_id_mod(lambda context: f"clinic-{context.node_config['partition-id']}")])


ROSTER = [f"clinic-{u}" for u in range(USERS)]


@pytest.mark.parametrize("kind", INNER)
def test_a_stopped_run_goes_on_to_the_same_model(kind: str, tmp_path: Path) -> None:
    """With a new strategy in a new process, on nodes that came back in another order under other ids."""

    def run(path: Path, num_rounds: int) -> np.ndarray:
        strategy = private(INNER[kind](), path, identity=UsersSayWho(ROSTER))
        grid = InProcessGrid(saying(lambda user, _: update_of(user)), nodes=USERS)
        result = strategy.start(grid=grid, initial_arrays=model(), num_rounds=num_rounds)
        strategy.close()
        assert result.arrays is not None
        return flat(result.arrays)

    run(tmp_path / "stopped", 2)
    run(tmp_path / "stopped", 3)
    resumed = run(tmp_path / "stopped", ROUNDS)
    assert np.array_equal(resumed, run(tmp_path / "whole", ROUNDS))


def test_a_run_whose_users_are_virtual_nodes_cannot_go_on(tmp_path: Path) -> None:
    grid = InProcessGrid(adding(lambda user, _: update_of(user)), nodes=USERS)
    first = private(FedAvg(), tmp_path / "run")
    first.start(grid=grid, initial_arrays=model(), num_rounds=1)
    first.close()
    with pytest.raises(ConfigError, match="users are virtual nodes"):
        private(FedAvg(), tmp_path / "run").start(grid=grid, initial_arrays=model())


def test_a_run_is_not_continued_with_users_in_another_order(tmp_path: Path) -> None:
    """Cohorts are drawn by place on the roster: another order would ask users too soon again."""
    grid = InProcessGrid(saying(lambda user, _: update_of(user)), nodes=USERS)
    first = private(FedAvg(), tmp_path / "run", identity=UsersSayWho(ROSTER))
    first.start(grid=grid, initial_arrays=model(), num_rounds=1)
    first.close()
    other = private(FedAvg(), tmp_path / "run", identity=UsersSayWho(ROSTER[::-1]))
    with pytest.raises(ConfigError, match=r"its task\.roster is"):
        other.start(grid=grid, initial_arrays=model())


def test_another_run_is_not_continued(tmp_path: Path) -> None:
    grid = InProcessGrid(saying(lambda user, _: update_of(user)), nodes=USERS)
    first = private(FedAvg(), tmp_path / "run", identity=UsersSayWho(ROSTER))
    first.start(grid=grid, initial_arrays=model(), num_rounds=1)
    first.close()
    for inner, keys in ((FedAvgM(), {}), (FedAvg(), {"epsilon": 9.0}), (FedAvg(), {"clipping_norm": 1.0})):
        other = private(inner, tmp_path / "run", identity=UsersSayWho(ROSTER), **keys)
        with pytest.raises(ConfigError, match="holds another run: its"):
            other.start(grid=grid, initial_arrays=model())


def test_whole_numbers_and_frozen_arrays_stay(tmp_path: Path) -> None:
    start = ArrayRecord(
        {
            "counter": Array(np.array(7, np.int64)),
            "stays": Array(np.ones(3, np.float32)),
            "w": Array(np.zeros(4, np.float64)),
            "h": Array(np.zeros(2, np.float16)),
        }
    )
    strategy = private(FedAdam(), tmp_path / "run", frozen=("stays",))
    app = adding(lambda user, _: np.full(6, 0.01 * user))
    result = strategy.start(grid=InProcessGrid(app, nodes=USERS), initial_arrays=start, num_rounds=ROUNDS)
    assert result.arrays is not None
    assert {name: array.dtype for name, array in result.arrays.items()} == {
        name: array.dtype for name, array in start.items()
    }
    assert int(result.arrays["counter"].numpy()) == 7
    assert np.array_equal(result.arrays["stays"].numpy(), np.ones(3))
    assert (result.arrays["w"].numpy() != 0).all()


def replacing(name: str, array: Array) -> Callable[[Message], Message]:
    def change(reply: Message) -> Message:
        reply.content["arrays"][name] = array  # type: ignore[index]
        return reply

    return change


def _without(reply: Message) -> Message:
    del reply.content["arrays"]["head"]  # type: ignore[attr-defined]
    return reply


def _second(reply: Message) -> Message:
    reply.content["more"] = ArrayRecord({"x": Array(np.zeros(1, np.float32))})
    return reply


def _raise(reply: Message) -> Message:
    raise OSError("no disk")


HOSTILE: dict[str, Callable[[Message], Message]] = {
    "raises": _raise,
    "misses an array": _without,
    "two records": _second,
    "NaN": replacing("head", Array(np.full(5, np.nan, np.float32))),
    "infinity": replacing("head", Array(np.full(5, np.inf, np.float32))),
    "doubles": replacing("head", Array(np.zeros(5, np.float64))),
    "long": replacing("head", Array(np.zeros(6, np.float32))),
    "objects": replacing("head", Array("float32", (5,), "numpy.ndarray", b"\x80\x04K\x01.")),
    "another type inside": replacing(
        "head", Array("float32", (5,), "numpy.ndarray", Array(np.zeros(5, np.int32)).data)
    ),
    "another shape inside": replacing(
        "head", Array("float32", (5,), "numpy.ndarray", Array(np.zeros((5, 1), np.float32)).data)
    ),
    "much data": replacing("head", Array("float32", (5,), "numpy.ndarray", b"x" * 10**6)),
    "another format": replacing("head", Array("float32", (5,), "torch.Tensor", b"x" * 148)),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_reply_is_a_zero_vector_of_its_user_alone(kind: str, tmp_path: Path) -> None:
    victim = 5

    def tamper(message: Message, context: Context, call_next: Next) -> Message:
        reply = call_next(message, context)
        return HOSTILE[kind](reply) if int(context.node_config["partition-id"]) == victim else reply

    strategy = private(FedAvg(), tmp_path / "run")
    app = adding(lambda user, _: update_of(user), mods=[tamper])
    result = strategy.start(grid=InProcessGrid(app, nodes=USERS), initial_arrays=model())
    assert result.arrays is not None
    statement = strategy.statement().to_dict()
    expected = flat(model()) + noisy_means(
        lambda user: 0.0 * update_of(user) if user == victim else update_of(user),
        float(statement["noise_std"]),
        dense_c(statement),
        DIMENSION,
    ).sum(axis=0)
    np.testing.assert_allclose(flat(result.arrays), expected, atol=2e-5)
    rows = [json.loads(line) for line in (tmp_path / "run" / "failures.jsonl").read_text().splitlines()]
    assert [(row["user"], row["stage"]) for row in rows] == 2 * [("user-05", "reply")]
    assert statement["users_participated"] == USERS
