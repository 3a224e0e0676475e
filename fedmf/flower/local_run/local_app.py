"""Run a whole Flower app on this machine."""

from __future__ import annotations

import os
import sys
import threading
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from fedmf.errors import ConfigError
from fedmf.flower.compat import RunConfig, flat_config, load_object, server_context
from fedmf.flower.local_run.client_calls import (
    CallsInProcesses,
    CallsInTurn,
    SeededClient,
    generators_kept,
    seeded_generators,
)
from fedmf.flower.local_run.grid import ClientCalls, InProcessGrid

#: Libraries that compute on threads of their own: a copy of a process has none of them, and waits for ever.
_THREADED: Final = frozenset({"jax"})


class WatchedCalls(ClientCalls):
    """Calls that are counted on the terminal; elsewhere nothing is shown.

    Args:
        calls: what really calls.
    """

    def __init__(self, calls: ClientCalls) -> None:
        self._calls, self.workers = calls, calls.workers
        console = Console(stderr=True, markup=False)
        self._lock = threading.Lock()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.completed:,.0f} replies"),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._bar = self._progress.add_task("", total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def call(self, request: Message, context: Context, number: int) -> tuple[Message, Context]:
        """See `ClientCalls.call`."""
        group = request.metadata.group_id
        try:
            return self._calls.call(request, context, number)
        finally:
            with self._lock:
                self._progress.update(self._bar, advance=1, description=f"group {group}" if group else "")


@dataclass(frozen=True, eq=False)
class FlowerApp:
    """A server app, a client app, and the run config that both see.

    Args:
        server: called once with grid and context.
        client: called for each message.
        config: the run config, flat: nested tables are joined by dots.
    """

    server: ServerApp
    client: ClientApp
    config: RunConfig

    @classmethod
    def of(cls, server: ServerApp, client: ClientApp, config: Mapping[str, Any]) -> Self:
        """An app of two objects; any key may be given.

        Raises:
            ConfigError: one of them is something else, or a value is of no type that Flower knows.
        """
        for name, given, kind in (("server_app", server, ServerApp), ("client_app", client, ClientApp)):
            if not isinstance(given, kind):
                raise ConfigError(
                    f"{name} must be a {kind.__name__}; got {type(given).__name__}. "
                    "Give both apps, or the folder of a Flower app alone."
                )
        return cls(server, client, _flat(config))

    @classmethod
    def load(cls, folder: str | Path, config: Mapping[str, Any]) -> Self:
        """The app of a folder, with values of its run config replaced as by ``flwr run --run-config``.

        Args:
            folder: with a ``pyproject.toml`` that has the tables ``tool.flwr.app``.
            config: values by key; the app must know the keys.

        Raises:
            ConfigError: there is no such file or table, a component cannot be found, or a key is unknown.
        """
        path = Path(folder).expanduser().resolve() / "pyproject.toml"
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))["tool"]["flwr"]["app"]
            components = table["components"]
            names = (str(components["serverapp"]), str(components["clientapp"]))
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}.") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not a TOML file: {error}.") from None
        except (KeyError, TypeError):
            raise ConfigError(
                f"{path} must name serverapp and clientapp under [tool.flwr.app.components]."
            ) from None
        defaults, given = _flat(table.get("config", {})), _flat(config)
        unknown = sorted(given.keys() - defaults.keys())
        if unknown:
            known = ", ".join(sorted(defaults)) or "none"
            raise ConfigError(
                f"run_config must have keys of [tool.flwr.app.config]; got {unknown[0]!r}. Known: {known}."
            )
        server, client = (load_object(name, path.parent) for name in names)
        return cls.of(server, client, {**defaults, **given})


def _flat(config: Mapping[str, Any]) -> RunConfig:
    try:
        return flat_config(dict(config))
    except ValueError as error:
        raise ConfigError(f"run_config: {error}") from None


def run_app(
    server_app: ServerApp | str | Path,
    client_app: ClientApp | None = None,
    *,
    num_supernodes: int,
    run_config: Mapping[str, Any] | None = None,
    workers: int | None = None,
    seed: int | None = None,
) -> Context:
    """Run a Flower app to its end: the server app here, the client app for each message on this machine.

    Nothing else is needed: no Ray, no Flower services or home folder, no network. The server app runs in the
    calling thread, so that its errors arrive here as they are; lifespans, mods, client state, actions and
    apps of the older interface (``client_fn``, ``server_fn``) work as in Flower. An error of a client is an
    error reply. A client's call has one thread of PyTorch, however many workers there are.

    Args:
        server_app: the server app; or the folder of a Flower app with its ``pyproject.toml``.
        client_app: the client app; none with a folder, which names its own.
        num_supernodes: N ≥ 1 virtual nodes; node i has the node config ``partition-id`` = i and
            ``num-partitions`` = N.
        run_config: values of the run config, nested or with dotted keys. With a folder they replace values
            of ``[tool.flwr.app.config]``, which must have the keys, as with ``flwr run --run-config``.
        workers: W ≥ 1 clients at the same time. With 1 they are called in this process, one after another,
            where a debugger sees them; otherwise in W copies of it (Linux), and what a client changes
            outside of its context stays in its copy. Default: one for each core and at most N; 1 where
            there is a GPU, which copies of a process cannot use, or JAX, which waits in a copy for ever.
        seed: if given, the global generators of Python, NumPy and PyTorch are seeded: the server's by the
            seed, those of a client's call by (seed, node, number of the message to the node). Afterwards they
            are as they were.

    Returns:
        The context of the server app after the run; its ``state`` is what the app kept.

    Raises:
        ConfigError: an argument is out of its range, or the folder holds no Flower app.
        Exception: what the server app raises.

    Guarantees:
        Every message and reply has records of its own. With a seed, an app that draws from the global
        generators and asks nodes in a fixed order gives the same bits at each run with any number of
        workers, and no client's draws depend on which others were asked.
    """
    app = _app_of(server_app, client_app, run_config or {})
    nodes = _at_least(1, "N (num_supernodes)", num_supernodes)
    if seed is not None:
        _at_least(0, "seed", seed)
    with ExitStack() as stack:
        calls = stack.enter_context(_calls(SeededClient(app.client, seed), _workers(workers, nodes)))
        grid = InProcessGrid(stack.enter_context(WatchedCalls(calls)), nodes, app.config)
        stack.callback(grid.close)
        if seed is not None:
            stack.enter_context(generators_kept())
            seeded_generators([seed, 0])
        context = server_context(grid.run.run_id, dict(app.config))
        app.server(grid, context)
    return context


def _app_of(
    server_app: ServerApp | str | Path, client_app: ClientApp | None, config: Mapping[str, Any]
) -> FlowerApp:
    if isinstance(server_app, (str, Path)):
        if client_app is not None:
            raise ConfigError("client_app must be left out with the folder of an app, which names its own.")
        return FlowerApp.load(server_app, config)
    return FlowerApp.of(server_app, client_app, config)  # type: ignore[arg-type]


@contextmanager
def _calls(client: SeededClient, workers: int) -> Iterator[ClientCalls]:
    if workers == 1:
        yield CallsInTurn(client)
        return
    calls = CallsInProcesses(client, workers)
    try:
        yield calls
    finally:
        calls.close()


def _workers(given: int | None, nodes: int) -> int:
    copies = sys.platform == "linux"
    if given is None:
        usable = copies and not torch.cuda.device_count() and not _THREADED & sys.modules.keys()
        return min(nodes, len(os.sched_getaffinity(0))) if usable else 1
    if not copies and given != 1:
        raise ConfigError(
            f"workers must be 1 on {sys.platform}; got {given}. Copies of a process need Linux."
        )
    return _at_least(1, "W (workers)", given)


def _at_least(least: int, name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} must be an integer of at least {least}; got {value!r}.")
    return value
