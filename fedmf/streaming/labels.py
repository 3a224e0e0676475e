"""Labels: texts of a row that are declared public and stand beside the release of its step."""

from __future__ import annotations

import re
from typing import Final

#: Most characters of a label.
LONGEST_LABEL: Final = 256
#: Half of a pair, which JSON can name and UTF-8 cannot hold.
SURROGATE: Final = re.compile("[\ud800-\udfff]")
#: What would end a line or cannot be written: control characters, line separators, halves of surrogate pairs.
_UNFIT: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def label_of(value: object) -> str:
    """The text of a label as it is released: what is given, made one line of at most 256 characters.

    Args:
        value: text, or a number, which is written the shortest way.

    Guarantees:
        The text depends on nothing but the value, UTF-8 can hold it, and it has no line breaks or other
        control characters: each is written as U+FFFD. Longer text ends with "…". What is neither text nor
        number is empty.

    >>> label_of("22 Nov"), label_of("a\\nb"), label_of(17), label_of(None), len(label_of(999 * "x"))
    ('22 Nov', 'a�b', '17', '', 256)
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    text = str(value)
    if len(text) > LONGEST_LABEL:
        text = text[: LONGEST_LABEL - 1] + "…"
    return _UNFIT.sub("\ufffd", text)
