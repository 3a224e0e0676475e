"""Options of rows with features and a label among classes, by a schema or without one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final

from fedmf.data.options import PublicInput, in_words
from fedmf.data.rows.row_options import RowOptions
from fedmf.data.schema import Encoded, Schema, read_schema
from fedmf.values import Field

_RANGE: Final = re.compile(r"(\d{1,9})\.\.(\d{1,9})")
_MOST_CLASSES: Final = 1_000_000
_READ: Final = "read off the rows: not for private runs"
_FIXED: Final = "fixed by the reader; no statistic of the rows"


@dataclass(frozen=True)
class LabelledRows(RowOptions):
    """A data set of rows with columns of features and one of labels.

    A row whose label is missing or none of the declared ones counts for nobody. So does a
    row of a table whose features cannot be read; with images and data of the hub it makes only its owner's
    update zero.
    """

    feature_columns: Annotated[tuple[str, ...], Field("names of the feature columns")] = ()
    label_column: Annotated[str, Field("name of the label column")] = "label"
    class_names: Annotated[
        tuple[str, ...], Field("the labels in order; 0..61 stands for these integers; needed for privacy")
    ] = ()
    input_shape: Annotated[
        tuple[int, ...], Field("shape of an example, channels first; needed for privacy", ge=1)
    ] = ()

    def __post_init__(self) -> None:
        if not self.label_column and not self.unlabelled:
            object.__setattr__(self, "label_column", "label")
        super().__post_init__()
        check_names("feature_columns", self.feature_columns)
        check_names("class_names", self.class_names)
        if self.class_names and len(self.classes) < 2:
            raise ValueError(f"class_names must be at least two labels; got {self.class_names[0]!r} alone.")
        if len(set(self.classes)) < len(self.classes):
            raise ValueError(f"class_names must be different; got {', '.join(self.class_names)}.")

    @property
    def unlabelled(self) -> bool:
        """Whether no label column means that there is none, rather than one of the name ``label``."""
        return False

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The declared labels, ranges written out.

        Raises:
            ValueError: a range of too many numbers, or of none.
        """
        names: list[str] = []
        for entry in self.class_names:
            if not (ends := _RANGE.fullmatch(entry)):
                names.append(entry)
                continue
            first, last = map(int, ends.groups())
            if not 0 <= last - first < _MOST_CLASSES:
                raise ValueError(
                    f"class_names must hold ranges of 1 to {_MOST_CLASSES} numbers; got {entry}."
                )
            names.extend(map(str, range(first, last + 1)))
        return tuple(names)

    def declared(self) -> dict[str, bool]:
        """See `RowOptions.declared`."""
        names = ("class_names", "input_shape", "feature_columns")
        return {name: bool(getattr(self, name)) for name in names}

    def example_inputs(self) -> tuple[PublicInput, ...]:
        """See `DatasetOptions.example_inputs`."""
        shape = in_words(self.input_shape) or "as the rows have it"
        return (
            self.class_input(),
            PublicInput("shape of an example", shape, "declared: input_shape" if self.input_shape else _READ),
            PublicInput("normalisation", self.normalisation, _FIXED),
        )

    def class_input(self) -> PublicInput:
        """Where the labels that there are come from."""
        source = "declared: class_names" if self.class_names else _READ
        return PublicInput("classes", ", ".join(self.class_names) or "the labels that occur", source)

    @property
    def normalisation(self) -> str:
        """How values become features."""
        return "numbers as they are, in float32"


@dataclass(frozen=True)
class SchemaRows(LabelledRows):
    """Rows of tables, whose columns a public schema may declare; abstract."""

    schema: Annotated[
        str, Field("file that declares columns, bounds and classes; without it numbers are taken as they are")
    ] = ""

    def read_schema(self) -> Schema:
        """What the file says.

        Raises:
            ValueError: it cannot be read, or does not say what it must.
        """
        return read_schema(Path(self.schema).expanduser())

    def features_of(self, schema: Schema, labels: tuple[str, ...]) -> tuple[str, ...]:
        """The feature columns: those that are named, else all numbers and categories but the labels."""
        return self.feature_columns or tuple(name for name in schema.named(Encoded) if name not in labels)

    def check_categories(self, categories: tuple[str, ...]) -> None:
        """Whether the labels that a schema declares are those that are named, if any are.

        Raises:
            ValueError: they are not.
        """
        if self.class_names and self.classes != categories:
            raise ValueError(
                "class_names must be left out, or the categories of the label column in the schema, "
                f"{', '.join(categories[:20])}; got {', '.join(self.class_names)[:200]}."
            )

    def example_inputs(self) -> tuple[PublicInput, ...]:
        """See `DatasetOptions.example_inputs`."""
        if not self.schema:
            return super().example_inputs()
        source = f"declared: schema {self.schema}"
        return (
            PublicInput("classes", f"categories of column {self.label_column}", source),
            PublicInput("shape of an example", in_words(self.input_shape) or "its coordinates", source),
            PublicInput("normalisation", "(x − center)/scale, clipped into bounds; categories coded", source),
        )


def check_names(label: str, names: tuple[str, ...]) -> None:
    """Refuse names that are not different, or that a configuration cannot list."""
    if not isinstance(names, tuple) or not all(names) or len(set(names)) < len(names):
        raise ValueError(f"{label} must be a tuple of different names; got {names!r}.")
    if any("," in name or name != name.strip() for name in names):
        raise ValueError(
            f"{label} must have no commas and no blanks at their ends, so that a configuration can list "
            f"them; got {names!r}."
        )
