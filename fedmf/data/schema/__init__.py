"""What the columns of a table may hold: public, and the same for training, evaluation and streams."""

from fedmf.data.schema.columns import Category, Encoded, User, numbers_of_cells
from fedmf.data.schema.file import draft_schema, read_schema
from fedmf.data.schema.schema import Encoding, Schema, check_rows

__all__ = [
    "Category",
    "Encoded",
    "Encoding",
    "Schema",
    "User",
    "check_rows",
    "draft_schema",
    "numbers_of_cells",
    "read_schema",
]
