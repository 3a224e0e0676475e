"""Data sets of rows that somebody collected: declared, read row by row, and held out by user."""

from fedmf.data.rows.csv_lines import csv_batches
from fedmf.data.rows.declared_table import cell_blocks
from fedmf.data.rows.hub import Hub, HubDataset, HubText
from fedmf.data.rows.labelled_rows import LabelledRows
from fedmf.data.rows.number_table import NumberTable
from fedmf.data.rows.on_nodes import OnNodes, RowsOfNode
from fedmf.data.rows.ownership import hold_out_examples, hold_out_users, partition_by_owner
from fedmf.data.rows.row_options import RowOptions
from fedmf.data.rows.table import Table
from fedmf.data.rows.table_file import TableColumns, TableRows, read_table
from fedmf.data.rows.text_column import TextColumn, bytes_of, written
from fedmf.data.rows.text_options import Text, TextOptions

__all__ = [
    "Hub",
    "HubDataset",
    "HubText",
    "LabelledRows",
    "NumberTable",
    "OnNodes",
    "RowOptions",
    "RowsOfNode",
    "Table",
    "TableColumns",
    "TableRows",
    "Text",
    "TextColumn",
    "TextOptions",
    "bytes_of",
    "cell_blocks",
    "csv_batches",
    "hold_out_examples",
    "hold_out_users",
    "partition_by_owner",
    "read_table",
    "written",
]
