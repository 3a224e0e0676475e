"""A sweep as a TOML file."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fedmf.accounting import TRIALS, NegativeBinomialTrials, Trials
from fedmf.errors import ConfigError
from fedmf.runs.tables import found_or_shipped, overridden, read_toml
from fedmf.sweeps.sweep import Sweep
from fedmf.sweeps.trial_sweep import TrialSweep
from fedmf.values import dotted, value_of

#: What a file may have beside the fields of a sweep.
_SET: Final = "set"
_TABLES: Final = ("variants", "grid", "tuned", "trials", _SET)
_LISTS: Final = ("seeds", "tuning_seeds", "seed_keys")


def load_sweep(path: str | Path) -> Sweep | TrialSweep:
    """Read a sweep: its fields in kebab-case, ``base`` as tables or as the path of a configuration.

    A path is relative to the file. Keys of a table ``[set]`` go over those of the base. With a table
    ``[trials]`` it is one of which the best run alone is released.

    Raises:
        ConfigError: unreadable, not TOML, an unknown key, or no valid sweep.
    """
    path = found_or_shipped(Path(path))
    given = {name.replace("-", "_"): value for name, value in read_toml(path).items()}
    kind: type[Sweep | TrialSweep] = TrialSweep if "trials" in given else Sweep
    known = [*(entry.name for entry in dataclasses.fields(kind)), _SET]
    for name, value in given.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f"; did you mean {near[0].replace('_', '-')!r}?" if near else ""
            raise ConfigError(f"unknown key {name.replace('_', '-')!r} of a sweep{meant}")
        _check_type(name, value)
    _check_variants(given.get("variants", {}))
    for name in ("grid", "tuned"):
        _check_lists(name, given.get(name, {}))
    for name in ("base", "tuned") if kind is TrialSweep else ("base", "seeds"):
        if name not in given:
            raise ConfigError(f"{name} (of the sweep {path}) must be given; got none.")
    base = given["base"]
    if isinstance(base, str):
        base = read_toml(path.parent / Path(base).expanduser())
    more = given.pop(_SET, {})
    if "trials" in given:
        given["trials"] = _trials(given["trials"])
    return kind(**{**given, "base": overridden(dotted(base), dotted(more))})


def _trials(given: Mapping[str, Any]) -> Trials:
    """The law of a number of trials from its table; what is left out has its default."""
    kind = given.get("kind", NegativeBinomialTrials.kind)
    if kind not in TRIALS:
        raise ConfigError(f"kind (of the trials) must be one of {', '.join(TRIALS)}; got {kind!r}.")
    fields = {**TRIALS[kind]().to_dict(), **given}
    for name, value in fields.items():
        if name != "kind" and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ConfigError(f"{name} (of the trials) must be a number; got {value!r}.")
    try:
        return value_of(TRIALS, fields)
    except ValueError as error:
        raise ConfigError(str(error)) from None


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
