"""Data sets of rows that somebody collected: declared, read row by row, and held out by user."""

from fedmf.data.rows.cells import cell_blocks, written
from fedmf.data.rows.hub import Hub
from fedmf.data.rows.on_nodes import OnNodes
from fedmf.data.rows.row_options import RowOptions
from fedmf.data.rows.table import Table
from fedmf.data.rows.table_rows import TableColumns, TableRows, read_table

__all__ = [
    "Hub",
    "OnNodes",
    "RowOptions",
    "Table",
    "TableColumns",
    "TableRows",
    "cell_blocks",
    "read_table",
    "written",
]
