"""Coefficients and constants of log, sin and cos, shared by every device so that all give the same bits.

With fma(a, b, c) = a·b + c rounded once, ⟨P⟩(t) for Horner's rule by fma from the last coefficient down,
and bits(·) for the 64 bits of a float64, a pair is made in this order and no other:

    v = w + ½,  or for w < 2¹⁶:  v = fma(float64(x) + ½, 2⁻⁶⁴, w)                     (v = 2³²u)
    b = bits(v) + EXPONENT_SHIFT;  e = float64(b >> 52) − EXPONENT_BIAS
    m = the float64 with bits (b & (2⁵² − 1)) + ROOT_HALF                    (√½ ≤ m < √2, u = m·2ᵉ)
    f = m − 1;  s = f / (f + 2);  t = s·s
    r = sqrt(fma(e, LN2_HIGH, fma(e, LN2_LOW, s·fma(t, ⟨LOG⟩(t), −4))))

    q = ((a + 2²⁹) >> 30) & 3;  x = (float64(int32(a − (q << 30))) + ½)·2⁻³⁰     (|x| < ½, φ = (q + x)·π/2)
    t = x·x;  sin = x·fma(t, ⟨SIN⟩(t), HALF_PI);  cos = fma(t, ⟨COS⟩(t), 1)
    (cos φ, sin φ) = (cos, sin), (−sin, cos), (−cos, −sin), (sin, −cos)   for q = 0, 1, 2, 3
    z(t, 16c + k) = r·cos φ,  z(t, 16c + 8 + k) = r·sin φ

All operations on w, x, a and bits are on unsigned integers, modulo 2³² or 2⁶⁴. The polynomials are
minimax (Remez) for the relative error of sin(πx/2)/x − π/2, (cos(πx/2) − 1)/x² and −2·log of
(1 + s)/(1 − s); the tests compare them with 40-digit arithmetic.
"""

from __future__ import annotations

from typing import Final

SIN: Final = (
    -0.645964097506245,
    0.07969262624606284,
    -0.0046817541326181055,
    0.0001604411526110612,
    -3.5986493785494804e-06,
    5.634679217187995e-08,
)
COS: Final = (
    -1.233700550136157,
    0.253669507900054,
    -0.02086348073759147,
    0.000919259967879802,
    -2.5200192782332062e-05,
    4.656007804981866e-07,
)
LOG: Final = (
    -1.3333333333333468,
    -0.799999999988317,
    -0.5714285748427325,
    -0.44444397194394863,
    -0.363671263749004,
    -0.30628153605596936,
    -0.2959142958669891,
)
HALF_PI: Final = 1.5707963267948966
LN2_HIGH: Final = -1.3862943611198906
LN2_LOW: Final = -4.638093627692599e-17
"""LN2_HIGH + LN2_LOW = −2 ln 2 to 107 bits."""

ROOT_HALF: Final = 0x3FE6A09E667F3BCD
"""The bits of √½."""

EXPONENT_SHIFT: Final = (1023 << 52) - ROOT_HALF
"""Added to the bits of v it makes the exponent field that of u relative to [√½, √2), and never negative."""

EXPONENT_BIAS: Final = 1023.0 + 32.0
"""32 because v = 2³²u."""
