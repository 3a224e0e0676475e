"""Runs trained together: the models, losses and rows of each run alone, to the bit."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.sweeps import BASE, VARIANTS, small_sweep

import fedmf
from fedmf.accounting import ExampleLevel
from fedmf.cli.app import run as command
from fedmf.errors import ConfigError
from fedmf.noise import GaussianSource, NoiseKey, NoiseStream
from fedmf.rounds import run_in_process
from fedmf.runs import run_of
from fedmf.sweeps import Progress, together
from fedmf.sweeps.together import _Ahead, batches, hindrance, train_together

SEEDS = {"privacy.noise-seed": 5, "data.seed": 5}
#: Every way in which noise is drawn (recurrences that scale rows or not, feedback, state, blocks),
#: and rules with and without a second moment.
TOGETHER: dict[str, dict[str, Any]] = {
    "identity": {"mechanism.kind": "identity"},
    "bands": {"mechanism.kind": "banded-toeplitz", "mechanism.bands": 3},
    "few z": {"mechanism.kind": "bisr", "mechanism.bands": 4, "optimizer.learning-rate": 0.4},
    "cgd": {"mechanism.kind": "cgd", "privacy.epsilon": 2.0},
    "normalized": {"mechanism.kind": "normalized-cgd"},
    "buffers": {"mechanism.kind": "blt", "mechanism.buffers": 2},
    "tree": {"mechanism.kind": "tree"},
    "clip norm": {"privacy.clip-norm": 0.2, "optimizer.momentum": 0.0},
    "adam": {"optimizer.kind": "adam", "optimizer.learning-rate": 0.01},
    "pair": {"optimizer.kind": "jme-adam", "optimizer.learning-rate": 0.01},
}
DATA: dict[str, dict[str, Any]] = {
    "logistic": {},
    "two layers": {
        "model.kind": "mlp",
        "model.hidden-units": "8",
        "local.batch-size": 2,
        "local.momentum": 0.5,
    },
    "sampled": {"cohorts.kind": "balls-in-bins", "cohorts.min-separation": None},
}


def alone(run: fedmf.Run, place: Path) -> tuple[torch.Tensor, dict[int, dict[str, Any]]]:
    with fedmf.start(run, place) as session:
        run_in_process(session)
        return session.server.parameters, session.metrics


@pytest.mark.parametrize("data", DATA)
def test_a_run_trained_together_is_the_run_alone_to_the_bit(data: str, tmp_path: Path) -> None:
    runs = []
    for keys in TOGETHER.values():
        asked = {**BASE, **SEEDS, **DATA[data], **keys}
        runs.append(run_of({name: value for name, value in asked.items() if value is not None}))
    (places,) = [places for places in batches(runs) if len(places) > 1]
    assert len(places) == len(runs)
    for run, trained in zip(runs, train_together(runs), strict=True):
        assert hindrance(run) is None
        parameters, metrics = alone(run, tmp_path / str(id(run)))
        assert torch.equal(trained.parameters.view(torch.int32), parameters.view(torch.int32))
        assert trained.metrics == metrics
        assert trained.failures == 0


def test_more_models_than_may_be_held_are_trained_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [run_of({**BASE, **SEEDS, "privacy.epsilon": epsilon}) for epsilon in (1.0, 2.0, 4.0)]
    expected, built = train_together(runs), []
    dimension = expected[0].parameters.numel()
    model = together._Model.of

    def counted(run: fedmf.Run, task: Any, count: int) -> Any:
        built.append(count)
        return model(run, task, count)

    monkeypatch.setattr(together, "_HELD", 2 * dimension)
    monkeypatch.setattr(together._Model, "of", counted)
    for found, other in zip(train_together(runs), expected, strict=True):
        assert torch.equal(found.parameters, other.parameters)
        assert found.metrics == other.metrics
    assert built == [2, 2, 1]


def test_single_examples_are_checked_for_a_batch_as_for_a_run() -> None:
    """One of several examples of a user moves an update by up to 2ζ: ε of examples would not hold."""
    run = run_of({**BASE, **SEEDS})
    values = {
        field.name: getattr(run.privacy, field.name)
        for field in dataclasses.fields(run.privacy)
        if field.init
    }
    level = ExampleLevel(**values)
    runs = [dataclasses.replace(run, task=run.task_source.build(), privacy=level)] * 2
    with pytest.raises(ConfigError, match="users must own one example each"):
        train_together(runs)


@pytest.mark.parametrize("name", TOGETHER)
def test_rows_drawn_ahead_are_added_as_the_stream_adds_them(name: str) -> None:
    """In float64, which a model's float32 would hide: to the bit where rows are drawn ahead, else refused."""
    plan = fedmf.plan(run_of({**BASE, **SEEDS, **TOGETHER[name]}))
    inverse, rounds = plan.mechanism.factorization.recurrence(), plan.participation.rounds
    assert _Ahead.suits(inverse) == (name not in ("identity", "normalized", "tree", "buffers"))
    if not _Ahead.suits(inverse):
        return
    source = GaussianSource(NoiseKey.from_seed(3), 50)
    stream, ahead = NoiseStream(source, inverse, rounds), _Ahead(NoiseStream(source, inverse, rounds), 3)
    start = torch.randn(rounds, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for t in range(rounds):
        expected, found = start[t].clone(), start[t].clone()
        stream.add_(expected, 0.37)
        ahead.seek(t)
        ahead.add_(found, 0.37)
        assert torch.equal(found.view(torch.int64), expected.view(torch.int64))


def test_a_sweep_together_has_the_values_of_a_sweep_and_says_what_it_kept(tmp_path: Path) -> None:
    variants = {name: VARIANTS[name] for name in ("identity", "bisr p=2")}
    sweep = small_sweep(
        seeds=(0, 1), tuning_seeds=(100,), variants=variants, grid={"privacy.epsilon": (8.0,)}
    )
    lines = list[str]()

    def note(progress: Progress) -> None:
        lines.append(progress.line)

    together = fedmf.carry_out(sweep, tmp_path / "together", together=True, observer=note)
    one_by_one = fedmf.carry_out(sweep, tmp_path / "alone", keep_runs=True)
    assert [found.values for found in together.cells] == [found.values for found in one_by_one.cells]
    assert [found.tuning for found in together.cells] == [found.tuning for found in one_by_one.cells]
    assert not any(lines)
    assert not [*(tmp_path / "together/runs").iterdir()]
    for digest in one_by_one.cells[1].runs.values():
        row = json.loads((tmp_path / f"together/finished/{digest}.json").read_text())
        assert row["statement"] is None
        assert row["trained_together"] > 1
        model = fedmf.runs.ReleasedModel.of(tmp_path / f"alone/runs/{digest}")
        flat = torch.cat([value.flatten() for value in model.tensors.values()])
        assert row["model_sha256"] == hashlib.sha256(flat.numpy().tobytes()).hexdigest()


def test_what_cannot_be_trained_together_is_carried_out_alone_and_said(tmp_path: Path) -> None:
    lines = list[str]()
    sweep = small_sweep(
        variants={"base": {}, "adaptive": {"clipping.kind": "quantile"}},
        **{"grid": {}, "tuned": {}, "tuning_seeds": (), "seeds": (0,)},
    )
    result = fedmf.carry_out(
        sweep, tmp_path / "out", together=True, observer=lambda progress: lines.append(progress.line)
    )
    assert "1 run is carried out one by one: it releases more than its model" in lines
    assert [len(found.values) for found in result.cells] == [1, 1]
    with pytest.raises(ConfigError, match="keep_runs must be false for runs trained together"):
        fedmf.carry_out(sweep, tmp_path / "out", together=True, keep_runs=True)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"privacy.noise-seed": None}, "secret key"),
        ({"execution.messages": "per-user"}, "message of its own"),
        ({"execution.isolation": "process"}, "isolated"),
        ({"evaluation.kind": "not-private"}, "evaluate models"),
        ({"privacy.max-epsilon": 7.0}, "end it early"),
        (
            {"own.function": "support.own_functions:halves", "own.entries": "first,last"},
            "more than its model",
        ),
    ],
)
def test_promises_that_need_a_record_are_kept_out(keys: dict[str, Any], reason: str) -> None:
    asked = {name: value for name, value in {**BASE, **SEEDS, **keys}.items() if value is not None}
    assert reason in (hindrance(run_of(asked)) or "")


def test_runs_that_ask_other_users_are_in_other_batches() -> None:
    runs = [run_of({**BASE, **SEEDS, **keys}) for keys in ({}, {"data.seed": 6}, {"mechanism.kind": "cgd"})]
    assert sorted(map(sorted, batches(runs))) == [[0, 2], [1]]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sweep.toml").write_text(
        "seeds = [0, 1]\n[base]\n"
        + "\n".join(f"{name} = {json.dumps(value)}" for name, value in BASE.items())
        + "\n[grid]\nprivacy.epsilon = [2.0, 8.0]\n"
    )
    assert command(["sweep", str(tmp_path / "sweep.toml"), "--out", str(tmp_path / "out"), "--together"]) == 0
    shown = capsys.readouterr().out
    assert "4 runs were trained together" in shown
    assert "no directory, no ledger and no statement" in shown
