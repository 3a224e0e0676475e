"""What the columns of a table may hold: public, and the same for training, evaluation and streams."""

from fedmf.data.contract.columns import Category, Column, Encoded, FreeText, Ignored, Number, Time, User
from fedmf.data.contract.contract import DataContract, Encoding
from fedmf.data.contract.file import draft_contract, read_contract
from fedmf.data.contract.kept import Kept, check_rows

__all__ = [
    "Category",
    "Column",
    "DataContract",
    "Encoded",
    "Encoding",
    "FreeText",
    "Ignored",
    "Kept",
    "Number",
    "Time",
    "User",
    "check_rows",
    "draft_contract",
    "read_contract",
]
