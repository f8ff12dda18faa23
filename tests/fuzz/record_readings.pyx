# cython: language_level=3, cdivision=True, binding=False
"""The compiled module with a loop in C round its reader, for `scripts/fuzz-records` alone: some microseconds a case under sanitizers.

Each case copies a body into memory of exactly its size, changes some bytes and reads it. Nothing is compared: `Storm` does that.
"""

include "_native.pyx"

from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdlib cimport malloc

cdef Py_ssize_t MOST_CHANGES = 4
cdef bytes EDGE_BYTES = b"\x00\x01\x02\x03\x0d\x3f\x40\x7e\x7f\x80\x81\xfe\xff"
cdef bytes LONGEST = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"


cdef uint64_t random_of(uint64_t* state) noexcept:
    """xorshift64*"""
    state[0] ^= state[0] >> 12
    state[0] ^= state[0] << 25
    state[0] ^= state[0] >> 27
    return (state[0] * <uint64_t>2685821657736338717) >> 16


cdef Py_ssize_t below(uint64_t* state, Py_ssize_t end) noexcept:
    return <Py_ssize_t>(random_of(state) % <uint64_t>end)


cdef void damage(uint8_t* data, Py_ssize_t size, uint64_t* state) noexcept:
    cdef Py_ssize_t at = below(state, size), how = below(state, 6), step, other
    if how < 2:
        data[at] = (<const uint8_t*>PyBytes_AS_STRING(EDGE_BYTES))[below(state, 13)]
    elif how == 2:
        data[at] ^= <uint8_t>(1 << below(state, 8))
    elif how == 3:
        data[at] = <uint8_t>random_of(state)
    elif how == 4:
        for step in range(min(below(state, 10) + 1, size - at)):
            data[at + step] = (<const uint8_t*>PyBytes_AS_STRING(LONGEST))[step]
    else:
        other = below(state, size)
        for step in range(min(below(state, 16), size - max(at, other))):
            data[at + step] = data[other + step]


cdef int read_one(int how, object section, bytes body) except -1:
    """1: refused."""
    cdef ColumnBuilder builder
    cdef bint is_refused = False
    if how < 2:
        builder = ColumnBuilder((how + 1) * section[1], (how + 1) * len(section[0]))
        try:
            for _ in range(how + 1):
                builder.add(section)
        except CorruptRecordError:
            is_refused = True
        builder.finish()
        return is_refused
    try:
        if how == 2:
            read_lists(section)
        elif how == 3:
            read_spans(section)
        else:
            for view in read_records((body, *section[1:]), RecordView):
                tuple(view)
    except CorruptRecordError:
        return 1
    return 0


def read_damaged(bytes body not None, Py_ssize_t count, uint64_t seed, Py_ssize_t cases):
    """Read the body with random changes in so many cases; returns how many were refused."""
    cdef uint64_t state = seed * 2 + 1
    cdef Py_ssize_t refused = 0, size, cut, change, number
    cdef uint8_t* data
    for number in range(cases):
        cut = below(&state, len(body)) if below(&state, 8) == 0 else 0
        size = len(body) - cut
        data = <uint8_t*>malloc(size)
        if data is NULL:
            raise MemoryError
        try:
            memcpy(data, PyBytes_AS_STRING(body), size)
            for change in range(below(&state, MOST_CHANGES + 1)):
                damage(data, size, &state)
            section = (
                PyMemoryView_FromMemory(<char*>data, size, PyBUF_READ),
                max(count + (below(&state, 3) - 1 if below(&state, 4) == 0 else 0), 0),
                0 if below(&state, 2) else 1 << 62,
                count - 1 if below(&state, 4) else 2**31 - 1,
                (0, 1_700_000_000_000, 2**63 - 1, -(2**63))[below(&state, 4)],
                7 if below(&state, 8) == 0 else None,
                below(&state, 3),
                2**63 - 1 if below(&state, 4) else 2,
            )
            refused += read_one(below(&state, 5), section, PyBytes_FromStringAndSize(<char*>data, size))
        finally:
            free(data)
    return refused


from ..vocabulary.errors import CorruptRecordError
