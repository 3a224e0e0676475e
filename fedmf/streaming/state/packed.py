"""The state of a `MomentStream` as bytes, and the file of the vectors that its noise keeps.

A commit has all that cannot be drawn again from the key. Vectors of noise can: they are put down now and
then, so that a process that goes on draws the rows since and not all. A file that is missing, of another
stream or not whole costs time and nothing else.
"""

from __future__ import annotations

import hmac
import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from fedmf.records import Seal, replace_durably

_PACKED: Final = b"fdmfpk1\n"


def pack_state(state: Mapping[str, Any]) -> bytes:
    """A nested dict of numbers, strings and float64 tensors: the length of a text, the text, the tensors."""
    arrays: list[bytes] = []

    def described(value: torch.Tensor) -> dict[str, list[int]]:
        arrays.append(value.numpy().astype("<f8", copy=False).tobytes())
        return {"array": list(value.shape)}

    text = json.dumps(state, default=described).encode()
    return b"".join([_PACKED, len(text).to_bytes(8, "little"), text, *arrays])


def unpack_state(content: bytes) -> dict[str, Any]:
    """What `pack_state` packed."""
    if not content.startswith(_PACKED):
        raise ValueError("state (of the stream) must be a packed one; got something else.")
    at = len(_PACKED) + 8
    end = at + int.from_bytes(content[at - 8 : at], "little")
    text, at = content[at:end], end

    def array(shape: list[int]) -> torch.Tensor:
        nonlocal at
        begin, at = at, at + 8 * math.prod(shape)
        return torch.from_numpy(np.frombuffer(content[begin:at], "<f8").astype(np.float64).reshape(shape))

    return _whole(json.loads(text), array)


def _whole(value: Any, array: Callable[[Any], torch.Tensor]) -> Any:
    """A text with its tensors, in order."""
    if not isinstance(value, dict):
        return value
    if set(value) == {"array"}:
        return array(value["array"])
    return {name: _whole(inner, array) for name, inner in value.items()}


class VectorFile:
    """A state with its vectors, behind the chain value and code that a row of the stream would have.

    Args:
        path: of the file.
        seal: of the stream's state.
        plan: the plan's chain value.
    """

    def __init__(self, path: Path, seal: Seal, plan: bytes) -> None:
        self.path, self._seal, self._plan = path, seal, plan

    def write(self, stream: Mapping[str, Any]) -> None:
        """Replace the file, unless no noise keeps vectors; a disk that fails leaves it as it was."""
        if not _keeps_vectors(stream):
            return
        content = pack_state(stream)
        code = b"".join(self._seal.sealed(b"vectors", self._plan, content))
        with suppress(OSError):
            replace_durably(self.path, lambda file: file.writelines((code, content)), mode=0o600)

    def read(self) -> dict[str, Any]:
        """What was written last, empty where that cannot be told."""
        try:
            read = self.path.read_bytes()
        except OSError:
            return {}
        code, content = read[:64], read[64:]
        whole = hmac.compare_digest(code, b"".join(self._seal.sealed(b"vectors", self._plan, content)))
        return unpack_state(content) if whole else {}


def with_vectors(state: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """A saved state with the vectors that its noises had at an earlier step, where it has none itself."""
    parts = {name: part for name, part in state.items() if isinstance(part, Mapping) and name in earlier}
    result = {**state, **{name: with_vectors(part, earlier[name]) for name, part in parts.items()}}
    if "kept" in earlier and "kept" not in state:
        vectors = {name: earlier[name] for name in ("kept", "start", "stop")}
        result |= {**vectors, "kept_t": earlier["t"], "kept_eras": earlier["eras"]}
    return result


def _keeps_vectors(state: Mapping[str, Any]) -> bool:
    parts = [part for part in state.values() if isinstance(part, Mapping)]
    return "kept" in state or any(map(_keeps_vectors, parts))
