"""Docstrings with examples fenced, since Markdown takes ``>>>`` for a quotation; fields with plain
types.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n *\S.*)*", re.MULTILINE)


class Fences(griffe.Extension):
    """Fences each doctest of a docstring, and shows ``Annotated[float, Field("…")]`` as float."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Keep the type of a field, and make its description its docstring."""
        annotation = attr.annotation
        if isinstance(annotation, griffe.ExprSubscript) and str(annotation.left) == "Annotated":
            attr.annotation, field, *_rest = annotation.slice.elements
            if attr.docstring is None and isinstance(field, griffe.ExprCall) and field.arguments:
                attr.docstring = griffe.Docstring(str(field.arguments[0]).strip("'\""), parent=attr)

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is not None:
            text = obj.docstring.value
            obj.docstring.value = EXAMPLE.sub(
                lambda found: f"{found[1]}```python\n{found[0]}\n{found[1]}```", text
            )
