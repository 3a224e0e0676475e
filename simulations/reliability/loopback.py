"""A Flower network on loopback whose processes can be killed and started again, one by one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "tests"))
from support.flower_network import (  # noqa: E402
    FlowerRun,
    flower_environment,
    flwr_run,
    free_ports,
    stop_processes,
)

__all__ = ["Network", "network"]

_NAME = "loopback"


class Network:
    """A SuperLink with its state in a file, and SuperNodes; logs are in ``folder``.

    Args:
        folder: an empty one.
        nodes: how many SuperNodes.
        isolation: of the SuperLink: "subprocess" makes server apps its children, which end with it; "process"
            has a SuperExec beside it, and server apps that live on without it.
    """

    def __init__(self, folder: Path, nodes: int, isolation: str = "subprocess") -> None:
        self.env = flower_environment(folder)
        self.logs = folder / "net"
        self.logs.mkdir()
        self._ports, self._isolation = free_ports(1 + nodes), isolation
        self._processes: dict[str, subprocess.Popen[Any]] = {}
        self._started: dict[str, int] = {}
        self._app = _app_folder(folder / "app")
        connection = f'superlink.{_NAME} = {{ address = "127.0.0.1:{self._ports[0]}", insecure = true }}\n'
        with (Path(self.env["FLWR_HOME"]) / "config.toml").open("a") as config:
            config.write(connection)

    @property
    def _address(self) -> str:
        return f"127.0.0.1:{self._ports[0]}"

    def start_link(self) -> None:
        """Start the SuperLink, with the state that the one before left."""
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self._ports[0]), "--insecure"]
        command += ["--isolation", self._isolation, "--database", str(self.logs / "state.db")]
        self._start("superlink", command)
        self._until_said("superlink", "Uvicorn running on")

    def start_executor(self) -> None:
        """Start what starts server apps, where the SuperLink does not."""
        if self._isolation == "process":
            self._start(
                "superexec", ["flower-superexec", "--insecure", "--runtime-api-address", self._address]
            )

    def start_node(self, place: int) -> None:
        """Start a SuperNode."""
        command = ["flower-supernode", "--superlink", self._address, "--host", "127.0.0.1", "--insecure"]
        config = f"partition-id={place} num-partitions={len(self._ports) - 1}"
        command += ["--port", str(self._ports[1 + place]), "--node-config", config]
        self._start(f"supernode-{place}", command)
        self._until_said(f"supernode-{place}", "SuperNode ID")

    def kill(self, name: str) -> None:
        """Kill the SuperLink or a SuperNode by SIGKILL, and wait for its end."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def kill_server_app(self) -> None:
        """Kill the process that runs the server app."""
        for pid in self._pids(b"flwr-serverapp"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def server_app_lives(self) -> bool:
        """Whether a server app is running."""
        return bool(self._pids(b"flwr-serverapp"))

    def log(self, name: str) -> str:
        """What a process said so far."""
        return (self.logs / f"{name}.log").read_text(errors="replace")

    def submit(self, config: Mapping[str, Any], timeout: float) -> Submitted:
        """Start a run beside what else happens."""
        return Submitted(lambda: flwr_run(self._app, self.env, _NAME, config, timeout))

    def runs(self) -> list[dict[str, Any]]:
        """What the SuperLink says of its runs, the latest first."""
        command = ["flwr", "list", _NAME, "--format", "json"]
        listed = subprocess.run(
            command, env=self.env, cwd=self.env["FLWR_HOME"], capture_output=True, text=True, check=False
        ).stdout
        return json.loads(listed[listed.index("{") :]).get("runs", [])

    def _pids(self, program: bytes) -> list[int]:
        mark, found = f"FLWR_HOME={self.env['FLWR_HOME']}".encode(), []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                ours = mark in (entry / "environ").read_bytes().split(b"\0")
                if ours and program in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
        return found

    def _start(self, name: str, command: list[str]) -> None:
        with (self.logs / f"{name}.log").open("ab") as out:
            self._processes[name] = subprocess.Popen(
                command, cwd=self.logs, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

        self._started[name] = self._started.get(name, 0) + 1

    def _until_said(self, name: str, words: str) -> None:
        deadline = time.monotonic() + 600
        while self.log(name).count(words) < self._started[name]:
            if self._processes[name].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{name} did not start:\n{self.log(name)[-2000:]}")
            time.sleep(0.1)

    def close(self) -> None:
        """End every process of this network."""
        for name in list(self._processes):
            self.kill(name)
        stop_processes(self.env)


class Submitted(threading.Thread):
    """A run that was submitted; ``run_app`` returns how it ended."""

    def __init__(self, run: Callable[[], FlowerRun]) -> None:
        super().__init__(daemon=True)
        self._run, self.ended, self.error = run, None, ""
        self.start()

    def run(self) -> None:
        """See `threading.Thread`."""
        try:
            self.ended: FlowerRun | None = self._run()
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"


@contextmanager
def network(folder: Path, nodes: int, isolation: str = "subprocess") -> Iterator[Network]:
    """A network whose link and nodes are up; all its processes end with it."""
    made = Network(folder, nodes, isolation)
    try:
        made.start_link()
        made.start_executor()
        for place in range(nodes):
            made.start_node(place)
        yield made
    finally:
        made.close()


def _app_folder(target: Path) -> Path:
    target.mkdir()
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(PROJECT / name, target / name)
    shutil.copytree(PROJECT / "fedmf", target / "fedmf", ignore=shutil.ignore_patterns("__pycache__"))
    return target
