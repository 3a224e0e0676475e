"""What the columns of a table may hold: public, and the same for training, evaluation and streams."""

from fedmf.data.contract.columns import Category, Encoded, User, numbers_of_cells
from fedmf.data.contract.contract import DataContract, Encoding, check_rows
from fedmf.data.contract.file import draft_contract, read_contract

__all__ = [
    "Category",
    "DataContract",
    "Encoded",
    "Encoding",
    "User",
    "check_rows",
    "draft_contract",
    "numbers_of_cells",
    "read_contract",
]
