"""Generate machine code for attention within one sequence on a CPU.

The lanes of vectors are queries of a block, so that nothing is added across lanes: the scores with
a key are a row, softmax is computed by row, and a value is multiplied by the same rows. Keys are
processed in blocks, and earlier sums are scaled when a larger score appears (arXiv:2112.05682,
arXiv:2205.14135), so memory is linear in the length. The method depends only on the length, so a
sequence has the same bits in any batch.

Shape legend: L tokens of the sequence, H heads, d width of a head, W lanes of a vector, Q queries
of a block in groups of W, B keys of a block, J keys in all, rounded up.
"""

from __future__ import annotations

import math
from typing import ClassVar

from llvmlite import ir

from featuremill.workloads.esm2.kernels.llvm import (
    BF16,
    FP16,
    FP32,
    INT8,
    INT16,
    INT32,
    INT64,
    POINTER,
    VOID,
    Function,
    Loop,
    Value,
)

ARGUMENTS = (POINTER, POINTER, POINTER, INT64, INT64, INT64, POINTER)
"""Arguments of the function: qkv_L3Hd and context_LHd at the start of the sequence, working memory,
L, the first head and the one after the last, and the layout of the tiles of AMX."""
TILES = bytes([1, *[0] * 15, *[64, 0] * 8, *[0] * 16, *[16] * 8, *[0] * 8])
"""AMX's tile configuration: eight tiles of 16 rows of 64 bytes (palette 1; Intel's manual)."""
GROUPS = 2
DEGREES = {FP32: 6, FP16: 5, BF16: 3}
"""Degree of the polynomial in exp(score), whose error is below the dtype's rounding."""


class Attention:
    """Writes the function with fp32's multiply-add, for input of any dtype."""

    KEYS_OF_BLOCK: ClassVar[int] = 128
    """Keys of a block, whose scores with a block of queries fit the L1 cache."""
    key_multiple = 8
    """J is a multiple of this number."""
    numbers_together: ClassVar[int] = 1
    """Numbers per 32 bits that one instruction multiplies and adds in each lane."""

    def __init__(self, kind: ir.Type, num_heads: int, head_dim: int, lanes: int) -> None:
        self.function = function = Function("attend", ARGUMENTS)
        self.build = function.build
        self.kind, self.head_dim, self.lanes = kind, head_dim, lanes
        self.queries = GROUPS * lanes
        self.row = 3 * num_heads * head_dim
        self.width = num_heads * head_dim
        self.rows_together = lanes // 2
        """Keys, or elements of a value, whose sums are in registers at a time."""
        self.zero = function.all_lanes(0.0, lanes)
        self.qkv, self.context, memory, self.length, self.first, self.last, self.tiles = (
            function.arguments
        )
        self.num_keys = function.up(self.length, self.key_multiple)
        places = [memory]
        for size in self._fixed_bytes():
            places.append(function.at(places[-1], INT8, size))
        size = function.times(self.num_keys, self._key_bytes()[0])
        places.append(function.at(places[-1], INT8, size))
        self.query, self.sums_dQ, self.scores_BQ, self.exponentials, self.keys, self.values = places
        if not self._fixed_bytes()[-1]:
            self.exponentials = self.scores_BQ

    def _fixed_bytes(self) -> tuple[int, int, int, int]:
        """Return the sizes of query_dQ, sums_dQ, scores_BQ and exponentials: 0 if these overwrite
        the scores."""
        row = 4 * self.queries
        return self.head_dim * row, self.head_dim * row, self.KEYS_OF_BLOCK * row, 0

    def _key_bytes(self) -> tuple[int, int]:
        """Return the bytes of a key of keys_Jd, and of a value of values_Jd."""
        return 4 * self.head_dim, 4 * self.head_dim

    def num_bytes(self, length: int) -> int:
        """Return the size of the working memory."""
        num_keys = -(-length // self.key_multiple) * self.key_multiple
        return sum(self._fixed_bytes()) + num_keys * sum(self._key_bytes())

    def write(self) -> Function:
        """Write the whole function."""
        function = self.function
        with function.loop(self.first, self.last) as heads:
            head = function.at(self.qkv, self.kind, function.times(heads.index, self.head_dim))
            self._keep_keys_and_values(head)
            with function.loop(0, self.length, self.queries) as blocks:
                self._keep_queries(head, blocks.index)
                size = self._rows_of_sums() * self.queries
                with function.loop(0, size, self.lanes) as vectors:
                    function.store(self.zero, self.sums_dQ, FP32, vectors.index)
                totals = self._all_keys()
                out = function.at(
                    self.context, self.kind, function.times(heads.index, self.head_dim)
                )
                self._put(out, blocks.index, totals)
        return function

    def _columns(self) -> list[tuple[int, int]]:
        """Return the start and the number of elements of each vector of a head."""
        starts = range(0, self.head_dim, self.lanes)
        return [(start, min(self.lanes, self.head_dim - start)) for start in starts]

    def _rows_of_sums(self) -> int:
        return self.head_dim

    def _numbers_of_key(self) -> int:
        """Return the number of 32-bit numbers of a stored key."""
        return self.head_dim

    def _query_row(self, first: Value, number: int) -> Value:
        """Return the start of a query's row; that of the last query for later ones."""
        last = self.function.add(self.length, -1)
        row = self.function.least(self.function.add(first, number), last)
        return self.function.times(row, self.row)

    def _keep_keys_and_values(self, head: Value) -> None:
        """Store keys_Jd and values_Jd in fp32; the last key is repeated if L ends before J."""
        function = self.function
        for part, kept in ((1, self.keys), (2, self.values)):
            source = function.at(head, self.kind, part * self.width)
            with function.loop(0, self.length) as rows:
                for start, number in self._columns():
                    at = function.add(function.times(rows.index, self.row), start)
                    vector = function.wide(function.load(source, self.kind, at, number), self.kind)
                    at = function.add(function.times(rows.index, self.head_dim), start)
                    function.store(vector, kept, FP32, at)
        with function.loop(self.length, self.num_keys) as rows:
            for start, number in self._columns():
                last = function.times(function.add(self.length, -1), self.head_dim)
                vector = function.load(self.keys, FP32, function.add(last, start), number)
                at = function.add(function.times(rows.index, self.head_dim), start)
                function.store(vector, self.keys, FP32, at)

    def _keep_queries(self, head: Value, first: Value) -> None:
        """Store query_dQ in fp32."""
        function = self.function
        with function.loop(0, self.queries, self.lanes) as groups:
            for start, number in self._columns():
                rows = []
                for lane in range(self.lanes):
                    row = self._query_row(function.add(first, groups.index), lane)
                    vector = function.load(head, self.kind, function.add(row, start), number)
                    vector = function.wide(vector, self.kind)
                    rows.append(function.widened(vector, self.lanes))
                for column, vector in enumerate(function.transpose(rows)[:number]):
                    at = function.add(groups.index, (start + column) * self.queries)
                    function.store(vector, self.query, FP32, at)

    def _all_keys(self) -> list[Value]:
        """Add values_dQ · exp(score) over all keys; return the sums of exp(score), by group."""
        function = self.function
        least = function.all_lanes(-math.inf, self.lanes)
        carried = [least] * GROUPS + [self.zero] * GROUPS
        with function.loop(0, self.length, self.KEYS_OF_BLOCK, carried) as blocks:
            before, totals = blocks.carried[:GROUPS], blocks.carried[GROUPS:]
            left = function.add(self.length, function.times(blocks.index, -1))
            num_keys = function.least(left, self.KEYS_OF_BLOCK)
            largest = self._scores(blocks.index, num_keys, before)
            # Exponents to base 2, scaled after the product.
            scale = function.all_lanes(math.log2(math.e) / math.sqrt(self.head_dim), self.lanes)
            shifts = [self.build.fneg(self.build.fmul(top, scale)) for top in largest]
            changes = [
                self._exponential(function.multiply_add(top, scale, shift))
                for top, shift in zip(before, shifts, strict=True)
            ]
            totals = [
                self.build.fmul(total, change)
                for total, change in zip(totals, changes, strict=True)
            ]
            totals = self._exponentials(num_keys, scale, shifts, totals)
            self._add_values(blocks.index, num_keys, changes)
            blocks.next = [*largest, *totals]
        return blocks.carried[GROUPS:]

    def _exponential(self, exponent: Value) -> Value:
        return self.function.power_of_2(exponent, DEGREES[self.kind])

    def _scores(self, first: Value, num_keys: Value, largest: list[Value]) -> list[Value]:
        """Store scores_BQ of the keys from `first`; return the largest by group."""
        function, count = self.function, self.rows_together
        with function.loop(0, num_keys, count, largest) as keys:
            size = self._numbers_of_key()
            at = function.times(function.add(first, keys.index), size)
            keys_kd = function.at(self.keys, FP32, at)
            sums = [[self.zero] * GROUPS for _ in range(count)]
            for number in range(self.head_dim // self.numbers_together):
                queries = [self._group(self.query, number, group) for group in range(GROUPS)]
                for key, row in enumerate(sums):
                    scalar = function.load(keys_kd, FP32, key * size + number)
                    self._multiply_add(scalar, queries, row)
            for key, row in enumerate(sums):
                self._put_row(row, self.scores_BQ, function.add(keys.index, key))
            columns = zip(*sums, strict=True)
            tops = [function.folded(function.greater, column) for column in columns]
            keys.next = [
                function.greater(top, known) for top, known in zip(tops, keys.carried, strict=True)
            ]
        return keys.carried

    def _exponentials(
        self, num_keys: Value, scale: Value, shifts: list[Value], totals: list[Value]
    ) -> list[Value]:
        """Replace scores_BQ by exp(score); return the totals with these added."""
        function = self.function
        with function.loop(0, num_keys, 1, totals) as keys:
            row = []
            for group, shift in enumerate(shifts):
                score = self._group(self.scores_BQ, keys.index, group)
                row.append(self._exponential(function.multiply_add(score, scale, shift)))
            self._put_row(row, self.scores_BQ, keys.index)
            keys.next = [self.build.fadd(*pair) for pair in zip(keys.carried, row, strict=True)]
        return keys.carried

    def _add_values(self, first: Value, num_keys: Value, changes: list[Value]) -> None:
        """Scale sums_dQ by `changes` and add the values of a block of keys."""
        function, count = self.function, self.rows_together
        together = self.numbers_together  # keys, of exponentials and of values
        at = function.times(first, self.head_dim // together)
        values = function.at(self.values, FP32, at)
        for start in range(0, self.head_dim, count):
            elements = range(start, min(start + count, self.head_dim))
            known = [vector for element in elements for vector in self._scaled(element, changes)]
            with function.loop(0, num_keys, together, known) as keys:
                at = function.times(keys.index, self.queries // together)
                row = function.at(self.exponentials, FP32, at)
                factors = [self._group(row, 0, group) for group in range(GROUPS)]
                at = function.times(keys.index, self.head_dim // together)
                for number, element in enumerate(elements):
                    row = keys.carried[number * GROUPS : (number + 1) * GROUPS]
                    scalar = function.load(values, FP32, function.add(at, element))
                    self._multiply_add(scalar, factors, row)
                    keys.next += row
            for number, element in enumerate(elements):
                row = keys.carried[number * GROUPS : (number + 1) * GROUPS]
                self._put_row(row, self.sums_dQ, element)

    def _put(self, out: Value, first: Value, totals: list[Value]) -> None:
        """Store the context of the existing queries of a block."""
        function, build = self.function, self.build
        ones = function.all_lanes(1.0, self.lanes)
        factors = [build.fdiv(ones, total) for total in totals]
        context_Qd = self.scores_BQ  # reuses the memory
        for group, factor in enumerate(factors):
            for start, number in self._columns():
                columns = [
                    build.fmul(self._group(self.sums_dQ, start + column, group), factor)
                    for column in range(number)
                ]
                columns += [self.zero] * (self.lanes - number)
                for lane, vector in enumerate(function.transpose(columns)):
                    at = (group * self.lanes + lane) * self.head_dim + start
                    row = function.shuffle(vector, vector, range(number))
                    function.store(row, context_Qd, FP32, at)
        left = function.add(self.length, function.times(first, -1))
        with function.loop(0, function.least(left, self.queries)) as queries:
            row = function.times(queries.index, self.head_dim)
            offset = function.times(function.add(first, queries.index), self.width)
            for start, number in self._columns():
                vector = function.load(context_Qd, FP32, function.add(row, start), number)
                at = function.add(offset, start)
                function.store(function.narrow(vector, self.kind), out, self.kind, at)

    def _scaled(self, element: int, changes: list[Value]) -> list[Value]:
        """Return a row of sums_dQ times `changes`, by group."""
        return [
            self.build.fmul(self._group(self.sums_dQ, element, group), change)
            for group, change in enumerate(changes)
        ]

    def _group(self, rows: Value, row: Value | int, group: int) -> Value:
        """Return a group's vector of a row of Q numbers."""
        at = self.function.add(self.function.times(row, self.queries), group * self.lanes)
        return self.function.load(rows, FP32, at, self.lanes)

    def _put_row(self, groups: list[Value], rows: Value, row: Value | int) -> None:
        for group, vector in enumerate(groups):
            at = self.function.add(self.function.times(row, self.queries), group * self.lanes)
            self.function.store(vector, rows, FP32, at)

    def _multiply_add(self, scalar: Value, vectors: list[Value], sums: list[Value]) -> None:
        """Add the products of a scalar and each vector to the sums."""
        same = self.function.all_lanes(scalar, self.lanes)
        for group, vector in enumerate(vectors):
            sums[group] = self.function.multiply_add(same, vector, sums[group])


class PairAttention(Attention):
    """Writes the function for bf16 with AVX-512's product of pairs, which accumulates in fp32.

    A pair in 32 bits has two elements of a query or key, or exponentials or values of two keys.
    """

    numbers_together = 2

    def __init__(self, kind: ir.Type, num_heads: int, head_dim: int, lanes: int) -> None:
        self.key_elements = -(-head_dim // 32) * 32  # whole vectors, the rest zeros
        super().__init__(kind, num_heads, head_dim, lanes)

    def _fixed_bytes(self) -> tuple[int, int, int, int]:
        """Return the sizes of query_pQ, of p pairs of elements, sums_dQ, scores_BQ and
        exponentials_bQ, of b pairs of keys."""
        row = 4 * self.queries
        keys = self.KEYS_OF_BLOCK * row
        return self.key_elements // 2 * row, self._rows_of_sums() * row, keys, keys // 2

    def _key_bytes(self) -> tuple[int, int]:
        """Return the bytes of a key of keys_Jd, and of a value of values_bd."""
        return 2 * self.key_elements, 2 * self._rows_of_sums()

    def _numbers_of_key(self) -> int:
        return self.key_elements // 2

    def _pairs_of(self, row: Value) -> list[Value]:
        """Return a head's elements as vectors of 16 pairs, the last one padded with zeros."""
        function, vectors = self.function, []
        for start in range(0, self.head_dim, 32):
            number = min(32, self.head_dim - start)
            half = function.load(row, INT16, start, number)
            pairs = self.build.bitcast(half, ir.VectorType(INT32, number // 2))
            if number < 32:
                nothing = function.all_lanes(0, number // 2, INT32)
                lanes = [min(lane, number // 2) for lane in range(16)]
                pairs = function.shuffle(pairs, nothing, lanes)
            vectors.append(pairs)
        return vectors

    def _keep_keys_and_values(self, head: Value) -> None:
        """Store keys_Jd, and values_bd as pairs. From L on they are those of the last token, and
        values are multiplied by 0."""
        function, build = self.function, self.build
        self._keep_keys(head)
        values = function.at(head, self.kind, 2 * self.width)
        with function.loop(0, self.num_keys, 2) as rows:
            for start, number in self._columns():
                wide = ir.VectorType(INT32, number)
                low, high = (
                    build.zext(function.load(values, INT16, function.add(row, start), number), wide)
                    for row in (self._query_row(rows.index, key) for key in range(2))
                )
                both = build.or_(low, build.shl(high, function.all_lanes(16, number, INT32)))
                at = function.add(function.times(rows.index, self.head_dim // 2), start)
                function.store(both, self.values, INT32, at)

    def _keep_keys(self, head: Value) -> None:
        """Store keys_Jd, from L on that of the last token."""
        function = self.function
        keys = function.at(head, self.kind, self.width)
        with function.loop(0, self.num_keys) as rows:
            row = function.at(keys, self.kind, self._query_row(rows.index, 0))
            for number, vector in enumerate(self._pairs_of(row)):
                at = function.add(function.times(rows.index, self.key_elements), number * 32)
                function.store(vector, self.keys, INT16, at)

    def _keep_queries(self, head: Value, first: Value) -> None:
        """Store query_pQ."""
        function = self.function
        with function.loop(0, self.queries, 16) as groups:
            rows = []
            for lane in range(16):
                row = self._query_row(function.add(first, groups.index), lane)
                rows.append(self._pairs_of(function.at(head, self.kind, row)))
            for number, vectors in enumerate(zip(*rows, strict=True)):
                for pair, vector in enumerate(function.transpose(vectors)):
                    at = function.add(groups.index, (number * 16 + pair) * self.queries)
                    function.store(vector, self.query, INT32, at)

    def _scores(self, first: Value, num_keys: Value, largest: list[Value]) -> list[Value]:
        largest_of_group = super()._scores(first, num_keys, largest)
        self._leave_out(num_keys, self.function.up(num_keys, self.key_multiple))
        return largest_of_group

    def _leave_out(self, first: Value, stop: Value) -> None:
        """Set the scores of these keys of a block so that their exponentials are 0."""
        least = self.function.all_lanes(-math.inf, 16)
        with self.function.loop(first, stop) as keys:
            self._put_row([least] * GROUPS, self.scores_BQ, keys.index)

    def _exponentials(
        self, num_keys: Value, scale: Value, shifts: list[Value], totals: list[Value]
    ) -> list[Value]:
        """Store exponentials_bQ, rounded to bf16; return the totals with these added."""
        function, build = self.function, self.build

        def bits(number: int) -> Value:
            return function.all_lanes(number, 16, INT32)

        rounded = function.up(num_keys, self.key_multiple)
        with function.loop(0, rounded, 2, totals) as keys:
            for group, (known, shift) in enumerate(zip(keys.carried, shifts, strict=True)):
                pair = []
                for key in range(2):
                    row = function.add(keys.index, key)
                    score = self._group(self.scores_BQ, row, group)
                    pair.append(self._exponential(function.multiply_add(score, scale, shift)))
                keys.next.append(build.fadd(known, build.fadd(*pair)))
                low, high = (
                    build.add(build.bitcast(each, ir.VectorType(INT32, 16)), bits(0x8000))
                    for each in pair
                )
                both = build.or_(build.lshr(low, bits(16)), build.and_(high, bits(-0x10000)))
                at = function.add(function.times(keys.index, self.queries // 2), group * 16)
                function.store(both, self.exponentials, INT32, at)
        return keys.carried

    def _multiply_add(self, scalar: Value, vectors: list[Value], sums: list[Value]) -> None:
        same = self.function.all_lanes(scalar, self.lanes)
        for group, vector in enumerate(vectors):
            sums[group] = self.function.multiply_add_pairs(same, vector, sums[group])


class AmxAttention(PairAttention):
    """Writes the function for bf16 with AMX, whose tiles multiply 16 rows by 16 columns at once.

    A tile has 16 rows of 16 numbers of fp32, or of 16 pairs of bf16. Keys are padded with zeros to
    a multiple of 32 elements, values to a multiple of 16, so that all tiles are full.
    """

    key_multiple = 32

    def write(self) -> Function:
        self._tile("ldtilecfg", self.tiles)
        super().write()
        self._tile("tilerelease")
        return self.function

    def _rows_of_sums(self) -> int:
        return -(-self.head_dim // 16) * 16

    def _tile(self, instruction: str, *operands: Value | int) -> None:
        """Emit an AMX instruction; an integer operand is the number of a tile."""
        values = [INT8(each) if isinstance(each, int) else each for each in operands]
        self.function.call(f"llvm.x86.{instruction}", VOID, *values)

    def _load(self, tile: int, pointer: Value, bytes_of_row: Value | int) -> None:
        self._tile("tileloadd64", tile, pointer, self.function.integer(bytes_of_row))

    def _save(self, tile: int, pointer: Value, bytes_of_row: Value | int) -> None:
        self._tile("tilestored64", tile, pointer, self.function.integer(bytes_of_row))

    def _keep_keys_and_values(self, head: Value) -> None:
        """Store keys_Jd and, transposed, values_dJ. From L on they are those of the last token, and
        values are multiplied by 0."""
        function, build = self.function, self.build
        self._keep_keys(head)
        values = function.at(head, self.kind, 2 * self.width)
        with function.loop(0, self.num_keys, 16) as rows:
            each = [
                self._pairs_of(function.at(values, self.kind, self._query_row(rows.index, number)))
                for number in range(16)
            ]
            for number, vectors in enumerate(zip(*each, strict=True)):
                for pair, vector in enumerate(function.transpose(vectors)):
                    element = number * 32 + 2 * pair
                    if element < self._rows_of_sums():
                        later = build.lshr(vector, function.all_lanes(16, 16, INT32))
                        for row, pairs in enumerate((vector, later)):
                            at = function.times(self.num_keys, element + row)
                            half = build.trunc(pairs, ir.VectorType(INT16, 16))
                            at = function.add(at, rows.index)
                            function.store(half, self.values, INT16, at)

    def _load_queries(self, step: int) -> None:
        for group in range(GROUPS):
            at = step * 16 * self.queries + group * 16
            self._load(6 + group, self.function.at(self.query, INT32, at), 4 * self.queries)

    def _scores(self, first: Value, num_keys: Value, largest: list[Value]) -> list[Value]:
        function = self.function
        steps = range(self.key_elements // 32)
        if len(steps) == 1:
            self._load_queries(0)
        rounded = function.up(num_keys, self.key_multiple)
        with function.loop(0, rounded, self.key_multiple) as keys:
            for tile in range(4):
                self._tile("tilezero", tile)
            for step in steps:
                if len(steps) > 1:
                    self._load_queries(step)
                for half in range(2):
                    key = function.add(first, keys.index, 16 * half)
                    at = function.add(function.times(key, self.key_elements), 32 * step)
                    pointer = function.at(self.keys, INT16, at)
                    self._load(4 + half, pointer, 2 * self.key_elements)
                for tile in range(4):
                    self._tile("tdpbf16ps", tile, 4 + tile // 2, 6 + tile % 2)
            for tile in range(4):
                row = function.add(keys.index, 16 * (tile // 2))
                at = function.add(function.times(row, self.queries), 16 * (tile % 2))
                self._save(tile, function.at(self.scores_BQ, FP32, at), 4 * self.queries)
        self._leave_out(num_keys, rounded)
        return self._largest(rounded, largest)

    def _largest(self, num_keys: Value, largest: list[Value]) -> list[Value]:
        function = self.function
        with function.loop(0, num_keys, 8, largest) as keys:
            for group, known in enumerate(keys.carried):
                column = [
                    self._group(self.scores_BQ, function.add(keys.index, key), group)
                    for key in range(8)
                ]
                top = function.folded(function.greater, column)
                keys.next.append(function.greater(top, known))
        return keys.carried

    def _add_values(self, first: Value, num_keys: Value, changes: list[Value]) -> None:
        function = self.function
        for element in range(self._rows_of_sums()):
            self._put_row(self._scaled(element, changes), self.sums_dQ, element)
        for start in range(0, self._rows_of_sums(), 32):
            halves = range(min(2, (self._rows_of_sums() - start) // 16))
            pointers = {
                2 * half + group: function.at(
                    self.sums_dQ, FP32, (start + 16 * half) * self.queries + 16 * group
                )
                for half in halves
                for group in range(GROUPS)
            }
            for tile, pointer in pointers.items():
                self._load(tile, pointer, 4 * self.queries)
            with function.loop(0, num_keys, self.key_multiple) as keys:
                self._multiply_values(first, keys, start, halves)
            for tile, pointer in pointers.items():
                self._save(tile, pointer, 4 * self.queries)

    def _multiply_values(self, first: Value, keys: Loop, start: int, halves: range) -> None:
        """Add the products of 32 keys to the tiles that hold sums."""
        function = self.function
        for group in range(GROUPS):
            at = function.add(function.times(keys.index, self.queries // 2), 16 * group)
            pointer = function.at(self.exponentials, INT32, at)
            self._load(6 + group, pointer, 4 * self.queries)
        for half in halves:
            row = function.times(self.num_keys, start + 16 * half)
            at = function.add(row, first, keys.index)
            bytes_of_row = function.times(self.num_keys, 2)
            self._load(4 + half, function.at(self.values, INT16, at), bytes_of_row)
            for group in range(GROUPS):
                self._tile("tdpbf16ps", 2 * half + group, 4 + half, 6 + group)
