"""Machine code for this CPU: functions written in LLVM's own language and compiled at run time.

`Function` is a thin layer over llvmlite's builder: loops, and vectors as wide as the CPU's. No
optimizer changes the code, so compiling takes a tenth of a second.

Shape legend: W lanes of a vector of fp32.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import llvmlite.binding
import numpy as np
from llvmlite import ir

Value = Any
"""LLVM's: a number or a vector whose value exists when the function runs."""
VOID, POINTER = ir.VoidType(), ir.PointerType()
FP32, FP16 = ir.FloatType(), ir.HalfType()
BF16 = INT16 = ir.IntType(16)
"""The upper half of an fp32: llvmlite has no name for LLVM's own type."""
INT8, INT32, INT64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)


class _Bfloat(ir.Type):  # type: ignore[misc]
    """LLVM's own type for bf16; one instruction needs its operands in it."""

    def _to_string(self) -> str:
        return "bfloat"


BFLOAT = _Bfloat()
BYTES = {FP32: 4, FP16: 2, BF16: 2, INT32: 4, INT64: 8}


class Target(NamedTuple):
    """A kind of CPU, by LLVM's names."""

    cpu: str
    features: str
    lanes: int
    """W."""


TARGETS = {
    "amx": Target("x86-64-v4", "+amx-tile,+amx-bf16", 16),
    "avx512_bf16": Target("x86-64-v4", "+avx512bf16", 16),
    "avx512": Target("x86-64-v4", "", 16),
    "avx2": Target("x86-64-v3", "", 8),
}
"""By the results of `instructions`. One code for all CPUs of a kind, for any model."""
VERSION = "llvm " + ".".join(map(str, llvmlite.binding.llvm_version_info[:2]))


class Loop:
    """A loop while its body is written."""

    def __init__(self, index: Value, carried: list[Value]) -> None:
        self.index = index
        self.carried = carried
        """The values of the previous iteration; after the loop, those of the last one."""
        self.next: list[Value] = []
        """The values of this iteration, which the body sets."""


class Function:
    """A function of addresses and 64-bit integers, while it is written.

    Python's integers are accepted as 64-bit constants for any `Value`.
    """

    def __init__(self, name: str, arguments: Sequence[ir.Type]) -> None:
        self._module = ir.Module()
        function = ir.Function(self._module, ir.FunctionType(VOID, arguments), name)
        for argument in function.args:
            if argument.type == POINTER:
                argument.add_attribute("noalias")
        self.arguments = function.args
        self.build = ir.IRBuilder(function.append_basic_block())

    def integer(self, number: Value | int) -> Value:
        """Return `number` as a value."""
        return ir.Constant(INT64, number) if isinstance(number, int) else number

    def add(self, first: Value | int, *others: Value | int) -> Value:
        """Return the sum of integers."""
        for other in others:
            first = self.build.add(self.integer(first), self.integer(other))
        return first

    def times(self, first: Value | int, second: Value | int) -> Value:
        """Return the product of integers."""
        return self.build.mul(self.integer(first), self.integer(second))

    def least(self, first: Value | int, second: Value | int) -> Value:
        """Return the lesser of two integers."""
        first, second = self.integer(first), self.integer(second)
        return self.build.select(self.build.icmp_signed("<", first, second), first, second)

    def up(self, number: Value, multiple: int) -> Value:
        """Return the integer rounded up to a multiple (a power of 2)."""
        return self.build.and_(self.add(number, multiple - 1), self.integer(-multiple))

    @contextlib.contextmanager
    def loop(
        self, start: Value | int, stop: Value | int, step: int = 1, carried: Iterable[Value] = ()
    ) -> Iterator[Loop]:
        """Write a loop over range(start, stop, step) that carries values from turn to turn."""
        build, before = self.build, self.build.block
        head, body, end = (build.append_basic_block() for _ in range(3))
        build.branch(head)
        build.position_at_end(head)
        index = build.phi(INT64)
        index.add_incoming(self.integer(start), before)
        phis = []
        for value in carried:
            phis.append(build.phi(value.type))
            phis[-1].add_incoming(value, before)
        build.cbranch(build.icmp_signed("<", index, self.integer(stop)), body, end)
        build.position_at_end(body)
        loop = Loop(index, phis)
        yield loop
        index.add_incoming(self.add(index, step), build.block)
        for phi, value in zip(phis, loop.next, strict=True):
            phi.add_incoming(value, build.block)
        build.branch(head)
        build.position_at_end(end)

    def at(self, pointer: Value, kind: ir.Type, index: Value | int) -> Value:
        """Return the address of the element with this index."""
        return self.build.gep(pointer, [self.integer(index)], source_etype=kind)

    def load(self, pointer: Value, kind: ir.Type, index: Value | int, number: int = 1) -> Value:
        """Return `number` elements from that index on: a vector, or a scalar for one."""
        loaded = ir.VectorType(kind, number) if number > 1 else kind
        return self.build.load(self.at(pointer, kind, index), typ=loaded, align=BYTES[kind])

    def store(self, value: Value, pointer: Value, kind: ir.Type, index: Value | int) -> None:
        """Store a vector or a scalar of that kind from that index on."""
        self.build.store(value, self.at(pointer, kind, index), align=BYTES[kind])

    def call(self, name: str, returned: ir.Type, *arguments: Value) -> Value:
        """Call a function of LLVM's own."""
        function = self._module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(returned, [argument.type for argument in arguments])
            function = ir.Function(self._module, kind, name)
        return self.build.call(function, arguments)

    def all_lanes(self, value: Value | float, number: int, kind: ir.Type = FP32) -> Value:
        """Return a vector with the same scalar in all lanes."""
        vector = ir.VectorType(kind, number)
        if isinstance(value, int | float):
            return ir.Constant(vector, [value] * number)
        scalar = self.build.insert_element(ir.Constant(vector, ir.Undefined), value, INT32(0))
        return self.shuffle(scalar, scalar, [0] * number)

    def shuffle(self, first: Value, second: Value, lanes: Sequence[int]) -> Value:
        """Return a vector of these lanes of two vectors, numbered consecutively."""
        return self.build.shuffle_vector(
            first, second, ir.Constant(ir.VectorType(INT32, len(lanes)), list(lanes))
        )

    def widened(self, vector: Value, number: int) -> Value:
        """Return a vector of more lanes; the values of the later ones have no meaning."""
        known = vector.type.count
        lanes = [min(lane, known - 1) for lane in range(number)]
        return vector if known == number else self.shuffle(vector, vector, lanes)

    def transpose(self, rows: Sequence[Value]) -> list[Value]:
        """Return W vectors of W lanes with rows and lanes exchanged."""
        rows, number, step = list(rows), len(rows), 1
        lanes = range(number)
        while step < number:
            low = [lane if not lane & step else number + (lane ^ step) for lane in lanes]
            high = [lane | step if not lane & step else number + lane for lane in lanes]
            for at in lanes:
                if not at & step:
                    pair = rows[at], rows[at + step]
                    rows[at], rows[at + step] = self.shuffle(*pair, low), self.shuffle(*pair, high)
            step *= 2
        return rows

    def multiply_add(self, first: Value, second: Value, third: Value) -> Value:
        """Return first · second + third, rounded once."""
        return self.call(f"llvm.fma.v{first.type.count}f32", first.type, first, second, third)

    def multiply_add_pairs(self, first: Value, second: Value, third: Value) -> Value:
        """Return first · second + third for bf16 numbers, two in each lane's 32 bits, whose
        products are added in fp32; an instruction of AVX512_BF16."""
        pairs = ir.VectorType(BFLOAT, 2 * third.type.count)
        factors = [self.build.bitcast(each, pairs) for each in (first, second)]
        return self.call("llvm.x86.avx512bf16.dpbf16ps.512", third.type, third, *factors)

    def greater(self, first: Value, second: Value) -> Value:
        """Return the greater number of each lane; `second` if one is NaN."""
        return self.build.select(self.build.fcmp_ordered(">", first, second), first, second)

    def folded(self, combine: Callable[[Value, Value], Value], values: Sequence[Value]) -> Value:
        """Return values combined two by two, so that few wait for others."""
        while len(values) > 1:
            pairs = zip(values[::2], values[1::2], strict=False)
            unpaired = values[-1:] if len(values) % 2 else []
            values = [*(combine(*pair) for pair in pairs), *unpaired]
        return values[0]

    def across(self, vector: Value) -> Value:
        """Return the sum of all lanes, in all lanes."""
        number = vector.type.count
        step = number // 2
        while step:
            turned = self.shuffle(vector, vector, [lane ^ step for lane in range(number)])
            vector = self.build.fadd(vector, turned)
            step //= 2
        return vector

    def wide(self, vector: Value, kind: ir.Type) -> Value:
        """Return numbers of that kind as fp32."""
        number = vector.type.count
        if kind == FP32:
            return vector
        if kind == FP16:
            return self.build.fpext(vector, ir.VectorType(FP32, number))
        bits = self.build.zext(vector, ir.VectorType(INT32, number))
        bits = self.build.shl(bits, self.all_lanes(16, number, INT32))
        return self.build.bitcast(bits, ir.VectorType(FP32, number))

    def narrow(self, vector: Value, kind: ir.Type) -> Value:
        """Return fp32 as numbers of that kind, rounded to the nearest, ties to even."""
        number, build = vector.type.count, self.build
        if kind == FP32:
            return vector
        if kind == FP16:
            return build.fptrunc(vector, ir.VectorType(FP16, number))

        def every(value: int) -> Value:
            return self.all_lanes(value, number, INT32)

        bits = build.bitcast(vector, ir.VectorType(INT32, number))
        is_odd = build.and_(build.lshr(bits, every(16)), every(1))
        rounded = build.lshr(build.add(build.add(bits, is_odd), every(0x7FFF)), every(16))
        # Rounding up the bits of a NaN may make a number.
        is_number = build.fcmp_ordered("ord", vector, vector)
        rounded = build.select(is_number, rounded, every(0x7FC0))
        return build.trunc(rounded, ir.VectorType(BF16, number))

    def power_of_2(self, exponent: Value, degree: int) -> Value:
        """Return 2 to the power of each lane (fp32, at most 0), by a polynomial of that degree for
        the fractional part of the exponent."""
        number, build = exponent.type.count, self.build
        if number == 16:
            # AVX-512 has instructions that split exponents and combine them.
            always, nothing = (INT16(-1), INT32(4)), ir.Constant(exponent.type, ir.Undefined)
            name = "llvm.x86.avx512.mask.reduce.ps.512"  # the fraction above the floor
            fraction = self.call(name, exponent.type, exponent, INT32(1), nothing, *always)
            mantissa = self.polynomial(fraction, powers(degree, 0.0, 1.0))
            name = "llvm.x86.avx512.mask.scalef.ps.512"
            return self.call(name, exponent.type, mantissa, exponent, nothing, *always)
        shift = self.all_lanes(1.5 * 2.0**23, number)  # adding it leaves only whole numbers
        exponent = self.greater(self.all_lanes(-126.0, number), exponent)
        shifted = build.fadd(exponent, shift)
        fraction = build.fsub(exponent, build.fsub(shifted, shift))
        mantissa = self.polynomial(fraction, powers(degree, -0.5, 0.5))
        bits = ir.VectorType(INT32, number)
        whole = build.shl(build.bitcast(shifted, bits), self.all_lanes(23, number, INT32))
        return build.bitcast(build.add(build.bitcast(mantissa, bits), whole), exponent.type)

    def polynomial(self, at: Value, coefficients: Sequence[float]) -> Value:
        """Return the polynomial with these coefficients, the constant one first."""
        number = at.type.count
        result = self.all_lanes(coefficients[-1], number)
        for coefficient in coefficients[-2::-1]:
            result = self.multiply_add(result, at, self.all_lanes(coefficient, number))
        return result

    def compiled(self, target: Target) -> Callable[..., None]:
        """Return the compiled function. A thread that runs it releases Python's GIL."""
        self.build.ret_void()
        binding = llvmlite.binding
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        machine = binding.Target.from_default_triple().create_target_machine(
            cpu=target.cpu, features=target.features, opt=2
        )
        module = binding.parse_assembly(str(self._module))
        module.verify()
        engine = binding.create_mcjit_compiler(module, machine)
        engine.finalize_object()
        kinds = {POINTER: ctypes.c_void_p, INT64: ctypes.c_int64}
        prototype = ctypes.CFUNCTYPE(None, *(kinds[each.type] for each in self.arguments))
        address = engine.get_function_address(self.build.function.name)
        function: Any = prototype(address)
        function.engine = engine  # the engine owns the memory of the code
        return cast("Callable[..., None]", function)


def powers(degree: int, start: float, end: float) -> list[float]:
    """Return coefficients, the constant one first, of a polynomial near 2ˣ from start to end.

    Its relative error is below 8e-5 with degree 3, 9e-8 with 5, 2e-8 with 6 for one unit of x."""
    nodes = np.cos((np.arange(400) + 0.5) * math.pi / 400) * (end - start) / 2 + (start + end) / 2
    scaled = np.vander(nodes, degree + 1, increasing=True) / np.exp2(nodes)[:, None]
    coefficients, *_ = np.linalg.lstsq(scaled, np.ones(len(nodes)), rcond=None)
    return [float(np.float32(coefficient)) for coefficient in coefficients]
