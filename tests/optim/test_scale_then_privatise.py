"""Scale-then-privatise: whatever the scales, a user adds at most ζ; docs/decisions/0020."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

FOLDER = Path(__file__).parents[2] / "simulations" / "optimizers"
sys.path.insert(0, str(FOLDER))
problems, methods = map(importlib.import_module, ("problems", "methods"))
sys.path.remove(str(FOLDER))

from fedmf.optim.move import Move  # noqa: E402
from fedmf.optim.server_optimizer import RoundRelease  # noqa: E402
from fedmf.workload.schedule import LearningRateSchedule  # noqa: E402


class _Small(problems.ScaledBlocks):
    users, cohort, classes, widths = 60, 20, 4, (30, 40, 50)


def test_a_user_adds_at_most_the_clip_norm_whatever_the_scales():
    problem, rng = _Small(0), np.random.default_rng(0)
    parameters = torch.randn(4 * 120, generator=torch.Generator().manual_seed(0))
    for _ in range(20):
        scales = tuple(np.exp(3 * rng.normal(size=3)).tolist())
        clipping = problems.Clipping(0.7, scales=scales)
        for user in range(5):
            alone, _ = problem.sums(parameters, np.array([user]), 0, clipping, None)
            assert float(alone.norm()) <= 0.7 * (1 + 1e-5)
            # The same from the definition: the raw update, scaled, then clipped.
            raw, _ = problem.sums(parameters, np.array([user]), 0, problems.Clipping(1e9), None)
            widths = [4 * width for width in problem.widths]
            scaled = torch.cat([s * part for s, part in zip(scales, raw.split(widths), strict=True)])
            expected = scaled * min(1.0, 0.7 / float(scaled.norm()))
            assert alone.numpy() == pytest.approx(expected.numpy(), rel=1e-4, abs=1e-6)
        several, _ = problem.sums(parameters, np.arange(5), 0, clipping, None)
        fewer, _ = problem.sums(parameters, np.arange(4), 0, clipping, None)
        assert float((several - fewer).norm()) <= 0.7 * (1 + 1e-5)


def test_scales_follow_the_state_and_are_taken_back():
    rule = methods.scaled("tensor", 0.9)(
        Move(LearningRateSchedule("constant", 0.1, 10)), [(4, 30), (4, 40)], 0.1
    )
    parameters = torch.zeros(280)
    state = rule.init(parameters)
    assert rule.scales(state).tolist() == [1.0, 1.0]
    state["second"] = torch.tensor([4.0, 0.01])
    scales = rule.scales(state)
    # Larger for the smaller block, and the expected energy is kept.
    assert float(scales[1] / scales[0]) > 3
    sizes, v = torch.tensor([120.0, 160.0], dtype=torch.float64), state["second"].double()
    assert float((sizes * scales**2 * v).sum()) == pytest.approx(float((sizes * v).sum()), rel=1e-6)
    mean = torch.ones(280, dtype=torch.float64)
    _, after = rule.step(1, parameters, RoundRelease(mean, 0.0), state)
    expected = 0.1 * scales ** (-2) + 0.9 * v
    assert after["second"].double().numpy() == pytest.approx(expected.numpy(), rel=1e-5)
