"""The quotient and the square root of the transform in Triton, rounded as IEEE 754 says, without a branch.

The machine code of a division or a square root of float64 numbers tests whether its operands are of ordinary
size and calls a subroutine if not; threads part and meet again around each test. Those of `polynomials` are
always of ordinary size. That the bits are the same is proved in docs/theory/noise.md.
"""
# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportCallIssue=false, reportAttributeAccessIssue=false
# pyright: reportIndexIssue=false, reportOptionalOperand=false, reportReturnType=false, reportInvalidTypeForm=false

from __future__ import annotations

import triton
import triton.language as tl

_R1, _R2, _R3 = map(tl.constexpr, (-0.2503469213479934, 0.12761423759441376, -0.056903559418761136))
_MAGIC = tl.constexpr(0x5FE6EB50)  # less half of the upper bits of w: those of 1/√w, to 3.5 %


@triton.jit
def double(value: tl.constexpr):
    """A float64 constant: where Triton makes tensors of Python numbers itself it rounds them to float32."""
    return tl.full([], value, tl.float64)


@triton.jit
def quotient(f):
    """f/(f + 2) for √½ − 1 ≤ f ≤ √2 − 1, with f + 2 rounded first."""
    b = f + double(2.0)
    y = tl.fma(tl.fma(tl.fma(f, double(_R3), double(_R2)), f, double(_R1)), f, double(0.5))
    e = tl.fma(-b, y, double(1.0))
    y = tl.fma(y, tl.fma(e, e, e), y)
    e = tl.fma(-b, y, double(1.0))
    y = tl.fma(y, e, y)
    s = f * y
    s = tl.fma(tl.fma(-b, s, f), y, s)
    return tl.fma(tl.fma(-b, s, f), y, s)


@triton.jit
def root(w):
    """√w for 2⁻⁴⁰ ≤ w ≤ 2¹⁰."""
    high = _MAGIC - (w.to(tl.uint64, bitcast=True) >> 33).to(tl.uint32)
    y = (high.to(tl.uint64) << 32).to(tl.float64, bitcast=True)
    e = tl.fma(-(w * y), y, double(1.0))
    p = tl.fma(tl.fma(e, double(0.3125), double(0.375)), e, double(0.5))
    y = tl.fma(y * e, p, y)
    e = tl.fma(-(w * y), y, double(1.0))
    y = tl.fma(y * double(0.5), e, y)
    g, h = w * y, y * double(0.5)
    r = tl.fma(-h, g, double(0.5))
    g, h = tl.fma(g, r, g), tl.fma(h, r, h)
    return tl.fma(tl.fma(-g, g, w), h, g)
