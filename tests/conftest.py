"""Shared set-up: one torch thread a test process, no telemetry from Flower."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
for _name in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"):
    os.environ[_name] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
