"""Records when things happened: on CPUs with the host's clock, on GPUs with CUDA events in the stream that does the work.

A kernel runs long after the host has launched it, so host time says nothing about a GPU step. Events do, but their times can be read only
later. So both timelines return opaque marks. The difference of two marks is read once `ready` returns True, and nothing here ever waits for
the device. Scalars (loss, gradient norm) are handled in the same way: keep, stage, read.
"""

import time

MEMORY = {  # step field -> the allocator's name
    "cuda_allocated_bytes": "allocated_bytes.all.peak",
    "cuda_reserved_bytes": "reserved_bytes.all.peak",
    "cuda_current_bytes": "allocated_bytes.all.current",
    "cuda_split_bytes": "inactive_split_bytes.all.current",
    "cuda_alloc_retries": "num_alloc_retries",
}


class HostTimeline:
    """Marks are monotonic nanoseconds; scalars are read at once, because reading CPU memory does not wait."""

    device = "cpu"

    def mark(self):
        return time.monotonic_ns()

    def ready(self, mark):
        return True

    def seconds(self, start, end):
        return (end - start) * 1e-9

    def can_keep(self, tensor):
        return tensor.is_cpu  # reading the memory of any other device would wait for the device

    def keep(self, tensor):
        return tensor.item()

    def stage(self, kept):
        return kept

    def read(self, staged):
        return staged

    def keep_whole(self, tensors):
        return [tensor.item() for tensor in tensors]

    def read_whole(self, kept):
        return kept

    def memory(self):
        return {}

    def usable(self):
        return True


class CudaTimeline:
    """Marks are timing events on the current stream of one device."""

    MEMORY_EVERY = 10  # steps; memory statistics cost about 50 us, and peaks change slowly

    def __init__(self, torch, device):
        self._torch = torch
        self._device = device
        self._asked = 0
        self._memory = {}
        self.device = str(device)

    def mark(self):
        event = self._torch.cuda.Event(enable_timing=True)
        event.record(self._torch.cuda.current_stream(self._device))
        return event

    def ready(self, mark):
        return mark.query()

    def seconds(self, start, end):
        return start.elapsed_time(end) * 1e-3

    def can_keep(self, tensor):
        return tensor.is_cuda or tensor.is_cpu

    def keep(self, tensor):
        """Returns a copy: the script may change the loss in place afterwards, for instance to average it over ranks."""
        return tensor.detach().reshape(()).to(self._device, self._torch.float32, copy=True)

    def stage(self, kept):
        """Starts the copy of kept scalars to pinned memory; it is valid once a later mark is ready."""
        if not kept:
            return None
        pinned = self._torch.empty(len(kept), dtype=self._torch.float32, device="cpu", pin_memory=True)  # the script may set a default device
        return pinned.copy_(self._torch.stack(kept), non_blocking=True)

    def read(self, staged):
        return [] if staged is None else staged.tolist()

    def keep_whole(self, tensors):
        """Starts the copy of 0-dim tensors of whole numbers, all of one device, to pinned memory; valid once a later mark is ready."""
        if tensors[0].is_cpu:
            return self._torch.stack(tensors)
        pinned = self._torch.empty(len(tensors), dtype=self._torch.int64, device="cpu", pin_memory=True)
        return pinned.copy_(self._torch.stack(tensors), non_blocking=True)

    def read_whole(self, kept):
        return kept.tolist()

    def memory(self):
        """Returns the memory fields of a step record, refreshed every few calls."""
        if self._asked % self.MEMORY_EVERY == 0:
            known = self._torch.cuda.memory_stats(self._device)
            self._memory = {name: known.get(key) for name, key in MEMORY.items()}
        self._asked += 1
        return self._memory

    def usable(self):
        """Returns False while a CUDA graph is being captured: an event recorded then belongs to the graph, not to a step."""
        return not self._torch.cuda.is_current_stream_capturing()
