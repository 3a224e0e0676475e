"""Privacy of single examples: the central training of the papers as a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.normals import normals

import fedmf
from fedmf import NoPrivacy, Run, UserLevel
from fedmf.cohorts import BallsInBinsCohorts, Cohorts, CyclicCohorts
from fedmf.data import Digits
from fedmf.mechanisms.choice import NamedMechanism
from fedmf.models import Mlp
from fedmf.noise.key import Domain, NoiseKey
from fedmf.optim import Sgd
from fedmf.runs.tasks import Classification
from fedmf.training import LocalSGD

EXAMPLES = 1438
ROUNDS = 12
COHORT = 120
SEED = 5
ZETA = 0.4
#: One step on one example with learning rate 1: the update is minus the gradient.
GRADIENT = LocalSGD(epochs=1, batch_size=1, learning_rate=1.0)
#: θ and the local step are float32: twelve rounds of updates of norm below 0.4, of models of norm
#: about 5.
TOLERANCE = 2e-6


def central(cohorts: Cohorts | None = None, mechanism: str = "bisr", **changes: object) -> Run:
    """Training on single digits, as the papers do."""
    values = {
        "task": Classification(
            Digits(users=EXAMPLES, partition="each-example"), Mlp(hidden_units=(16,))
        ),
        "cohorts": cohorts or CyclicCohorts(rounds=ROUNDS, users_per_round=COHORT),
        "privacy": UserLevel(epsilon=8.0, delta=1e-5, clip_norm=ZETA, noise_seed=SEED),
        "mechanism": NamedMechanism(mechanism),
        "server": Sgd(learning_rate=0.5, momentum=0.9),
        "client": GRADIENT,
    }
    return Run(**{**values, **changes})  # type: ignore[arg-type]


def reference(run: Run) -> torch.Tensor:
    """DP-SGD with correlated noise and momentum, plainly: float64, autograd example by example,
    dense C⁻¹.
    """
    plan = fedmf.plan(run)
    task = run.task_source.build()
    module = task.model.module.double()
    features, labels = task.dataset.examples(np.arange(EXAMPLES))
    d = task.model.dimension
    n = ROUNDS
    z = torch.from_numpy(normals(SEED, Domain.TRAINING, n, d))
    noise = torch.linalg.inv(torch.from_numpy(plan.mechanism.factorization.materialize())) @ z
    schedule = run.schedule(NoiseKey.from_seed(SEED).cohort_seed())
    theta = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
    velocity = torch.zeros_like(theta)
    for t in range(n):
        total = torch.zeros_like(theta)
        for i in map(int, schedule.cohort(t)):
            torch.nn.utils.vector_to_parameters(theta.clone(), module.parameters())
            module.zero_grad()
            torch.nn.functional.cross_entropy(
                module(features[i : i + 1].double()), labels[i : i + 1]
            ).backward()
            gradient = torch.cat([p.grad.flatten() for p in module.parameters()])
            total -= gradient * min(1.0, ZETA / float(gradient.norm()))
        std = ZETA * plan.noise_multiplier * plan.sensitivity.value
        velocity = 0.9 * velocity + (total + std * noise[t]) / COHORT
        theta = theta + 0.5 * velocity
    return theta


@pytest.mark.parametrize(
    ("mechanism", "cohorts"),
    [
        ("bisr", None),
        ("cgd", BallsInBinsCohorts(rounds=ROUNDS, users_per_round=COHORT)),
    ],
)
def test_a_run_is_the_plain_loop(tmp_path: Path, mechanism: str, cohorts: Cohorts | None) -> None:
    run = central(cohorts, mechanism)
    released = fedmf.simulate(run, tmp_path / "run").parameters.double()
    expected = reference(run)
    start = run.task_source.build().model.initial()
    assert float((expected - start).norm()) > 1.0  # it went somewhere
    assert float((released - expected).abs().max()) < TOLERANCE


def test_what_would_mislead_is_refused(tmp_path: Path) -> None:
    central(privacy=NoPrivacy())  # promises nothing, so nothing misleads
    with pytest.raises(ValueError, match=r"users must be 1438 .*one each"):
        Digits(users=1000, partition="each-example").load()
