"""An own strategy matrix, an own optimizer and an own task in one run: python own_parts.py RUN_DIR.

Kill it at any time and start it again: it continues where its ledger ends.
"""

import dataclasses
import sys

import torch

import fedmf
from fedmf.mechanisms.banded_toeplitz import banded_toeplitz, tapered
from fedmf.training import regression_task


class SignMomentum:
    # it needs only the mean update
    second_moment = None
    second_form = "per-user"

    def init(self, parameters):
        return {"momentum": torch.zeros_like(parameters)}

    def step(self, t, parameters, release, state):
        momentum = 0.8 * state["momentum"] + 0.2 * release.mean.to(parameters.dtype)
        return parameters + 0.003 * momentum.sign(), {"momentum": momentum}


def ink():
    images = fedmf.Digits(users=120).load()
    seen = {name: getattr(images, name)[:, :32] for name in ("features", "test_features")}
    asked = {"labels": images.features.mean(dim=1), "test_labels": images.test_features.mean(dim=1)}
    torch.manual_seed(0)
    return regression_task(
        dataclasses.replace(images, classes=0, **seen, **asked), torch.nn.Linear(32, 1)
    )


run = fedmf.Run(
    task=ink(),  # predicts the amount of ink in a digit from its upper half
    cohorts=fedmf.CyclicCohorts(rounds=60, users_per_round=12),
    mechanism=tapered(banded_toeplitz(10, fedmf.Participation(60, 6, 10)), 8, 10),
    server=SignMomentum(),
)

if __name__ == "__main__":
    result = fedmf.simulate(run, sys.argv[1])
    print(result.statement.render_text(), result.metrics[60])
