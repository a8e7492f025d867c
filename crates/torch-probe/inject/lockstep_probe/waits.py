"""Measures exposed waits: the time in which a rank waits for other ranks.

On CPUs a wait is the host's time in `Work.wait` (called by the script, a blocking collective, FSDP or a barrier), in `wait_tensor` (tensor
parallelism, functional collectives) and in the few calls that block inside C++. On GPUs the host does not wait, but the compute stream
does. There a wait is the time between two events on that stream. An event costs some microseconds, so only sampled steps are measured.
Their numbers are multiples of a power of two, so that ranks measure the same steps.

A wait inside another is part of it. Only the training thread counts, and on GPUs also the thread of autograd that runs its backward pass.
Waits for a neighbour of a pipeline (send and receive) are its bubble, which is caused by the schedule, and are separate from waits for all
ranks.
"""

import functools
import threading

from .page import COLLECTIVE

SEND, RECEIVE, RECEIVE_FROM_ANY, COALESCED = 12, 13, 14, 17  # c10d::OpType
BLOCKING_INSIDE = ("monitored_barrier",)  # functions of torch.distributed that wait in C++, without a Work
NO_KIND = "this torch does not say what a wait is for: waits for neighbours in a pipeline count as waits for all ranks"
NO_FUNCTION = "this torch has no {}: on GPUs waits for other ranks are not measured under FSDP"
NO_WAIT = "this torch has no {}: waits for other ranks are not measured"


class Waits:
    """The functions that the wrappers below call."""

    def __init__(self, probe):
        self._probe = probe
        self._inside = False
        self.sampling = Sampling()
        self.is_watching = False  # Work.wait is wrapped below
        self.has_group = False  # a group of more than this rank: without it there are no waits
        self.on_device = False  # a wait of a stream was observed, or will be: FSDP shards a model
        self.peers = None  # a weak set of works of send and receive that do not report their type

    def begin(self):
        """Returns the start of a wait that counts, or None. Nested waits are skipped before Probe.call, because FSDP waits often."""
        probe = self._probe
        if probe.cycle.timeline.device != "cpu":
            return probe.call(self._begin_on_device)
        if self._inside or threading.get_ident() != probe.thread:
            return None
        return probe.call(self._begin_on_host)

    def begin_on_device(self):
        """The same for a function in which only a GPU's stream waits; on a CPU the waits inside it are observed one by one."""
        return None if self._probe.cycle.timeline.device == "cpu" else self.begin()

    def _begin_on_host(self):
        self._probe.page.begin(COLLECTIVE)
        self._inside = True
        return self._probe.cycle.timeline.mark()

    def _begin_on_device(self):
        self.on_device = True
        cycle = self._probe.cycle
        if self._inside or not cycle.samples_waits or not self._probe.is_training() or not cycle.timeline.usable():
            return None
        start = cycle.timeline.mark()
        self._inside = True
        return start

    def end(self, start, work=None):
        cycle = self._probe.cycle
        self._inside = False
        if cycle.timeline.device == "cpu":
            self._probe.page.end()
        cycle.waited(start, cycle.timeline.mark(), work is not None and self._is_for_neighbour(work))

    def joined_group(self, size):
        self.has_group = self.is_watching and size > 1

    def step_begins(self, number, last_step_s):
        """Decides whether the waits of this step are measured."""
        cycle = self._probe.cycle
        if cycle.timeline.device == "cpu":
            cycle.samples_waits, cycle.knows_waits = True, self.has_group
            return
        self.sampling.follow(last_step_s)
        cycle.samples_waits = self.sampling.takes(number)
        cycle.knows_waits = self.has_group and (cycle.samples_waits or self._probe.synchronises and not self.on_device)

    def remember_peers(self, works):
        if self.peers is None:
            import weakref

            self.peers = weakref.WeakSet()
        self.peers.update(works)

    def _is_for_neighbour(self, work):
        try:
            kind = work._get_op_type()
        except (AttributeError, RuntimeError):
            self._probe.note(NO_KIND)
            return False
        return SEND <= kind <= RECEIVE_FROM_ANY or (kind == COALESCED and self.peers is not None and work in self.peers)


class Sampling:
    """Which steps of a GPU are measured: multiples of a power of two, at most about four per second."""

    PERIOD_S = 0.25
    EVERY_MAX = 256

    def __init__(self):
        self._every = 1

    def takes(self, step):
        return step % self._every == 0

    def follow(self, step_s):
        """Changes only if the duration of a step has changed by much, so that ranks with small differences stay in step."""
        if not step_s or 0.8 * self.PERIOD_S <= self._every * step_s <= 4 * self.PERIOD_S or (self._every == 1 and step_s > self.PERIOD_S):
            return
        self._every = 1
        while self._every * step_s < self.PERIOD_S and self._every < self.EVERY_MAX:
            self._every *= 2


# === where torch waits ===


def watched(probe, original, begin=None, takes_work=False):
    """Returns `original` with its time counted as a wait; `takes_work`: it is a method of a Work."""
    begin = begin or probe.waits.begin

    @functools.wraps(original)
    def wait(*args, **kwargs):
        if probe.torch is not None and probe.torch.compiler.is_compiling():  # the compiler must see only the original
            return original(*args, **kwargs)
        start = begin()
        if start is None:
            return original(*args, **kwargs)
        try:
            return original(*args, **kwargs)
        finally:
            probe.call(probe.waits.end, start, args[0] if takes_work else None)

    wait._lockstep = True
    return wait


def watch(probe, owner, name, **how):
    """Replaces `owner.name` by the watched function; returns False if there is none."""
    original = getattr(owner, name, None)
    if original is None:
        return False
    if not getattr(original, "_lockstep", False):
        setattr(owner, name, watched(probe, original, **how))
    return True


def watch_works(probe, module):
    """`torch.distributed.distributed_c10d`: everything that waits in Python waits for a Work."""
    if not hasattr(module, "Work"):
        probe.note(NO_WAIT.format("Work"))
        return
    probe.waits.is_watching = watch(probe, module.Work, "wait", takes_work=True)
    for name in BLOCKING_INSIDE:
        watch(probe, module, name)
    watch_batches(probe, module)


def watch_batches(probe, module):
    """Sends and receives that NCCL combines are works without a type of their own."""
    original = getattr(module, "batch_isend_irecv", None)
    if original is None:
        return

    @functools.wraps(original)
    def batch_isend_irecv(*args, **kwargs):
        works = original(*args, **kwargs)
        if probe.cycle.timeline.device != "cpu":
            probe.call(probe.waits.remember_peers, works)
        return works

    module.batch_isend_irecv = batch_isend_irecv


def watch_functional(probe, module):
    if not watch(probe, module, "wait_tensor"):
        probe.note(NO_WAIT.format("wait_tensor") + " under tensor parallelism")
    watch(probe, module, "wait_tensors")  # torch 2.15


def watch_buffers(probe, package):
    """DistributedDataParallel broadcasts rank 0's buffers before a forward pass, and waits in C++."""
    watch(probe, package, "_broadcast_coalesced")


def watch_fsdp2_group(probe, module):
    """On a GPU the compute stream waits inside these: for parameters, and for buffers of gradients that are being sent. Copies are
    included."""
    _watch_on_device(probe, module, "FSDPParamGroup", ("wait_for_unshard", "post_backward"))


def watch_fsdp2_state(probe, module):
    _watch_on_device(probe, module, "FSDPState", ("_root_post_backward_final_callback",))


def _watch_on_device(probe, module, kind, names):
    for name in names:
        owner = getattr(module, kind, None)
        if owner is None or not watch(probe, owner, name, begin=probe.waits.begin_on_device):
            probe.missing_on_device.append(NO_FUNCTION.format(f"{kind}.{name}"))
