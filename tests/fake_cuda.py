"""A CUDA driver without a GPU: it writes down what it is asked, and does it when a test says so.

Its streams are queues, its memory is the process's own, and each of its functions can be made to fail.
"""

import ctypes
from collections import deque

OWN_CONTEXT = 0xC0
INVALID_VALUE = 1
NOT_READY = 600
ILLEGAL_ADDRESS = 700
NAMES = {
    INVALID_VALUE: "CUDA_ERROR_INVALID_VALUE",
    2: "CUDA_ERROR_OUT_OF_MEMORY",
    101: "CUDA_ERROR_INVALID_DEVICE",
    ILLEGAL_ADDRESS: "CUDA_ERROR_ILLEGAL_ADDRESS",
}


class FakeDriver:
    """The functions that `cpkv.device.cuda.driver.Driver` has.

    Args:
        version: Of CUDA.
        holds: Whether what is queued waits for `run`.
        **attributes: Of the device, `a122=0` for attribute 122.
    """

    def __init__(self, version=13_000, *, holds=False, **attributes):
        self.version = version
        self.holds = holds
        self.calls = []
        """The name and the arguments of every call."""
        self.attributes = {11: 2**31 - 1, 91: 1, 122: 1} | {int(name[1:]): one for name, one in attributes.items()}
        self.current = OWN_CONTEXT
        self.contexts = []
        self.capturing = {}
        """What is said of compute streams: a status, or a negative code."""
        self.streams = {}
        self.events = {}
        self.registered = set()
        self.memory = {}
        self.elapsed_ms = 1.0
        self.range = (0, 1 << 60)
        """Where host memory is registered."""
        self.failures = {}
        """For each function the codes of its next calls; the last one stays if it is in a list of its own."""
        self.code_of_streams = 0
        """What looking at a stream, and waiting for it, returns instead."""
        self._handles = iter(range(0x1000, 10**9, 0x10))
        self._functions = {}
        self.cuMemcpyBatchAsync = self._function("cuMemcpyBatchAsync") if version >= 12_080 else None

    # --- What a test does ---

    def fail(self, name, *codes):
        """Let the next calls of a function return these."""
        self.failures.setdefault(name, deque()).extend(codes or [INVALID_VALUE])

    def names(self, *but):
        return [name for name, *_ in self.calls if name not in but]

    def arguments(self, name):
        return [tuple(arguments) for called, *arguments in self.calls if called == name]

    def run(self, stream, steps=None):
        """Do what is queued on a stream, or so much of it."""
        queue = self.streams[stream]
        while queue and steps != 0:
            queue.popleft()()
            steps = None if steps is None else steps - 1

    # --- What the driver does ---

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)
        return self._function(name)

    def _function(self, name):
        if name not in self._functions:
            does = getattr(type(self), f"_{name[2:]}", lambda _, *__: 0)

            def call(*arguments):
                self.calls.append((name, *arguments))
                codes = self.failures.get(name)
                if codes:
                    code = codes.popleft()
                    if code:
                        return code
                return does(self, *arguments) or 0

            self._functions[name] = call
        return self._functions[name]

    def _queue(self, stream, work):
        assert stream in self.streams, f"nothing may be queued on stream {stream}"
        self.streams[stream].append(work)
        if not self.holds:
            self.run(stream)

    def _GetErrorName(self, code, out):
        if code not in NAMES:
            return INVALID_VALUE
        out._obj.value = NAMES[code].encode()
        return 0

    def _GetErrorString(self, code, out):
        out._obj.value = b"what it means"

    def _DeviceGet(self, out, ordinal):
        if not 0 <= ordinal < 2:
            return 101
        out._obj.value = ordinal
        return 0

    def _DeviceGetName(self, out, size, device):
        out.value = b"Fake GPU"

    def _DeviceGetPCIBusId(self, out, size, device):
        out.value = b"0000:1B:00.0"

    def _DeviceGetAttribute(self, out, attribute, device):
        out._obj.value = self.attributes.get(attribute, 0)

    def _DevicePrimaryCtxRetain(self, out, device):
        out._obj.value = OWN_CONTEXT

    def _CtxGetCurrent(self, out):
        out._obj.value = self.current

    def _CtxGetDevice(self, out):
        out._obj.value = 0

    def _CtxPushCurrent(self, context):
        self.contexts.append(self.current)
        self.current = context

    def _CtxPopCurrent(self, out):
        self.current = self.contexts.pop()

    def _CtxGetStreamPriorityRange(self, least, greatest):
        least._obj.value, greatest._obj.value = 0, -5

    def _StreamCreateWithPriority(self, out, flags, priority):
        assert flags == 1, "a copy stream is non-blocking"
        out._obj.value = next(self._handles)
        self.streams[out._obj.value] = deque()

    def _StreamDestroy(self, stream):
        assert not self.streams.pop(stream), "destroyed with work under way"

    def _StreamQuery(self, stream):
        return self.code_of_streams or (NOT_READY if self.streams[stream] else 0)

    def _StreamSynchronize(self, stream):
        if self.code_of_streams:
            self.streams[stream].clear()
            return self.code_of_streams
        self.run(stream)
        return 0

    def _StreamWaitEvent(self, stream, event, flags):
        assert event in self.events

    def _StreamIsCapturing(self, stream, out):
        status = self.capturing.get(stream, 0)
        if status < 0:
            return -status
        out._obj.value = status
        return 0

    def _StreamWriteValue64(self, stream, address, value, flags):
        assert flags == 0, "without its fence a word could overtake its copies"
        self._queue(stream, lambda: setattr(ctypes.c_uint64.from_address(address), "value", value))

    def _EventCreate(self, out, flags):
        out._obj.value = next(self._handles)
        self.events[out._obj.value] = 0

    def _EventDestroy(self, event):
        del self.events[event]

    def _EventRecord(self, event, stream):
        assert event in self.events
        if stream in self.streams:
            self.events[event] += 1
            self._queue(stream, lambda: self.events.__setitem__(event, self.events[event] - 1))

    def _EventQuery(self, event):
        return self.code_of_streams or (NOT_READY if self.events[event] else 0)

    def _EventSynchronize(self, event):
        for stream in self.streams:
            while self.events[event] and self.streams[stream]:
                self.run(stream, 1)
        return self.code_of_streams

    def _EventElapsedTime(self, out, begin, end):
        out._obj.value = self.elapsed_ms

    def _MemHostRegister(self, address, size, flags):
        assert address % size == 0
        assert flags == 3
        if address in self.registered:
            return 712
        self.registered.add(address)
        return 0

    def _MemHostUnregister(self, address):
        self.registered.remove(address)

    def _MemHostGetDevicePointer(self, out, address, flags):
        out._obj.value = address

    def _allocate(self, out, size):
        memory = ctypes.create_string_buffer(size)
        self.memory[ctypes.addressof(memory)] = memory
        out._obj.value = ctypes.addressof(memory)

    def _PointerGetAttribute(self, out, attribute, address):
        begin, size = self.range
        out._obj.value = {11: begin, 12: size}[attribute]

    def _MemHostAlloc(self, out, size, flags):
        self._allocate(out, size)

    def _MemAlloc(self, out, size):
        self._allocate(out, size)

    def _free(self, address):
        del self.memory[address]

    _MemFreeHost = _MemFree = _free

    def _ModuleLoadData(self, out, code):
        assert b".entry cpkv_copy" in code
        out._obj.value = next(self._handles)

    def _ModuleGetFunction(self, out, module, name):
        assert name == b"cpkv_copy"
        out._obj.value = next(self._handles)

    def _copies(self, stream, copies):
        def work():
            for destination, source, size in copies:
                ctypes.memmove(destination, source, size)

        self._queue(stream, work)

    def _MemcpyAsync(self, destination, source, size, stream):
        self._copies(stream, [(destination, source, size)])

    def _MemcpyBatchAsync(self, *arguments):
        destinations, sources, sizes, count, attributes, first, sets, *failed, stream = arguments
        assert len(failed) == (self.version < 13_000), "the wrong form of the call"
        assert (attributes._obj.source_access_order, first._obj.value, sets) == (1, 0, 1)
        assert count > 0
        self._copies(stream, list(zip(*(_words(at, count) for at in (destinations, sources, sizes)), strict=True)))

    def _Memcpy2DAsync(self, description, stream):
        at = [int.from_bytes(ctypes.string_at(description + 8 * place, 8), "little") for place in range(16)]
        assert (at[0], at[1], at[7], at[8]) == (0, 0, 0, 0)
        assert {at[2], at[9]} == {1, 2}
        source, destination = at[3 if at[2] == 1 else 4], at[10 if at[9] == 1 else 11]
        assert min(at[6], at[13]) >= at[14]
        lines = range(at[15])
        self._copies(stream, [(destination + line * at[13], source + line * at[6], at[14]) for line in lines])

    def _LaunchKernel(self, function, *arguments):
        grid, block, (shared, stream, parameters, extra) = arguments[:3], arguments[3:6], arguments[6:]
        assert (*grid[1:], *block, shared, extra) == (1, 1, 1024, 1, 1, 0, None)
        arrays, count = (ctypes.c_uint64.from_address(at).value for at in parameters)
        # As a kernel does, it reads its arrays when it runs.
        self._queue(stream, lambda: _run_kernel(arrays, count))


def _words(address, count):
    return list((ctypes.c_uint64 * count).from_address(address))


def _run_kernel(arrays, count):
    words = _words(arrays, 3 * count)
    for place in range(count):
        ctypes.memmove(words[place], words[count + place], words[2 * count + place])
