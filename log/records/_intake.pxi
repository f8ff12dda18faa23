# Single records on their way into open batches: the last part of `_native.pyx`.


cdef extern from "Python.h":
    ctypedef enum PySendResult:
        PYGEN_RETURN
    ctypedef struct PyAsyncMethods:
        PySendResult (*am_send)(PyObject*, PyObject*, PyObject**)
    ctypedef struct AwaitableType "PyTypeObject":
        PyAsyncMethods* tp_as_async
    void Py_INCREF_OBJECT "Py_INCREF" (PyObject*)


@cython.final
@cython.freelist(8)
@cython.no_gc  # As a receipt: it is alive between a call and its `await`.
cdef class Ready:
    """A coroutine that is complete: to await it gives its result at once."""

    cdef object result

    def __init__(self, result):
        self.result = result

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        raise StopIteration(self.result)

    def send(self, value):
        raise StopIteration(self.result)

    def throw(self, kind, error=None, traceback=None):
        raise kind if error is None else error

    def close(self):
        pass


cdef PySendResult result_of(PyObject* ready, PyObject* value, PyObject** result) noexcept:
    result[0] = <PyObject*>(<Ready><object>ready).result
    Py_INCREF_OBJECT(result[0])
    return PYGEN_RETURN


# What `await` asks first: without an exception that carries the result.
(<AwaitableType*><PyObject*>Ready).tp_as_async.am_send = result_of


@cython.final
cdef class Intake:
    """The short way of a usual record into the open batch of its topic or key. `later(topic, value, key, headers, partition,
    timestamp_ms)` is a coroutine, for all others."""

    cdef dict open_batches, topics
    cdef object later
    cdef public bint is_behind  # A call of `later` has not begun: a record after it must not overtake it.

    def __init__(self, dict open_batches not None, dict topics not None, later):
        self.open_batches, self.topics, self.later = open_batches, topics, later
        self.is_behind = False

    def send(self, topic, value, *, key=None, headers=None, partition=None, timestamp_ms=None):
        """Take the record now if a batch is open for it. What is returned must be awaited, and gives the receipt."""
        cdef Ready ready
        if not self.is_behind and partition is None and headers is None and timestamp_ms is None:
            batch = self.open_batches.get(topic) if key is None else self.batch_of(topic, key)
            if batch is not None:
                records = batch.records
                if type(records) is Accumulator:
                    receipt = (<Accumulator>records).taken(value, key)
                    if receipt is not None:
                        ready = Ready.__new__(Ready)
                        ready.result = receipt
                        return ready
        self.is_behind = True
        return self.later(topic, value, key, headers, partition, timestamp_ms)

    cdef object batch_of(self, topic, key):
        if not PyBytes_CheckExact(key):
            return None
        state = self.topics.get(topic)
        if state is None:
            return None
        queue = (<dict>state.by_key).get(key)
        return None if queue is None else queue.open
