"""The Flower integration: server strategies, apps, the in-process grid, Ray.

Importing it turns off Flower's and Ray's telemetry and update checks, unless the environment
already says otherwise, because private training should not be reported to third parties. If the
version of Flower is not supported, the import raises an error that lists the supported versions.
"""

import os

for _name, _value in (
    ("FLWR_TELEMETRY_ENABLED", "0"),
    ("FLWR_DISABLE_UPDATE_CHECK", "1"),
    ("RAY_USAGE_STATS_ENABLED", "0"),
    ("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"),
):
    os.environ.setdefault(_name, _value)

import fedmf.flower.compat  # noqa: E402, F401
from fedmf.flower.apps import run_on_ray  # noqa: E402
from fedmf.flower.clients import run_on_grid  # noqa: E402
from fedmf.flower.grid import InProcessGrid  # noqa: E402
from fedmf.flower.identity import (  # noqa: E402
    ClientReportedIdentity,
    EnrolledIdentity,
    NodeIdentity,
    user_id_mod,
)
from fedmf.flower.local_app import run_app  # noqa: E402
from fedmf.flower.silo import SiloSums, silo_app  # noqa: E402
from fedmf.flower.wrapper import CorrelatedNoise  # noqa: E402
from fedmf.runs.silo import Silo  # noqa: E402

__all__ = [
    "ClientReportedIdentity",
    "CorrelatedNoise",
    "EnrolledIdentity",
    "InProcessGrid",
    "NodeIdentity",
    "Silo",
    "SiloSums",
    "run_app",
    "run_on_grid",
    "run_on_ray",
    "silo_app",
    "user_id_mod",
]
