"""What of an app would fail in silence is told, or mended, before anything is spent."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp.strategy import FedAvg
from support.wrapped_apps import (
    CLIP,
    ROUNDS,
    USERS,
    adding,
    dense_c,
    flat,
    model,
    noisy_means,
    private,
    update_of,
)

from fedmf.errors import ConfigError
from fedmf.flower import InProcessGrid
from fedmf.flower.wrapper.layout import ArrayLayout
from fedmf.runs import ReleasedModel
from fedmf.runs.statistics import QuantileClipping


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """Lines of Flower's own logger, which hands nothing on by itself."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level(logging.INFO, logger="flwr")
    return caplog


def trained(place: Path, strategy: Any = None, rounds: int = 2, **options: Any) -> list[str]:
    """Train an app whose clients do what they are asked."""
    strategy = private(strategy or FedAvg(), place / "run", **options)
    grid = InProcessGrid(adding(lambda user, _: update_of(user)), nodes=USERS)
    strategy.start(grid=grid, initial_arrays=model(), num_rounds=rounds)
    return strategy


def array(*values: float, dtype: str = "float32") -> Array:
    return Array(np.array(values, dtype))


ONES, ZEROS, COUNT = array(1, 1, 1), array(0, 0, 0), Array(np.array(0, np.int64))
KERNEL = Array(np.arange(12, dtype=np.float32).reshape(4, 3))


@pytest.mark.parametrize(
    ("arrays", "statistics"),
    [
        ([KERNEL, ONES, ZEROS, ZEROS, ONES, COUNT, array(3, 1)], ["3", "4"]),  # torch
        (
            [KERNEL, array(2, 3, 1), array(1, 5, 2), array(7, 2, 9), array(1, 8, 4), COUNT],
            ["3", "4"],
        ),  # trained
        ([KERNEL, ONES, ZEROS, ZEROS, ONES], ["3", "4"]),  # Keras
        ([KERNEL, ZEROS, KERNEL, ZEROS], []),  # dense layers
        ([KERNEL, ONES, ZEROS, KERNEL, ONES, ZEROS], []),  # layer normalisation
        ([KERNEL, array(1, 2), KERNEL, COUNT], []),  # some other counter
    ],
)
def test_statistics_in_a_list_of_arrays_are_refused(arrays: list[Array], statistics: list[str]) -> None:
    record = ArrayRecord({str(place): array for place, array in enumerate(arrays)})
    if not statistics:
        ArrayLayout.of(record, tied=[])
        return
    names = ", ".join(map(repr, statistics))
    with pytest.raises(ConfigError, match=f"^arrays {names} look like statistics of a normalisation layer"):
        ArrayLayout.of(record, tied=[])
    assert ArrayLayout.of(record, statistics, tied=[]).frozen == tuple(statistics)


def test_equal_arrays_are_a_question() -> None:
    record = ArrayRecord({"embedding": KERNEL, "bias": ZEROS, "offset": ZEROS, "head": KERNEL})
    with pytest.raises(ConfigError, match=r"'embedding' and 'head' hold the same numbers.*tied=\[\]"):
        ArrayLayout.of(record)
    assert not ArrayLayout.of(record, tied=[]).tied
    layout = ArrayLayout.of(record, tied=[("head", "embedding")])
    assert [name for name, _, _ in layout.trained] == ["embedding", "bias", "offset"]
    for tied, message in (
        ([("embedding", "bias")], "tied arrays must be equal; 'embedding' and 'bias' differ"),
        (
            [("embedding", "tail")],
            "tied must name arrays of the model that are trained, each once; got 'tail'",
        ),
        (["embedding"], "tied must be groups of two or more names of arrays; got 'embedding'"),
        ([("bias", "offset"), ("offset", "bias")], "each once; got 'bias'"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            ArrayLayout.of(record, tied=tied)
    with pytest.raises(ConfigError, match="that are trained, each once; got 'embedding'"):
        ArrayLayout.of(record, ["embedding"], [("embedding", "head")])


def test_a_tied_array_is_trained_clipped_and_noised_once(tmp_path: Path) -> None:
    """What clients send is norm clipped without the copy; models hold one array under both names."""
    start = model()
    arrays = ArrayRecord({**start, "again": start["body.weight"]})

    def update(user: int, _context: object = None) -> np.ndarray:
        """Clients move the copy as well, as torch does with one parameter under two names."""
        once = update_of(user)
        return np.concatenate([once, once[:12]])

    strategy = private(FedAvg(), tmp_path / "run", tied=[("body.weight", "again")])
    result = strategy.start(
        grid=InProcessGrid(adding(update), nodes=USERS), initial_arrays=arrays, num_rounds=ROUNDS
    )
    assert result.arrays is not None
    statement = strategy.statement().to_dict()
    means = noisy_means(update_of, float(statement["noise_std"]), dense_c(statement), 21)
    released = {name: array.numpy() for name, array in result.arrays.items()}
    np.testing.assert_array_equal(released["again"], released["body.weight"])
    without = ArrayRecord({name: result.arrays[name] for name in start})
    np.testing.assert_allclose(flat(without), flat(start) + sum(means), atol=2e-4)
    strategy.close()
    exported = ReleasedModel.of(tmp_path / "run").tensors
    np.testing.assert_array_equal(exported["again"].numpy(), released["again"])


class Saving(FedAvg):
    """As Flower's larger examples are: a loop and an evaluation of their own."""

    def start(self, *arguments: Any, **named: Any) -> Any:
        """Saves results, which nobody calls."""
        return super().start(*arguments, **named)

    def aggregate_evaluate(self, *arguments: Any) -> Any:
        """Writes a file."""
        return super().aggregate_evaluate(*arguments)


def test_methods_that_nobody_calls_are_named(said: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    trained(tmp_path, Saving())
    lines = [record.getMessage() for record in said.records if record.levelno >= logging.WARNING]
    assert any(line.startswith("fedmf: Saving.start is never called: ") for line in lines)
    assert any(line.startswith("fedmf: Saving.aggregate_evaluate is never called: ") for line in lines)
    assert not any("configure_evaluate" in line or "train_metrics" in line for line in lines)
    everything = [record.getMessage() for record in said.records]
    assert sum("made private; clients are not asked to evaluate" in line for line in everything) == 1


def test_one_line_a_round_has_what_is_public(said: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    strategy = private(FedAvg(), tmp_path / "run", adaptive_clipping=QuantileClipping())
    strategy.start(
        grid=InProcessGrid(adding(lambda user, _: update_of(user)), nodes=USERS),
        initial_arrays=model(),
        num_rounds=ROUNDS,
        evaluate_fn=lambda _t, arrays: MetricRecord({"length": float(np.linalg.norm(flat(arrays)))}),
    )
    lines = [record.getMessage() for record in said.records]
    rounds = [line for line in lines if re.match(r"fedmf: round \d+/", line)]
    assert len(rounds) == ROUNDS + 1
    assert all("length " in line for line in rounds)
    epsilons = [float(re.findall(r"epsilon ([\d.]+)", line)[0]) for line in rounds[1:]]
    assert epsilons == sorted(epsilons)
    assert "clip_norm" in rounds[2]
    assert any(line.startswith("fedmf: noise: norm ") for line in lines)
    assert any(f"run directory {strategy.run_dir}" in line for line in lines)
    assert not any("Received" in line or "Sampled" in line for line in lines), "counts, or one reply"


@pytest.mark.parametrize(("epsilon", "warned"), [(8.0, False), (0.001, True)])
def test_noise_beyond_all_updates_is_named(
    epsilon: float, warned: bool, said: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    assert CLIP > 0
    trained(tmp_path, epsilon=epsilon)
    assert any("nothing can be learnt" in record.getMessage() for record in said.records) == warned
