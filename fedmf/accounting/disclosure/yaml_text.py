"""YAML of plain values: dicts, lists, text and numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["as_yaml"]


def as_yaml(value: Mapping[str, Any]) -> str:
    r"""Block mappings and lists; text in double quotes, as JSON, and as a block where it has several lines.

    >>> print(as_yaml({"tier": 3, "inner": {"delta": 1e-05, "names": ["a: b"], "notes": "- a\n- b"}}), end="")
    tier: 3
    inner:
      delta: 1.0e-05
      names:
        - "a: b"
      notes: |-
        - a
        - b
    """
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        lines = []
        for name, inner in value.items():
            if isinstance(inner, str) and _is_block(inner):
                lines += [f"{name}: |-", *("  " + line for line in inner.split("\n"))]
            elif isinstance(inner, Mapping | list):
                lines += [f"{name}:", *("  " + line for line in _lines(inner))]
            else:
                lines.append(f"{name}: {_scalar(inner)}")
        return lines
    assert isinstance(value, Sequence)
    return [f"- {_scalar(inner)}" for inner in value]


def _is_block(text: str) -> bool:
    """Whether a block shows it as it is: several lines, none of them empty or with spaces around."""
    lines = text.split("\n")
    return len(lines) > 1 and all(line.isprintable() and line == line.strip() != "" for line in lines)


def _scalar(value: str | float) -> str:
    if isinstance(value, float):
        text = repr(value)  # YAML 1.1 takes 1e-05 for text: it wants a point
        return text.replace("e", ".0e") if "e" in text and "." not in text else text
    return json.dumps(value, ensure_ascii=False)
