"""Kernels in Triton that clip and sum rows on a GPU, in three passes over the rows.

Nothing as large as the rows is stored. `fedmf.clipping.gpu` launches them in the order
`sum_squares`, `judge`, `square_integers`, `admit`, `add_scaled`.
"""

# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportCallIssue=false
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false, reportReturnType=false
# pyright: reportOptionalOperand=false, reportInvalidTypeForm=false

from __future__ import annotations

import triton
import triton.language as tl

from fedmf.clipping.bounded_add import WIDEST

LANES = 16
PANEL = 4096
"""Within a panel, entry 16k + l goes to partial sum l, one after the other."""

BLOCK = 32 * PANEL
"""Entries of one program, whose partial sums are added in pairs."""

OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}
"""Nothing is fused: a product is rounded before it is cut to an integer, as on a CPU."""

COLUMNS = 512
"""Entries of the sum for each program; a thread has four of them."""

USERS = 64
"""Users that a program adds up before it adds to the sum."""

AHEAD = 8
"""Loads that a thread has in flight."""

_PANEL = tl.constexpr(PANEL)
_LANES = tl.constexpr(LANES)
_PANELS = tl.constexpr(BLOCK // PANEL)
_AHEAD = tl.constexpr(AHEAD)
_WIDEST = tl.constexpr(WIDEST)


@triton.jit
def _differences(row, origin, at, length, inside, SHIFTED: tl.constexpr):
    """Return row − origin, computed in float32, as float64; zeros beyond the vector."""
    if inside:
        x = tl.load(row + at)
    else:
        x = tl.load(row + at, mask=at < length, other=0.0)
    if SHIFTED:
        if inside:
            x -= tl.load(origin + at)
        else:
            x -= tl.load(origin + at, mask=at < length, other=0.0)
    return x.to(tl.float64)


@triton.jit
def _halved(x, COUNT: tl.constexpr):
    """Return the sums of neighbors."""
    even, odd = tl.split(tl.reshape(x, [COUNT // 2, 2]))
    return even + odd


@triton.jit
def sum_squares(rows, origin, squares, step, length, SHIFTED: tl.constexpr):
    """Set squares[u, block] to Σ (row − origin)² over a block of row u."""
    user = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1).to(tl.int64)
    begin = block * (_PANELS * _PANEL)
    row = rows + user * step
    places = tl.arange(0, _PANELS)[:, None] * _PANEL + tl.arange(0, _LANES)[None, :]
    lanes = tl.zeros([_PANELS, _LANES], tl.float64)
    inside = begin + _PANELS * _PANEL <= length
    for first in range(0, tl.minimum(length - begin, _PANEL), _AHEAD * _LANES):
        for ahead in tl.static_range(_AHEAD):
            at = begin + places + first + ahead * _LANES
            wide = _differences(row, origin, at, length, inside, SHIFTED)
            lanes += wide * wide
    tl.store(squares + user * tl.num_programs(1) + block, _all(lanes))


@triton.jit
def _all(lanes):
    """Return the sum of a block's partial sums, neighbors first."""
    x = tl.reshape(lanes, [_PANELS * _LANES])
    x = _halved(_halved(_halved(_halved(x, 512), 256), 128), 64)
    x = _halved(_halved(_halved(_halved(x, 32), 16), 8), 4)
    even, odd = tl.split(x)
    return even + odd


@triton.jit
def judge(squares, blocks, limits, factors, signs, counted, users, AT_ONCE: tl.constexpr):
    """Set the factor of each row, its sign, and whether it is finite, from sums of squares.

    `limits` holds ζ, the norm that a row of norm ζ is scaled to, and the largest norm within ζ.
    """
    user = tl.program_id(0) * AT_ONCE + tl.arange(0, AT_ONCE)
    known = user < users
    place = squares + user.to(tl.int64) * blocks
    total = tl.load(place, mask=known, other=0.0)
    for block in range(1, blocks):
        total += tl.load(place + block, mask=known, other=0.0)
    good = total < float("inf")
    norm = tl.sqrt(tl.where(good, total, 0.0))
    zeta = tl.load(limits)
    scale = tl.load(limits + 1)
    factor = scale / tl.where(norm > zeta, norm, zeta)
    tl.store(factors + user, tl.where(norm > 0.0, factor, 0.0), mask=known)
    sign = tl.where(norm <= tl.load(limits + 2), 1, -1)
    tl.store(signs + user, sign.to(tl.int64), mask=known)
    tl.store(counted + user, good.to(tl.int8), mask=known)


@triton.jit
def _integers(difference, factor):
    """Return trunc(difference·factor) and whether it is within `WIDEST`; 0 if not, or for NaN."""
    scaled = difference.to(tl.float64) * factor
    good = tl.abs(scaled) <= _WIDEST
    return tl.where(good, scaled, 0.0).to(tl.int64), good


@triton.jit
def square_integers(rows, origin, factors, squares, step, length, SHIFTED: tl.constexpr):
    """Set squares[u, block] to Σ n² over a block of row u.

    It is infinite if an entry is too large to be an integer.
    """
    user = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1).to(tl.int64)
    begin = block * (_PANELS * _PANEL)
    row = rows + user * step
    factor = tl.load(factors + user)
    places = tl.arange(0, _PANELS)[:, None] * _PANEL + tl.arange(0, _LANES)[None, :]
    lanes = tl.zeros([_PANELS, _LANES], tl.float64)
    inside = begin + _PANELS * _PANEL <= length
    if factor != 0.0:
        for first in range(0, tl.minimum(length - begin, _PANEL), _AHEAD * _LANES):
            for ahead in tl.static_range(_AHEAD):
                at = begin + places + first + ahead * _LANES
                whole, good = _integers(
                    _differences(row, origin, at, length, inside, SHIFTED), factor
                )
                wide = tl.where(good, whole.to(tl.float64), float("inf"))
                lanes += wide * wide
    tl.store(squares + user * tl.num_programs(1) + block, _all(lanes))


@triton.jit
def admit(squares, blocks, limits, factors, signs, counted, users, AT_ONCE: tl.constexpr):
    """Exclude rows with Σ n² above the limit, `limits`[3]: they add neither integers nor a sign.

    A row with Σ n² = 0 has no sign either. Σ n² of a row replaces the squares of its first block.
    """
    user = tl.program_id(0) * AT_ONCE + tl.arange(0, AT_ONCE)
    known = user < users
    place = squares + user.to(tl.int64) * blocks
    total = tl.load(place, mask=known, other=0.0)
    for block in range(1, blocks):
        total += tl.load(place + block, mask=known, other=0.0)
    refused = known & ~(total <= tl.load(limits + 3))
    tl.store(place, tl.where(refused, 0.0, total), mask=known)
    tl.store(factors + user, tl.zeros([AT_ONCE], tl.float64), mask=refused)
    tl.store(signs + user, tl.zeros([AT_ONCE], tl.int64), mask=refused | (known & (total == 0.0)))
    tl.store(counted + user, tl.zeros([AT_ONCE], tl.int8), mask=refused)


@triton.jit
def _row_integers(row, origin_part, factor, at, length, inside):
    """Return the integers of row − origin; a row with factor 0 is not read."""
    used = tl.broadcast_to(factor, at.shape) != 0.0
    if inside:
        x = tl.load(row + at, mask=(at >= 0) & used, other=0.0)
    else:
        x = tl.load(row + at, mask=(at < length) & used, other=0.0)
    whole, _ = _integers(tl.where(used, x - origin_part, 0.0), factor)
    return whole


@triton.jit
def add_scaled(
    rows,
    origin,
    factors,
    totals,
    step,
    apart,
    length,
    users,
    COLUMNS: tl.constexpr,
    USERS: tl.constexpr,
    SHIFTED: tl.constexpr,
):
    """Add Σ trunc((row − origin)·factor) over some users to a total, in integers in any order.

    The total of the next users begins ``apart`` entries further on; 0 if there is one total.
    """
    begin = tl.program_id(0).to(tl.int64) * COLUMNS
    at = begin + tl.arange(0, COLUMNS)
    inside = begin + COLUMNS <= length
    start = tl.zeros([COLUMNS], tl.float32)
    if SHIFTED:
        start = tl.load(origin + at, mask=at < length, other=0.0)
    sums = tl.zeros([COLUMNS], tl.int64)
    first = tl.program_id(1) * USERS
    last = tl.minimum(first + USERS, users)
    for u in range(first, last, _AHEAD):
        for ahead in tl.static_range(_AHEAD):
            user = u + ahead
            factor = tl.load(factors + user, mask=user < last, other=0.0)
            row = rows + user.to(tl.int64) * step
            sums += _row_integers(row, start, factor, at, length, inside)
    total = totals + tl.program_id(1).to(tl.int64) * apart
    if inside:
        tl.atomic_add(total + at, sums, sem="relaxed")
    else:
        tl.atomic_add(total + at, sums, mask=at < length, sem="relaxed")
