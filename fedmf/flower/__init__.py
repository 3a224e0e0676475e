"""The Flower integration: server strategies, apps, the in-process grid, Ray.

Importing it turns off Flower's and Ray's telemetry and update checks, unless the environment
already says otherwise, because private training should not be reported to third parties. If the
version of Flower is not supported, the import raises an error that lists the supported versions.
"""

import os
from typing import TYPE_CHECKING

for _name, _value in (
    ("FLWR_TELEMETRY_ENABLED", "0"),
    ("FLWR_DISABLE_UPDATE_CHECK", "1"),
    ("RAY_USAGE_STATS_ENABLED", "0"),
    ("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"),
):
    os.environ.setdefault(_name, _value)

import fedmf.flower.compat  # noqa: E402, F401
from fedmf.lazy import lazily  # noqa: E402

if TYPE_CHECKING:
    from fedmf.flower.apps import run_on_ray
    from fedmf.flower.clients import run_on_grid
    from fedmf.flower.grid import InProcessGrid
    from fedmf.flower.handshake import user_id_mod
    from fedmf.flower.identity import ClientReportedIdentity, EnrolledIdentity, NodeIdentity
    from fedmf.flower.local_app import run_app
    from fedmf.flower.silo import SiloSums, silo_app
    from fedmf.flower.wrapper import CorrelatedNoise
    from fedmf.runs.silo import Silo
else:
    __getattr__ = lazily(__name__)


def __dir__() -> list[str]:
    return sorted(__all__)


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
