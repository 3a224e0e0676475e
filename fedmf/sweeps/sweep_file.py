"""A sweep as a TOML file."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fedmf.errors import ConfigError
from fedmf.runs.tables import found_or_shipped, overridden, read_toml
from fedmf.sweeps.sweep import Sweep
from fedmf.values import dotted

#: What a file may have beside the fields of a sweep.
_SET: Final = "set"
_TABLES: Final = ("variants", "grid", "tuned", _SET)
_LISTS: Final = ("seeds", "tuning_seeds", "seed_keys")


def load_sweep(path: str | Path) -> Sweep:
    """Read a sweep: its fields in kebab-case, ``base`` as tables or as the path of a configuration.

    A path is relative to the file. Keys of a table ``[set]`` go over those of the base.

    Raises:
        ConfigError: unreadable, not TOML, an unknown key, or no valid sweep.
    """
    path = found_or_shipped(Path(path))
    given = {name.replace("-", "_"): value for name, value in read_toml(path).items()}
    known = [*(entry.name for entry in dataclasses.fields(Sweep)), _SET]
    for name, value in given.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f"; did you mean {near[0].replace('_', '-')!r}?" if near else ""
            raise ConfigError(f"unknown key {name.replace('_', '-')!r} of a sweep{meant}")
        _check_type(name, value)
    _check_variants(given.get("variants", {}))
    for name in ("grid", "tuned"):
        _check_lists(name, given.get(name, {}))
    for name in ("base", "seeds"):
        if name not in given:
            raise ConfigError(f"{name} (of the sweep {path}) must be given; got none.")
    base = given["base"]
    if isinstance(base, str):
        base = read_toml(path.parent / Path(base).expanduser())
    more = given.pop(_SET, {})
    return Sweep(**{**given, "base": overridden(dotted(base), dotted(more))})


def _check_type(name: str, value: Any) -> None:
    shown = name.replace("_", "-")
    if name in _TABLES and not isinstance(value, Mapping):
        raise ConfigError(f"{shown} (of the sweep) must be a table; got {value!r}.")
    if name in _LISTS and not isinstance(value, list):
        raise ConfigError(f"{shown} (of the sweep) must be a list; got {value!r}.")
    if name in ("baseline", "metric", "compare") and not isinstance(value, str):
        raise ConfigError(f"{shown} (of the sweep) must be text; got {value!r}.")
    if name == "base" and not isinstance(value, str | Mapping):
        raise ConfigError(f"base (of the sweep) must be a path or tables; got {value!r}.")


def _check_variants(variants: Mapping[str, Any]) -> None:
    for variant, keys in variants.items():
        if not isinstance(keys, Mapping):
            raise ConfigError(f"[variants.{variant}] must be a table of keys; got {keys!r}.")


def _check_lists(table: str, lists: Mapping[str, Any]) -> None:
    for key, values in dotted(lists).items():
        if not isinstance(values, list):
            raise ConfigError(f"[{table}] {key} must be a list of values; got {values!r}.")
