"""Run whole Flower apps in this process, with reproducible global generators if a seed is given.

`run_app` loads an app, runs its server app on an `InProcessGrid`, and calls the client app for each
message.
"""

from __future__ import annotations

import contextlib
import random
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedmf.errors import ConfigError
from fedmf.flower.compat import UserConfig, flat_config, load_object, server_context
from fedmf.flower.grid import Client, InProcessGrid
from fedmf.training.rng import kept_generators


def run_app(
    server_app: ServerApp | str | Path,
    client_app: ClientApp | None = None,
    *,
    num_supernodes: int,
    run_config: Mapping[str, Any] | None = None,
    seed: int | None = None,
) -> Context:
    """Run a Flower app in this process: the server app, and the client app for each message.

    This needs no Ray, no Flower services or home directory, and no network. Errors of the server
    app are raised here, and you can debug clients. Lifespans, mods, client state, actions and apps
    with the older interface (``client_fn``, ``server_fn``) work as in Flower. An error of a client
    gives an error reply.

    Args:
        server_app: the server app; or the folder of a Flower app with its ``pyproject.toml``.
        client_app: the client app; None with a folder, which names its own.
        num_supernodes: N ≥ 1 virtual nodes; node i has the node config ``partition-id`` = i and
            ``num-partitions`` = N.
        run_config: values of the run config, nested or with dotted keys. With a folder they replace
            values of ``[tool.flwr.app.config]``, which must have the keys, as with ``flwr run
            --run-config``.
        seed: if given, the global generators of Python, NumPy and PyTorch are seeded: the server's
            by the seed, for a client's call by (seed, node, number of the message to the node).
            Afterwards their earlier states are restored.

    Returns:
        The context of the server app after the run, with the app's own ``state``.

    Raises:
        ConfigError: an argument is out of its range, or the folder holds no Flower app.
        Exception: any error of the server app.

    Guarantees:
        Every message and reply has records of its own. With a seed, an app that draws from the
        global generators gives the same bits at each run, and no client's draws depend on which
        other clients get messages.
    """
    server, client, config = _app_of(server_app, client_app, run_config or {})
    _check_integer("N (num_supernodes)", num_supernodes, 1)
    context = server_context(dict(config))
    if seed is None:
        server(InProcessGrid(client, num_supernodes, config), context)
        return context
    _check_integer("seed", seed, 0)
    with _restored_generators():
        grid = InProcessGrid(_seeded(client, seed), num_supernodes, config)
        seeded_generators([seed, 0])
        server(grid, context)
    return context


def _check_integer(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} must be an integer of at least {least}; got {value!r}.")


def _seeded(client: ClientApp, seed: int) -> Client:
    """Return a client that draws from (seed, node's partition, number of the message).

    Its draws do not affect the generators of the caller.
    """
    calls = Counter[int]()

    def call(message: Message, context: Context) -> Message:
        node = int(context.node_config["partition-id"])
        with _restored_generators():
            seeded_generators([seed, 1, node, calls[node]])
            calls[node] += 1
            return client(message, context)

    return call


def _app_of(
    server: ServerApp | str | Path, client: ClientApp | None, run_config: Mapping[str, Any]
) -> tuple[ServerApp, ClientApp, UserConfig]:
    """Return server app, client app and flat run config, from two objects or from a folder."""
    config = flat_config(run_config)
    if isinstance(server, (str, Path)):
        if client is not None:
            raise ConfigError("client_app must be omitted with an app folder, which names its own.")
        server, client, config = _loaded(Path(server), config)
    for name, app, kind in (("server_app", server, ServerApp), ("client_app", client, ClientApp)):
        if not isinstance(app, kind):
            raise ConfigError(
                f"{name} must be a {kind.__name__}; got {type(app).__name__}. "
                "Give both apps, or the folder of a Flower app alone."
            )
    return server, client, config  # type: ignore[return-value]


def _loaded(folder: Path, overrides: UserConfig) -> tuple[Any, Any, UserConfig]:
    """Load the app of a folder and its run config, in which ``overrides`` replace values."""
    path = folder.expanduser().resolve() / "pyproject.toml"
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))["tool"]["flwr"]["app"]
        server_name = str(table["components"]["serverapp"])
        client_name = str(table["components"]["clientapp"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} must name serverapp and clientapp under [tool.flwr.app.components]; "
            f"got {type(error).__name__}: {error}."
        ) from None
    defaults = flat_config(table.get("config", {}))
    unknown = sorted(overrides.keys() - defaults.keys())
    if unknown:
        known = ", ".join(sorted(defaults)) or "none"
        raise ConfigError(
            f"run_config must have keys of [tool.flwr.app.config]; got {unknown[0]!r}. Known:"
            f" {known}."
        )
    server = load_object(server_name, path.parent)
    client = load_object(client_name, path.parent)
    return server, client, {**defaults, **overrides}


def _restored_generators() -> contextlib.AbstractContextManager[None]:
    """Restore the states of all global generators at the end of the block."""
    return kept_generators(torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def seeded_generators(words: Sequence[int]) -> None:
    """Seed all global generators, each with bits of its own, from non-negative integers.

    >>> with _restored_generators():
    ...     seeded_generators([1, 2])
    ...     first = random.random()
    ...     seeded_generators([1, 2])
    ...     first == random.random()
    True
    """
    state = np.random.SeedSequence(list(words)).generate_state(3, np.uint64)
    python, numpy, pytorch = state.tolist()
    random.seed(python)
    np.random.seed(numpy & 0xFFFFFFFF)  # noqa: NPY002, as apps draw from it
    torch.manual_seed(pytorch)
