"""`Storm`: damaged records by the million, for the compiled module under sanitizers: what a case costs is what the module costs.

A case changes a few bytes of a kept body, or a few arguments, and calls the module. Each COMPARED_EVERY-th is also given to the
twin in Python, which must say the same; `record_targets` compares every case, with more variety, and is some twenty times slower.
Buffers are arrays: they have no byte behind the last one, as bytes objects have, so that a read of one byte too many is seen.
"""

from array import array
from collections.abc import Callable
from functools import partial
from random import Random
from types import ModuleType
from typing import Any, Final

from unit.log.records.record_world import cells, header_rows

from barnabas.log.format.record_batch import HEADER_SIZE
from barnabas.log.format.record_codec import encode_batch
from barnabas.log.records.columns import BinaryColumn, HeaderColumn
from barnabas.log.records.section import Section
from barnabas.log.vocabulary.errors import BarnabasError

COMPARED_EVERY: Final = 32
CASES_PER_BODY: Final = 512
EDGES: Final = b"\x00\x01\x02\x03\x0d\x3f\x40\x7e\x7f\x80\x81\xfe\xff"
LONG_NUMBERS: Final = (
    b"\xff" * 9 + b"\x01",
    b"\xff" * 9 + b"\x02",
    b"\xfe" * 9 + b"\x01",
    b"\xff\xff\xff\xff\x0f",
    b"\x80" * 11,
)
STAMPS: Final = (0, -1, 1_700_000_000_000, -(2**63), 2**63 - 1, -2, 2**63, 2.5, "1")
NAMES: Final = ("", "h", "n\u00e4me", b"h", None, "\ud800")
CELLS: Final = (None, b"", b"v", b"x" * 63, b"x" * 64, b"y" * 300, "text", bytearray(b"v"), 7)
Case = Callable[[ModuleType], Any]


class LyingList(list[Any]):
    """Says that it has another length than it has."""

    def __init__(self, entries: list[Any], length: int) -> None:
        super().__init__(entries)
        self._length = length

    def __len__(self) -> int:
        return self._length


class Storm:
    """All cases of one seed, one behind the other."""

    def __init__(self, module: ModuleType, twin: ModuleType, seed: int) -> None:
        self._module = module
        self._twin = twin
        self._seed = seed
        self._rng = Random(seed)
        self._body = b""
        self._count = 0
        self.done = 0
        self.compared = 0

    def run(self, cases: int) -> None:
        """Raises AssertionError for a difference; a sanitizer ends the process."""
        kinds = (self._reading,) * 10 + (self._lists,) * 3 + (self._columns,) * 4 + (self._hashing,)
        for number in range(self.done, self.done + cases):
            if not number % CASES_PER_BODY:
                self._body, self._count = some_records(self._rng)
            case = kinds[self._below(len(kinds))]()
            found = _outcome(case, self._module)
            if not number % COMPARED_EVERY:
                expected = _outcome(case, self._twin)
                assert found == expected, (
                    f"case {number} of seed {self._seed}\nin Python: {expected}\ncompiled: {found}"
                )
                self.compared += 1
            self.done += 1

    def _below(self, end: int) -> int:
        """Cheaper than randrange; the bias of some thousandths does not matter."""
        return self._rng.getrandbits(16) % end

    def _pick(self, choices: Any) -> Any:
        return choices[self._below(len(choices))]

    def _damaged(self) -> bytes:
        data = bytearray(self._body)
        for _ in range(self._below(4)):
            at, how = self._below(len(data) + 1), self._below(8)
            if how < 3 and at < len(data):
                data[at] = self._pick(EDGES)
            elif how == 3 and at < len(data):
                data[at] ^= 1 << self._below(8)
            elif how == 4:
                del data[at:]
            elif how == 5:
                del data[at : at + 1 + self._below(8)]
            elif how == 6:
                data[at:at] = self._pick(LONG_NUMBERS)
            else:
                data[at:at] = self._rng.randbytes(1 + self._below(8))
        return bytes(data)

    def _reading(self) -> Case:
        body = self._damaged()
        buffer = array("B", body)
        count = self._pick((self._count, self._count, self._count, self._count + 1, self._count - 1, 0, 300))
        section = Section(
            body=memoryview(buffer),
            record_count=count,
            base_offset=self._pick((0, 5, 2**62)),
            last_offset_delta=self._pick((self._count - 1, self._count, 2**31 - 1)),
            base_timestamp_ms=self._pick((0, 1_700_000_000_000, 2**63 - 1, -(2**63))),
            append_time_ms=self._pick((None, None, None, 9)),
            start_offset=self._pick((0, 0, 1, 6)),
            end_offset=self._pick((2**63 - 1, 2**63 - 1, 4)),
        )
        whole = section._replace(body=body)
        times = self._pick((1, 1, 2))
        is_compared = not self.done % COMPARED_EVERY

        def read(module: ModuleType) -> Any:
            builder = module.ColumnBuilder(times * count, times * len(body))
            told = [_told(lambda: builder.add(section)) for _ in range(times)]
            rows = builder.count
            columns = builder.finish()
            lists = _told(lambda: module.read_lists(section))
            spans = _told(lambda: module.read_spans(section))
            views = _told(lambda: [tuple(view) for view in module.read_records(whole, module.RecordView)])
            return (told, lists, spans, views, *(_plain(columns, rows) if is_compared else columns))

        return read

    def _lists(self) -> Case:
        """What Python passes to the encoder: other types, other lengths, lengths that lie."""
        count = self._below(6)
        values = [self._cell() for _ in range(count)]
        keys = self._pick((None, None, [self._cell() for _ in range(count)], values[1:]))
        headers = self._pick((None, None, [self._pairs() for _ in range(count)]))
        stamps = self._pick((5, 0, self._pick(STAMPS), [self._pick(STAMPS[:5]) for _ in range(count)], [1]))
        start = self._pick((0, 0, 0, 1, 9, -1))
        rows = self._pick((None, None, [self._below(count + 2) - 1 for _ in range(self._below(5))]))
        limit = self._pick((61, 100, 400, 2**20, -5))
        base = self._pick((None, None, 0, -1, 2**62))
        raised = self._pick((0, 0, 0, 300, 2**20, -1))
        singles = [(self._cell(), self._cell(), self._pairs(), self._pick(STAMPS)) for _ in range(self._below(3))]

        def write(module: ModuleType) -> Any:
            batch = module.Accumulator(limit, base)
            told = [_told(lambda: batch.extend(values, keys, headers, stamps, start, rows))]
            batch.raise_limit(raised)
            told += [_told(partial(batch.append, *single)) for single in singles]
            return (
                told,
                batch.count,
                batch.size_bytes,
                batch.seal() if batch.count else b"",
                _told(lambda: batch.append(b"")),
            )

        return write

    def _cell(self) -> Any:
        return CELLS[self._below(6)] if self._below(16) else self._pick(CELLS)

    def _pairs(self) -> Any:
        if self._below(3):
            return ()
        name = NAMES[self._below(3)] if self._below(8) else self._pick(NAMES)
        pairs = [(name, self._cell())] * self._pick((1, 1, 2, 63, 64, 65))
        return pairs if self._below(8) else LyingList(pairs, self._pick((0, 1, 64, 2**20)))

    def _columns(self) -> Case:
        count = self._below(7)
        names = self._below(5)
        headers = HeaderColumn(
            offsets=self._offsets(count, names, 4),
            names=self._column(names),
            values=self._column(names),
            count=self._pick((names, names, names, names + 1, -1)),
            first=self._pick((0, 0, 0, 1)),
        )
        values = self._column(count)
        options = {
            "keys": self._pick((None, self._column(count))),
            "headers": self._pick((None, headers)),
            "timestamps_ms": self._pick(
                (5, -1, -2, self._exactly(self._rng.randbytes(8 * count)), self._exactly(bytes(8 * count)))
            ),
            "rows": self._pick((None, None, self._rows(count))),
            "start": self._pick((0, 0, 0, 1, 9, -1, -9)),
        }
        limit = self._pick((61, 100, 2**20))

        def write(module: ModuleType) -> Any:
            batch = module.Accumulator(limit)
            told = _told(lambda: batch.extend_columns(count, values, **options))
            return told, batch.count, batch.size_bytes, batch.seal() if batch.count else b""

        return write

    def _hashing(self) -> Case:
        count = self._below(8)
        column, keys = self._column(count), [self._cell() for _ in range(count)]
        partitions = self._pick((1, 3, 0, -1))

        def hashed(module: ModuleType) -> Any:
            return (
                _told(lambda: bytes(module.murmur2_column(column, count))),
                _told(lambda: module.largest(keys)),
                _told(lambda: module.rows_by_partition(keys, partitions)),
            )

        return hashed

    def _column(self, count: int) -> BinaryColumn:
        data = self._exactly(self._pick((b"", b"text" * 8, self._rng.randbytes(20))))
        is_large = self._below(3) == 0
        return BinaryColumn(
            offsets=self._offsets(count, len(data), 8 if is_large else 4),
            data=data,
            validity=self._pick(
                (None, self._exactly(b"\xff\xff"), self._exactly(self._rng.randbytes(2)), self._exactly(b""))
            ),
            first=self._pick((0, 0, 0, 1, 2, -1)),
            is_large=is_large,
        )

    def _offsets(self, count: int, end: int, width: int) -> memoryview:
        """Ascending up to the end, in most cases."""
        numbers = sorted(self._below(end + 1) for _ in range(count + 1 + self._below(3)))
        offsets = bytearray(b"".join(number.to_bytes(width, "little") for number in numbers))
        if self._below(4) == 0:
            offsets[self._below(len(offsets))] = self._pick(EDGES)
        return self._exactly(bytes(offsets))

    def _rows(self, count: int) -> memoryview:
        rows = b"".join(self._below(count + 1).to_bytes(8, "little") for _ in range(self._below(5)))
        return self._exactly(rows if self._below(8) else rows + b"\xff" * 8)

    @staticmethod
    def _exactly(data: bytes) -> memoryview:
        return memoryview(array("B", data))


def some_records(rng: Random) -> tuple[bytes, int]:
    """Records as they are in a batch, and their number."""
    count = rng.choice((1, 1, 2, 2, 3, 3, 5, 8, 70)) if rng.random() < 0.3 else rng.choice((1, 2, 3))
    good = [cell for cell in CELLS if cell is None or isinstance(cell, bytes)]
    names = [name for name in NAMES[:3] if isinstance(name, str)]
    headers = [[(rng.choice(names), rng.choice(good)) for _ in range(rng.randint(0, 4))] for _ in range(count)]
    batch = encode_batch(
        rng.choices(good, k=count),
        keys=rng.choice((None, rng.choices(good, k=count))),
        timestamps_ms=[rng.choice((0, 1, 2**40, 2**62)) for _ in range(count)],
        headers=rng.choice((None, headers)),
    )
    return batch[HEADER_SIZE:], count


def _plain(columns: tuple[Any, ...], rows: int) -> tuple[Any, ...]:
    offsets, stamps, keys, values, headers = columns
    return bytes(offsets), bytes(stamps), cells(keys, rows), cells(values, rows), header_rows(headers, rows)


def _told(call: Callable[[], Any]) -> Any:
    """A result, or an error by which both implementations are compared: of Python's own errors, the type is enough."""
    try:
        return call()
    except (BarnabasError, UnicodeError) as error:
        return type(error), str(error)
    except (TypeError, IndexError, ZeroDivisionError) as error:
        return type(error)


def _outcome(case: Case, module: ModuleType) -> Any:
    return _told(lambda: case(module))
