"""Shared set-up: one torch thread a test process, no telemetry from Flower, folders of its own."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

os.environ.setdefault("OMP_NUM_THREADS", "1")
for _name in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"):
    os.environ[_name] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"


def _own_folder(variable: str) -> None:
    os.environ[variable] = tempfile.mkdtemp(prefix="fedmf-")
    atexit.register(shutil.rmtree, os.environ[variable], ignore_errors=True)


# What is remembered of runs never lands at home; designs are made once for all workers, machine
# code once for all sessions of a checkout.
os.environ.setdefault("NUMBA_CACHE_DIR", str(Path(__file__).parents[1] / "build" / "cache"))
_own_folder("XDG_STATE_HOME")
if "PYTEST_XDIST_WORKER" not in os.environ:
    _own_folder("FEDMF_CACHE")

#: Run by tests as programs of their own, with Triton or its interpreter; importing them here would
#: load it.
collect_ignore = [
    "support/compiled_kernels.py",
    "support/interpreted_kernels.py",
    "support/triton_worker.py",
]


@pytest.fixture(scope="session", autouse=True)
def no_pictures() -> Iterator[None]:
    """A learning curve takes most of a small run's time; a test that looks at one asks for
    ``pictures``.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("fedmf.runs.session.draw_learning_curve", lambda *_: False)
        yield


@pytest.fixture(scope="module")
def pictures() -> Iterator[None]:
    """Runs of this process draw their learning curves."""
    from fedmf.runs.outputs import draw_learning_curve

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("fedmf.runs.session.draw_learning_curve", draw_learning_curve)
        yield


@pytest.fixture
def mean_norms(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Register `MeanNorm`, as a line in `fedmf/runs/statistics/__init__.py` would."""
    from support.mean_norms import MeanNorm

    from fedmf.runs.statistics import STATISTICS
    from fedmf.runs.tables.configuration import TABLES, known_keys

    monkeypatch.setitem(STATISTICS, MeanNorm.name, {MeanNorm.kind: MeanNorm})
    monkeypatch.setitem(TABLES, MeanNorm.name, STATISTICS[MeanNorm.name])
    known_keys.cache_clear()  # it is asked once a process
    yield
    monkeypatch.undo()
    known_keys.cache_clear()


class Together(LoadScopeScheduling):
    """Deployments run one after another, and a file with fixtures of a module in one process, made
    once.

    All other tests run anywhere. With the whole suite machine code is made while the tests are
    collected.
    """

    def __init__(self, config: pytest.Config, log: object) -> None:
        super().__init__(config, log)  # type: ignore[arg-type]
        code = (
            "from fedmf.training.compiled import steps\n"
            "for training in (steps.train_on_rows, steps.train_on_images): training.compile()"
        )
        command = [sys.executable, "-c", code]
        whole = config.args_source == pytest.Config.ArgsSource.TESTPATHS
        self._code = subprocess.Popen(command, cwd=config.rootpath) if whole else None

    def schedule(self) -> None:
        if self._code is not None:
            assert self._code.wait() == 0
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        shares, deployments = _of_file(Path(self.config.rootpath, file))
        if test.partition("[")[0] in deployments:
            return "deployments"
        return file if shares else nodeid


@cache
def _of_file(file: Path) -> tuple[bool, frozenset[str]]:
    """Whether it has fixtures of a module, and its tests that are marked as deployments."""
    if file.suffix != ".py":
        return False, frozenset()
    text = file.read_text()
    marked = re.findall(r"^@pytest\.mark\.deployment\n(?:@.*\n)*def (\w+)", text, re.MULTILINE)
    return 'fixture(scope="module"' in text, frozenset(marked)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Together:
    return Together(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Deployments come first: they take minutes, and mostly wait."""
    items.sort(key=lambda item: item.get_closest_marker("deployment") is None)
