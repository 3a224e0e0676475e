"""Rows from programs, one at a time or as a table."""

from fedmf.streaming.pushed.entries import PushedRows, pushed_entries, pushed_layout, require_name
from fedmf.streaming.pushed.tables import TableRows, table_rows

__all__ = ["PushedRows", "TableRows", "pushed_entries", "pushed_layout", "require_name", "table_rows"]
