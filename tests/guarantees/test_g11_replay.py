"""G11: all that leaves a run follows from its plan, public inputs and released integers alone."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam
from support.mean_norms import MeanNorm
from torch import Tensor

import fedmf
from fedmf.accounting.queries import SecondForm
from fedmf.clipping.clipped_sum import ClippedSum
from fedmf.flower import CorrelatedNoise, InProcessGrid
from fedmf.flower.inner_rule import InnerRule
from fedmf.flower.layout import ArrayLayout
from fedmf.ledger.ledger import Ledger
from fedmf.matrices.second_moment import DiagonalMoment
from fedmf.mechanisms.workload import ToeplitzWorkload, exponential
from fedmf.noise.key import Domain
from fedmf.optim import RoundRelease, ServerOptimizer
from fedmf.release.noisy_sum import NoisyParts
from fedmf.release.plan import Plan
from fedmf.release.private_server import NoisedRound, PrivateServer, ServerState
from fedmf.runs.directory import RunHeader
from fedmf.training import Task
from guarantees.small import CLIP, COHORT, NAMES, ROUNDS, USERS, aggregator, random_rows, run_of

QUANTILE = fedmf.QuantileClipping(
    quantile=0.4, learning_rate=0.8, rounds_per_update=1, budget_share=0.25
)
PAIR = fedmf.MechanismConfig(second_moment_weight=1.0)
DIMENSION = 21
SHAPES = {"body.weight": (4, 3), "body.bias": (4,), "head": (5,)}


class MeanSquares:
    """θ ← θ + u/(1 + v), v a decaying sum of released squares of the mean."""

    second_moment = DiagonalMoment(DIMENSION)
    second_form: SecondForm = "squared-mean"

    def second_workload(self, rounds: int) -> ToeplitzWorkload:
        return exponential(0.5, rounds)

    def init(self, parameters: Tensor) -> dict[str, Tensor]:
        return {"squares": torch.zeros(DIMENSION, dtype=torch.float64)}

    def step(
        self, t: int, parameters: Tensor, release: RoundRelease, state: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        assert release.second is not None
        squares = state["squares"] * 0.5 + release.second
        scale = 1 + squares.clamp(min=0.0).to(parameters.dtype)
        return parameters + release.mean / scale, {"squares": squares}


@dataclass
class Seen:
    """What left a run.

    Args:
        integers: by part of the release, the integers of every round.
        sums: likewise, the sums before noise: what nobody may keep.
        models: θ_1, … as bytes, and the optimizer's states.
        rows: of the table of metrics, by number of released rounds.
        header: the description of the run, as text.
        initial: θ_0.
        handed_out: what else was shown of the models, in words of the test.
    """

    integers: dict[str, list[np.ndarray]] = field(default_factory=lambda: defaultdict(list))
    sums: dict[str, list[np.ndarray]] = field(default_factory=lambda: defaultdict(list))
    models: list[tuple[bytes, dict[str, bytes]]] = field(default_factory=list)
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    header: str = ""
    initial: Tensor = field(default_factory=lambda: torch.zeros(0))
    handed_out: list[np.ndarray] = field(default_factory=list)


def as_bytes(values: Tensor) -> bytes:
    return values.numpy().tobytes()


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Filled by the run of the test."""
    found = Seen()
    release = NoisyParts.release
    stepped = PrivateServer._step

    def released(self: NoisyParts, t: int, total: Tensor, unit: float) -> Any:
        assert total.dtype == torch.int64
        before = total.clone()
        result = release(self, t, total, unit)
        assert result.integers.dtype == torch.int64
        assert not torch.equal(result.integers, before), "nothing was added"
        part = self.stream.domain.name
        found.integers[part].append(result.integers.numpy().copy())
        found.sums[part].append(before.numpy())
        return result

    def step(self: PrivateServer, noised: NoisedRound) -> ServerState:
        if self.t == 0:
            found.initial = self.parameters.clone()
        after = stepped(self, noised)
        states = {name: as_bytes(x) for name, x in after.optimizer.items()}
        found.models.append((as_bytes(after.parameters), states))
        return after

    monkeypatch.setattr(NoisyParts, "release", released)
    monkeypatch.setattr(PrivateServer, "_step", step)
    return found


def forget(seen: Seen, path: Path) -> None:
    """Keep the public description and metrics of a run; its key and its record are gone."""
    with Ledger.open(path / "ledger.sqlite", read_only=True) as ledger:
        seen.header = json.dumps(RunHeader.from_dict(ledger.header).to_dict())
        seen.rows = ledger.metrics()
    shutil.rmtree(path)


def mean(integers: np.ndarray, unit: float, size: float) -> Tensor:
    return torch.from_numpy(integers.astype(np.float64) * (unit / size))


def replay(seen: Seen, optimizer: ServerOptimizer, task: Task | None = None) -> None:
    """Make every released figure again, from integers and public values, and compare.

    It uses the description of the run, the initial model, the update rule and the public test part.
    """
    header = RunHeader.from_dict(json.loads(seen.header))
    plan: Plan = header.plan
    m = plan.users_per_round
    bits = plan.rounding.bits
    variances = plan.mechanism.factorization.noise_row_variances()
    theta = seen.initial
    state: Mapping[str, Tensor] = optimizer.init(theta)
    zeta = plan.clip_norm
    states = {each.name: each.begin(zeta) for each in plan.statistics}
    for t in range(plan.participation.rounds):
        size = m * plan.mean_unit(zeta)
        update = mean(seen.integers["TRAINING"][t], zeta * 2.0 ** -bits[0], size).to(torch.float32)
        variance = (plan.noise_std_at(zeta) / size) ** 2 * float(variances[t])
        second = of_second = None
        if plan.second is not None:
            second = mean(seen.integers["SECOND_MOMENT"][t], zeta**2 * 2.0 ** -bits[1], m)
            rows = plan.second.factorization.noise_row_variances()
            of_second = (plan.second_noise_std / m) ** 2 * float(rows[t])
        release = RoundRelease(update, variance, second, of_second)
        theta, state = optimizer.step(t, theta, release, state)
        expected = as_bytes(theta), {name: as_bytes(x) for name, x in state.items()}
        assert seen.models[t] == expected, f"round {t}"
        row: dict[str, Any] = {} if task is None else dict(task.evaluate(theta))
        for each in header.statistics:
            domain = Domain.of_statistic(each.name)
            unit = 2.0 ** -bits[plan.index_of(each)]
            share = float(mean(seen.integers[domain.name][t], unit, m))
            states[each.name] = each.after(t, share, states[each.name])
            zeta = each.clip_norm(states[each.name]) or zeta
            row |= each.metrics(states[each.name], noise_std=0.0)
        row["epsilon"] = plan.epsilon_after(t + 1)
        assert seen.rows[t + 1] == row, f"round {t}"
    assert len(seen.models) == plan.participation.rounds


def trained(seen: Seen, folder: Path, **changes: Any) -> fedmf.Run:
    """A run whose updates are their users' rows, carried out and forgotten."""
    run = run_of(random_rows(DIMENSION), **changes)
    result = fedmf.simulate(run, folder / "run")
    seen.handed_out.append(result.parameters.numpy())
    forget(seen, folder / "run")
    return run


def check_run(seen: Seen, folder: Path, **changes: Any) -> None:
    run = trained(seen, folder, **changes)
    task = run.task_source.build()
    replay(seen, run.optimizer_source.build(task.model.shapes, ROUNDS), task)
    assert seen.handed_out[0].tobytes() == seen.models[-1][0]


def check_wrapper(seen: Seen, folder: Path) -> None:
    rng = np.random.default_rng(1)
    arrays = {name: Array(rng.standard_normal(s).astype("f")) for name, s in SHAPES.items()}
    start = ArrayRecord(arrays)
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        user = int(context.node_config["partition-id"])
        added = np.random.default_rng([7, user])
        arrays = message.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        sent = {
            name: Array(array.numpy() + added.standard_normal(array.shape, np.float32))
            for name, array in arrays.items()
        }
        return Message(RecordDict({"arrays": ArrayRecord(sent)}), reply_to=message)

    strategy = CorrelatedNoise(
        FedAdam(),
        fedmf.UserLevel(epsilon=8.0, delta=1e-5, clip_norm=CLIP, noise_seed=3),
        fedmf.CyclicCohorts(rounds=ROUNDS, users_per_round=COHORT),
        users=USERS,
        mechanism="bisr",
        run_dir=folder / "app",
        clipping=QUANTILE,
    )
    strategy.start(grid=InProcessGrid(app, nodes=USERS), initial_arrays=start, num_rounds=ROUNDS)
    strategy.close()
    forget(seen, folder / "app")
    replay(seen, InnerRule(FedAdam(), ArrayLayout.of(start)))


def check_aggregator(seen: Seen, folder: Path) -> None:
    rows = random_rows(12)
    with aggregator(folder / "run").begin({"w": np.full((3, 4), 0.1)}) as opened:
        while opened.t < ROUNDS:
            for user in opened.cohort(opened.t)[opened.t % 2 :]:
                opened.add(user, {"w": rows[NAMES.index(user)].reshape(3, 4)})
            seen.handed_out.append(opened.release()["w"])
    forget(seen, folder / "run")
    replay(seen, fedmf.Sgd(learning_rate=1.0, momentum=0.0).build([(3, 4)], ROUNDS))
    for model, (flat, _) in zip(seen.handed_out, seen.models, strict=True):
        assert model.dtype == np.float64
        assert model.tobytes() == np.frombuffer(flat, np.float32).astype(np.float64).tobytes()


RUNS: dict[str, dict[str, Any]] = {
    "momentum": {"server": fedmf.Sgd(learning_rate=0.5, momentum=0.9)},
    "quantile": {"server": fedmf.Sgd(learning_rate=0.5, momentum=0.9), "clipping": QUANTILE},
    "quantile, steps in units of it": {"clipping": replace(QUANTILE, normalize_updates=True)},
    "per-user pair": {"server": fedmf.JmeAdam(learning_rate=0.05), "mechanism": PAIR},
    "squared mean": {"server": MeanSquares(), "mechanism": PAIR},
}
CHECKS: dict[str, Callable[[Seen, Path], None]] = {
    "wrapped FedAdam": check_wrapper,
    "aggregator, float64 rows": check_aggregator,
}


@pytest.mark.parametrize("what", RUNS)
def test_a_run_follows_from_its_integers(what: str, seen: Seen, tmp_path: Path) -> None:
    check_run(seen, tmp_path, **RUNS[what])


@pytest.mark.usefixtures("mean_norms")
def test_a_statistic_follows_from_its_integers(seen: Seen, tmp_path: Path) -> None:
    check_run(seen, tmp_path, clipping=QUANTILE, extra_releases=(MeanNorm(budget_share=0.2),))


@pytest.mark.parametrize("what", CHECKS)
def test_what_others_train_follows_from_its_integers(what: str, seen: Seen, tmp_path: Path) -> None:
    CHECKS[what](seen, tmp_path)


def totals_seen(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Filled with the sum of each round before noise."""
    totals = list[Tensor]()
    add_noise = PrivateServer._add_noise

    def noting(self: PrivateServer, total: ClippedSum) -> NoisedRound:
        totals.append(total.fixed_point.clone())
        return add_noise(self, total)

    monkeypatch.setattr(PrivateServer, "_add_noise", noting)
    return totals


def test_a_model_that_knows_the_sum_is_seen(
    seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last bit of an entry tells the parity of the sum before noise."""
    totals = totals_seen(monkeypatch)
    step = PrivateServer._step

    def telling(self: PrivateServer, noised: NoisedRound) -> ServerState:
        after = step(self, noised)
        bits = after.parameters.clone().view(torch.int32)
        bits[0] = bits[0] & ~1 | bool(totals[-1][0] & 1)
        return replace(after, parameters=bits.view(torch.float32))

    monkeypatch.setattr(PrivateServer, "_step", telling)
    with pytest.raises(AssertionError):
        check_run(seen, tmp_path)


def shown(seen: Seen, folder: Path, size: int) -> list[str]:
    """Files that hold a sum before noise, or a row of noise, as integers or as numbers."""
    secrets = set[bytes]()
    for part, rows in seen.sums.items():
        for total, released in zip(rows, seen.integers[part], strict=True):
            for row in (total, released - total):
                for unit in (CLIP * 2.0**-31, CLIP * 2.0**-31 / size, 2.0**-31, 2.0**-31 / size):
                    numbers = row * unit
                    # Eight bytes that are in a file by chance with a probability below 10⁻⁸.
                    secrets |= {each.tobytes() for each in numbers[np.abs(row) > 2**20]}
                    pairs = numbers.astype(np.float32)[: len(row) // 2 * 2].reshape(-1, 2)
                    secrets |= {each.tobytes() for each in pairs if (each != 0).all()}
                secrets |= {each.tobytes() for each in row[np.abs(row) > 2**20]}
    assert len(secrets) > 1000
    found = []
    for path in folder.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        pieces = {content[at : at + 8] for at in range(len(content) - 7)}
        if pieces & secrets:
            found.append(path.name)
    return found


@pytest.mark.parametrize("every", [1, 5])
def test_no_file_of_a_run_shows_a_sum_or_noise(every: int, seen: Seen, tmp_path: Path) -> None:
    run = run_of(
        random_rows(DIMENSION),
        execution=fedmf.Execution(checkpoint_every=every),
        server=fedmf.Sgd(learning_rate=0.5, momentum=0.9),
    )
    fedmf.simulate(run, tmp_path / "run")
    assert shown(seen, tmp_path, COHORT) == []


def test_a_sum_in_a_checkpoint_is_seen(
    seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    totals = totals_seen(monkeypatch)
    step = PrivateServer._step

    def keeping(self: PrivateServer, noised: NoisedRound) -> ServerState:
        after = step(self, noised)
        return replace(after, optimizer={**after.optimizer, "before": totals[-1]})

    monkeypatch.setattr(PrivateServer, "_step", keeping)
    fedmf.simulate(run_of(random_rows(DIMENSION)), tmp_path / "run")
    assert shown(seen, tmp_path, COHORT) == ["ledger.sqlite"]
