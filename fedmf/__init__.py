"""User-level differentially private federated learning with correlated noise.

The package also releases private means and covariances of streams of rows.

A run is described by one value:

    import fedmf

    run = fedmf.Run(
        task=fedmf.classification(fedmf.Digits(users=360), fedmf.Mlp(hidden_units=(32,))),
        cohorts=fedmf.CyclicCohorts(rounds=240, users_per_round=36),
        privacy=fedmf.UserLevel(epsilon=8.0, delta=1e-5, clip_norm=0.3),
        mechanism="banded-toeplitz",
    )
    result = fedmf.simulate(run, "runs/digits")
    print(result.statement.render_text())

A value only describes a run; `simulate`, `start`, `resume` and `plan` act on a run, and `run_sweep`
on a `Sweep`. You can pass your own objects: a `Task` for any model and loss, a `Factorization` for
the strategy matrix, or an object with ``init`` and ``step`` for the server optimizer. `design`
compares mechanisms without training, `account` computes the privacy statement of a run, and
`PrivateStream` releases running means and covariances of rows. Privacy rests on fedmf.matrices,
fedmf.accounting, fedmf.noise, fedmf.clipping, fedmf.ledger and fedmf.release
(docs/dev/core.md). Around them are fedmf.mechanisms, fedmf.moments, fedmf.training, fedmf.optim,
fedmf.runs, fedmf.statements, fedmf.sweeps, fedmf.streaming and fedmf.flower. Pages that docstrings
cite as docs/NAME.md are in the source distribution.

Importing fedmf sets MKL_CBWR for Intel's math library, unless the environment does, so that
products do not depend on the memory alignment of matrices. This must precede the first product.
"""

import os
from typing import TYPE_CHECKING

os.environ.setdefault("MKL_CBWR", "AUTO")

from fedmf.lazy import lazily, public_names
from fedmf.version import __version__

if TYPE_CHECKING:
    from fedmf import (  # noqa: F401 - loaded on first use, as fedmf.data
        accounting,
        clipping,
        cohorts,
        data,
        flower,
        ledger,
        matrices,
        mechanisms,
        models,
        moments,
        noise,
        optim,
        release,
        runs,
        statements,
        streaming,
        sweeps,
        training,
    )
    from fedmf.cohorts import (
        AvailableCohorts,
        BallsInBinsCohorts,
        CyclicCohorts,
        MinSeparatedCohorts,
    )
    from fedmf.data import Dataset, Digits
    from fedmf.mechanisms.choice import NamedMechanism
    from fedmf.mechanisms.design import design
    from fedmf.mechanisms.imported import import_strategy
    from fedmf.models import Mlp, freeze
    from fedmf.moments import MomentStream
    from fedmf.optim import Adam, JmeAdam, Sgd
    from fedmf.participation import Participation
    from fedmf.runs.aggregator import PrivateAggregator
    from fedmf.runs.directory import recorded_run
    from fedmf.runs.prediction import predict
    from fedmf.runs.released_model import load_model
    from fedmf.runs.run import Execution, MechanismConfig, Run
    from fedmf.runs.run_statement import account
    from fedmf.runs.simulation import plan, resume, simulate, start
    from fedmf.runs.statistics import ClientMetric, QuantileClipping
    from fedmf.runs.tables.configuration import load_run
    from fedmf.runs.tasks import classification, next_token, regression
    from fedmf.statements.privacy import NoPrivacy, UserLevel
    from fedmf.statements.statement import PrivacyStatement
    from fedmf.streaming import PrivateStream
    from fedmf.sweeps import Sweep, run_sweep
    from fedmf.training import LocalSGD, Task
else:
    __getattr__ = lazily(__name__)


def __dir__() -> list[str]:
    return public_names(__name__)


__all__ = [
    "Adam",
    "AvailableCohorts",
    "BallsInBinsCohorts",
    "ClientMetric",
    "CyclicCohorts",
    "Dataset",
    "Digits",
    "Execution",
    "JmeAdam",
    "LocalSGD",
    "MechanismConfig",
    "MinSeparatedCohorts",
    "Mlp",
    "MomentStream",
    "NamedMechanism",
    "NoPrivacy",
    "Participation",
    "PrivacyStatement",
    "PrivateAggregator",
    "PrivateStream",
    "QuantileClipping",
    "Run",
    "Sgd",
    "Sweep",
    "Task",
    "UserLevel",
    "__version__",
    "account",
    "classification",
    "design",
    "freeze",
    "import_strategy",
    "load_model",
    "load_run",
    "next_token",
    "plan",
    "predict",
    "recorded_run",
    "regression",
    "resume",
    "run_sweep",
    "simulate",
    "start",
]
