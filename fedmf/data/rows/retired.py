"""Kinds of data of earlier versions, by what they are today."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fedmf.data.rows.texts import TXT_FILES

_OF_TEXTS: Final[dict[str, Any]] = {"partition": "natural", "user_column": "user", "input_shape": ()}
#: Kinds that there are no more: what they are today, and what they meant where nothing was said.
RETIRED: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "number-table": ("table", {"label_column": "", "class_names": ()}),
    "text": ("table", {**_OF_TEXTS, "feature_columns": (), "text_column": TXT_FILES}),
    "hub-text": ("hub", {**_OF_TEXTS, "feature_columns": ("image",), "text_column": "text"}),
}


def in_todays_words(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """A record of a data set, of whatever version, as this version writes it.

    >>> said = in_todays_words({"kind": "text", "path": "notes", "text_column": ""})
    >>> said["kind"], said["text_column"], said["partition"]
    ('table', '*.txt', 'natural')
    """
    kind, meant = RETIRED.get(str(recorded.get("kind")), (recorded.get("kind"), {}))
    said = {**meant, **recorded, "kind": kind}
    if "text_column" in meant:
        said["text_column"] = said["text_column"] or meant["text_column"]
    return said
