"""How C⁻¹z is streamed, and what rounding what it keeps costs."""

from fedmf.factorization.streaming.block_sums import BlockSums, closed_levels, levels
from fedmf.factorization.streaming.inverse import StreamingInverse, rows_of
from fedmf.factorization.streaming.recurrence import Recurrence
from fedmf.factorization.streaming.sparse_rows import SparseRows
from fedmf.factorization.streaming.state_space import StateSpace

__all__ = [
    "BlockSums",
    "Recurrence",
    "SparseRows",
    "StateSpace",
    "StreamingInverse",
    "closed_levels",
    "levels",
    "rows_of",
]
