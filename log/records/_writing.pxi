# Writing records: the second half of `_native.pyx`, which has the rules and the imports.


cdef inline Py_ssize_t size_of(int64_t number) noexcept nogil:
    cdef uint64_t rest = (<uint64_t>number << 1) ^ <uint64_t>(number >> 63)
    cdef Py_ssize_t size = 1
    while rest > 0x7F:
        rest >>= 7
        size += 1
    return size


cdef inline uint8_t* put_number(uint8_t* target, int64_t number) noexcept nogil:
    cdef uint64_t rest = (<uint64_t>number << 1) ^ <uint64_t>(number >> 63)
    while rest > 0x7F:
        target[0] = <uint8_t>(rest | 0x80)
        rest >>= 7
        target += 1
    target[0] = <uint8_t>rest
    return target + 1


cdef inline Py_ssize_t size_of_field(Field* field) noexcept nogil:
    return size_of(field.size) + (field.size if field.size > 0 else 0)


cdef inline uint8_t* put_field(uint8_t* target, Field* field) noexcept nogil:
    target = put_number(target, field.size)
    if field.size <= 0:
        return target
    memcpy(target, field.data, field.size)
    return target + field.size


cdef inline int set_field(Field* field, object data) except -1:
    if data is None:
        field.data = NULL
        field.size = -1
    elif PyBytes_Check(data):
        field.data = <const uint8_t*>PyBytes_AS_STRING(data)
        field.size = PyBytes_GET_SIZE(data)
    else:
        raise refusals.not_bytes(data)
    return 0


cdef int64_t checked_stamp(object timestamp_ms) except? -1:
    cdef int64_t stamp
    try:
        stamp = PyNumber_Index(timestamp_ms)
    except OverflowError:
        raise refusals.timestamp(timestamp_ms) from None
    if stamp < -1:
        raise refusals.timestamp(timestamp_ms)
    return stamp


@cython.no_gc  # A million of them must not be walked. A cycle through one lasts until its batch lets go of its waiters.
cdef class Receipt:
    """Where a record went: a batch, by the name that its owner gives it, and the record's number there."""

    cdef readonly object batch
    cdef readonly Py_ssize_t position

    def __init__(self, batch, Py_ssize_t position):
        self.batch = batch
        self.position = position


@cython.final
cdef class PassTime:
    """The wall time for all records of one pass of the event loop; 0: it was not read in this pass."""

    cdef public int64_t now_ms


@cython.final
cdef class Accumulator:
    """Records that are encoded as they arrive, into a batch of at most `limit_bytes` before compression.

    A first record is taken whatever its size. Timestamps are relative to `base_timestamp_ms`, or else to the first one.
    """

    cdef PyObject* batch  # A bytes object that is only known here, so that it may be written; NULL once it is sealed.
    cdef Py_ssize_t capacity, limit_bytes
    cdef int64_t base_ms, max_ms
    cdef bint has_base, is_raised
    cdef object owner, receipt_type  # for `take`
    cdef PassTime time
    cdef public int64_t stamp_ms  # of the owner: set by its `restamp`
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t size_bytes  # of the batch, uncompressed

    def __cinit__(self, Py_ssize_t limit_bytes, base_timestamp_ms=None):
        self.capacity = FIRST_CAPACITY
        self.batch = PyBytes_New(NULL, FIRST_CAPACITY)
        self.limit_bytes = min(limit_bytes, MAX_BATCH_BYTES)
        self.has_base = base_timestamp_ms is not None
        self.base_ms = base_timestamp_ms if self.has_base else 0
        self.max_ms = -1
        self.count = 0
        self.size_bytes = HEADER_BYTES

    def __dealloc__(self):
        Py_XDECREF(self.batch)

    def raise_limit(self, Py_ssize_t limit_bytes):
        """Make room for more records; a lower limit than before has no effect, nor has any once the batch is sealed."""
        if limit_bytes > self.limit_bytes and self.batch is not NULL:
            self.limit_bytes = min(limit_bytes, MAX_BATCH_BYTES)
            self.is_raised = True

    def append(self, value, key=None, headers=(), timestamp_ms=-1):
        """Returns the record's number in the batch, or -1 if the batch has no room for it.

        Raises TypeError for anything but bytes, InvalidRecordError for a timestamp before -1 or of more than 64 bits.
        """
        return self.add(value, key, headers, checked_stamp(timestamp_ms))

    def append_for(self, type receipt_type not None, batch, value, key, headers, timestamp_ms):
        """As `append`; returns a receipt for the record in `batch`, None if there is no room."""
        cdef PyTypeObject* kind = <PyTypeObject*>receipt_type
        cdef Receipt receipt
        cdef Py_ssize_t position = self.add(value, key, headers, checked_stamp(timestamp_ms))
        if position < 0:
            return None
        receipt = new_of(kind)(kind, NO_ARGUMENTS, NULL)
        receipt.batch = batch
        receipt.position = position
        return receipt

    def belong_to(self, owner, type receipt_type not None, PassTime time not None, int64_t stamp_ms):
        """What `take` needs: the batch that receipts name, their type, and the time of the records that follow."""
        if not issubclass(receipt_type, Receipt):
            raise TypeError(f"{receipt_type.__name__} is not a Receipt")
        self.owner, self.receipt_type, self.time, self.stamp_ms = owner, receipt_type, time, stamp_ms

    def take(self, value, key=None):
        """As `append_for`, for a record of bytes at the time of this pass. None, too, if it is another record, or the time is not
        known. Tells the owner of a new time: `owner.restamp(now_ms)`."""
        return self.taken(value, key)

    cdef object taken(self, value, key):
        cdef PyTypeObject* kind
        cdef Field key_field, value_field
        cdef Receipt receipt
        cdef Py_ssize_t position
        cdef int64_t now_ms = 0 if self.owner is None else self.time.now_ms
        if now_ms <= 0 or not PyBytes_CheckExact(value) or not (key is None or PyBytes_CheckExact(key)):
            return None
        if now_ms != self.stamp_ms:
            self.owner.restamp(now_ms)
        set_field(&key_field, key)
        set_field(&value_field, value)
        position = self.put(&key_field, &value_field, None, now_ms)
        if position < 0:
            return None
        kind = <PyTypeObject*>self.receipt_type
        receipt = new_of(kind)(kind, NO_ARGUMENTS, NULL)
        receipt.batch = self.owner
        receipt.position = position
        return receipt

    cdef Py_ssize_t add(self, object value, object key, object headers, int64_t stamp) except -2:
        cdef Field key_field, value_field
        set_field(&key_field, key)
        set_field(&value_field, value)
        if headers is None or len(headers) == 0:
            return self.put(&key_field, &value_field, None, stamp)
        return self.put(&key_field, &value_field, encoded_headers(headers), stamp)

    cdef int check_stamp(self, int64_t stamp) except -1:
        if self.has_base and self.base_ms < 0 and stamp > INT64_MAX + self.base_ms:
            raise refusals.too_far_apart(self.base_ms, stamp)
        return 0

    cdef Py_ssize_t put(self, Field* key, Field* value, bytes headers, int64_t stamp) except -2:
        """`headers` are encoded, with their count; None is no headers. -1: no room. Runs no Python code before it is done, so
        that nothing else can append or seal meanwhile."""
        self.check_stamp(stamp)
        cdef int64_t delta = stamp - self.base_ms if self.has_base else 0
        cdef Py_ssize_t headers_size = 1 if headers is None else PyBytes_GET_SIZE(headers)
        cdef Py_ssize_t body = 1 + size_of(delta) + size_of(self.count) + size_of_field(key) + size_of_field(value) + headers_size
        cdef Py_ssize_t record = size_of(body) + body
        cdef uint8_t* target
        if self.count and (self.size_bytes + record > self.limit_bytes or self.count >= MAX_RECORDS):
            return -1
        if self.size_bytes + record > MAX_BATCH_BYTES:
            raise refusals.too_large(record)
        if self.batch is NULL:
            raise MemoryError("no memory was left for the batch before")
        self.reserve(record)
        target = <uint8_t*>PyBytes_AS_STRING(<object>self.batch) + self.size_bytes
        target = put_number(target, body)
        target[0] = 0
        target = put_number(target + 1, delta)
        target = put_number(target, self.count)
        target = put_field(target, key)
        target = put_field(target, value)
        if headers is None:
            target[0] = 0
        else:
            memcpy(target, PyBytes_AS_STRING(headers), headers_size)
        if not self.has_base:
            self.has_base = True
            self.base_ms = stamp
        self.max_ms = max(self.max_ms, stamp)
        self.size_bytes += record
        self.count += 1
        return self.count - 1

    cdef inline int reserve(self, Py_ssize_t more) except -1:
        if self.size_bytes + more > self.capacity:
            # Up to the limit if that is near, since sealing then has nothing to return; but a limit that was raised may be
            # raised again, and each time would copy everything.
            self.capacity = max(
                self.size_bytes + more, 2 * self.capacity if self.is_raised else min(2 * self.capacity, max(self.limit_bytes, 1))
            )
            _PyBytes_Resize(&self.batch, self.capacity)
        return 0

    def extend(self, values, keys=None, headers=None, timestamps_ms=-1, Py_ssize_t start=0, rows=None):
        """Append the rows from `start` on until the batch is full; returns how many it took. `rows` picks and orders rows, and
        `start` counts in it. Raises InvalidRecordError for a negative `start`."""
        cdef Py_ssize_t count = len(values) if rows is None else len(rows), position, row
        cdef bint is_one_time = isinstance(timestamps_ms, int)
        cdef int64_t stamp = 0
        if start < 0:
            raise refusals.negative_start(start)
        if is_one_time and start < count:
            stamp = checked_stamp(timestamps_ms)
        for position in range(start, count):
            row = position if rows is None else rows[position]
            if not is_one_time:
                stamp = checked_stamp(timestamps_ms[row])
            key = None if keys is None else keys[row]
            if self.add(values[row], key, None if headers is None else headers[row], stamp) < 0:
                return position - start
        return max(count - start, 0)

    def extend_columns(
        self, Py_ssize_t count, values, keys=None, headers=None, timestamps_ms=-1, rows=None, Py_ssize_t start=0
    ):
        """As `extend`, from `count` rows in Arrow's layout; None is a column of nulls. `rows` (int64) picks and orders rows, and
        `start` counts in it. Raises InvalidRecordError for offsets or rows that are out of range, and for a negative `start`."""
        cdef Input value_cells = Input(values), key_cells = Input(keys)
        cdef HeaderInput header_cells = None if headers is None else HeaderInput(headers)
        cdef Numbers stamps = None if isinstance(timestamps_ms, int) else Numbers(timestamps_ms)
        cdef Numbers chosen = None if rows is None else Numbers(rows)
        cdef Py_ssize_t number = count if chosen is None else chosen.count
        cdef int64_t stamp = 0, row
        cdef Py_ssize_t position
        cdef Field key, value
        cdef bytes encoded = None
        # Not before: a buffer that is held cannot shrink after it was checked.
        check_input(count, (values, keys, headers), timestamps_ms, rows, start)
        if stamps is None:
            try:
                stamp = timestamps_ms
            except OverflowError:
                stamp = -2  # refused below, when it is used
        for position in range(start, number):
            row = position if chosen is None else chosen.at(position)
            if not 0 <= row < count:
                raise refusals.no_such_row(row, count)
            if stamps is not None:
                stamp = stamps.at(row)
            value_cells.read(row, &value)
            key_cells.read(row, &key)
            if header_cells is not None:
                encoded = header_cells.read(row)
            if stamp < -1:
                raise refusals.timestamp(timestamps_ms if stamps is None else stamp)
            if self.put(&key, &value, encoded, stamp) < 0:
                return position - start
        return max(number - start, 0)

    def seal(self, compression=Compression.NONE, producer=NOT_IDEMPOTENT):
        """The batch, with base offset 0. The accumulator takes no more records."""
        if self.batch is NULL or not self.count:
            raise AssertionError("a batch is sealed once, with at least one record")
        self.limit_bytes = 0
        _PyBytes_Resize(&self.batch, self.size_bytes)
        batch = <object>self.batch
        Py_XDECREF(self.batch)
        self.batch = NULL
        attributes = compression | (TRANSACTIONAL_MASK if producer.is_transactional else 0)
        if compression:
            body = compress(memoryview(batch)[HEADER_SIZE:].tobytes(), compression)
            return seal_batch(body, self.count, attributes, self.base_ms, self.max_ms, producer)
        cdef uint8_t* start = <uint8_t*>PyBytes_AS_STRING(batch)
        cdef bytes header = unsealed_header(
            self.size_bytes - HEADER_BYTES, self.count, attributes, self.base_ms, self.max_ms, producer
        )
        memcpy(start, PyBytes_AS_STRING(header), HEADER_BYTES)
        cdef uint32_t crc = crc32c(memoryview(batch)[CRC_COVERS_FROM:])
        cdef Py_ssize_t at = CRC_POSITION
        start[at] = <uint8_t>(crc >> 24)
        start[at + 1] = <uint8_t>(crc >> 16)
        start[at + 2] = <uint8_t>(crc >> 8)
        start[at + 3] = <uint8_t>crc
        return batch


cdef bytes encoded_headers(object headers):
    """With their count: of what was iterated, since `len` may have said something else."""
    cdef Py_ssize_t size = 0
    cdef list fields = []
    cdef Field field
    cdef uint8_t* target
    for name, data in headers:
        if not isinstance(name, str):
            raise refusals.not_text(name)
        name = str.encode(name)
        set_field(&field, name)
        size += size_of_field(&field)
        set_field(&field, data)
        size += size_of_field(&field)
        fields += (name, data)
    size += size_of(len(fields) // 2)
    cdef bytes encoded = PyBytes_FromStringAndSize(NULL, size)
    target = put_number(<uint8_t*>PyBytes_AS_STRING(encoded), len(fields) // 2)
    for data in fields:
        set_field(&field, data)
        target = put_field(target, &field)
    return encoded


# --- columns in Arrow's layout ---


cdef inline int64_t int_at(const uint8_t* numbers, Py_ssize_t position) noexcept nogil:
    """Copied, since a buffer may begin anywhere."""
    cdef int32_t number
    memcpy(&number, numbers + 4 * position, 4)
    return number


cdef inline int64_t long_at(const uint8_t* numbers, Py_ssize_t position) noexcept nogil:
    cdef int64_t number
    memcpy(&number, numbers + 8 * position, 8)
    return number


@cython.final
cdef class Numbers:
    """A buffer of int64."""

    cdef Py_buffer view
    cdef Py_ssize_t count

    def __cinit__(self, buffer):
        PyObject_GetBuffer(buffer, &self.view, PyBUF_SIMPLE)
        self.count = self.view.len // 8

    def __dealloc__(self):
        PyBuffer_Release(&self.view)

    cdef inline int64_t at(self, Py_ssize_t position) noexcept nogil:
        return long_at(<const uint8_t*>self.view.buf, position)


@cython.final
cdef class Input:
    """A `BinaryColumn` whose buffers were checked for their sizes; its offsets are checked here, row by row."""

    cdef Py_buffer offsets, data, validity
    cdef Py_ssize_t first
    cdef bint is_null, is_large, has_validity

    def __cinit__(self, column):
        self.is_null = column is None
        if self.is_null:
            return
        self.first, self.is_large = column.first, column.is_large
        PyObject_GetBuffer(column.offsets, &self.offsets, PyBUF_SIMPLE)
        PyObject_GetBuffer(column.data, &self.data, PyBUF_SIMPLE)
        self.has_validity = column.validity is not None
        if self.has_validity:
            PyObject_GetBuffer(column.validity, &self.validity, PyBUF_SIMPLE)

    def __dealloc__(self):
        PyBuffer_Release(&self.offsets)
        PyBuffer_Release(&self.data)
        PyBuffer_Release(&self.validity)

    cdef inline int read(self, Py_ssize_t row, Field* field) except -1:
        cdef int64_t start, end
        cdef const uint8_t* bits = <const uint8_t*>self.validity.buf
        cdef const uint8_t* offsets = <const uint8_t*>self.offsets.buf
        field.data = NULL
        field.size = -1
        row += self.first
        if self.is_null or (self.has_validity and not bits[row >> 3] >> (row & 7) & 1):
            return 0
        if self.is_large:
            start, end = long_at(offsets, row), long_at(offsets, row + 1)
        else:
            start, end = int_at(offsets, row), int_at(offsets, row + 1)
        if not 0 <= start <= end <= self.data.len:
            raise refusals.cell_out_of_range(row, start, end, self.data.len)
        field.data = <const uint8_t*>self.data.buf + start
        field.size = end - start
        return 0


@cython.final
cdef class HeaderInput:
    """A `HeaderColumn` whose buffers were checked for their sizes."""

    cdef Py_buffer offsets
    cdef Input names, values
    cdef Py_ssize_t first
    cdef int64_t count

    def __cinit__(self, column):
        PyObject_GetBuffer(column.offsets, &self.offsets, PyBUF_SIMPLE)
        self.names, self.values = Input(column.names), Input(column.values)
        self.first, self.count = column.first, column.count

    def __dealloc__(self):
        PyBuffer_Release(&self.offsets)

    cdef bytes read(self, Py_ssize_t row):
        """The encoded headers of a row, None if it has none."""
        cdef const uint8_t* offsets = <const uint8_t*>self.offsets.buf
        cdef int64_t start = int_at(offsets, self.first + row), end = int_at(offsets, self.first + row + 1), entry
        cdef Field name, value
        cdef list pairs = []
        if not 0 <= start <= end <= self.count:
            raise refusals.headers_out_of_range(row, start, end, self.count)
        for entry in range(start, end):
            self.names.read(entry, &name)
            text = "" if name.size <= 0 else name.data[: name.size].decode("utf-8")
            self.values.read(entry, &value)
            pairs.append((text, cell_of(&value)))
        return encoded_headers(pairs) if pairs else None


# --- hashing ---


cdef inline uint32_t word_at(const uint8_t* data) noexcept nogil:
    return <uint32_t>data[0] | <uint32_t>data[1] << 8 | <uint32_t>data[2] << 16 | <uint32_t>data[3] << 24


cdef int32_t murmur2(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """`vocabulary.murmur2`."""
    cdef uint32_t multiplier = 0x5BD1E995
    cdef uint32_t hashed = <uint32_t>0x9747B28C ^ <uint32_t>size
    cdef uint32_t word
    cdef Py_ssize_t left = size
    while left >= 4:
        word = word_at(data) * multiplier
        hashed = hashed * multiplier ^ (word ^ word >> 24) * multiplier
        data += 4
        left -= 4
    if left:
        if left == 3:
            hashed ^= <uint32_t>data[2] << 16
        if left >= 2:
            hashed ^= <uint32_t>data[1] << 8
        hashed = (hashed ^ data[0]) * multiplier
    hashed = (hashed ^ hashed >> 13) * multiplier
    return <int32_t>(hashed ^ hashed >> 15)


def murmur2_column(column, Py_ssize_t count):
    """The hash of every row as int32; that of a null is 0. Raises InvalidRecordError for offsets that are out of range."""
    cdef Input cells = Input(column)
    column.check(count)
    cdef bytes hashes = PyBytes_FromStringAndSize(NULL, 4 * count)
    cdef int32_t* target = <int32_t*>PyBytes_AS_STRING(hashes)
    cdef Field cell
    cdef Py_ssize_t row
    for row in range(count):
        cells.read(row, &cell)
        target[row] = 0 if cell.size < 0 else murmur2(cell.data, cell.size)
    return hashes


def largest(column):
    """The size of the largest value; 0 without any. Raises TypeError for anything but bytes and None."""
    cdef Py_ssize_t found = 0
    cdef Field field
    for cell in column:
        set_field(&field, cell)
        found = max(found, field.size)
    return found


def rows_by_partition(keys, Py_ssize_t partition_count):
    """The rows of each partition in Kafka's default partitioner, and last the rows without a key."""
    cdef list rows = [[] for _ in range(partition_count + 1)]
    cdef Py_ssize_t row = 0, partition
    cdef Field field
    if partition_count < 1:
        raise ZeroDivisionError(f"{partition_count} partitions")
    for key in keys:
        set_field(&field, key)
        partition = partition_count
        if field.size >= 0:
            partition = (murmur2(field.data, field.size) & 0x7FFFFFFF) % partition_count
        (<list>rows[partition]).append(row)
        row += 1
    return rows
