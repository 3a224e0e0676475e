"""Data sets of rows that somebody collected: declared, read row by row, and held out by user."""

from fedmf.data.rows.cells import cell_blocks, written
from fedmf.data.rows.cifar import Cifar10
from fedmf.data.rows.hub import Hub
from fedmf.data.rows.image_folder import ImageFolder
from fedmf.data.rows.leaf import Leaf
from fedmf.data.rows.on_nodes import OnNodes
from fedmf.data.rows.retired import RETIRED, in_todays_words
from fedmf.data.rows.row_options import RowOptions
from fedmf.data.rows.table import Table
from fedmf.data.rows.table_rows import TableColumns, TableRows, read_table
from fedmf.data.rows.token_rows import TokenRows

__all__ = [
    "RETIRED",
    "Cifar10",
    "Hub",
    "ImageFolder",
    "Leaf",
    "OnNodes",
    "RowOptions",
    "Table",
    "TableColumns",
    "TableRows",
    "TokenRows",
    "cell_blocks",
    "in_todays_words",
    "read_table",
    "written",
]
