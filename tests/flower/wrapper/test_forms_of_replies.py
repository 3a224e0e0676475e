"""Forms of replies that Flower clients often send: which are taken, and what is said about the others."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from support.wrapped_apps import COHORT, ROUNDS, USERS, private

from fedmf.flower import InProcessGrid

Form = Callable[[dict[str, np.ndarray]], ArrayRecord]
Named = dict[str, np.ndarray]


def _record(arrays: Named) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def _renamed(rename: Callable[[str], str]) -> Form:
    return lambda arrays: _record({rename(name): array for name, array in arrays.items()})


def _changed(change: Callable[..., Any]) -> Form:
    return lambda arrays: _record({name: change(array) for name, array in arrays.items()})


TAKEN: dict[str, Form] = {
    "float64": _changed(np.float64),
    "a scalar of shape (1,)": _changed(np.atleast_1d),
    "DataParallel": _renamed("module.{}".format),
    "compiled": _renamed("_orig_mod.{}".format),
    "a list": lambda arrays: ArrayRecord(list(arrays.values())),
}
UNUSABLE: dict[str, tuple[Form, str]] = {
    "beyond float32": (_changed(lambda array: np.full(array.shape, 1e300)), "NaN"),
    "transposed": (_changed(np.transpose), "of shape (3, 2)"),
    "a short list": (lambda arrays: ArrayRecord([arrays["w"]]), "no array 'w'"),
    "other names": (_renamed(str.upper), "no array 'w'"),
    "whole numbers": (_changed(np.int32), "int32"),
}


def _app(form: Form, who: Callable[[int], bool] = lambda _: True) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays, user = message.content["arrays"], int(context.node_config["partition-id"])
        assert isinstance(arrays, ArrayRecord)
        moved = {n: np.asarray(a.numpy() + np.float32(0.01 * (user + 1))) for n, a in arrays.items()}
        record = form(moved) if who(user) else _record(moved)
        content = RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": 1})})
        return Message(content, reply_to=message)

    return app


def _released(path: Path, app: ClientApp) -> Named:
    strategy = private(FedAvg(), path)
    initial = _record({"w": np.ones((3, 2), np.float32), "scale": np.array(1, np.float32)})
    result = strategy.start(grid=InProcessGrid(app, nodes=USERS), initial_arrays=initial)
    strategy.close()
    return {name: array.numpy() for name, array in result.arrays.items()}


@pytest.mark.parametrize("form", TAKEN)
def test_common_forms_are_taken(form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "fedmf"):
        plain = _released(tmp_path / "plain", _app(_record))
        other = _released(tmp_path / "other", _app(TAKEN[form]))
    assert all(np.array_equal(plain[name], other[name]) for name in plain)
    assert (tmp_path / "other" / "failures.jsonl").read_text() == ""
    assert caplog.messages == []


@pytest.mark.parametrize("form", UNUSABLE)
def test_the_operator_is_told_before_the_second_round(
    form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it is, once for each reason, however many rounds there are."""
    change, reason = UNUSABLE[form]
    rounds: list[int] = []

    def counted(arrays: Named) -> ArrayRecord:
        rounds.append(len(caplog.messages))
        return change(arrays)

    with caplog.at_level(logging.WARNING, "fedmf"):
        _released(tmp_path / "run", _app(counted))
    (line,) = caplog.messages
    assert line.startswith(f"round 1: {COHORT} of {COHORT} contributions could not be used")
    assert reason in line
    assert rounds == [0] * COHORT + [1] * COHORT * (ROUNDS - 1)


def test_one_user_of_a_cohort_is_not_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The screen would tell about that user's data; the secret file does."""
    with caplog.at_level(logging.WARNING, "fedmf"):
        _released(tmp_path / "run", _app(UNUSABLE["whole numbers"][0], lambda user: user == 0))
    assert caplog.messages == []
    assert "int32" in (tmp_path / "run" / "failures.jsonl").read_text()


def test_names_that_are_not_unique_without_prefixes_are_taken_as_they_are(tmp_path: Path) -> None:
    from fedmf.flower.wrapper.layout import ArrayLayout

    first, second = np.zeros(2, np.float32), np.ones(2, np.float32)
    layout = ArrayLayout.of(_record({"module.w": first, "w": second}), tied=())
    assert layout.read(_record({"w": second, "module.w": first})).tolist() == [0, 0, 1, 1]
    with pytest.raises(ValueError, match="no array"):
        layout.read(_record({"module.module.w": first, "module.w": second}))
