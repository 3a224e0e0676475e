"""Who looks on at a wrapped app, and when it may end: as in a run of fedmf's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.serverapp.strategy import FedAvg
from support.evaluated_apps import evaluated, reported
from support.wrapped_apps import (
    ROSTER,
    ROUNDS,
    USERS,
    adding,
    flat,
    model,
    private,
    saying,
    update_of,
)

import fedmf
from fedmf.errors import ConfigError
from fedmf.flower import CorrelatedNoise, InProcessGrid, UsersSayWho
from fedmf.records import Ledger, read_tensors
from fedmf.runs import (
    Checkpoints,
    NoProgress,
    ObserverError,
    Standing,
    TargetReached,
    TensorBoard,
)

pytestmark = pytest.mark.usefixtures("own_time")


def carried_out(strategy: CorrelatedNoise) -> np.ndarray:
    grid = InProcessGrid(saying(lambda user, _: update_of(user), reported), nodes=USERS)
    try:
        result = strategy.start(grid=grid, initial_arrays=model())
    finally:
        strategy.close()
    assert result.arrays is not None
    return flat(result.arrays)


def asked(path: Path, **options: object) -> CorrelatedNoise:
    return evaluated(path, identity=UsersSayWho(ROSTER), **options)


def test_observers_see_every_round_after_its_commit_with_epsilon_and_noised_metrics(tmp_path: Path) -> None:
    seen: list[Standing] = []

    def look(standing: Standing) -> None:
        with Ledger.open(tmp_path / "run" / "ledger.sqlite", read_only=True) as ledger:
            last = ledger.last_round()
        assert (0 if last is None else last + 1) == standing.rounds
        if standing.rounds:
            kept = fedmf.load_model(tmp_path / "run")
            assert all(torch.equal(kept[name], tensor) for name, tensor in standing.model().items())
        seen.append(standing)

    whole = carried_out(asked(tmp_path / "run", observers=[look]))
    assert [standing.rounds for standing in seen] == [*range(ROUNDS + 1)]
    assert [standing.opening for standing in seen] == [True] + ROUNDS * [False]
    noised = {"eval_loss_private", "eval_loss_private_std", "eval_acc_private", "eval_acc_private_std"}
    assert {*seen[-1].public} == {"epsilon", *noised}
    epsilons = [standing.metrics[t]["epsilon"] for t, standing in enumerate(seen)]
    assert epsilons == sorted(epsilons)
    assert epsilons[0] == 0
    assert np.array_equal(whole, carried_out(asked(tmp_path / "alone")))


def test_an_observer_that_raises_ends_the_app_which_goes_on(tmp_path: Path) -> None:
    def fails(standing: Standing) -> None:
        if standing.rounds == 3 and not standing.opening:
            raise RuntimeError("tracker\nis gone")

    files = Checkpoints(tmp_path / "models", every=3)
    with pytest.raises(ObserverError, match="fails raised after round 3 of 6") as caught:
        carried_out(asked(tmp_path / "run", observers=[files, fails]))
    assert "\n" not in str(caught.value)
    resumed = carried_out(asked(tmp_path / "run", observers=[files]))
    assert np.array_equal(resumed, carried_out(asked(tmp_path / "whole")))
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == [
        f"round-{t:07d}.safetensors" for t in (3, 6)
    ]
    last = read_tensors(tmp_path / "models" / "round-0000006.safetensors")
    assert np.array_equal(np.concatenate([tensor.numpy().reshape(-1) for tensor in last.values()]), resumed)


def test_tensorboard_shows_noised_metrics_alone(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not among the pinned packages")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    carried_out(asked(tmp_path / "run", observers=[TensorBoard(tmp_path / "events")]))
    shown = EventAccumulator(str(tmp_path / "events")).Reload()
    assert [event.step for event in shown.Scalars("eval_acc_private")] == [*range(1, ROUNDS + 1)]
    assert [event.step for event in shown.Scalars("epsilon")] == [*range(ROUNDS + 1)]
    exact = evaluated(
        tmp_path / "exact", client_evaluation="not-private", evaluation_metrics=None,
        private_evaluation=fedmf.PrivateEvaluation(), observers=[TensorBoard(tmp_path / "others")],
    )  # fmt: skip
    exact.start(
        grid=InProcessGrid(adding(lambda user, _: update_of(user), reported), USERS), initial_arrays=model()
    )
    assert exact.begin(model()).metrics[1]["eval_acc_not_private"] > 0  # for the operator
    exact.close()
    assert EventAccumulator(str(tmp_path / "others")).Reload().Tags()["scalars"] == ["epsilon"]


def test_an_app_ends_early_on_released_values(tmp_path: Path) -> None:
    """With the model of the whole run at that round; the same call again releases nothing more."""
    models: dict[int, np.ndarray] = {}
    values: dict[int, float] = {}

    def note(standing: Standing) -> None:
        models[standing.rounds] = standing.parameters().numpy()
        values[standing.rounds] = (standing.row or {}).get("eval_acc_private", -np.inf)

    carried_out(asked(tmp_path / "whole", observers=[note]))
    target = sorted(values.values())[3]
    at = min(t for t, value in values.items() if value >= target)
    assert 0 < at < ROUNDS
    rule = TargetReached("eval_acc_private", target, higher_is_better=True)
    for _ in range(2):
        stopped = carried_out(asked(tmp_path / "run", stop=rule))
        assert np.array_equal(stopped, models[at])
        with Ledger.open(tmp_path / "run" / "ledger.sqlite", read_only=True) as ledger:
            assert ledger.last_round() == at - 1


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (
            TargetReached("eval_acc_private", 0.5),
            "higher_is_better .* must be True or False where",
        ),
        (NoProgress("eval_acc", higher_is_better=True), "must be one of: eval_loss_private"),
        (NoProgress("loss"), "must be one of: eval_loss_private"),
        (NoProgress("epsilon", higher_is_better=False), "must be one of: eval_loss_private"),
    ],
)
def test_a_rule_that_nothing_public_answers_is_refused_before_anything_is_released(
    rule: NoProgress | TargetReached, said: str, tmp_path: Path
) -> None:
    strategy = asked(tmp_path / "run", stop=rule)
    with pytest.raises(ConfigError, match=said):
        carried_out(strategy)
    with Ledger.open(tmp_path / "run" / "ledger.sqlite", read_only=True) as ledger:
        assert ledger.last_round() is None


def test_a_rule_on_exact_figures_of_clients_is_refused(tmp_path: Path) -> None:
    rule = NoProgress("eval_acc_not_private", higher_is_better=True)
    strategy = private(FedAvg(), tmp_path / "run", client_evaluation="not-private", stop=rule)
    with pytest.raises(ConfigError, match="no public metric"):
        strategy.start(grid=InProcessGrid(adding(lambda *_: None), USERS), initial_arrays=model())
