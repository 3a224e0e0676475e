"""Convolution, ReLU and pooling of one example in one pass, and the way back."""

from __future__ import annotations

import numpy as np

from fedmf.compiled import compiled, inlined
from fedmf.training.blocks import (
    LANES,
    at,
    at_byte,
    at_integer,
    collect,
    copy_apart,
    largest_of,
    marked_block,
    near_block,
    tap_block,
    window_block,
)

_8x2, _7x2, _4x2, _1x2 = (window_block[r, 2] for r in (8, 7, 4, 1))
_8x1, _7x1, _4x1, _1x1 = (window_block[r, 1] for r in (8, 7, 4, 1))
_taps3x3, _taps1x5 = tap_block[3, 3], tap_block[1, 5]
_marked3x3, _marked1x5 = marked_block[3, 3, 1], marked_block[1, 5, 1]
_pooled3x3, _pooled1x5 = marked_block[3, 3, 2], marked_block[1, 5, 2]


@compiled
def turn_kernels(plan, work, s):
    """The kernels of a stage with the channels that come out side by side."""
    side, run, real = plan.side[s], plan.run[s], plan.side[s] * plan.wide[s]
    wide, into, place = plan.outputs_wide[s], plan.turned_at[s], plan.weights_at[s]
    for o in range(plan.outputs[s]):
        for line in range(side):
            here, there = place + (o * side + line) * run, into + line * real * wide + o
            copy_apart(at(work.parameters, here), np.int64(1), at(work.turned, there), wide, real)


@inlined
def _convolve_line(plan, work, s, begin, into, pixels):
    """One line of a convolution's outputs, with biases."""
    row, wide = plan.wide[s], plan.outputs_wide[s]
    jump, n, m = plan.width[s] * row, plan.side[s] * row, plan.side[s]
    c = np.int64(0)
    while c < wide:
        two = c + 2 * LANES <= wide
        w, start = at(work.turned, plan.turned_at[s] + c), at(work.parameters, plan.biases_at[s] + c)
        p = np.int64(0)
        while p < pixels:
            x, y, left = at(work.inputs, begin + p * row), at(work.lines, into + p * wide + c), pixels - p
            if row == 1 and not two and left % 14 == 0:
                near_block(x, row, jump, w, wide, start, y, m, n)
                p += 14
            elif left % 8 != 0 and left % 7 == 0:
                if two:
                    _7x2(x, row, jump, w, wide, start, y, m, n)
                else:
                    _7x1(x, row, jump, w, wide, start, y, m, n)
                p += 7
            elif left >= 8:
                if two:
                    _8x2(x, row, jump, w, wide, start, y, m, n)
                else:
                    _8x1(x, row, jump, w, wide, start, y, m, n)
                p += 8
            elif left >= 4:
                if two:
                    _4x2(x, row, jump, w, wide, start, y, m, n)
                else:
                    _4x1(x, row, jump, w, wide, start, y, m, n)
                p += 4
            else:
                if two:
                    _1x2(x, row, jump, w, wide, start, y, m, n)
                else:
                    _1x1(x, row, jump, w, wide, start, y, m, n)
                p += 1
        c += 2 * LANES if two else LANES


@inlined
def _placed(plan, work, s, r):
    """Where the image that stage s makes of example r begins in the next stage's inputs, how far lines lie
    apart there, and how many lines and pixels it has."""
    wide, margin, pool = plan.outputs_wide[s], plan.margin[s + 1], plan.pool[s]
    line = plan.width[s + 1] * wide
    begin = work.begin[s + 1] + r * plan.size[s + 1] + margin * (line + wide)
    lines = (plan.height[s] - plan.side[s] + 1) // pool
    return begin, line, lines, (plan.width[s] - plan.side[s] + 1) // pool


@compiled
def convolve(plan, work, s, r):
    """The outputs of stage s for example r, rectified and pooled, into the next stage's inputs."""
    wide, pool, jump = plan.outputs_wide[s], plan.pool[s], plan.width[s] * plan.wide[s]
    into, step, lines, pixels = _placed(plan, work, s, r)
    here = work.begin[s] + r * plan.size[s]
    marks = r * work.marked[0] + plan.marks_at[s]
    below = pixels * pool * wide
    right, down = (pool - 1) * wide, (pool - 1) * below
    floor = np.float32(0) if plan.rectified[s] else np.float32(-np.inf)
    for y in range(lines):
        for i in range(pool):
            _convolve_line(plan, work, s, here + (y * pool + i) * jump, i * below, pixels * pool)
        for x in range(pixels):
            for c in range(0, wide, LANES):
                largest_of(
                    at(work.lines, x * pool * wide + c), right, down, floor,
                    at(work.inputs, into + y * step + x * wide + c),
                    at_byte(work.marks, marks + (y * pixels + x) * wide + c),
                )  # fmt: skip


@inlined
def _passing_back(plan, work, s, r, o):
    """Collect what channel o of stage s passes back for example r; how many pixels that are."""
    zero, wide, pool, row = np.int64(0), plan.outputs_wide[s], plan.pool[s], plan.wide[s]
    begin, step, lines, pixels = _placed(plan, work, s, r)
    marks = r * work.marked[0] + plan.marks_at[s] + o
    jump, n = plan.width[s] * row, np.int64(0)
    for y in range(lines):
        n = collect(
            at_byte(work.marks, marks + y * pixels * wide), at(work.slopes, begin + y * step + o), wide,
            pixels, at_integer(work.shifts, zero), y * pool * jump, pool * row,
            at_integer(work.places, zero), at(work.amounts, zero), n,
        )  # fmt: skip
    return n


@compiled
def pass_back(plan, work, s, r):
    """Add to the gradients of kernels, biases and inputs of stage s what example r says.

    Channel by channel of the outputs: a pixel that lost against others, or against zero, passes nothing on.
    """
    zero, side, run, row = np.int64(0), plan.side[s], plan.run[s], plan.wide[s]
    jump, here = plan.width[s] * row, work.begin[s] + r * plan.size[s]
    offsets, amounts = at_integer(work.places, zero), at(work.amounts, zero)
    right, down = (plan.pool[s] - 1) * row, (plan.pool[s] - 1) * jump
    work.shifts[0], work.shifts[1], work.shifts[2], work.shifts[3] = 0, right, down, right + down
    for o in range(plan.outputs[s]):
        n = _passing_back(plan, work, s, r, o)
        if n == 0:
            continue
        kernel, total = plan.weights_at[s] + o * side * run, np.float32(0)
        for c in range(0, row, LANES):
            if side == 3:
                total = _taps3x3(
                    offsets, amounts, n, at(work.inputs, here + c), jump, row,
                    at(work.parameters, kernel + c), at(work.slopes, here + c),
                    at(work.moved, kernel + c), row,
                )  # fmt: skip
            else:
                for i in range(5):
                    there = here + i * jump + c
                    total = _taps1x5(
                        offsets, amounts, n, at(work.inputs, there), jump, row,
                        at(work.parameters, kernel + i * run + c), at(work.slopes, there),
                        at(work.moved, kernel + i * run + c), row,
                    )  # fmt: skip
        work.moved[plan.biases_at[s] + o] += total


@compiled
def pass_back_first(plan, work, s, r):
    """The same for few channels whose gradients nobody needs; those of kernels are turned."""
    side, channels, wide, pool = plan.side[s], plan.wide[s], plan.outputs_wide[s], plan.pool[s]
    begin, step, m, n = _placed(plan, work, s, r)
    jump, marks = plan.width[s] * channels, r * work.marked[0] + plan.marks_at[s]
    tap = channels * wide
    for o in range(0, wide, LANES):
        slopes, mark = at(work.slopes, begin + o), at_byte(work.marks, marks + o)
        for c in range(channels):
            bias = at(work.moved, plan.biases_at[s] + o) if c == 0 else at(work.lines, np.int64(0))
            here, g = work.begin[s] + r * plan.size[s] + c, plan.turned_at[s] + c * wide + o
            for i in range(1 if side == 3 else 5):
                x, into = at(work.inputs, here + i * jump), at(work.turned, g + i * side * tap)
                if side == 3:
                    if pool == 2:
                        _pooled3x3(x, channels, jump, slopes, step, mark, wide, m, n, into, tap, bias)
                    else:
                        _marked3x3(x, channels, jump, slopes, step, mark, wide, m, n, into, tap, bias)
                elif pool == 2:
                    _pooled1x5(x, channels, jump, slopes, step, mark, wide, m, n, into, tap, bias)
                else:
                    _marked1x5(x, channels, jump, slopes, step, mark, wide, m, n, into, tap, bias)
                bias = at(work.lines, np.int64(0))


@compiled
def flatten(plan, work, s, r):
    """An image as one row of numbers, channel by channel."""
    one, pixels, wide = np.int64(1), plan.height[s] * plan.width[s], plan.wide[s]
    here, into = work.begin[s] + r * plan.size[s], work.begin[s + 1] + r * plan.size[s + 1]
    for c in range(plan.inputs[s]):
        copy_apart(at(work.inputs, here + c), wide, at(work.inputs, into + c * pixels), one, pixels)


@compiled
def unflatten(plan, work, s, r):
    """The same for gradients, the other way."""
    one, pixels, wide = np.int64(1), plan.height[s] * plan.width[s], plan.wide[s]
    into, here = work.begin[s] + r * plan.size[s], work.begin[s + 1] + r * plan.size[s + 1]
    for c in range(plan.inputs[s]):
        copy_apart(at(work.slopes, here + c * pixels), one, at(work.slopes, into + c), wide, pixels)
