"""Shared set-up: one torch thread a test process, no telemetry from Flower, folders of its own."""

import atexit
import os
import shutil
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "1")
for _name in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"):
    os.environ[_name] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
_cache = tempfile.mkdtemp(prefix="fedmf-cache-")
os.environ["FEDMF_CACHE"] = _cache
atexit.register(shutil.rmtree, _cache, ignore_errors=True)
#: Of all tests and the programs they start: what is remembered of runs never lands in a home directory.
_state = tempfile.mkdtemp(prefix="fedmf-state-")
os.environ["XDG_STATE_HOME"] = _state
atexit.register(shutil.rmtree, _state, ignore_errors=True)

#: Run by tests as programs of their own, with Triton or its interpreter; importing them here would load it.
collect_ignore = [
    "support/compiled_kernels.py",
    "support/interpreted_kernels.py",
    "support/triton_worker.py",
]
