"""Configuration tables: the same values as text, and what is generated from them."""

from fedmf.runs.tables.configuration import (
    TABLES,
    dotted_keys,
    found_or_shipped,
    keys,
    load_run,
    overridden,
    parse_assignments,
    read_toml,
    render_toml,
    run_of,
    shipped_file,
    tables_of,
    takes_key,
)
from fedmf.runs.tables.value_table import Key, Scalar, ValueTable

__all__ = [
    "TABLES",
    "Key",
    "Scalar",
    "ValueTable",
    "dotted_keys",
    "found_or_shipped",
    "keys",
    "load_run",
    "overridden",
    "parse_assignments",
    "read_toml",
    "render_toml",
    "run_of",
    "shipped_file",
    "tables_of",
    "takes_key",
]
