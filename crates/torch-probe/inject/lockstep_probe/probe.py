"""The probe of this process: every hook calls `call`, and every record is sent by `say`."""

import atexit
import collections
import os
import threading
import time
import weakref

from . import compiler, hooks, identity, inputs, norms, optimizing
from .batch import measure
from .channel import Channel
from .cycle import Cycle
from .errors import ErrorReporter, is_of_signal_handler
from .imports import AfterImport
from .leader import Leader
from .live import LiveOrder
from .loggers import Logged
from .members import Members
from .meshes import Meshes
from .own_norms import OwnNorms
from .page import DATA, ENDING, GROUP_MADE, OPTIMIZER, STARTING, TORCH_IMPORTED, Page
from .record import Envelope, head
from .replicas import Replicas
from .reports import Reports
from .saved_tensors import SavedTensors
from .saves import Saves
from .server import NO_RECORDER, WorkerServer, lacks_recorder
from .stop import StopOrder
from .timeline import CudaTimeline, HostTimeline
from .waits import Waits

FAULTS_MAX = 10  # a probe with more internal errors is turned off permanently
PENDING_MAX = 64  # steps whose device times have not arrived; older ones are dropped and counted
BURST_MAX = 4  # steps sent at once; the kernel queues ten datagrams by default, for all ranks of a node together
SKIPS_TOLD_EVERY_NS = 1_000_000_000
COUNTED_AFTER_STEPS = 2  # by then, each of several optimizers has stepped
DEVICE_CHANGES_MAX = 4  # a script may start on another device; one that changes it in each step would never be measured
BACKWARDS_WITHOUT_OPTIMIZER = 64  # then the script has no torch optimizer, and each backward pass counts as a step


def resumed_step(environ):
    """Returns the step of the checkpoint from which this attempt continues: the attempt's first step is the next one."""
    step = environ.get("LOCKSTEP_RESUME_STEP", "")
    return int(step) if step.isdecimal() else 0


class Probe:
    def __init__(self, environ=os.environ):
        self.on = True
        self.torch = None
        self.faults = 0
        self.notes = []
        self.channel = Channel(environ["LOCKSTEP_PROBE_SOCKET"])
        self.envelope = Envelope(environ)
        self.cycle = Cycle(HostTimeline())
        self.waits = Waits(self)
        self.missing_on_device = []  # notes that matter if the rank computes on a GPU
        self.leader = Leader()
        self.steps = self._first_step = resumed_step(environ)
        self._compiler_noted = False
        self.skipped = None  # a GradScaler's skipped steps; None until one is used
        self.skipped_in_a_row = 0
        self._skips_told_ns = 0
        self.optimizer_calls = 0
        self._optimizers = weakref.WeakSet()  # until their parameters are counted
        self._parameters = None
        self.shards_dtensors = False  # FSDP2 is in use: its shards are DTensors
        self.backwards = 0
        self.in_backward = False
        self._losses_before = 0  # number of losses before the current backward pass
        self.synchronises = False  # DistributedDataParallel is in use: the tail of a backward pass is a wait
        self.shard_weight = None  # weight of FSDP1's shards, see norms.py; None without FSDP1
        self.thread = threading.get_ident()
        self._pending = collections.deque()
        self._pending_dropped = 0
        self._budget = norms.Budget()
        self._inputs_budget = norms.Budget(inputs.EVERY_MAX)
        self._last_step_s = None
        self._scaled = None
        self._device = self._root_device = None
        self._device_changes = 0
        self._hello = None  # (connection, notes) of the last hello that was sent
        self._error_reporter = ErrorReporter(self)
        self.saves = Saves(self, environ["LOCKSTEP_PROBE_SOCKET"])
        self.reports = Reports(self.note)
        self.declared = False  # the script itself marks the ends of its steps
        self.logged = Logged(self)
        self.meshes = Meshes(self)
        self.replicas = Replicas(self)
        self.own_norms = OwnNorms(self)
        self.live = LiveOrder(environ["LOCKSTEP_PROBE_SOCKET"])
        self.page = Page(environ)
        self.members = Members(environ)
        self.server = WorkerServer(environ)
        self.knobs = None  # changes in the script; imported only if requested
        self.saved_tensors = None
        self.stop = StopOrder(environ["LOCKSTEP_PROBE_SOCKET"])
        self._meter = Meter() if environ.get("LOCKSTEP_PROBE_DEBUG") else None

    def install(self, environ=os.environ):
        self.call(self.page.reach, STARTING)
        knobs, patches = environ.get("LOCKSTEP_KNOBS"), {}
        if knobs:
            self.call(self._install_knobs, knobs)  # before the probe's own hooks, which watch the changed script
        if knobs or environ.get("LOCKSTEP_MEASURE_SAVED") == "1":
            self.saved_tensors = SavedTensors(self)
            patches = self.saved_tensors.patches()
        AfterImport({**hooks.after_import(self), **patches}, self.fault).install()
        self._error_reporter.install()
        os.register_at_fork(after_in_child=self.turn_off)
        atexit.register(self.call, self.at_exit)

    def _install_knobs(self, text):
        from . import knobs

        self.knobs = knobs.install(self, text)

    def _turn_live(self, text):
        if self.knobs is None:
            self._install_knobs("{}")
        self.knobs.live(text)

    # === the two entry points ===

    def call(self, function, *args):
        """Runs probe code during user code. No error of the probe leaves this function, but one that a signal handler of the script raises."""
        if not self.on:
            return None
        meter = self._meter
        if meter is not None:
            meter.enter()
        try:
            return function(*args)
        except Exception as error:
            if is_of_signal_handler(error):
                raise
            self.fault(error)
            return None
        finally:
            if meter is not None:
                meter.leave()

    call._torchdynamo_disable = True  # a compiler that traces the script stops here

    def say(self, kind, fields, **times):
        return self.channel.send(self.envelope.seal(kind, fields, **times))

    def say_last(self, kind, fields):
        # A Python without torch is a wrapper around the rank, and its end means nothing. But its failure is reported: a script that fails
        # at its imports or its arguments never imports torch.
        if self.torch is not None or kind == "error":
            self.channel.send_last_words(self.envelope.seal(kind, fields))

    def fault(self, error):
        self.faults += 1
        self.note(f"the probe failed inside: {type(error).__name__}: {head(str(error), 200)}")
        if self.faults >= FAULTS_MAX:
            self.turn_off()

    def is_training_thread(self):
        return threading.get_ident() == self.thread

    def is_training(self):
        """Returns True in the thread that trains, or in autograd's thread that runs its backward pass on a GPU."""
        return self.in_backward or self.is_training_thread()

    def end_after_step(self):
        """The agreed step is over. Also waits for its work on the device, because a rank that leaves early would break what others need."""
        self.call(self._finish_device)
        self.stop.act()

    def _finish_device(self):
        if self.cycle.timeline.device != "cpu":
            self.torch.cuda.synchronize()

    def note(self, text):
        if text not in self.notes and len(self.notes) < 8:
            self.notes.append(text)

    def turn_off(self):
        """Turns the probe off in a forked child, or after too many errors."""
        self.on = False
        self.channel.close()
        self.page.close()

    # === called by hooks ===

    def torch_imported(self, torch):
        self.torch = torch
        self.page.reach(TORCH_IMPORTED)
        if self.saved_tensors is not None:
            self.call(self.saved_tensors.torch_imported, torch)
        try:
            self.server.start(torch)
        except Exception as error:
            self.note(f"its stacks cannot be asked for, the worker server does not start: {head(str(error), 200)}")
        self.say_hello()

    def module_imported(self):
        """A module that the hooks watch was imported. The imports of torch take seconds, in which the rank moves."""
        if self.is_training_thread():
            self.page.imported()

    def group_joined(self):
        self.page.reach(GROUP_MADE)
        self._device = self._device or self._bound_gpu()
        self.waits.joined_group(self.torch.distributed.get_world_size())
        self.waits.step_begins(self.steps + 1, self._last_step_s)
        if lacks_recorder(self.torch):
            self.note(NO_RECORDER)
        self.say_hello()

    def fetching(self):
        """Returns the start of a wait for a DataLoader, or None in a thread whose waits delay no other thread."""
        if threading.get_ident() != self.thread or not self.cycle.timeline.usable():
            return None
        self.page.enter(DATA)
        return self.cycle.timeline.mark(), self.cycle.aside()

    def fetched(self, start, batch):
        if start is not None:
            self.page.fetched(batch is not None)
        size = None if batch is None else measure(self.torch, batch)
        if start is not None:
            mark, aside = start
            trains = self.torch.is_grad_enabled()
            self.cycle.fetched(mark, self.cycle.timeline.mark(), size, counts=trains, aside=aside)
            if trains and batch is not None:
                self._note_inputs(batch)
        elif size is not None:
            self.cycle.sized(size)

    def _note_inputs(self, batch):
        """The first batch of a step for which the time budget allows it."""
        if self.cycle.inputs or not self._inputs_budget.allows(self.steps + 1):
            return
        start = time.perf_counter()
        self.cycle.inputs = inputs.statistics(self.torch, batch)
        self._inputs_budget.spent(time.perf_counter() - start, self._last_step_s)

    def begin_backward(self, tensors):
        """Returns True if this backward pass is the rank's own, not a nested one or one of another thread."""
        if self.in_backward or threading.get_ident() != self.thread:
            return False
        root = tensors if isinstance(tensors, self.torch.Tensor) or is_edge(tensors) else next(iter(tensors), None)
        if is_edge(root):
            return self._begin_backward_from_edge()
        if not isinstance(root, self.torch.Tensor):
            return False
        self._follow_device(root.device)
        if not self.cycle.timeline.usable():
            return False
        self.page.begin_backward()
        self._losses_before = len(self.cycle.losses)
        self._note_loss(root)
        handle = root.register_hook(self._at_backward_root) if self.synchronises and root.requires_grad else None
        self.cycle.begin_backward()
        if self.saved_tensors is not None:
            self.saved_tensors.begin_backward()
        self.own_norms.begin()
        self.in_backward = True
        return handle or True

    def _begin_backward_from_edge(self):
        """A pipeline stage that is not the last starts its backward pass at its output: there is no loss."""
        if self._root_device is None and self._device is not None:
            self._follow_device(self.torch.device(self._device))
        if not self.cycle.timeline.usable():
            return False
        self.page.begin_backward()
        self._losses_before = len(self.cycle.losses)
        self.cycle.begin_backward()
        self.in_backward = True
        return True

    def end_backward(self, handle, failed=None):
        """`failed`: the exception of the pass, which the script may handle."""
        self.in_backward = False
        self.page.rest()
        self.cycle.end_backward()
        self.own_norms.end(failed, self._last_step_s)
        if self.saved_tensors is not None:
            self.saved_tensors.end_backward()
        if handle is not True:
            handle.remove()
        if failed is not None:
            del self.cycle.losses[self._losses_before :]
            self.note(f"a backward pass raised {failed}: its loss does not count, its time belongs to the step it came in")
            return
        self.backwards += 1
        if self.optimizer_calls == 0 and not self.declared and self.backwards > BACKWARDS_WITHOUT_OPTIMIZER:
            self.note("no torch.optim.Optimizer steps here: each backward pass counts as a step; lockstep_probe.step() says where a step ends")
            self._end_step()

    def begin_optimizer(self, optimizer, closure):
        self.optimizer_calls += 1
        self.thread = threading.get_ident()
        self.page.enter(OPTIMIZER)
        if not self.cycle.timeline.usable():
            return
        self.leader.saw(optimizer)
        if self.leader.is_leading(optimizer):
            self.cycle.rates = optimizing.rates_of(self.torch, optimizer, self.cycle.timeline)
        if self._optimizers is not None:
            self._optimizers.add(optimizer)
        if closure is None and self.leader.is_leading(optimizer):
            self._note_local_norm(optimizer)
        if self.leader.is_leading(optimizer):
            self.replicas.check(optimizer)
            self.own_norms.choose()
        self.cycle.begin_optimizer()

    def end_optimizer(self, optimizer, closure):
        self.page.rest()
        if not self.cycle.timeline.usable():
            return
        self.cycle.end_optimizer()
        if self.leader.is_leading(optimizer):
            if closure is not None:  # it computed the gradients, so they did not exist before the step
                self._note_local_norm(optimizer)
            self.replicas.stepped(optimizer)
            if not self.declared:
                self._end_step()

    def marked(self, number):
        """The script marks the end of a step: its number, or None for the next number."""
        self.declared = True
        if number is None or number > self.steps:
            self.steps = self.steps if number is None else int(number) - 1
            self._end_step()

    def shards(self, fsdp):
        """FSDP1 has sharded a module over `fsdp.process_group`, and has copies of the shards in other such groups."""
        self.missing_on_device.append("FSDP1: on GPUs waiting for other ranks is not measured, it hides inside forward and backward; own gradient norms are not measured")
        ranks = 1 if fsdp.sharding_strategy.name == "NO_SHARD" else fsdp.process_group.size()
        self.shard_weight = ranks / self.torch.distributed.get_world_size()

    def clipped(self, total_norm):
        """torch's own norm before clipping; for a sharded model, this rank's part."""
        if not isinstance(total_norm, self.torch.Tensor):
            return
        local = getattr(total_norm, "_local_tensor", None)
        weight = self.shard_weight if local is None else norms.weight_of(total_norm)
        total = total_norm if local is None else local
        self._keep_norm(total if weight is None else total * weight**0.5, weight is not None)

    def clipped_globally(self, total_norm):
        """The norm from a method that communicates with the other ranks; the norms inside it do not count again."""
        if isinstance(total_norm, self.torch.Tensor):
            self.cycle.norms, self.cycle.norms_are_local = [], False
            self._keep_norm(total_norm, False)

    def clipped_otherwise(self, gradients):
        """Clipping by another norm than the 2-norm: ours must be computed before it."""
        if not self.cycle.timeline.usable():
            return
        found = norms.of_gradients(self.torch, gradients, self.shard_weight)
        if found is not None:
            self._keep_norm(*found)

    def scaled(self, scaler, loss, result):
        """A GradScaler multiplied the loss: keeps the true one until the product's backward pass."""
        if not scaler.is_enabled() or not self.cycle.timeline.usable():
            return
        self.skipped = self.skipped or 0
        scale = getattr(scaler, "_scale", None)
        if self.cycle.loss_scale is None and scale is not None and self.cycle.timeline.can_keep(scale):
            self.cycle.loss_scale = self.cycle.timeline.keep(scale)
        if isinstance(loss, self.torch.Tensor) and loss.numel() == 1:
            self._scaled = (id(result), loss.detach(), scaler)

    def scaler_stepped(self, calls_before, scaler):
        if scaler.is_enabled() and self.optimizer_calls == calls_before:
            self.skipped = (self.skipped or 0) + 1
            self.skipped_in_a_row += 1
            self.cycle.forget_losses()
            self._tell_skips()

    def _tell_skips(self):
        """Reports skipped steps. If every step is skipped, none ends, and no record of a step would report it."""
        now_ns = time.monotonic_ns()
        if self.skipped_in_a_row > 1 and now_ns - self._skips_told_ns >= SKIPS_TOLD_EVERY_NS:
            self._skips_told_ns = now_ns
            self.say("skips", {"skipped_steps": self.skipped, "in_a_row": self.skipped_in_a_row})

    # === records ===

    def say_hello(self):
        fields = identity.fields(self.torch, self._device, self.notes)
        if self.say("hello", {**fields, "worker_server": self.server.name, "parameters": self._parameters}):
            self._hello = (self.channel.connections, len(self.notes))

    def at_exit(self):
        self.page.enter(ENDING)
        self._error_reporter.report_unhandled()
        while self._has_finished_step():
            self._flush()
            time.sleep(0.002)  # gives the agent time to read; at most PENDING_MAX / BURST_MAX times, in a process that is ending
        self.logged.say(time.monotonic_ns(), at_once=True)
        if self.knobs is not None:
            self.knobs.settle()
        fields = {"step": self.steps, "dropped": self.channel.dropped + self._pending_dropped, "notes": self.notes or None}
        if self._meter is not None:
            fields.update(self._meter.fields())
        self.say_last("bye", fields)

    def _end_step(self):
        self.steps += 1
        self.skipped_in_a_row = 0
        self.page.stepped(self.steps)
        self.cycle.declares_loss = self.logged.declares_loss(self.steps)
        finished = self.cycle.close()
        self.waits.step_begins(self.steps + 1, self._last_step_s)
        counters = {"step": self.steps, "skipped_steps": self.skipped, **self.cycle.timeline.memory()}
        if self.saved_tensors is not None:
            counters["saved_tensor_bytes"] = self.saved_tensors.step_ended()
        mono_ns = time.monotonic_ns()
        counters.update(self.reports.take())
        self._pending.append((finished, counters, time.time_ns(), mono_ns))
        if len(self._pending) > PENDING_MAX:
            self._pending.popleft()
            self._pending_dropped += 1
        self._flush()
        self.logged.say(mono_ns)
        ordered = self.live.step_ended(mono_ns)
        if ordered is not None:
            self._turn_live(ordered)
        if self.knobs is not None:
            self.knobs.step_ended()
        if self._optimizers is not None and self.steps >= self._first_step + COUNTED_AFTER_STEPS:
            self.call(self._count_parameters)
        if self.stop.step_ended(self.steps, mono_ns):
            self.say_last("stop", {"step": self.steps, "how": self.stop.how()})

    def _count_parameters(self):
        """Runs once. Not if DTensors are parts of a layer instead of the data: then the work of a step is divided by another number."""
        optimizers, self._optimizers = list(self._optimizers), None
        if not self.meshes.is_data_parallel() or (not self.shards_dtensors and optimizing.has_dtensors(optimizers)):
            return
        world_size = int(os.environ["WORLD_SIZE"])
        shard_ranks = None if self.shard_weight is None else round(self.shard_weight * world_size)
        self._parameters = optimizing.parameters_of(optimizers, shard_ranks)
        self._hello = None  # sends it

    def _flush(self):
        """Sends steps whose device times have arrived, in order; the next step's end sends the rest."""
        for _ in range(BURST_MAX):
            if not self._has_finished_step():
                break
            finished, fields, wall_ns, mono_ns = self._pending.popleft()
            fields.update(finished.fields())
            fields["dropped"] = self.channel.dropped + self._pending_dropped
            self._last_step_s = fields.get("step_s", self._last_step_s)
            self._note_compiler(fields)
            self.say("step", fields, wall_ns=wall_ns, mono_ns=mono_ns)
        self.meshes.tell()
        if self.channel.connected() and self._hello != (self.channel.connections, len(self.notes)):
            self.say_hello()  # a new agent listens that has no hello of this rank, or there is a new note

    def _note_compiler(self, fields):
        if self.steps > self._first_step + 1 and not self._compiler_noted:  # the first step has no previous step that marks its start
            hidden = compiler.what_it_hides(fields)
            self._compiler_noted = hidden is not None
            if hidden is not None:
                self.note(hidden)

    def _has_finished_step(self):
        return bool(self._pending) and self._pending[0][0].ready()

    # === parts ===

    def _follow_device(self, device):
        """The first backward pass shows the device of the rank; a change of device restarts the measurement. After some changes, the rank
        stays on a GPU."""
        if device == self._root_device:
            return
        returns_to_gpu = device.type == "cuda" and self.cycle.timeline.device == "cpu"
        if self._device_changes >= DEVICE_CHANGES_MAX and not returns_to_gpu:
            self.note(f"backward passes change between devices: times are those of {self._device} only")
            return
        self._device_changes += 1
        self._root_device, self._device = device, str(device)
        if device.type == "cuda" or self.cycle.timeline.device != "cpu":
            self.cycle = Cycle(CudaTimeline(self.torch, device) if device.type == "cuda" else HostTimeline())
            self._pending.clear()
            self.waits.step_begins(self.steps + 1, self._last_step_s)
        if device.type == "cuda":
            self.note_missing_on_device()
        self.say_hello()

    def note_missing_on_device(self):
        for text in self.missing_on_device:
            self.note(text)
        self.waits.on_device = self.waits.on_device or bool(self.missing_on_device)  # then the waits of the steps in between are unknown

    def _bound_gpu(self):
        """Returns the GPU that the script uses, if it has initialised CUDA; the probe must not initialise it."""
        cuda = self.torch.cuda
        return f"cuda:{cuda.current_device()}" if cuda.is_available() and cuda.is_initialized() else None

    def _note_loss(self, root):
        if root.numel() != 1 or not self.cycle.timeline.can_keep(root):
            return
        (product, true_loss, scaler), self._scaled = self._scaled or (None, None, None), None
        loss = whole_of(true_loss if product == id(root) else root)
        if loss is None:
            return
        if scaler is not None and product != id(root):
            loss = loss.detach() / scaler._scale
        self.cycle.losses.append(self.cycle.timeline.keep(loss))

    def _at_backward_root(self, _gradient):
        self.call(self._queue_gradients_ready)

    def _queue_gradients_ready(self):
        """Requests a callback of autograd when all local gradients are ready.

        DDP queues the callback that waits for its buckets when the last of them is full. This callback is queued earlier, at the start of
        the pass, and autograd runs them in that order. The time between this callback and the end of the pass is the wait for other ranks.
        """
        engine = self.torch.autograd.Variable._execution_engine
        engine.queue_callback(lambda: self.call(self.cycle.gradients_ready))

    def _note_local_norm(self, optimizer):
        if self.cycle.norms or not self._budget.allows(self.steps + 1):
            return
        start = time.perf_counter()
        found = norms.of_optimizer(self.torch, optimizer, self.shard_weight)
        if found is None:
            return
        total, local = found
        scale = getattr(optimizer, "grad_scale", None)  # a fused optimizer unscales inside its own step
        self._keep_norm(total if scale is None else total / scale, local)
        if self.cycle.timeline.device == "cpu":
            self._budget.spent(time.perf_counter() - start, self._last_step_s)

    def _keep_norm(self, total, local):
        # A copy that is made while a CUDA graph is captured would be a part of the script's graph.
        if self.cycle.timeline.can_keep(total) and self.cycle.timeline.usable():
            self.cycle.norms_are_local = self.cycle.norms_are_local or local
            self.cycle.norms.append(self.cycle.timeline.keep(total))


def whole_of(tensor):
    """Returns a plain tensor as it is, and of a DTensor this rank's copy. None if other ranks have parts of it: reading it takes a collective."""
    local = getattr(tensor, "_local_tensor", None)
    if local is None:
        return tensor
    return local if all(placement.is_replicate() for placement in tensor.placements) else None


def is_edge(root):
    """Returns True for a torch.autograd.graph.GradientEdge, which newer versions of torch accept as the root of a backward pass."""
    return hasattr(root, "node") and hasattr(root, "output_nr")


class Meter:
    """Measures the probe's own time in the training thread, if LOCKSTEP_PROBE_DEBUG is set."""

    def __init__(self):
        self._thread = threading.get_ident()
        self.calls = self.depth = self.cpu_ns = self.wall_ns = 0

    def enter(self):
        if threading.get_ident() != self._thread:
            return
        if self.depth == 0:
            self._cpu, self._wall = time.thread_time_ns(), time.perf_counter_ns()
        self.depth += 1

    def leave(self):
        if threading.get_ident() != self._thread:
            return
        self.depth -= 1
        if self.depth == 0:
            self.cpu_ns += time.thread_time_ns() - self._cpu
            self.wall_ns += time.perf_counter_ns() - self._wall
            self.calls += 1

    def fields(self):
        return {"probe_calls": self.calls, "probe_cpu_ns": self.cpu_ns, "probe_wall_ns": self.wall_ns}
