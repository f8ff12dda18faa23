# cython: language_level=3, cdivision=True, binding=False
"""The compiled twin of `pure`: the same names, results and errors. Read that module first, it says what happens here. Reading records
is in this file; writing them, in `_writing.pxi` and `_intake.pxi`, which become a part of this module.

Three rules keep this safe for any bytes. Every read is checked against the end of what it is in, and every length is compared as
"length > end - at", which cannot overflow. A number is read once, into a local variable: another thread may change a bytearray
while the lock of the interpreter is released. Memory that is written is reserved before, by the size of what is read. Lists are
indexed with their own checks: a caller may pass rows that do not exist.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.number cimport PyNumber_Index
from cpython.object cimport PyTypeObject
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint32_t, uint64_t, uint8_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from crc32c import crc32c

from ..format.compression import Compression, compress
from ..format.record_batch import CRC_COVERS_FROM, CRC_POSITION, HEADER_SIZE, TRANSACTIONAL_MASK
from ..format.record_codec import MAX_RECORDS_PER_BATCH, NOT_IDEMPOTENT, seal_batch, unsealed_header
from . import refusals
from .columns import BinaryColumn, HeaderColumn, check_input
from .faults import Fault, damaged
from .pure import encoded_fields

INTERFACE = 6  # As in `pure` when this was compiled.

cdef extern from "Python.h":
    ctypedef struct PyObject
    PyObject* PyBytes_New "PyBytes_FromStringAndSize" (const char* data, Py_ssize_t size) except NULL
    int _PyBytes_Resize(PyObject** data, Py_ssize_t size) except -1
    void Py_XDECREF(PyObject* object)
    ctypedef object (*newfunc)(PyTypeObject*, object, PyObject*)
    newfunc new_of "Py_TYPE_NEW" (PyTypeObject*)

cdef extern from *:
    """
    #define Py_TYPE_NEW(type) ((type)->tp_new)
    """

cdef enum:
    FINE = 0  # All others are of `Fault`.
    MIN_SPARE_BYTES = 65536  # Smaller blocks come from a heap whose pages stay with the process.
    MAX_SPARE_BYTES = 16777216  # Together: those of a table that is read while the next one is decoded, with 1 MB or more each.
    SPARE_BLOCKS = 32
    SPANS_AT_ONCE = 1024  # Half a millisecond.

cdef int CUT_NUMBER = Fault.CUT_NUMBER
cdef int LONG_NUMBER = Fault.LONG_NUMBER
cdef int RECORD_BEYOND_BATCH = Fault.RECORD_BEYOND_BATCH
cdef int EMPTY_RECORD = Fault.EMPTY_RECORD
cdef int TIMESTAMP_RANGE = Fault.TIMESTAMP_RANGE
cdef int OFFSET_ORDER = Fault.OFFSET_ORDER
cdef int FIELD_BEYOND_RECORD = Fault.FIELD_BEYOND_RECORD
cdef int HEADER_COUNT = Fault.HEADER_COUNT
cdef int NO_HEADER_NAME = Fault.NO_HEADER_NAME
cdef int RECORD_NOT_FILLED = Fault.RECORD_NOT_FILLED
cdef int BYTES_LEFT = Fault.BYTES_LEFT

cdef Py_ssize_t MAX_BATCH_BYTES = 0x7FFFFFFF
cdef Py_ssize_t MAX_RECORDS = MAX_RECORDS_PER_BATCH
cdef Py_ssize_t HEADER_BYTES = HEADER_SIZE
cdef Py_ssize_t FIRST_CAPACITY = 1024  # Of an accumulator; doubled while it fills.
cdef tuple NO_ARGUMENTS = ()


# --- reading ---


cdef inline int read_number(const uint8_t* body, Py_ssize_t* at, Py_ssize_t end, int64_t* number) noexcept nogil:
    """A zigzag number of up to 64 bits. Moves `at` behind it, and not if there is a fault."""
    cdef Py_ssize_t position = at[0]
    cdef uint64_t rest = 0
    cdef uint8_t byte
    cdef int shift = 0
    while position < end:
        byte = body[position]
        position += 1
        if shift == 63 and byte > 1:
            return LONG_NUMBER
        rest |= (<uint64_t>(byte & 0x7F)) << shift
        if byte < 0x80:
            number[0] = <int64_t>(rest >> 1) ^ -<int64_t>(rest & 1)
            at[0] = position
            return FINE
        shift += 7
    return CUT_NUMBER


cdef struct Field:
    const uint8_t* data
    Py_ssize_t size  # -1: null


cdef inline int read_field(const uint8_t* body, Py_ssize_t* at, Py_ssize_t end, Field* field) noexcept nogil:
    cdef Py_ssize_t position = at[0]
    cdef int64_t length
    cdef int fault = read_number(body, &position, end, &length)
    if fault:
        return fault
    if length > end - position:
        return FIELD_BEYOND_RECORD
    if length < 0:
        length = -1
        field.data = NULL
        at[0] = position
    else:
        field.data = body + position
        at[0] = position + length
    field.size = length
    return FINE


cdef struct Scan:
    const uint8_t* body
    Py_ssize_t size
    Py_ssize_t at  # Of the next record; after a fault, of the field that is wrong.
    int64_t base_timestamp_ms
    int64_t last_offset_delta
    int64_t previous_delta


cdef struct Parsed:
    int64_t offset_delta
    int64_t timestamp_ms
    Field key
    Field value
    int64_t header_count
    Py_ssize_t fields_at  # Where the key's length begins.
    Py_ssize_t headers_at  # Where the first header begins.
    Py_ssize_t end


cdef inline int read_header(const uint8_t* body, Py_ssize_t* at, Py_ssize_t end, Field* name, Field* value) noexcept nogil:
    cdef Py_ssize_t position = at[0]
    cdef int fault = read_field(body, &position, end, name)
    if fault:
        return fault
    if name.size < 0:
        return NO_HEADER_NAME
    at[0] = position
    return read_field(body, at, end, value)


cdef inline int read_record(Scan* scan, Parsed* record) noexcept nogil:
    """The record at `scan.at`, checked; moves `scan.at` behind it, or to the field that is wrong."""
    cdef const uint8_t* body = scan.body
    cdef Py_ssize_t at = scan.at
    cdef Py_ssize_t end, before
    cdef int64_t number, step
    cdef Field name, value
    cdef int fault = read_number(body, &at, scan.size, &number)
    if fault:
        return fault
    if number < 0 or number > scan.size - at:
        return RECORD_BEYOND_BATCH
    end = at + number
    scan.at = at
    if number == 0:
        return EMPTY_RECORD
    at += 1  # the attributes, which are not used
    scan.at = at
    fault = read_number(body, &at, end, &number)
    if fault:
        return fault
    if number > 0 and scan.base_timestamp_ms > INT64_MAX - number or number < 0 and scan.base_timestamp_ms < INT64_MIN - number:
        return TIMESTAMP_RANGE
    record.timestamp_ms = scan.base_timestamp_ms + number
    scan.at = at
    fault = read_number(body, &at, end, &number)
    if fault:
        return fault
    if number <= scan.previous_delta or number > scan.last_offset_delta:
        return OFFSET_ORDER
    record.offset_delta = number
    scan.at = record.fields_at = at
    fault = read_field(body, &scan.at, end, &record.key)
    if not fault:
        fault = read_field(body, &scan.at, end, &record.value)
    if fault:
        return fault
    at = scan.at
    fault = read_number(body, &at, end, &number)
    if fault:
        return fault
    if number < 0 or number > (end - at) // 2:  # A header has at least the lengths of its name and its value.
        return HEADER_COUNT
    record.header_count = number
    scan.at = record.headers_at = at
    for step in range(number):
        fault = read_header(body, &scan.at, end, &name, &value)
        if fault:
            return fault
    if scan.at != end:
        return RECORD_NOT_FILLED
    record.end = end
    scan.previous_delta = record.offset_delta
    return FINE


@cython.final
cdef class Reading:
    """A `Section` with its bytes at hand, for as long as it lives."""

    cdef Py_buffer view
    cdef Scan scan
    cdef Py_ssize_t record_count
    cdef int64_t base_offset, start_offset, end_offset, append_time_ms
    cdef bint has_append_time

    def __cinit__(self, section):
        body, self.record_count, self.base_offset, last_delta, base_ms, append_ms, start, end = section
        PyObject_GetBuffer(body, &self.view, PyBUF_SIMPLE)
        self.start_offset, self.end_offset = start, end
        self.has_append_time = append_ms is not None
        self.append_time_ms = append_ms if self.has_append_time else 0
        self.scan.body = <const uint8_t*>self.view.buf
        self.scan.size = self.view.len
        self.scan.at = 0
        self.scan.base_timestamp_ms = base_ms
        self.scan.last_offset_delta = last_delta
        self.scan.previous_delta = -1

    def __dealloc__(self):
        PyBuffer_Release(&self.view)

    cdef inline bint wants(self, Parsed* record) noexcept nogil:
        cdef int64_t offset = self.base_offset + record.offset_delta
        if self.has_append_time:
            record.timestamp_ms = self.append_time_ms
        return self.start_offset <= offset < self.end_offset

    cdef int raise_fault(self, int fault, Py_ssize_t number) except -1:
        raise damaged(fault, self.base_offset, number, self.scan.at)


cdef class RecordView:
    """One record; its fields are decoded when they are read. It keeps the records of its batch in memory.

    The collector does not track it: it refers to bytes alone.
    """

    cdef bytes block
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp_ms
    cdef uint32_t at  # Where its key begins; a body has less than 2 GiB.

    def __init__(self, fields):
        self.offset, self.timestamp_ms, key, value, headers = fields
        self.block = encoded_fields(key, value, headers)
        self.at = 0

    @property
    def key(self):
        return part_of(self, 2)

    @property
    def value(self):
        return part_of(self, 3)

    @property
    def headers(self):
        return part_of(self, 4)

    def __len__(self):
        return 5

    def __iter__(self):
        return iter((self.offset, self.timestamp_ms, part_of(self, 2), part_of(self, 3), part_of(self, 4)))

    def __getitem__(self, position):
        return (self.offset, self.timestamp_ms, part_of(self, 2), part_of(self, 3), part_of(self, 4))[position]


cdef object part_of(RecordView view, int wanted):
    """Field 2, 3 or 4. The block was checked when the view was made, and does not change."""
    cdef const uint8_t* body
    cdef Py_ssize_t at = view.at, end
    cdef int64_t count, step
    cdef Field field, name
    if view.block is None:
        return None
    body = <const uint8_t*>PyBytes_AS_STRING(view.block)
    end = PyBytes_GET_SIZE(view.block)
    if read_field(body, &at, end, &field):
        return None
    if wanted == 2:
        return cell_of(&field)
    if read_field(body, &at, end, &field):
        return None
    if wanted == 3:
        return cell_of(&field)
    if read_number(body, &at, end, &count) or count <= 0:
        return ()
    pairs = []
    for step in range(count):
        if read_header(body, &at, end, &name, &field):
            break
        pairs.append((name.data[: name.size].decode("utf-8", "replace"), cell_of(&field)))
    return tuple(pairs)


cdef inline object cell_of(Field* field):
    return None if field.size < 0 else PyBytes_FromStringAndSize(<const char*>field.data, field.size)


def read_records(section, type record_type not None):
    """The wanted records of a section whose body is bytes. Raises DamagedRecordsError."""
    cdef bytes block = section[0]
    cdef Reading reading = Reading(section)
    cdef list found = []
    cdef Py_ssize_t number
    cdef Parsed record
    cdef RecordView view
    cdef int fault
    cdef PyTypeObject* kind = <PyTypeObject*>record_type
    if not issubclass(record_type, RecordView):
        raise TypeError(f"{record_type.__name__} is not a RecordView")
    for number in range(reading.record_count):
        fault = read_record(&reading.scan, &record)
        if fault:
            reading.raise_fault(fault, number)
        if reading.wants(&record):
            view = new_of(kind)(kind, NO_ARGUMENTS, NULL)
            view.block = block
            view.offset = reading.base_offset + record.offset_delta
            view.timestamp_ms = record.timestamp_ms
            view.at = <uint32_t>record.fields_at
            found.append(view)
    if reading.scan.at != reading.scan.size:
        reading.raise_fault(BYTES_LEFT, reading.record_count)
    return found


def read_lists(section):
    """Offsets, timestamps, keys and values of the wanted records, as lists. Raises DamagedRecordsError."""
    cdef Reading reading = Reading(section)
    cdef list offsets = [], timestamps = [], keys = [], values = []
    cdef Py_ssize_t number
    cdef Parsed record
    cdef int fault
    for number in range(reading.record_count):
        fault = read_record(&reading.scan, &record)
        if fault:
            reading.raise_fault(fault, number)
        if reading.wants(&record):
            offsets.append(reading.base_offset + record.offset_delta)
            timestamps.append(record.timestamp_ms)
            keys.append(cell_of(&record.key))
            values.append(cell_of(&record.value))
    if reading.scan.at != reading.scan.size:
        reading.raise_fault(BYTES_LEFT, reading.record_count)
    return offsets, timestamps, keys, values


def read_spans(section):
    """Where each record is, wanted or not. Raises DamagedRecordsError. Other threads run after each
    `SPANS_AT_ONCE`: a batch may have a million records, and compaction reads it beside the event loop."""
    cdef Reading reading = Reading(section)
    cdef list found = []
    cdef Py_ssize_t number, start, content
    cdef int64_t length
    cdef Parsed record
    cdef int fault
    for number in range(reading.record_count):
        if number % SPANS_AT_ONCE == SPANS_AT_ONCE - 1:
            with nogil:
                pass
        start = content = reading.scan.at
        fault = read_number(reading.scan.body, &content, reading.scan.size, &length)
        if not fault:
            fault = read_record(&reading.scan, &record)
        if fault:
            reading.raise_fault(fault, number)
        reading.wants(&record)  # for its timestamp
        found.append((start, content, record.end, record.offset_delta, record.timestamp_ms, cell_of(&record.key), record.value.size < 0))
    if reading.scan.at != reading.scan.size:
        reading.raise_fault(BYTES_LEFT, reading.record_count)
    return found


cdef struct Spare:
    uint8_t* start
    Py_ssize_t capacity


# Blocks of columns that nobody has any more, for the next columns: the system takes a fault for each page of new memory, which costs
# more than to decode its records. Used with the interpreter's lock alone.
cdef Spare spares[SPARE_BLOCKS]
cdef int spare_count = 0
cdef Py_ssize_t spare_bytes = 0


cdef Spare spare_block(Py_ssize_t size_bytes, Py_ssize_t most_bytes) noexcept:
    """The smallest in this range; without an address if there is none."""
    global spare_count, spare_bytes
    cdef Spare found = Spare(NULL, 0)
    cdef int number, best = -1
    for number in range(spare_count):
        if size_bytes <= spares[number].capacity <= most_bytes:
            if best < 0 or spares[number].capacity < spares[best].capacity:
                best = number
    if best >= 0:
        found = spares[best]
        spare_count -= 1
        spare_bytes -= found.capacity
        spares[best] = spares[spare_count]
    return found


cdef void release(uint8_t* start, Py_ssize_t capacity) noexcept:
    global spare_count, spare_bytes
    if capacity < MIN_SPARE_BYTES or spare_count == SPARE_BLOCKS or capacity > MAX_SPARE_BYTES - spare_bytes:
        free(start)
        return
    spares[spare_count] = Spare(start, capacity)
    spare_count += 1
    spare_bytes += capacity


@cython.final
cdef class Memory:
    """Bytes that grow without the interpreter's lock; others see them through the buffer protocol."""

    cdef uint8_t* start
    cdef Py_ssize_t size, capacity

    def __cinit__(self, Py_ssize_t capacity):
        cdef Spare block = spare_block(capacity, MAX_SPARE_BYTES if capacity >= MIN_SPARE_BYTES else 0)
        self.start, self.capacity = block.start, block.capacity
        self.reserve(capacity)

    def __dealloc__(self):
        release(self.start, self.capacity)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.start, self.size, 1, flags)

    cdef int reserve(self, Py_ssize_t more) except -1 nogil:
        """Room for so many bytes behind the size; at least one, since an empty buffer needs an address, too."""
        cdef Py_ssize_t capacity
        cdef uint8_t* grown
        if self.start is not NULL and more <= self.capacity - self.size:
            return 0
        capacity = max(self.size + more, 2 * self.capacity, 1)
        grown = <uint8_t*>realloc(self.start, capacity)
        if grown is NULL:
            with gil:
                raise MemoryError(f"{capacity} bytes for columns of records")
        self.start = grown
        self.capacity = capacity
        return 0

    cdef object finished(self):
        """What was written; a block with much room that was not needed is exchanged for a smaller one."""
        cdef Py_ssize_t most_bytes = self.size + max(self.size // 4, MIN_SPARE_BYTES)
        cdef Spare block
        if self.capacity > most_bytes:
            block = spare_block(self.size, most_bytes)
            if block.start is NULL:
                block = Spare(<uint8_t*>malloc(max(self.size, 1)), max(self.size, 1))
            if block.start is not NULL:
                memcpy(block.start, self.start, self.size)
                release(self.start, self.capacity)
                self.start, self.capacity = block.start, block.capacity
        return memoryview(self)


@cython.final
cdef class Cells:
    """A binary column that grows."""

    cdef Memory offsets, data, validity
    cdef Py_ssize_t count, null_count

    def __cinit__(self, Py_ssize_t rows, Py_ssize_t size_bytes):
        self.offsets, self.data, self.validity = Memory(4 * (rows + 1)), Memory(size_bytes), Memory((rows + 7) >> 3)
        memset(self.validity.start, 0, self.validity.capacity)
        (<int32_t*>self.offsets.start)[0] = 0

    cdef int reserve(self, Py_ssize_t rows, Py_ssize_t size_bytes) except -1 nogil:
        cdef Py_ssize_t had = self.validity.capacity
        self.offsets.size = 4 * self.count
        self.offsets.reserve(4 * (rows + 1))
        self.data.reserve(size_bytes)
        self.validity.size = (self.count + 7) >> 3
        self.validity.reserve((rows + 7) >> 3)
        if self.validity.capacity > had:
            memset(self.validity.start + had, 0, self.validity.capacity - had)
        return 0

    cdef inline void append(self, Field* field) noexcept nogil:
        """Room is reserved."""
        cdef uint8_t* bits = self.validity.start
        if field.size < 0:
            self.null_count += 1
        else:
            if field.size:
                memcpy(self.data.start + self.data.size, field.data, field.size)
                self.data.size += field.size
            bits[self.count >> 3] |= <uint8_t>(1 << (self.count & 7))
        self.count += 1
        (<int32_t*>self.offsets.start)[self.count] = <int32_t>self.data.size

    cdef void cut(self, Py_ssize_t count, Py_ssize_t null_count) noexcept nogil:
        """Forget the rows from `count` on."""
        cdef uint8_t* bits = self.validity.start
        cdef Py_ssize_t row
        for row in range(count, self.count):
            bits[row >> 3] &= <uint8_t>~(1 << (row & 7))
        self.data.size = (<int32_t*>self.offsets.start)[count]
        self.count, self.null_count = count, null_count

    cdef object column(self):
        self.offsets.size = 4 * (self.count + 1)
        self.validity.size = (self.count + 7) >> 3
        return BinaryColumn(
            offsets=self.offsets.finished(),
            data=self.data.finished(),
            validity=self.validity.finished() if self.null_count else None,
            null_count=self.null_count,
        )


@cython.final
cdef class ColumnBuilder:
    """Columns of the records of several sections. `max_rows` and `max_bytes` are upper bounds of what is added."""

    cdef Py_ssize_t rows_left, bytes_left
    cdef readonly Py_ssize_t count
    cdef Memory offsets, timestamps, header_offsets
    cdef Cells keys, values, names, header_values
    cdef bint has_ascii_names

    def __cinit__(self, Py_ssize_t max_rows, Py_ssize_t max_bytes):
        if max_bytes > MAX_BATCH_BYTES:
            raise OverflowError(f"{max_bytes} bytes of records are too many for one column")
        self.rows_left, self.bytes_left = max_rows, max_bytes
        self.offsets, self.timestamps = Memory(8 * max_rows), Memory(8 * max_rows)
        self.header_offsets = Memory(4 * (max_rows + 1))
        (<int32_t*>self.header_offsets.start)[0] = 0
        self.keys, self.values = Cells(max_rows, max_bytes), Cells(max_rows, max_bytes)
        self.names, self.header_values = Cells(0, 0), Cells(0, 0)
        self.has_ascii_names = True

    def add(self, section):
        """Append the wanted records; returns their number. Raises DamagedRecordsError, and then has appended none."""
        cdef Reading reading = Reading(section)
        cdef Py_ssize_t count = self.count, headers = self.names.count, number = 0
        cdef Py_ssize_t null_keys = self.keys.null_count, null_values = self.values.null_count
        cdef Py_ssize_t null_headers = self.header_values.null_count
        cdef Parsed record
        cdef int fault = FINE
        if reading.record_count > self.rows_left or reading.scan.size > self.bytes_left:
            raise AssertionError("more is added than was announced, or after the end")  # The memory has no room for it.
        with nogil:
            while number < reading.record_count:
                fault = read_record(&reading.scan, &record)
                if fault:
                    break
                if reading.wants(&record):
                    fault = self.append(reading, &record)
                    if fault:
                        break
                number += 1
        if not fault and reading.scan.at != reading.scan.size:
            fault = BYTES_LEFT
        if fault:
            self.count = count
            self.keys.cut(count, null_keys)
            self.values.cut(count, null_values)
            self.names.cut(headers, 0)
            self.header_values.cut(headers, null_headers)
            reading.raise_fault(fault, number)
        self.rows_left -= reading.record_count
        self.bytes_left -= reading.scan.size
        return self.count - count

    cdef inline int append(self, Reading reading, Parsed* record) except -1 nogil:
        """FINE, or the fault of a header in bytes that another thread has changed. Room for all but headers is reserved."""
        cdef Py_ssize_t at = record.headers_at, byte
        cdef int64_t step
        cdef Field name, value
        cdef int fault
        (<int64_t*>self.offsets.start)[self.count] = reading.base_offset + record.offset_delta
        (<int64_t*>self.timestamps.start)[self.count] = record.timestamp_ms
        self.keys.append(&record.key)
        self.values.append(&record.value)
        for step in range(record.header_count):
            fault = read_header(reading.scan.body, &at, record.end, &name, &value)
            if fault:
                return fault
            for byte in range(name.size):
                self.has_ascii_names &= name.data[byte] < 0x80
            self.names.reserve(1, name.size)
            self.names.append(&name)
            self.header_values.reserve(1, max(value.size, 0))
            self.header_values.append(&value)
        self.count += 1
        (<int32_t*>self.header_offsets.start)[self.count] = <int32_t>self.names.count
        return FINE

    def finish(self):
        """Offsets, timestamps, keys, values and headers. The builder is used up."""
        cdef Py_ssize_t count = self.names.count
        if self.bytes_left < 0:
            raise AssertionError("columns are finished once")  # Others see the memory now, so it must not move.
        self.rows_left = self.bytes_left = -1
        self.offsets.size = self.timestamps.size = 8 * self.count
        self.header_offsets.size = 4 * (self.count + 1)
        headers = HeaderColumn(
            offsets=self.header_offsets.finished(),
            names=self.names.column() if self.has_ascii_names else readable(self.names),
            values=self.header_values.column(),
            count=count,
        )
        return (
            self.offsets.finished(),
            self.timestamps.finished(),
            self.keys.column(),
            self.values.column(),
            headers,
        )


cdef object readable(Cells names):
    """The same names in valid UTF-8."""
    cdef const int32_t* bounds = <const int32_t*>names.offsets.start
    cdef const uint8_t* data = names.data.start
    cdef list readable = [
        data[bounds[row] : bounds[row + 1]].decode("utf-8", "replace").encode() for row in range(names.count)
    ]
    cdef Cells cells = Cells(names.count, sum(map(len, readable)))
    cdef Field field
    for name in readable:
        set_field(&field, name)
        cells.append(&field)
    return cells.column()


include "_writing.pxi"
include "_intake.pxi"
