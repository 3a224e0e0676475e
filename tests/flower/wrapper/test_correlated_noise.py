"""Any Flower app made private: released models are those of the definitions, clients are unchanged."""

from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp.strategy import FedAdam, FedAvg, FedProx
from scipy import stats
from support.wrapped_apps import (
    COHORT,
    DIMENSION,
    INNER,
    ROUNDS,
    SHAPES,
    USERS,
    Next,
    adding,
    dense_c,
    flat,
    model,
    noisy_means,
    private,
    update_of,
)

from fedmf.flower import InProcessGrid

FALSE_ALARM = 1e-6


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


@pytest.mark.parametrize("kind", ["FedAvg", "FedProx"])
def test_strategies_without_a_rule_are_not_called_and_would_change_nothing(kind: str, tmp_path: Path) -> None:
    class Called(type(INNER[kind]())):  # type: ignore[misc]
        """Of another type, so that it is."""

    released = []
    for number, inner in enumerate((INNER[kind](), Called())):
        strategy = private(inner, tmp_path / f"{number}")
        grid = InProcessGrid(adding(lambda user, _: update_of(user)), nodes=USERS)
        result = strategy.start(grid=grid, initial_arrays=model(), num_rounds=ROUNDS)
        assert result.arrays is not None
        released.append(flat(result.arrays))
    np.testing.assert_array_equal(*released)


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

    strategy = private(FedProx(proximal_mu=0.2), tmp_path / "run")
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
    assert {kind for kind, _ in seen} == {"train"}
    assert {t: dict(m) for t, m in result.evaluate_metrics_serverapp.items()} == {
        t: {"round": float(t)} for t in range(3)
    }
    assert not result.evaluate_metrics_clientapp
    assert not result.train_metrics_clientapp


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
