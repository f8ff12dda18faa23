"""Records in batches and in columns: the compiled module and its twin in Python must say the same of any bytes.

Without the compiled module there is nothing to compare; then the twin alone must refuse or read them.
"""

import typing
from random import Random
from types import ModuleType
from typing import Any

from fuzz.mutations import mutated
from unit.log.records.record_world import forged, implementations, rows_of

from barnabas.log.format.compression import Compression, compress
from barnabas.log.format.record_batch import HEADER_SIZE, TIMESTAMP_TYPE_MASK, read_header
from barnabas.log.format.record_codec import encode_batch
from barnabas.log.records.codec import Codec
from barnabas.log.records.columns import BinaryColumn, HeaderColumn
from barnabas.log.vocabulary.errors import BarnabasError

IMPLEMENTATIONS: typing.Final = implementations()
_SIZES: typing.Final = (0, 1, 5, 63, 64, 65, 200)
_NAMES: typing.Final = ("", "h", "name", "n\u00e4me")
_STAMPS: typing.Final = (0, 1, 1_700_000_000_000, 2**62)


def record_batches(rng: Random) -> None:
    """Damaged records under a right CRC, as a hostile client sends them: read as columns and as views."""
    count = rng.randint(1, 6)
    body = encode_batch(
        [_cell(rng) for _ in range(count)],
        keys=[_cell(rng) for _ in range(count)] if rng.random() < 0.6 else None,
        timestamps_ms=[rng.choice(_STAMPS) for _ in range(count)],
        headers=[_headers(rng) for _ in range(count)] if rng.random() < 0.4 else None,
    )[HEADER_SIZE:]
    body = body if rng.random() < 0.05 else mutated(rng, body)
    codec = rng.choice(tuple(Compression)) if rng.random() < 0.1 else Compression.NONE
    attributes = codec | (TIMESTAMP_TYPE_MASK if rng.random() < 0.1 else 0)
    batch = forged(
        compress(body, codec) if codec else body,
        count + rng.choice((0, 0, 0, 0, 0, 1, -1, 1000, 2**31 - 1 - count)),
        base_ms=rng.choice((*_STAMPS, -1, -(2**63), 2**63 - 1)),
        attributes=attributes,
        last_offset_delta=rng.choice((count - 1, count - 1, count, 2**31 - 1)),
    )
    start = rng.choice((0, 0, 1, count))
    end = rng.choice((None, count, count - 1, 2**63 - 1))
    _compare(lambda module: _read(module, batch, start, end))


def record_columns(rng: Random) -> None:
    """Columns whose offsets, validity and rows say anything: written into batches, and hashed."""
    count = rng.randint(0, 6)
    values, keys = _column(rng, count), _column(rng, count)
    names = rng.randint(0, 4)
    headers = HeaderColumn(
        offsets=_offsets(rng, count, names, 4),
        names=_column(rng, names),
        values=_column(rng, names),
        count=names,
        first=rng.choice((0, 0, 0, 1)),
    )
    options: dict[str, Any] = {
        "keys": rng.choice((None, keys)),
        "headers": rng.choice((None, headers)),
        "timestamps_ms": rng.choice((5, -1, -2, rng.randbytes(8 * count), bytes(8 * count), rng.randbytes(3))),
        "rows": rng.choice((None, None, _rows(rng, count), rng.randbytes(8))),
        "start": rng.choice((0, 0, 1, 9)),
    }
    limit = rng.choice((61, 100, 2**20))
    _compare(lambda module: _write(module, limit, count, values, options))
    _compare(lambda module: bytes(module.murmur2_column(values, count)))


def _read(module: ModuleType, batch: bytes, start: int, end: int | None) -> list[Any]:
    codec = Codec(module)
    return [
        _outcome(lambda: rows_of(codec.decode([batch], start, end))),
        _outcome(
            lambda: [tuple(view) for view in codec.records_of(batch, read_header(batch), module.RecordView, start)]
        ),
        _outcome(lambda: codec.spans_of(batch, read_header(batch))[1]),
    ]


def _write(module: ModuleType, limit: int, count: int, values: BinaryColumn, options: dict[str, Any]) -> list[Any]:
    batch = module.Accumulator(limit)
    told = _outcome(lambda: batch.extend_columns(count, values, **options))
    return [told, batch.count, batch.size_bytes, batch.seal() if batch.count else b""]


def _compare(told_by: typing.Callable[[ModuleType], Any]) -> None:
    first, *others = (_outcome(lambda module=module: told_by(module)) for module in IMPLEMENTATIONS)
    for other in others:
        assert other == first, f"in Python: {first}\ncompiled: {other}"


def _outcome(call: typing.Callable[[], Any]) -> Any:
    try:
        return call()
    except (BarnabasError, UnicodeError) as error:
        return type(error), str(error)


def _cell(rng: Random) -> bytes | None:
    return None if rng.random() < 0.2 else rng.randbytes(rng.choice(_SIZES))


def _headers(rng: Random) -> list[tuple[str, bytes | None]]:
    return [(rng.choice(_NAMES), _cell(rng)) for _ in range(rng.randint(0, 3))]


def _column(rng: Random, count: int) -> BinaryColumn:
    data = rng.choice((b"", b"text" * 8, rng.randbytes(20)))
    is_large = rng.random() < 0.3
    return BinaryColumn(
        offsets=_offsets(rng, count, len(data), 8 if is_large else 4),
        data=data,
        validity=rng.choice((None, b"\xff\xff", rng.randbytes(2), b"")),
        first=rng.choice((0, 0, 0, 1, 2, -1)),
        is_large=is_large,
    )


def _offsets(rng: Random, count: int, end: int, width: int) -> bytes:
    """Ascending up to the end, in most cases."""
    numbers = sorted(rng.randint(0, end) for _ in range(count + 3))
    offsets = b"".join(number.to_bytes(width, "little") for number in numbers)
    return mutated(rng, offsets) if rng.random() < 0.2 else offsets


def _rows(rng: Random, count: int) -> bytes:
    return b"".join(rng.randint(0, count).to_bytes(8, "little") for _ in range(rng.randint(0, 5)))


TARGETS: typing.Final = (record_batches, record_columns)
