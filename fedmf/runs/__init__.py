"""Run configuration, run directory, the private server and the session that holds them together."""

from fedmf.runs.canary_audit import audit
from fedmf.runs.config import Config, load_config, parse_assignments
from fedmf.runs.directory import LEDGER, RunDirectory, read_config
from fedmf.runs.optimizer import clipped_sums
from fedmf.runs.outputs import FEDERATED_ACCURACY, FEDERATED_LOSS
from fedmf.runs.plan import Plan, cohort_seed, plan_run
from fedmf.runs.server import PrivateServer
from fedmf.runs.session import Session
from fedmf.runs.tasks import task_of

__all__ = [
    "FEDERATED_ACCURACY",
    "FEDERATED_LOSS",
    "LEDGER",
    "Config",
    "Plan",
    "PrivateServer",
    "RunDirectory",
    "Session",
    "audit",
    "clipped_sums",
    "cohort_seed",
    "load_config",
    "parse_assignments",
    "plan_run",
    "read_config",
    "task_of",
]
