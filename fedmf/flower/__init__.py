"""The only room that imports Flower: server strategy, client app, grids and engines.

Importing it turns off Flower's and Ray's telemetry and update checks, unless the environment already
says otherwise: training on private data should tell nobody that it happens.
"""

import os

for _name, _value in (
    ("FLWR_TELEMETRY_ENABLED", "0"),
    ("FLWR_DISABLE_UPDATE_CHECK", "1"),
    ("RAY_USAGE_STATS_ENABLED", "0"),
    ("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"),
):
    os.environ.setdefault(_name, _value)

from fedmf.flower.ray import run_on_ray  # noqa: E402
from fedmf.flower.simulation import run_in_process  # noqa: E402
from fedmf.flower.strategy import RoundReport  # noqa: E402

__all__ = [
    "RoundReport",
    "run_in_process",
    "run_on_ray",
]
