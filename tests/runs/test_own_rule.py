"""An optimizer of a user's own that changes what it is given, or returns what no model can be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.small_runs import linear_task, small_run
from torch import Tensor

import fedmf
from fedmf.optim import RoundRelease

DIMENSION = 5


class InPlace:
    """Momentum as many write it: state and parameters are changed where they are."""

    second_moment = None
    second_form = "per-user"

    def init(self, parameters: Tensor) -> dict[str, Tensor]:
        return {"velocity": torch.zeros_like(parameters)}

    def step(
        self, t: int, parameters: Tensor, release: RoundRelease, state: Mapping[str, Tensor]
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        state["velocity"].mul_(0.9).add_(release.mean)
        return parameters.add_(state["velocity"]), state


class Returning(InPlace):
    """Returns something else."""

    def __init__(self, result: Any) -> None:
        self.result = result

    def step(self, *_: Any) -> Any:
        return self.result


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (
            (torch.zeros(DIMENSION + 1), {}),
            r"step \(of Returning\) must return torch.float32 parameters",
        ),
        ((torch.zeros(DIMENSION, dtype=torch.float64), {}), "got torch.float64 of shape"),
        ((None, {}), "got None. Nothing was released"),
        (
            (torch.zeros(DIMENSION), {"velocity": 3.0}),
            r"step \(of the optimizer\) must return its state as",
        ),
        ((torch.zeros(DIMENSION), None), "must return its state as tensors by name; got None"),
    ],
)
def test_what_no_model_can_be_is_refused_and_nothing_is_released(
    result: Any, message: str, tmp_path: Path
) -> None:
    run = replace(small_run(linear_task(24, DIMENSION)), server=Returning(result))
    with fedmf.start(run, tmp_path / "run") as session:
        with pytest.raises(ValueError, match=message):
            session.server.release(session.server.new_sum(), [])
        assert session.server.t == 0
        assert session.statement().to_dict()["rounds_released"] == 0
