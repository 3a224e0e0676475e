"""Runs with private client evaluation: whom they ask, how they go on, what they state and refuse."""

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp.strategy import FedProx
from support.evaluated_apps import EPSILON, RANGES, SHARE, carried_out, cyclic, evaluated, reported
from support.wrapped_apps import COHORT, ROSTER, ROUNDS, USERS, Next, adding, flat, model, saying, update_of

from fedmf.errors import ConfigError
from fedmf.flower import CorrelatedNoise, InProcessGrid, UsersSayWho
from fedmf.flower.traffic import ForwardedGrid
from fedmf.runs import PrivateEvaluation, PrivateEvaluator, Waiting, account

pytestmark = pytest.mark.usefixtures("own_time")


def test_a_stopped_run_shows_the_same_metrics_and_asks_nobody_twice(tmp_path: Path) -> None:
    """What is on record is shown again, whatever clients would say now."""

    def run(path: Path, num_rounds: int | None, says: Callable[[int], dict[str, Any]]) -> dict[int, Any]:
        strategy = evaluated(path, identity=UsersSayWho(ROSTER))
        grid = InProcessGrid(saying(lambda user, _: update_of(user), says), nodes=USERS)
        result = strategy.start(grid=grid, initial_arrays=model(), num_rounds=num_rounds)
        strategy.close()
        return {t: dict(metrics) for t, metrics in result.evaluate_metrics_clientapp.items()}

    def never(_: int) -> dict[str, Any]:
        raise AssertionError("asked again")

    run(tmp_path / "stopped", 2, reported)
    run(tmp_path / "stopped", 5, reported)
    whole = run(tmp_path / "whole", None, reported)
    assert run(tmp_path / "stopped", None, reported) == whole
    assert sorted(whole) == list(range(1, ROUNDS + 1))
    assert run(tmp_path / "stopped", None, never) == whole
    assert (tmp_path / "stopped" / "failures.jsonl").read_text() == ""


@pytest.mark.parametrize("committed", [False, True])
def test_an_evaluation_that_a_stop_left_out_is_made_first_and_once(
    committed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped right before the commit nothing was shown; right after it, the estimate is found again."""

    def begin(path: Path) -> tuple[CorrelatedNoise, InProcessGrid]:
        app = saying(lambda user, _: update_of(user), reported)
        return evaluated(path, identity=UsersSayWho(ROSTER)), InProcessGrid(app, nodes=USERS)

    strategy, grid = begin(tmp_path / "whole")
    whole = strategy.start(grid=grid, initial_arrays=model())
    release = PrivateEvaluator.release

    def stopping(self: PrivateEvaluator, e: int, *arguments: Any) -> Any:
        if committed or e < 2:
            release(self, e, *arguments)
        if e == 2:
            raise KeyboardInterrupt
        return {}

    strategy, grid = begin(tmp_path / "run")
    with monkeypatch.context() as patched:
        patched.setattr(PrivateEvaluator, "release", stopping)
        with pytest.raises(KeyboardInterrupt):
            strategy.start(grid=grid, initial_arrays=model())
    strategy.close()
    strategy, grid = begin(tmp_path / "run")
    result = strategy.start(grid=grid, initial_arrays=model())
    strategy.close()
    assert result.evaluate_metrics_clientapp == whole.evaluate_metrics_clientapp
    assert result.arrays is not None
    assert whole.arrays is not None
    assert np.array_equal(flat(result.arrays), flat(whole.arrays))


def test_the_inner_strategys_messages_reach_those_whom_the_contract_names(tmp_path: Path) -> None:
    """``fraction_evaluate`` does not choose them; configs and the released model arrive."""
    seen: list[tuple[int, int, dict[str, Any], np.ndarray]] = []
    models: dict[int, np.ndarray] = {}

    def note(message: Message, context: Context, call_next: Next) -> Message:
        if message.metadata.message_type == "evaluate":
            config = dict(message.content.config_records["config"])
            number = int(str(config["server-round"]))
            arrays = flat(message.content.array_records["arrays"])
            seen.append((number, int(context.node_config["partition-id"]), config, arrays))
        return call_next(message, context)

    strategy = evaluated(tmp_path / "run", inner=FedProx(proximal_mu=0.2, fraction_evaluate=0.0))
    strategy.start(
        grid=InProcessGrid(adding(lambda user, _: update_of(user), reported, mods=[note]), nodes=USERS),
        initial_arrays=model(),
        evaluate_config=ConfigRecord({"batch": 7}),
        evaluate_fn=lambda t, arrays: models.update({t: flat(arrays)}),
    )
    assert [config["batch"] for _, _, config, _ in seen] == [7] * (COHORT * ROUNDS)
    for number in range(1, ROUNDS + 1):
        asked = sorted(user for t, user, _, _ in seen if t == number)
        assert asked == sorted(cyclic(number - 1, COHORT))
    for user in range(USERS):
        times = [t for t, asked, _, _ in seen if asked == user]
        assert len(times) == 2
        assert times[1] - times[0] >= 3
    for number, _, _, arrays in seen:
        assert np.array_equal(arrays, models[number])


class Deaf(ForwardedGrid):
    """A grid on which nobody hears evaluate messages; how often they were sent."""

    asked = 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        if all(message.metadata.message_type == "evaluate" for message in messages):
            self.asked += 1
            return [f"lost-{self.asked}-{index}" for index in range(len(messages))]
        return super().push_messages(messages)


def test_silence_is_asked_again_and_then_spends_its_row(tmp_path: Path) -> None:
    """Noise alone is shown, nobody is on record, and the run goes on."""
    grid = Deaf(InProcessGrid(adding(lambda user, _: update_of(user), reported), nodes=USERS))
    asked = PrivateEvaluation(every=3, share=SHARE)
    strategy = evaluated(tmp_path / "run", asked, waiting=Waiting(silent_retries=1))
    result = strategy.start(grid=grid, initial_arrays=model(), timeout=0.3)
    assert grid.asked == 4
    assert sorted(result.evaluate_metrics_clientapp) == [3, 6]
    statement = strategy.statement().to_dict()
    assert statement["rounds_released"] == ROUNDS
    assert statement["evaluation_realised"]["users_participated"] == 0
    assert statement["evaluation_realised"]["empty"] == 2
    assert statement["epsilon_realised"] < EPSILON


def test_a_second_reply_and_one_to_nobody_count_for_nothing(tmp_path: Path) -> None:
    """Driven by hand as Flower drives a strategy; ``arrays`` of the caller are not what is judged."""

    def released(extra: bool) -> MetricRecord | None:
        strategy = evaluated(tmp_path / str(extra))
        grid = InProcessGrid(adding(lambda user, _: update_of(user), reported), nodes=USERS)
        strategy.begin(model())
        strategy.identity.gather(grid, 1.0)
        train = strategy.configure_train(1, model(), ConfigRecord(), grid)
        arrays, _ = strategy.aggregate_train(1, list(grid.send_and_receive(train)))
        assert arrays is not None
        other = ArrayRecord({name: Array(7 * array.numpy()) for name, array in arrays.items()})
        messages = list(strategy.configure_evaluate(1, other, ConfigRecord(), grid))
        sent = messages[0].content["arrays"]
        assert isinstance(sent, ArrayRecord)
        assert np.array_equal(flat(sent), flat(arrays))
        replies = list(grid.send_and_receive(messages))
        foreign = strategy.inner.configure_evaluate(1, arrays, ConfigRecord(), grid)
        strangers = list(grid.send_and_receive(foreign))
        metrics = strategy.aggregate_evaluate(1, [*strangers, *replies, *replies] if extra else replies)
        assert strategy.aggregate_evaluate(1, replies) is None
        return metrics

    assert released(True) == released(False)


def test_the_statement_names_metrics_ranges_and_error_bars(tmp_path: Path) -> None:
    strategy = evaluated(tmp_path / "run")
    metrics = carried_out(strategy)
    statement = strategy.statement()
    strategy.close()
    assert account(tmp_path / "run").to_dict() == statement.to_dict()
    said = statement.to_dict()["evaluation"]["metrics"]
    assert said == {
        name: {"low": low, "high": high, "largest_std": pytest.approx(metrics[1][f"{name}_std"])}
        for name, (low, high) in RANGES.items()
    }
    text = " ".join(statement.render_text().split())
    assert "private metrics: eval_loss (0 to 3, error bar" in text
    assert not any("federated evaluation" in line for line in statement.to_dict()["not_covered"])
    declared = [entry["value"] for entry in statement.to_dict()["public_inputs"]]
    assert "eval_loss in [0, 3], eval_acc in [0, 1]" in declared


def test_another_choice_of_metrics_is_another_run(tmp_path: Path) -> None:
    grid = InProcessGrid(saying(lambda user, _: update_of(user), reported), nodes=USERS)
    first = evaluated(tmp_path / "run", identity=UsersSayWho(ROSTER))
    first.start(grid=grid, initial_arrays=model(), num_rounds=1)
    first.close()
    swapped = dict(reversed(RANGES.items()))
    for ranges in (swapped, {**RANGES, "eval_loss": (0.0, 9.0)}):
        other = evaluated(tmp_path / "run", identity=UsersSayWho(ROSTER), evaluation_metrics=ranges)
        with pytest.raises(ConfigError, match=r"holds another run: its task\.ranges"):
            other.start(grid=grid, initial_arrays=model())


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            {"evaluation_metrics": None},
            "evaluation_metrics .* must be given with client_evaluation 'private'",
        ),
        ({"client_evaluation": "off"}, "evaluation_metrics .* and with no other"),
        ({"client_evaluation": "not-private"}, "evaluation_metrics .* and with no other"),
        ({"client_evaluation": "off", "evaluation_metrics": None}, "private_evaluation must be left out"),
        ({"private_evaluation": PrivateEvaluation(loss_bound=2.0)}, "loss_bound .* must be left out"),
        ({"evaluation_metrics": {"a": (0, 1), "a_std": (0, 1)}}, "must not name 'a_std'"),
        ({"evaluation_metrics": {"a": (1.0, 1.0)}}, "range .of a. must have finite ends"),
        ({"evaluation_metrics": {"a": (0.0, math.inf)}}, "range .of a. must have finite ends"),
        ({"private_evaluation": PrivateEvaluation(size=USERS + 1)}, "m_e .* must be at most N=12"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(keys: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        evaluated(tmp_path / "run", **keys).begin(model())
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
