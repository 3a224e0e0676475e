"""Configuration tables: the same values as text, and what is generated from them."""

from fedmf.runs.tables.configuration import (
    TABLES,
    Scalar,
    dotted_keys,
    found_or_shipped,
    known_keys,
    load_run,
    overridden,
    parse_assignments,
    read_toml,
    render_toml,
    run_of,
    shipped_file,
    tables_of,
    takes,
    takes_key,
)

__all__ = [
    "TABLES",
    "Scalar",
    "dotted_keys",
    "found_or_shipped",
    "known_keys",
    "load_run",
    "overridden",
    "parse_assignments",
    "read_toml",
    "render_toml",
    "run_of",
    "shipped_file",
    "tables_of",
    "takes",
    "takes_key",
]
