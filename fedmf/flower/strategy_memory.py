"""The values that a strategy and its train config hold between rounds, as part of each commit.

A strategy may halve a learning rate in its train config or count rounds in its attributes. A
checkpoint keeps such values in the form of `stored`, and `StrategyMemory` restores them when a run
is continued.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, MutableMapping
from typing import Any, Final

import numpy as np
import torch
from flwr.app import ConfigRecord, MetricRecord
from flwr.serverapp.strategy import FedAvg

from fedmf.optim import fingerprint_of

_RECORDS: Final = {"ConfigRecord": ConfigRecord, "MetricRecord": MetricRecord}
#: Types that a checkpoint keeps as they are.
_PLAIN: Final = (bool, int, float, str, type(None))


def stored(value: Any) -> Any:
    """Return a plain value in a form that a checkpoint keeps.

    Plain are numbers, strings, bytes, Booleans, None, NumPy arrays without objects, and lists,
    tuples, dicts, ConfigRecords and MetricRecords of plain values.

    Raises:
        TypeError: the value is not plain.
        RecursionError: it contains itself.

    >>> restored(stored({"rate": 0.5, 3: (1, [True, None])}))
    {'rate': 0.5, 3: (1, [True, None])}
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is bytes:
        return {"bytes": value.hex()}
    if kind in (list, tuple):
        return {kind.__name__: [stored(item) for item in value]}
    if kind is dict or kind in _RECORDS.values():
        return {kind.__name__: [[stored(key), stored(item)] for key, item in value.items()]}
    if kind is np.ndarray or isinstance(value, np.generic):
        if value.dtype.hasobject:
            raise TypeError("an array must hold numbers or strings; it holds objects.")
        file = io.BytesIO()
        np.save(file, value, allow_pickle=False)
        content = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
        return {"array" if kind is np.ndarray else "scalar": content}
    raise TypeError(f"a value must be plain; got {kind.__name__}.")


def restored(value: Any) -> Any:
    """Return the value of which `stored` made this form."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "list":
        return [restored(item) for item in content]
    if kind == "tuple":
        return tuple(restored(item) for item in content)
    if kind in ("array", "scalar"):
        array = np.load(io.BytesIO(content.numpy().tobytes()), allow_pickle=False)
        return array if kind == "array" else array[()]
    items = {restored(key): restored(item) for key, item in content}
    return items if kind == "dict" else _RECORDS[kind](items)


class StrategyMemory:
    """The attributes of a strategy that changed since it was given, and its train config.

    Args:
        inner: the strategy, before its first round in this process.
        handled: attributes that are restored elsewhere.
    """

    def __init__(self, inner: FedAvg, handled: Collection[str] = ()) -> None:
        self._inner = inner
        self._handled = frozenset(handled)
        self._fingerprints = {name: _fingerprint(value) for name, value in self._attributes()}
        self.use_config(ConfigRecord())

    def use_config(self, train_config: ConfigRecord) -> None:
        """Use a train config, which the strategy sends to clients and may change."""
        self.config = train_config
        self._given = stored(dict(train_config))

    def _attributes(self) -> list[tuple[str, Any]]:
        attributes = vars(self._inner).items()
        return [(name, value) for name, value in attributes if name not in self._handled]

    def to_commit(self) -> dict[str, Any]:
        """Return the values to commit; it raises no error, whatever the strategy holds."""
        attributes = list[list[Any]]()
        lost = list[str]()
        for name, value in self._attributes():
            if not self._has_changed(name, value):
                continue
            try:
                attributes.append([name, stored(value)])
            except Exception:  # whatever a foreign object may do
                lost.append(name)
        config = stored(dict(self.config))
        return {"given": self._given, "config": config, "attributes": attributes, "lost": lost}

    def _has_changed(self, name: str, value: Any) -> bool:
        if name not in self._fingerprints:
            return True
        return self._fingerprints[name] != _fingerprint(value)

    def restore_config(self, committed: Mapping[str, Any]) -> None:
        """Restore the train config; an entry that is now given with another value keeps that.

        Args:
            committed: the values of `to_commit`; empty if there is no commit.
        """
        if not committed:
            return
        given_now = restored(self._given)
        given = restored(committed["given"])
        config = restored(committed["config"])
        for key in sorted(given.keys() | config.keys() | set(self.config)):
            if given_now.get(key) != given.get(key):
                continue
            if key in config:
                self.config[key] = config[key]
            else:
                self.config.pop(key, None)

    def restore_attributes(self, committed: Mapping[str, Any]) -> list[str]:
        """Restore the attributes of the strategy.

        Args:
            committed: the values of `to_commit`; empty if there is no commit.

        Returns:
            The names of attributes that changed and could not be stored.
        """
        if not committed:
            return []
        for name, value in committed["attributes"]:
            self._set(name, restored(value))
        return list(committed["lost"])

    def _set(self, name: str, value: Any) -> None:
        """Set an attribute; dicts, records and lists in place, as the app may hold them too."""
        current = vars(self._inner).get(name)
        if isinstance(current, MutableMapping) and isinstance(value, MutableMapping):
            current.clear()
            current.update(value)
        elif isinstance(current, list) and isinstance(value, list):
            current[:] = value
        else:
            vars(self._inner)[name] = value


def _fingerprint(value: Any) -> str:
    """Return a string that changes with a value, or only with its identity if it is opaque."""
    try:
        name, digest = fingerprint_of(value)
    except Exception:  # whatever a foreign object may do
        return f"object {id(value)}"
    return f"{name} {digest}"
