"""What compiled training shares: arithmetic in vector registers, users' examples and what became of them."""

from fedmf.training.blocks.merging import WIDEST, add_squares, add_whole
from fedmf.training.blocks.pooling import collect, largest_of, marked_block, tap_block
from fedmf.training.blocks.products import add_product, padded
from fedmf.training.blocks.users import (
    COUNTED,
    NEAR,
    NO_CLASS,
    NOT_FINITE,
    NOTHING,
    UNBOUNDED,
    Examples,
    Rule,
    sign,
)
from fedmf.training.blocks.vectors import LANES, WHOLE, at, at_byte, at_integer
from fedmf.training.blocks.windows import copy_apart, dot_block, near_block, window_block

__all__ = [
    "COUNTED",
    "LANES",
    "NEAR",
    "NOTHING",
    "NOT_FINITE",
    "NO_CLASS",
    "UNBOUNDED",
    "WHOLE",
    "WIDEST",
    "Examples",
    "Rule",
    "add_product",
    "add_squares",
    "add_whole",
    "at",
    "at_byte",
    "at_integer",
    "collect",
    "copy_apart",
    "dot_block",
    "largest_of",
    "marked_block",
    "near_block",
    "padded",
    "sign",
    "tap_block",
    "window_block",
]
