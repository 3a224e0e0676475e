"""Joint clipping of "Joint Moment Estimation" (5): gradient and √τ times its squares under one clip
norm.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import torch
from torch.func import grad, vmap

import fedmf
from fedmf.optim import RoundRelease
from fedmf.runs.run import Run

__all__ = ["trained"]

#: τ of its Table 4.
_TAU: Final = 0.5


def trained(run: Run) -> Mapping[str, float]:
    """Loss and metrics of JME-Adam's rule on the halves of one sum of (x, √τ x²), rows clipped to
    ζ.
    """
    task = run.task.build()
    plan = fedmf.plan(run)
    model = task.model
    data = task.dataset
    d = task.model.dimension
    owned = dict(zip(data.user_ids, data.owned, strict=True))
    slopes = vmap(
        grad(lambda theta, x, y: task.loss(model.forward(theta, x[None]), y[None])[0]), (None, 0, 0)
    )
    asked = {
        field.name: getattr(run.server, field.name) for field in dataclasses.fields(run.server)
    }
    rule = fedmf.JmeAdam(**asked).build(model.shapes, run.cohorts.rounds)
    theta = model.initial()
    state = rule.init(theta)
    with (
        TemporaryDirectory() as place,
        fedmf.PrivateAggregator(
            run.privacy,
            run.cohorts,
            users=list(owned),
            run_dir=Path(place) / "run",
            mechanism=plan.mechanism.factorization,
        ) as rounds,
    ):
        rounds.begin({"sums": torch.zeros(2 * d)})
        for t in range(run.cohorts.rounds):
            users = rounds.cohort(t)
            before = torch.from_numpy(rounds.model["sums"])
            rows = torch.tensor([int(owned[user][0]) for user in users])
            x = -slopes(theta, data.features[rows], data.labels[rows])
            for user, row in zip(
                users, torch.cat([x, math.sqrt(_TAU) * x.square()], 1), strict=True
            ):
                rounds.add(user, {"sums": row})
            mean, second = (torch.from_numpy(rounds.release()["sums"]) - before).split(d)
            release = RoundRelease(mean, 0.0, second / math.sqrt(_TAU), 0.0)
            theta, state = rule.step(t, theta, release, state)
    return task.evaluate(theta)
