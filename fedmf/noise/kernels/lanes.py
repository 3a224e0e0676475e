"""Eight numbers at once in compiled code: LLVM vectors, which fit any processor's own width."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba.core import cgutils

LANES: Final = 8

_WORD, _LONG, _DOUBLE = ir.IntType(32), ir.IntType(64), ir.DoubleType()


class Table:
    """Constants that code reads from memory, each eight times side by side.

    A constant in the code itself costs the address of where the compiler put it and a register: on AVX2 a
    third of all instructions. From a table it is an operand like any other.

    Args:
        floats: constants of float64.
        longs: of uint64.
        words: of uint32.
    """

    def __init__(self, floats: Sequence[float], longs: Sequence[int], words: Sequence[int]) -> None:
        self._places = {
            (kind, number): place
            for place, (kind, number) in enumerate(
                [(_DOUBLE, x) for x in floats] + [(_LONG, x) for x in longs] + [(_WORD, x) for x in words]
            )
        }
        parts = np.array(floats).view(np.uint64), np.array(longs, np.uint64), np.array(words, np.uint64)
        self.rows = np.concatenate((*parts[:2], parts[2] << np.uint64(32) | parts[2]))
        """What the memory must hold: uint64, each eight times."""

    def read(self, builder: Any, memory: Any, kind: Any, number: float) -> Any:
        """The code of eight times a number."""
        place = builder.gep(memory, [_LONG(LANES * self._places[kind, number])])
        return builder.load(builder.bitcast(place, ir.VectorType(kind, LANES).as_pointer()), align=4)


class Lanes:
    """Eight uint32, uint64 or float64 of code that is being generated.

    Operators are elementwise; a Python number stands for eight equal ones. Each is one IEEE 754 operation
    or one on unsigned integers modulo 2³² or 2⁶⁴: nothing is contracted, reordered or approximated.

    Args:
        builder: of the code.
        value: the eight.
        constant: gives the code of eight equal numbers, of an element's type and a number.
    """

    def __init__(self, builder: Any, value: Any, constant: Callable[[Any, float], Any]) -> None:
        self.builder = builder
        self.value = value
        self.constant = constant

    def _number(self, other: Lanes | float) -> Any:
        return other.value if isinstance(other, Lanes) else self.constant(self.value.type.element, other)

    def _apply(self, operation: Callable[..., Any], *others: Lanes | float) -> Lanes:
        return self._with(operation(self.value, *map(self._number, others)))

    def _with(self, value: Any) -> Lanes:
        return Lanes(self.builder, value, self.constant)

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
        return self._shifted(self.builder.shl, count)

    def __rshift__(self, count: int) -> Lanes:
        return self._shifted(self.builder.lshr, count)

    def _shifted(self, operation: Callable[..., Any], count: int) -> Lanes:
        return self._with(operation(self.value, ir.Constant(self.value.type, [count] * LANES)))

    def times_plus(self, factor: Lanes | float, term: Lanes | float) -> Lanes:
        """self·factor + term, rounded once."""
        return self._call("fma", self._number(factor), self._number(term))

    def polynomial(self, coefficients: tuple[float, ...]) -> Lanes:
        """Horner's rule by `times_plus` from the last coefficient down."""
        *rest, last = coefficients
        total = self._with(self._number(last))
        for coefficient in reversed(rest):
            total = total.times_plus(self, coefficient)
        return total

    def square_root(self) -> Lanes:
        """Rounded to nearest."""
        return self._call("sqrt")

    def top_bit(self) -> Lanes:
        """Whether the most significant bit is set, for `choose`."""
        zero = ir.Constant(self.value.type, [0] * LANES)
        return self._with(self.builder.icmp_signed("<", self.value, zero))

    def choose(self, yes: Lanes, no: Lanes) -> Lanes:
        """From `yes` where self, which comes from `top_bit`, holds, from `no` elsewhere."""
        return self._with(self.builder.select(self.value, yes.value, no.value))

    def signed_to_float(self) -> Lanes:
        """uint32 as int32 as float64, exactly."""
        return self._cast(self.builder.sitofp, _DOUBLE)

    def widened(self) -> Lanes:
        """uint32 as uint64."""
        return self._cast(self.builder.zext, _LONG)

    def raised(self) -> Lanes:
        """uint32 as the upper half of a uint64."""
        zero = ir.Constant(self.value.type, [0] * LANES)
        places = [i // 2 + i % 2 * LANES for i in range(2 * LANES)]
        mixed = ir.Constant(ir.VectorType(_WORD, 2 * LANES), places)
        mixture = self.builder.shuffle_vector(zero, self.value, mixed)
        return self._with(mixture)._cast(self.builder.bitcast, _LONG)

    def bits(self) -> Lanes:
        """float64 as the uint64 with the same bits."""
        return self._cast(self.builder.bitcast, _LONG)

    def as_float(self) -> Lanes:
        """uint64 as the float64 with the same bits."""
        return self._cast(self.builder.bitcast, _DOUBLE)

    def _cast(self, operation: Callable[..., Any], element: Any) -> Lanes:
        return self._with(operation(self.value, ir.VectorType(element, LANES)))

    def _call(self, name: str, *others: Any) -> Lanes:
        arguments = [self.value, *others]
        kind = ir.FunctionType(self.value.type, [self.value.type] * len(arguments))
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.{name}.v{LANES}f64")
        return self._with(self.builder.call(function, arguments))


class Places:
    """What a function that is being generated is given, as lanes: entries of its arrays, its numbers.

    Args:
        context, builder, signature, arguments: as numba gives them.
        table: its constants; the function's last argument is the memory that holds them.
    """

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any, table: Table) -> None:
        self._context, self._builder, self._kinds = context, builder, signature.args
        self._arguments = arguments
        memory = self._first(len(arguments) - 1)
        self._constant = lambda kind, number: table.read(builder, memory, kind, number)

    def _first(self, argument: int) -> Any:
        make = self._context.make_array(self._kinds[argument])
        return make(self._context, self._builder, self._arguments[argument]).data

    def _pointer(self, argument: int, offset: Any) -> Any:
        first = self._first(argument)
        kind = ir.VectorType(first.type.pointee, LANES).as_pointer()
        return self._builder.bitcast(self._builder.gep(first, [offset]), kind)

    def load(self, argument: int, offset: Any) -> Lanes:
        """Eight entries of an array from one on."""
        value = self._builder.load(self._pointer(argument, offset), align=4)
        return Lanes(self._builder, value, self._constant)

    def store(self, numbers: Lanes, argument: int, offset: Any) -> None:
        """Put eight entries there."""
        self._builder.store(numbers.value, self._pointer(argument, offset), align=4)

    def repeated(self, argument: int) -> Lanes:
        """Eight times the same float64."""
        value = ir.Constant(ir.VectorType(_DOUBLE, LANES), ir.Undefined)
        for lane in range(LANES):
            value = self._builder.insert_element(value, self._arguments[argument], _WORD(lane))
        return Lanes(self._builder, value, self._constant)

    def entry(self, argument: int, size: int, skip: int = 0) -> Any:
        """size·number + skip, of an argument that is an integer."""
        number = self._arguments[argument]
        return self._builder.add(self._builder.mul(number, number.type(size)), number.type(skip))
