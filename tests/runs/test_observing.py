"""Who looks on while a run is carried out: after commits only, after resuming again, and when it may end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.command_line import one_line
from support.small_runs import SMALL, dotted, small_run

import fedmf
from fedmf.cli.app import run as command_line
from fedmf.errors import ConfigError
from fedmf.records import Ledger, read_tensors
from fedmf.runs import (
    Checkpoints,
    NoProgress,
    ObserverError,
    Run,
    RunResult,
    Standing,
    TargetReached,
    TensorBoard,
    observed,
    run_of,
)
from fedmf.runs.tables import render_toml

RUN = small_run(mechanism="bisr", bands=2, evaluate_every=3)


def rounds_on_record(path: Path) -> int:
    with Ledger.open(path / "ledger.sqlite", read_only=True) as ledger:
        last = ledger.last_round()
    return 0 if last is None else last + 1


def failing_at(rounds: int) -> Callable[[Standing], None]:
    def fails(standing: Standing) -> None:
        if standing.rounds == rounds and not standing.opening:
            raise RuntimeError("tracker\nis gone")

    return fails


def test_observers_see_every_round_after_its_commit(tmp_path: Path) -> None:
    seen: list[Standing] = []

    def look(standing: Standing) -> None:
        assert rounds_on_record(tmp_path / "run") == standing.rounds
        if standing.rounds:
            kept = fedmf.load_model(tmp_path / "run")
            assert all(torch.equal(kept[name], tensor) for name, tensor in standing.model().items())
        standing.parameters().zero_()  # a copy: whatever an observer does to it
        seen.append(standing)

    result = fedmf.simulate(RUN, tmp_path / "run", observers=[look])
    assert [standing.rounds for standing in seen] == [*range(13)]
    assert [standing.opening for standing in seen] == [True] + 12 * [False]
    assert torch.equal(seen[-1].parameters(), result.parameters)
    assert torch.equal(result.parameters, fedmf.simulate(RUN, tmp_path / "alone").parameters)
    assert [bool(standing.row) for standing in seen] == [t % 3 == 0 for t in range(13)]
    assert {*seen[3].public} == {"loss", "accuracy", "epsilon"}
    assert not hasattr(seen[3], "present")


def test_an_observer_that_raises_ends_the_run_which_goes_on(tmp_path: Path) -> None:
    """Each round is shown at least once; the one at which a process ended is shown again and says so."""
    seen: list[tuple[int, bool]] = []

    def look(standing: Standing) -> None:
        seen.append((standing.rounds, standing.opening))

    with pytest.raises(ObserverError, match="fails raised after round 5 of 12") as caught:
        fedmf.simulate(RUN, tmp_path / "run", observers=[failing_at(5), look])
    assert "\n" not in str(caught.value)
    assert (tmp_path / "run/statement.json").is_file()
    again = fedmf.simulate(RUN, tmp_path / "run", observers=[look])
    assert [t for t, opening in seen if not opening] == [1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12]
    assert [t for t, opening in seen if opening] == [0, 5]
    assert again.metrics == fedmf.simulate(RUN, tmp_path / "whole").metrics


def test_checkpoints_once_for_each_round_whatever_happens(tmp_path: Path) -> None:
    files = Checkpoints(tmp_path / "models", every=5)
    with pytest.raises(ObserverError):
        fedmf.simulate(RUN, tmp_path / "run", observers=[files, failing_at(5)])
    written = sorted((tmp_path / "models").iterdir())
    result = fedmf.simulate(RUN, tmp_path / "run", observers=[files])
    names = [path.name for path in sorted((tmp_path / "models").iterdir())]
    assert names == [f"round-{t:07d}.safetensors" for t in (5, 10, 12)]
    assert [path.name for path in written] == names[:1]
    last = read_tensors(tmp_path / "models" / names[-1])
    assert torch.equal(torch.cat([tensor.reshape(-1) for tensor in last.values()]), result.parameters)
    other = dataclasses.replace(RUN, privacy=fedmf.UserLevel(noise_seed=8))
    with pytest.raises(ObserverError, match="exists already and is not replaced"):
        fedmf.simulate(other, tmp_path / "other", observers=[files])
    for wrong in ({"every": 0}, {"form": "npz"}):
        with pytest.raises(ValueError, match="models\\) must be"):
            Checkpoints(tmp_path, **wrong)  # type: ignore[arg-type]


def test_rounds_whose_model_is_gone_are_not_shown(tmp_path: Path) -> None:
    """With a state kept in every fourth round only, round 6 leaves the model after round 4."""
    run = small_run(mechanism="bisr", bands=2, checkpoint_every=4)
    files, seen = Checkpoints(tmp_path / "models", every=6), list[int]()
    with pytest.raises(ObserverError):
        fedmf.simulate(run, tmp_path / "run", observers=[files, failing_at(6)])
    fedmf.simulate(run, tmp_path / "run", observers=[files, lambda at: seen.append(at.rounds)])
    assert seen == [7, 8, 9, 10, 11, 12]
    assert len(list((tmp_path / "models").iterdir())) == 2


def stopped_by(rule: object, path: Path, run: Run = RUN) -> RunResult:
    return fedmf.simulate(run, path, stop=rule)  # type: ignore[arg-type]


def test_an_early_stop_is_a_function_of_the_released_values(tmp_path: Path) -> None:
    """It ends with the model of the whole run at that round, and going on with it releases nothing more."""
    models: list[torch.Tensor] = []
    whole = fedmf.simulate(
        RUN, tmp_path / "whole", observers=[lambda standing: models.append(standing.parameters())]
    )
    losses = {t: row["loss"] for t, row in whole.metrics.items()}
    target = sorted(losses.values())[1]
    at = min(t for t, loss in losses.items() if loss <= target)
    assert 0 < at < 12
    result = stopped_by(TargetReached("loss", target), tmp_path / "run")
    assert result.stopped.startswith(f"stopped after round {at} of 12: loss ")
    assert torch.equal(result.parameters, models[at])
    assert rounds_on_record(tmp_path / "run") == at
    assert result.statement.to_dict()["epsilon_planned"] == whole.statement.to_dict()["epsilon_planned"]
    again = stopped_by(TargetReached("loss", target), tmp_path / "run")
    assert (again.stopped, rounds_on_record(tmp_path / "run")) == (result.stopped, at)
    assert torch.equal(fedmf.simulate(RUN, tmp_path / "run").parameters, whole.parameters)
    assert stopped_by(NoProgress("accuracy", 1, gain=1.0), tmp_path / "no").stopped.startswith(
        "stopped after round 3 of 12: accuracy was not above "
    )


def test_a_rule_on_what_is_private_is_refused_before_anything_is_released(tmp_path: Path) -> None:
    exact = {**SMALL, "evaluation": "not-private", "mechanism": "bisr", "bands": 2}
    for metric in ("federated_loss_not_private", "federated_loss"):
        with pytest.raises(ConfigError, match="must be public or released with noise; got") as caught:
            stopped_by(NoProgress(metric), tmp_path / metric, run_of(dotted(**exact)))
        assert "Choose from: loss, accuracy." in str(caught.value)
        assert rounds_on_record(tmp_path / metric) == 0
    open_to_all = run_of(dotted(**exact, private=False))
    assert (
        stopped_by(NoProgress("federated_loss_not_private", 99), tmp_path / "open", open_to_all).stopped == ""
    )
    with pytest.raises(ConfigError, match="must be one of: loss, accuracy; got 'auc'"):
        stopped_by(NoProgress("auc"), tmp_path / "auc")
    noised = run_of(dotted(**{**exact, "evaluation": "private"}))
    rule = TargetReached("accuracy_private", -99.0)
    assert stopped_by(rule, tmp_path / "noised", noised).stopped.startswith(
        "stopped after round 10 of 12: acc"
    )
    for wrong in ({"evaluations": 0}, {"gain": -1.0}):
        with pytest.raises(ValueError, match="must be"):
            NoProgress(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be finite"):
        TargetReached("loss", float("nan"))


def test_tensorboard_shows_every_evaluated_round_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not among the pinned packages")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoard(tmp_path / "events")
    with pytest.raises(ObserverError):
        fedmf.simulate(RUN, tmp_path / "run", observers=[board, failing_at(6)])
    command = ["simulate", "--resume", str(tmp_path / "run"), "--tensorboard", str(tmp_path / "events")]
    assert command_line(command) == 0
    result = fedmf.simulate(RUN, tmp_path / "run")
    shown = EventAccumulator(str(tmp_path / "events")).Reload()
    assert {*shown.Tags()["scalars"]} == {"loss", "accuracy", "epsilon"}
    for name in ("loss", "epsilon"):
        points = {event.step: event.value for event in shown.Scalars(name)}
        assert len(points) == len(shown.Scalars(name))
        assert points == pytest.approx({t: row[name] for t, row in result.metrics.items()}, rel=1e-6)


def test_tensorboard_without_its_extra_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"needs the extra: pip install 'fedmf\[tensorboard\]'"):
        TensorBoard("events")
    (tmp_path / "run.toml").write_text(render_toml(RUN))
    command = ["simulate", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run")]
    assert command_line([*command, "--tensorboard", str(tmp_path / "events")]) == 2
    assert "needs the extra" in one_line(capsys)
    assert not (tmp_path / "run").exists()


def test_what_holds_something_open_is_closed(tmp_path: Path) -> None:
    from contextlib import contextmanager

    log: list[str] = []

    class Lasting:
        @contextmanager
        def observing(self):  # type: ignore[no-untyped-def]
            log.append("open")
            yield lambda standing: log.append(f"round {standing.rounds}")
            log.append("closed")

    with fedmf.start(RUN, tmp_path / "run") as session, observed(session, [Lasting()]) as show:
        show()
    assert log == ["open", "round 0", "round 0", "closed"]
