"""Run configuration, run directory, the private server and the session that holds them together."""

from fedmf.runs.config import Config, ConfigError, load_config
from fedmf.runs.directory import RunDirectory
from fedmf.runs.plan import Plan, cohort_seed, make_plan
from fedmf.runs.server import PrivateServer
from fedmf.runs.session import Session

__all__ = [
    "Config",
    "ConfigError",
    "Plan",
    "PrivateServer",
    "RunDirectory",
    "Session",
    "cohort_seed",
    "load_config",
    "make_plan",
]
