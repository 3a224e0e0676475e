"""Whole Flower apps on this machine: calls of a client app, in this process or in copies of it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import random
import signal
import sys
import tomllib
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from fedmf.errors import ConfigError, UnsoundSumError
from fedmf.flower.compat import RunConfig, error_reason, flat_config, load_object, server_context
from fedmf.flower.grid import Call, ClientFailure, InProcessGrid

#: Libraries that compute on threads of their own: a copy of a process has none of them, and waits for ever.
_THREADED: Final = frozenset({"jax"})


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
    server, client, config = _app_of(server_app, client_app, run_config or {})
    nodes = _at_least(1, "N (num_supernodes)", num_supernodes)
    if seed is not None:
        _at_least(0, "seed", seed)
    with ExitStack() as stack:
        calls = SeededClient(client, seed)
        copies = _workers(workers, nodes)
        call: Call = calls.in_turn
        if copies > 1:
            processes = CallsInProcesses(calls, copies)
            stack.callback(processes.close)
            call = processes.call
        grid = InProcessGrid(stack.enter_context(_counted(call)), nodes, config, workers=copies)
        stack.callback(grid.close)
        if seed is not None:
            stack.enter_context(generators_kept())
            seeded_generators([seed, 0])
        context = server_context(dict(config))
        server(grid, context)
    return context


def _app_of(
    server: ServerApp | str | Path, client: ClientApp | None, given: Mapping[str, Any]
) -> tuple[ServerApp, ClientApp, RunConfig]:
    """An app of two objects, or of a folder; and the run config, flat: nested tables are joined by dots."""
    config = flat_config(given)
    if isinstance(server, (str, Path)):
        if client is not None:
            raise ConfigError("client_app must be left out with the folder of an app, which names its own.")
        server, client, config = _loaded(Path(server), config)
    for name, app, kind in (("server_app", server, ServerApp), ("client_app", client, ClientApp)):
        if not isinstance(app, kind):
            raise ConfigError(
                f"{name} must be a {kind.__name__}; got {type(app).__name__}. "
                "Give both apps, or the folder of a Flower app alone."
            )
    return server, client, config  # type: ignore[return-value]


def _loaded(folder: Path, given: RunConfig) -> tuple[Any, Any, RunConfig]:
    """The app of a folder, with values of its run config replaced as by ``flwr run --run-config``."""
    path = folder.expanduser().resolve() / "pyproject.toml"
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))["tool"]["flwr"]["app"]
        names = [str(table["components"][name]) for name in ("serverapp", "clientapp")]
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a TOML file: {error}.") from None
    except (KeyError, TypeError):
        raise ConfigError(
            f"{path} must name serverapp and clientapp under [tool.flwr.app.components]."
        ) from None
    defaults = flat_config(table.get("config", {}))
    unknown = sorted(given.keys() - defaults.keys())
    if unknown:
        known = ", ".join(sorted(defaults)) or "none"
        raise ConfigError(
            f"run_config must have keys of [tool.flwr.app.config]; got {unknown[0]!r}. Known: {known}."
        )
    server, client = (load_object(name, path.parent) for name in names)
    return server, client, {**defaults, **given}


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


@contextmanager
def _counted(call: Call) -> Iterator[Call]:
    """Calls that are counted on the terminal; elsewhere nothing is shown."""
    console = Console(stderr=True, markup=False)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.completed:,.0f} replies"),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=None)

        def counted(request: Message, context: Context, number: int) -> tuple[Message, Context]:
            group = request.metadata.group_id
            try:
                return call(request, context, number)
            finally:
                progress.update(bar, advance=1, description=f"group {group}" if group else "")

        yield counted


def seeded_generators(words: Sequence[int]) -> None:
    """Seed all of them, each with bits of its own, from non-negative integers.

    >>> with generators_kept():
    ...     seeded_generators([1, 2])
    ...     first = random.random()
    ...     seeded_generators([1, 2])
    ...     first == random.random()
    True
    """
    python, numpy, pytorch = np.random.SeedSequence(list(words)).generate_state(3, np.uint64).tolist()
    random.seed(python)
    np.random.seed(numpy & 0xFFFFFFFF)  # noqa: NPY002, as apps draw from it
    if torch.backends.cuda.is_built() and torch.cuda.device_count():
        torch.manual_seed(pytorch)
    else:  # the same without writing down, for a GPU, from where it was called
        torch.default_generator.manual_seed(pytorch)


@contextmanager
def generators_kept() -> Iterator[None]:
    """All of them as they were, when the block ends."""
    python, numpy, pytorch = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(pytorch)
        if gpus is not None:
            torch.cuda.set_rng_state_all(gpus)


@dataclass(frozen=True, eq=False)
class SeededClient:
    """A client app, and what its calls draw from the global generators.

    Args:
        app: the app.
        seed: if given, the generators of a call follow from (seed, node's partition, number of the message)
            alone.
    """

    app: ClientApp
    seed: int | None

    def __call__(self, request: Message, context: Context, number: int) -> tuple[Message, Context]:
        """The reply and the context after it; see `Call`."""
        if self.seed is not None:
            seeded_generators([self.seed, 1, int(context.node_config["partition-id"]), number])
        return self.app(request, context), context

    def in_turn(self, request: Message, context: Context, number: int) -> tuple[Message, Context]:
        """The same in the server's process: on one thread of PyTorch, and if it is seeded, with the
        generators for the server as if no client had drawn."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with contextlib.nullcontext() if self.seed is None else generators_kept():
                return self(request, context, number)
        finally:
            torch.set_num_threads(threads)


class CallsInProcesses:
    """Calls in copies of this process, each with one thread of PyTorch.

    A copy (fork) has the client app with all that it refers to, so nothing must be picklable but messages and
    contexts, which are. What a call changes elsewhere, such as a global variable, stays in its copy.

    Args:
        client: what to call.
        workers: how many processes, at least 1.

    Guarantees:
        A process that dies costs the message that it was at work on, which fails; another takes its place.
    """

    def __init__(self, client: SeededClient, workers: int) -> None:
        self._client, self._all = client, list[ProcessPoolExecutor]()
        self._idle: queue.SimpleQueue[ProcessPoolExecutor] = queue.SimpleQueue()
        for _ in range(workers):
            self._idle.put(self._copy())

    def _copy(self) -> ProcessPoolExecutor:
        """A pool of one process, so that one that dies takes no others along."""
        fork = multiprocessing.get_context("fork")
        pool = ProcessPoolExecutor(1, fork, initializer=_begin, initargs=(self._client,))
        with warnings.catch_warnings():  # Python 3.12 warns of threads; copies use none of them
            warnings.simplefilter("ignore", DeprecationWarning)
            pool.submit(os.getpid)
        self._all.append(pool)
        return pool

    def call(self, request: Message, context: Context, number: int) -> tuple[Message, Context]:
        """See `Call`."""
        pool = self._idle.get()
        try:
            outcome = pool.submit(_call, request, context, number).result()
        except BrokenProcessPool:
            pool = self._copy()
            reason = "the client's process ended"
            raise ClientFailure(reason, reason, "") from None
        finally:
            self._idle.put(pool)
        if isinstance(outcome, ClientFailure | UnsoundSumError):
            raise outcome
        return outcome

    def close(self) -> None:
        """End the processes once their calls that are under way have ended."""
        for pool in self._all:
            pool.shutdown(wait=True, cancel_futures=True)


_client: SeededClient | None = None


def _begin(client: SeededClient) -> None:
    """Make a new process what it is to be: a copy that answers messages."""
    global _client
    _client = client
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is told, and ends its copies
    torch.set_num_threads(1)
    seeded_generators([random.SystemRandom().getrandbits(128)])


def _call(request: Message, context: Context, number: int) -> Any:
    """The reply and context, or what was raised, in a form that can be pickled."""
    assert _client is not None
    try:
        return _client(request, context, number)
    except UnsoundSumError as error:
        return error
    except BaseException as error:  # an interrupt is the parent's to see
        return ClientFailure(error_reason(error), f"{type(error).__name__}: {error}", traceback.format_exc())
