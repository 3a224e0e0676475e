"""Eight numbers at once in compiled code: LLVM vectors, which fit any processor's own width."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir
from numba.core import cgutils

LANES: Final = 8

_WORD, _LONG, _DOUBLE = ir.IntType(32), ir.IntType(64), ir.DoubleType()


class Lanes:
    """Eight uint32, uint64 or float64 of code that is being generated.

    Operators are elementwise; a Python number stands for eight equal ones. Each is one IEEE 754 operation
    or one on unsigned integers modulo 2³² or 2⁶⁴: nothing is contracted, reordered or approximated.
    """

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder = builder
        self.value = value

    def _number(self, other: Lanes | float) -> Any:
        if isinstance(other, Lanes):
            return other.value
        return ir.Constant(self.value.type, [other] * LANES)

    def _apply(self, operation: Callable[..., Any], *others: Lanes | float) -> Lanes:
        return Lanes(self.builder, operation(self.value, *map(self._number, others)))

    @property
    def _floats(self) -> bool:
        return self.value.type.element == _DOUBLE

    def __add__(self, other: Lanes | float) -> Lanes:
        return self._apply(self.builder.fadd if self._floats else self.builder.add, other)

    def __sub__(self, other: Lanes | float) -> Lanes:
        return self._apply(self.builder.fsub if self._floats else self.builder.sub, other)

    def __mul__(self, other: Lanes | float) -> Lanes:
        return self._apply(self.builder.fmul, other)

    def __truediv__(self, other: Lanes | float) -> Lanes:
        return self._apply(self.builder.fdiv, other)

    def __and__(self, other: Lanes | int) -> Lanes:
        return self._apply(self.builder.and_, other)

    def __or__(self, other: Lanes | int) -> Lanes:
        return self._apply(self.builder.or_, other)

    def __xor__(self, other: Lanes | int) -> Lanes:
        return self._apply(self.builder.xor, other)

    def __lshift__(self, count: int) -> Lanes:
        return self._apply(self.builder.shl, count)

    def __rshift__(self, count: int) -> Lanes:
        return self._apply(self.builder.lshr, count)

    def times_plus(self, factor: Lanes | float, term: Lanes | float) -> Lanes:
        """self·factor + term, rounded once."""
        return self._call("fma", self._number(factor), self._number(term))

    def polynomial(self, coefficients: tuple[float, ...]) -> Lanes:
        """Horner's rule by `times_plus` from the last coefficient down."""
        *rest, last = coefficients
        total = Lanes(self.builder, self._number(last))
        for coefficient in reversed(rest):
            total = total.times_plus(self, coefficient)
        return total

    def square_root(self) -> Lanes:
        """Rounded to nearest."""
        return self._call("sqrt")

    def top_bit(self) -> Lanes:
        """Whether the most significant bit is set, for `choose`."""
        return self._apply(lambda value, zero: self.builder.icmp_signed("<", value, zero), 0)

    def choose(self, yes: Lanes, no: Lanes) -> Lanes:
        """From `yes` where self, which comes from `top_bit`, holds, from `no` elsewhere."""
        return self._apply(self.builder.select, yes, no)

    def signed_to_float(self) -> Lanes:
        """uint32 as int32 as float64, exactly."""
        return self._cast(self.builder.sitofp, _DOUBLE)

    def widened(self) -> Lanes:
        """uint32 as uint64."""
        return self._cast(self.builder.zext, _LONG)

    def bits(self) -> Lanes:
        """float64 as the uint64 with the same bits."""
        return self._cast(self.builder.bitcast, _LONG)

    def as_float(self) -> Lanes:
        """uint64 as the float64 with the same bits."""
        return self._cast(self.builder.bitcast, _DOUBLE)

    def _cast(self, operation: Callable[..., Any], element: Any) -> Lanes:
        return Lanes(self.builder, operation(self.value, ir.VectorType(element, LANES)))

    def _call(self, name: str, *others: Any) -> Lanes:
        arguments = [self.value, *others]
        kind = ir.FunctionType(self.value.type, [self.value.type] * len(arguments))
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.{name}.v{LANES}f64")
        return Lanes(self.builder, self.builder.call(function, arguments))


def repeated(builder: Any, number: Any) -> Lanes:
    """Eight times the same float64, known when the code runs."""
    value = ir.Constant(ir.VectorType(_DOUBLE, LANES), ir.Undefined)
    for lane in range(LANES):
        value = builder.insert_element(value, number, _WORD(lane))
    return Lanes(builder, value)


def load(builder: Any, pointer: Any) -> Lanes:
    """Eight elements from a pointer to the first."""
    kind = ir.VectorType(pointer.type.pointee, LANES).as_pointer()
    return Lanes(builder, builder.load(builder.bitcast(pointer, kind), align=4))


def store(numbers: Lanes, pointer: Any) -> None:
    """Put eight elements where the pointer says."""
    kind = numbers.value.type.as_pointer()
    numbers.builder.store(numbers.value, numbers.builder.bitcast(pointer, kind), align=4)
