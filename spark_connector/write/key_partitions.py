"""`partitions_of_keys`: Kafka's partitioner for a whole column of keys: murmur2 over all of them at once, four bytes per step.

The loop runs over the length of the longest key, not over the rows; each step processes the rows whose keys are that long.
Source: `org.apache.kafka.common.utils.Utils.murmur2`; `log.vocabulary.murmur2` is the same for one key.
"""

import numpy
import numpy.typing
import pyarrow

Int32s = numpy.typing.NDArray[numpy.int32]
_UInt32s = numpy.typing.NDArray[numpy.uint32]
_Bytes = numpy.typing.NDArray[numpy.uint8]

NO_KEY = -1
_SEED = 0x9747B28C
_MULTIPLIER = numpy.uint32(0x5BD1E995)
_POSITIVE = numpy.uint32(0x7FFFFFFF)
_WORD = 4


def partitions_of_keys(keys: pyarrow.Array, partition_count: int) -> Int32s:
    """The partition of each key of a binary column, NO_KEY where it is null."""
    offsets = numpy.frombuffer(keys.buffers()[1], numpy.int32)[keys.offset : keys.offset + len(keys) + 1].astype(
        numpy.int64
    )
    data_buffer = keys.buffers()[2]
    # Words may be read past the last key: padding keeps such reads within the array.
    data = numpy.zeros(int(offsets[-1]) + _WORD, numpy.uint8)
    if data_buffer is not None:
        data[: offsets[-1]] = numpy.frombuffer(data_buffer, numpy.uint8, count=int(offsets[-1]))
    hashed = _murmur2(data, offsets[:-1], numpy.diff(offsets))
    partitions = ((hashed & _POSITIVE) % numpy.uint32(partition_count)).astype(numpy.int32)
    if keys.null_count:
        partitions[~numpy.asarray(keys.is_valid())] = NO_KEY
    return partitions


def _murmur2(
    data: _Bytes, starts: "numpy.typing.NDArray[numpy.int64]", lengths: "numpy.typing.NDArray[numpy.int64]"
) -> _UInt32s:
    hashed: _UInt32s = (numpy.uint32(_SEED) ^ lengths.astype(numpy.uint32)).astype(numpy.uint32)
    for position in range(0, int(lengths.max(initial=0)) // _WORD * _WORD, _WORD):
        rows = numpy.flatnonzero(lengths >= position + _WORD)
        word = _words(data, starts[rows] + position) * _MULTIPLIER
        word = (word ^ (word >> numpy.uint32(24))) * _MULTIPLIER
        hashed[rows] = (hashed[rows] * _MULTIPLIER) ^ word
    tails = lengths % _WORD
    rows = numpy.flatnonzero(tails)
    if len(rows):
        bits = (8 * tails[rows]).astype(numpy.uint32)
        word = _words(data, starts[rows] + lengths[rows] - tails[rows]) & ((numpy.uint32(1) << bits) - numpy.uint32(1))
        hashed[rows] = (hashed[rows] ^ word) * _MULTIPLIER
    hashed = (hashed ^ (hashed >> numpy.uint32(13))) * _MULTIPLIER
    return hashed ^ (hashed >> numpy.uint32(15))


def _words(data: _Bytes, positions: "numpy.typing.NDArray[numpy.int64]") -> _UInt32s:
    """The little-endian 4-byte word at each position."""
    word = data[positions].astype(numpy.uint32)
    for number in range(1, _WORD):
        word |= data[positions + number].astype(numpy.uint32) << numpy.uint32(8 * number)
    return word
