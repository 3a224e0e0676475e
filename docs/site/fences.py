"""What griffe reads from docstrings, with examples fenced: Markdown would take ``>>>`` for a quotation."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n *\S.*)*", re.MULTILINE)


class Fences(griffe.Extension):
    """Puts each doctest of a docstring between fences."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is not None:
            text = obj.docstring.value
            obj.docstring.value = EXAMPLE.sub(
                lambda found: f"{found[1]}```python\n{found[0]}\n{found[1]}```", text
            )
