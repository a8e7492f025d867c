"""A rank's stage, its schedule, and the time in which it does not compute.

The bubble is measured from the computations, not from the waits: a schedule posts its receives early and together with sends, so
the wait for one of them is spread over several calls.

    |------------------- schedule.step ---------------------|
    | forward |   | forward |      | backward | | loss | …  |        bubble = 1 - (forward + backward + loss) / step

On GPUs the marks are CUDA events in the compute stream; on CPUs they are times of the host's clock, and ranks that share a core
slow each other down: then the value is a lower bound. Without measured steps there is no value; the first step does not count, because it
sets up connections.
"""

import time

import images
import network
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, schedules

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Pipeline:
    """This rank's part of it."""

    def __init__(self, arguments, rank, stages, device):
        whole = network.layers(arguments.blocks, arguments.width, images.CLASSES, arguments.seed)
        self._microbatches, self._stages, self._rank = arguments.microbatches, stages, rank
        self._clock = CudaClock() if device.type == "cuda" else HostClock()
        self._steps, self._bubbles = 0, 0.0
        self.says = " ".join(name for name, _ in network.cut(whole, rank, stages))
        self.module = network.sequence(network.cut(whole, rank, stages)).to(device)
        # Shapes are given, so that ranks do not request them from each other in the first step: a rank that failed before its answer would
        # leave its neighbour waiting.
        takes, gives = shapes(whole, rank, stages, arguments.batch_size // arguments.microbatches, device)
        stage = Measured(self.module, rank, stages, device, input_args=takes, output_args=gives)
        stage.clock = self._clock
        if device.type == "cpu" and not hasattr(schedules, "_wait_batch_p2p"):
            schedules._batch_p2p = post_together
        self._schedule = SCHEDULES[arguments.schedule](stage, arguments.microbatches, loss_fn=self._loss)

    def step(self, inputs, labels):
        """Forward and backward of a batch. Returns (the mean loss on the last stage or None, this stage's bubble or None in the first step)."""
        losses = []
        self._clock.begin()
        if self._rank == 0:
            self._schedule.step(inputs)
        elif self._rank == self._stages - 1:
            self._schedule.step(target=labels, losses=losses)
        else:
            self._schedule.step()
        whole_s, busy_s = self._clock.end()
        self._steps += 1
        if self._steps == 1:
            bubble = None
        else:
            bubble = max(0.0, 1.0 - busy_s / whole_s)
            self._bubbles += bubble
        return (torch.stack(losses).mean().item() if losses else None), bubble

    def mean_bubble(self):
        return self._bubbles / (self._steps - 1) if self._steps > 1 else None

    def bubble_at_best(self):
        return (self._stages - 1) / (self._microbatches + self._stages - 1)

    def _loss(self, output, labels):
        with self._clock:
            return F.cross_entropy(output, labels)


class Measured(PipelineStage):
    """Times each micro-batch's forward and backward."""

    def forward_one_chunk(self, *args, **kwargs):
        with self.clock:
            return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args, **kwargs):
        with self.clock:
            return super().backward_one_chunk(*args, **kwargs)


class Together:
    """Sends and receives that were posted together."""

    def __init__(self, works):
        self._works = works

    def wait(self):
        for work in self._works:
            work.wait()


def post_together(operations, desc=None):
    """For torch 2.7, whose schedules wait only for the last operation and drop the others. This is right for NCCL, which combines them into
    one. With Gloo, a dropped operation is never sent if the receiver was not ready yet, and the next stage waits for it forever."""
    return Together(dist.batch_isend_irecv(operations)) if operations else None


class HostClock:
    """`begin` … `end` is the total; code under `with` in between is busy."""

    def begin(self):
        self._busy_s = 0.0
        self._begun = time.perf_counter()

    def end(self):
        """(whole, busy) in seconds."""
        return time.perf_counter() - self._begun, self._busy_s

    def __enter__(self):
        self._entered = time.perf_counter()

    def __exit__(self, *_):
        self._busy_s += time.perf_counter() - self._entered


class CudaClock:
    """The same with events: a kernel runs long after the host has launched it."""

    def begin(self):
        self._spans = []
        self._begun = mark()

    def end(self):
        ended = mark()
        ended.synchronize()
        return self._begun.elapsed_time(ended) * 1e-3, sum(start.elapsed_time(end) for start, end in self._spans) * 1e-3

    def __enter__(self):
        self._spans.append((mark(), None))

    def __exit__(self, *_):
        self._spans[-1] = (self._spans[-1][0], mark())


def mark():
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def shapes(whole, rank, stages, size, device):
    """Returns examples of the stage's input and output for one micro-batch, found by passing one through all layers without computation."""
    def example(shape, learns):
        return torch.empty(shape, device=device, requires_grad=learns)

    flowing = torch.empty(size, 1, images.SIZE, images.SIZE, device="meta")
    taken = None
    for stage in range(rank + 1):
        taken = flowing.shape
        for _, layer in network.cut(whole, stage, stages):
            flowing = torch.func.functional_call(layer, {name: value.to("meta") for name, value in layer.state_dict().items()}, (flowing,))
    return (example(taken, rank > 0),), (example(flowing.shape, True),)
