"""A private run that releases a statistic of your own with the model: python custom_statistic.py RUN_DIR.

How far does each layer of the model move, for the average user? `layer_norms` says it of one user; everything
else is fedmf's. Kill it at any time and start it again: it continues where its ledger ends.
"""

import sys

import torch

import fedmf

LAYERS = (64 * 16 + 16, 16 * 10 + 10)  # weights and biases of the two layers of the model below


def layer_norms(update: torch.Tensor) -> torch.Tensor:
    """One user's clipped update, shape (d,), float64: the norm of each layer's part of it."""
    return torch.stack([part.norm() for part in update.split(LAYERS)])


run = fedmf.Run(
    task=fedmf.classification(fedmf.Digits(users=360), fedmf.Mlp(hidden_units=(16,))),
    cohorts=fedmf.CyclicCohorts(rounds=20, users_per_round=40),
    privacy=fedmf.UserLevel(epsilon=8.0, delta=1e-5, clip_norm=0.5),
    mechanism="bisr",
    extra_releases=(
        fedmf.CustomStatistic(
            function="custom_statistic:layer_norms",
            entries=("first_layer", "last_layer"),
            bound=0.5,  # the norms of the parts of a vector of norm 0.5 have norm 0.5 together
            share=0.1,
        ),
    ),
)

if __name__ == "__main__":
    result = fedmf.simulate(run, sys.argv[1])
    print(result.statement.render_text())
    for rounds in (5, 10, 20):
        first, last = (result.metrics[rounds][f"statistic_{layer}_layer"] for layer in ("first", "last"))
        print(f"after {rounds} rounds: first layer {first:.3f}, last layer {last:.3f}")
