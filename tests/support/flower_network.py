"""Real Flower processes on loopback, for tests.

``flower_environment`` describes an isolated, offline Flower home. Inside it a test can start a
SuperLink with SuperNodes (``superlink``, ``supernodes``) and submit an app to it (``flwr_run``).
Every process started here, directly or by Flower itself, carries the test's own ``FLWR_HOME`` in
its environment: ``stop_processes`` ends exactly those.
"""

import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .certificates import Credentials

Env = Mapping[str, str]
RunConfig = Mapping[str, str | int | float | bool] | Path | None
Process = subprocess.Popen[Any]

_CONNECTIONS = 'superlink.default = "local"\nsuperlink.local.address = ":local:"\n'
_OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
}


@dataclass(frozen=True)
class SuperLink:
    """A running SuperLink: the connection name for ``flwr run``, its address and the folder of its
    logs.
    """

    name: str
    address: str
    logs: Path


@dataclass(frozen=True)
class FlowerRun:
    """What became of one ``flwr run``.

    ``flwr run`` exits with 0 even when the run fails, so ``status`` ("finished:completed",
    "finished:failed") and ``details`` (the exception's message) are the SuperLink's; they are empty
    when it refused the run.
    """

    returncode: int
    output: str
    seconds: float
    run_id: str = ""
    status: str = ""
    details: str = ""

    @property
    def ok(self) -> bool:
        """Whether the run was accepted and its ServerApp returned."""
        return self.returncode == 0 and self.status == "finished:completed"


def free_ports(count: int) -> list[int]:
    """Distinct ports that are free on loopback, of those that the system gives to nobody by
    itself.
    """
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < count:
            with suppress(OSError):
                port = secrets.choice(range(20_000, 32_000))
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
                found.append(port)
    return found


def flower_environment(tmp_path: Path) -> dict[str, str]:
    """Environment for Flower's commands: offline, its own home and ports, this interpreter's
    scripts.
    """
    home = tmp_path.resolve() / "flwr-home"
    (home / "cwd").mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(_CONNECTIONS)
    simulation_port, control_port = free_ports(2)
    env = {
        key: value
        for key, value in os.environ.items()
        if key not in ("PYTHONPATH", "PYTHONWARNINGS")
    }
    return env | {
        **_OFFLINE,
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(simulation_port),
        "FLWR_LOCAL_CONTROL_API_PORT": str(control_port),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3",
        "OMP_NUM_THREADS": "1",
        # Not resolved: the scripts lie beside the virtual environment's own link to python.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)]),
    }


@contextmanager
def superlink(
    env: Env, workdir: Path, name: str = "loopback", credentials: Credentials | None = None
) -> Iterator[SuperLink]:
    """Start ``flower-superlink`` on a free port and write the connection ``name`` into the Flower
    config.

    The ServerApp runs as a child of the SuperLink, with ``workdir`` as its working directory. With
    credentials connections are encrypted, and only nodes that are registered here may connect.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    port = str(free_ports(1)[0])
    link = SuperLink(name, f"127.0.0.1:{port}", workdir)
    command = ["flower-superlink", "--host", "127.0.0.1", "--port", port]
    if credentials is None:
        command = [*command, "--insecure"]
        trust = "insecure = true"
    else:
        files = {"ca-certfile": "ca.pem", "certfile": "server.pem", "keyfile": "server.key"}
        for option, file in files.items():
            command += [f"--ssl-{option}", str(credentials.folder / file)]
        command.append("--enable-supernode-auth")
        trust = f'root-certificates = "{credentials.authority}"'
    try:
        with _running({workdir / "superlink.log": command}, env) as processes:
            _wait(lambda: _healthy(link.address, credentials), "SuperLink", workdir, processes)
            connection = f'superlink.{name} = {{ address = "{link.address}", {trust} }}\n'
            (Path(env["FLWR_HOME"]) / "config.toml").write_text(_CONNECTIONS + connection)
            for key in [] if credentials is None else sorted(credentials.folder.glob("node-*.pub")):
                code, output = _run(["flwr", "supernode", "register", str(key), name], env, 300)
                if code:
                    raise RuntimeError(f"cannot register {key.name}: {output}")
            yield link
    finally:
        stop_processes(env)  # the SuperLink detaches its SuperExec into another session


@contextmanager
def supernodes(
    env: Env,
    link: SuperLink,
    count: int,
    credentials: Credentials | None = None,
    node_configs: Sequence[str] = (),
) -> Iterator[list[Path]]:
    """Start ``count`` SuperNodes, partition-id 0..count-1, in the SuperLink's folder; yield their
    logs.

    ``node_configs`` are more of their node configs, such as ``data-path='/data/rows.csv'``.
    """
    commands = {}
    for i, port in enumerate(free_ports(count)):
        command = ["flower-supernode", "--superlink", link.address, "--host", "127.0.0.1"]
        if credentials is None:
            command.append("--insecure")
        else:
            command += ["--root-certificates", str(credentials.authority)]
            command += ["--auth-supernode-private-key", str(credentials.node(i))]
        config = (
            f"partition-id={i} num-partitions={count} {node_configs[i] if node_configs else ''}"
        )
        command += ["--port", str(port), "--node-config", config.strip()]
        commands[link.logs / f"supernode-{i}.log"] = command
    with _running(commands, env) as processes:
        _wait(
            lambda: all("SuperNode ID" in p.read_text() for p in commands),
            "nodes",
            link.logs,
            processes,
        )
        yield list(commands)


def flwr_run(
    app_dir: Path,
    env: Env,
    connection: str,
    run_config: RunConfig = None,
    timeout: float = 3000,
    *options: str,
) -> FlowerRun:
    """Submit the app in ``app_dir`` with ``flwr run --stream`` and ask the SuperLink how it ended.

    Raises:
        TimeoutError: the run did not end within ``timeout`` seconds; the message holds its last
            output.
    """
    command = ["flwr", "run", str(app_dir), connection, "--stream", *options]
    if run_config is not None:
        command += ["--run-config", str(_config_file(run_config, Path(env["FLWR_HOME"])))]
    started = time.monotonic()
    code, output = _run(command, env, timeout)
    result = FlowerRun(code, output, seconds=time.monotonic() - started)
    run_id = next(
        (line.split()[3] for line in output.splitlines() if "Successfully started run" in line), ""
    )
    if not run_id:
        return result
    _, text = _run(["flwr", "list", connection, "--run-id", run_id, "--format", "json"], env, 300)
    run = json.loads(text[text.index("{") :])["runs"][0]
    return replace(result, run_id=run_id, status=run["status"], details=run["status-details"])


def stop_processes(env: Env, patience: float = 3.0) -> None:
    """End every process that was started with this environment's ``FLWR_HOME`` (found through
    /proc).
    """
    _send(env, signal.SIGTERM)
    if _until(lambda: not _marked_processes(env), patience):
        return
    if _until(
        lambda: not _send(env, signal.SIGKILL), 180.0
    ):  # one may have started another meanwhile
        return
    raise RuntimeError(f"processes {_marked_processes(env)} of {env['FLWR_HOME']} survived SIGKILL")


def _send(env: Env, sign: signal.Signals) -> list[int]:
    """Send a signal to all; those that were there."""
    found = _marked_processes(env)
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, sign)
    return found


def _marked_processes(env: Env) -> list[int]:
    mark = f"FLWR_HOME={env['FLWR_HOME']}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile, or belongs to another user
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


@contextmanager
def _running(commands: Mapping[Path, list[str]], env: Env) -> Iterator[list[Process]]:
    """Start each command in its log file's folder; end them on the way out (their children
    follow).
    """
    processes: list[Process] = []
    try:
        for log, command in commands.items():
            with log.open("wb") as out:
                streams: Any = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
                processes.append(
                    subprocess.Popen(command, cwd=log.parent, env=dict(env), **streams)
                )
        yield processes
    finally:
        for process in processes:
            process.terminate()
        _until(lambda: all(process.poll() is not None for process in processes), 3.0)
        for process in processes:
            process.kill()
            process.wait()


def _run(command: list[str], env: Env, timeout: float) -> tuple[int, str]:
    """Run a command to its end in a folder without an app; return its exit code and output."""
    log = (
        Path(env["FLWR_HOME"]) / "cwd" / "flwr.log"
    )  # a file: a SuperLink left behind would hold a pipe open
    with _running({log: command}, env) as [process]:
        ended = _until(lambda: process.poll() is not None, timeout)
        output = log.read_text(errors="replace")
    if not ended:
        raise TimeoutError(
            f"{' '.join(command)} took more than {timeout:g} seconds:\n{output[-4000:]}"
        )
    return process.returncode, output


def _config_file(run_config: Mapping[str, str | int | float | bool] | Path, home: Path) -> Path:
    """The run configuration as a TOML file: on the command line strings cannot hold every
    character.
    """
    if isinstance(run_config, Path):
        return run_config.resolve()
    path = home / "run-config.toml"
    # A JSON string, integer, float or boolean is a TOML one as well.
    path.write_text(
        "".join(f"{k} = {json.dumps(v, ensure_ascii=False)}\n" for k, v in run_config.items())
    )
    return path


def _healthy(address: str, credentials: Credentials | None = None) -> bool:
    trust = (
        None if credentials is None else ssl.create_default_context(cafile=credentials.authority)
    )
    place = f"{'http' if trust is None else 'https'}://{address}/health"
    with suppress(OSError), urllib.request.urlopen(place, timeout=30.0, context=trust) as response:
        return response.status == 200
    return False


def _until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return met


def _wait(condition: Callable[[], bool], what: str, logs: Path, processes: list[Process]) -> None:
    """Wait up to ten minutes for ``condition`` while all processes live; show their logs on
    failure.
    """
    _until(lambda: condition() or any(process.poll() is not None for process in processes), 600.0)
    if not condition():
        tails = "\n".join(
            f"--- {log.name}\n{log.read_text()[-2000:]}" for log in sorted(logs.glob("*.log"))
        )
        raise RuntimeError(f"waited in vain for {what}:\n{tails}")
