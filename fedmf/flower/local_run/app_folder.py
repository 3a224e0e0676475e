"""Apps in folders: what ``pyproject.toml`` says of components and run config."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedmf.errors import ConfigError
from fedmf.flower.compat import RunConfig, flat_config, load_object


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
