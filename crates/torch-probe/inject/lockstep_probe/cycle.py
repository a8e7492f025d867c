"""Spans of a timeline between two ends of optimizer steps.

    |-- data --|-------- forward --------|------ backward ------|~ other ~|- optimizer -|
    ^ step end                                        |- sync --|                        ^ step end

`forward` runs from the end of the last fetch (or step, or backward) to the start of the backward pass. `sync` is the exposed wait, without
hidden overlap: the waits of waits.py, each subtracted from its span. Under DistributedDataParallel it is also the tail of the backward pass
after the last local gradient is ready, subtracted from `backward`; a wait inside that tail is part of it. Waits for neighbours in a pipeline
are `bubble` instead of `sync`. With an LBFGS-like closure, forward and backward are inside the optimizer's span and are subtracted from it.
A save for which the script stands still is also subtracted from its span, with the collectives inside it. So the parts never add up to more
than the step.
"""

from .optimizing import Rates

NOTHING = (0, 0.0)
# Spans and waits of one step. A step that never ends (a scaler that skips every step, an optimizer that is not from torch) must not fill the
# memory of the script: on a GPU each of them has two events, and each backward pass a loss.
PARTS_MAX = 65_536


class Cycle:
    """Collects the spans of one step after another; `close` returns the finished step."""

    def __init__(self, timeline):
        self.timeline = timeline
        self._end = None
        self._loader_seen = False
        self._neighbours_seen = False
        self.samples_waits = True  # the waits of the current step are measured
        self.knows_waits = False  # and all of them are observed: a step without waits has waited 0 seconds
        self._start_from(None)

    def _start_from(self, mark):
        self._spans = []
        self._waits = []  # (start, end, whether for a neighbour)
        self._has_all_parts = True
        self._forward_start = mark
        self._forward_aside = NOTHING
        self._saving = False
        self._saved_s = 0.0
        self._batch = None
        self._in_optimizer = False
        self._backward_start = self._gradients_ready = self._optimizer_start = None
        self.losses = []
        self.norms = []
        self.norms_are_local = False
        self.own_norm = None  # kept scalar, see own_norms.py
        self.declared = None  # (name, number, kept scalar) of a loss that the script logged; one of the two is None
        self.declares_loss = False
        self.rates = Rates()
        self.loss_scale = None  # kept scalar
        self.inputs = {}
        self.parameters = None  # replicas.Sums, in the steps that are checked
        self.samples = None
        self.tokens = None
        self.micro_batch = None  # samples of the largest batch

    def fetched(self, start, end, batch, counts, aside=None):
        """Records a wait for a DataLoader; `batch` is (samples, tokens). `counts` is False outside training. `aside`: its value at the
        start."""
        if counts:
            self._loader_seen = True
            self._add("data", start, end, self.aside() if aside is None else aside)
            self._batch = batch
        self._start_forward(end)

    def sized(self, batch):
        """Counts a batch that another thread fetched: its size is known, and no training thread waited for it."""
        self._batch = batch

    def begin_backward(self):
        mark = self.timeline.mark()
        if self._forward_start is not None:
            self._add("forward", self._forward_start, mark, self._forward_aside)
        self._count_batch()
        self._backward_start, self._gradients_ready = mark, None
        self._backward_aside = self.aside()

    def gradients_ready(self):
        self._gradients_ready = self.timeline.mark()

    def end_backward(self):
        mark = self.timeline.mark()
        if self._backward_start is not None:
            self._add("backward", self._backward_start, mark, self._backward_aside)
        if self._gradients_ready is not None:
            self._add("sync", self._gradients_ready, mark, self.aside())
        self._backward_start = self._gradients_ready = None
        self._start_forward(mark)

    def begin_optimizer(self):
        self._optimizer_start = self.timeline.mark()
        self._optimizer_aside = self.aside()
        self._start_forward(self._optimizer_start)
        self._in_optimizer = True

    def end_optimizer(self):
        self._in_optimizer = False
        if self._optimizer_start is None:
            return
        self._add("optimizer", self._optimizer_start, self.timeline.mark(), self._optimizer_aside)
        self._optimizer_start = None

    def waited(self, start, end, for_neighbour=False):
        """Records a wait for other ranks."""
        if self._saving or self._gradients_ready is not None:  # part of the save, or of the tail
            return
        self._neighbours_seen = self._neighbours_seen or for_neighbour
        if len(self._waits) >= PARTS_MAX:
            self._drop_parts()
        self._waits.append((start, end, for_neighbour))

    def begin_save(self):
        self._saving = True

    def end_save(self, seconds):
        """Records a save during which the script stood still."""
        self._saving = False
        self._saved_s += seconds

    def forget_losses(self):
        """Drops the losses after a step that a GradScaler skipped: its loss and norm belong to no step, and the scale has changed."""
        self.losses, self.norms, self.own_norm, self.loss_scale = [], [], None, None

    def close(self):
        if not self._has_all_parts:
            self._drop_parts()
        mark = self.timeline.mark()
        finished = Finished(self, self._end, mark)
        self._end = mark
        self._start_from(mark)
        return finished

    def aside(self):
        """Returns what is part of no span so far: the waits, and the seconds of saves."""
        return len(self._waits), self._saved_s

    def _drop_parts(self):
        """The step has too many parts: its phases, waits, loss and gradient norm are unknown."""
        self._has_all_parts = False
        self._spans, self._waits, self.losses, self.norms = [], [], [], []

    def _add(self, name, start, end, aside):
        if len(self._spans) >= PARTS_MAX:
            self._drop_parts()
        self._spans.append((name, start, end, aside, self.aside(), self._in_optimizer))

    def _start_forward(self, mark):
        self._forward_start, self._forward_aside = mark, self.aside()

    def _count_batch(self):
        """Counts a batch only if it is trained on, so that a validation loop adds nothing."""
        if self._batch is not None:
            samples, tokens = self._batch
            self.samples = samples if self.samples is None else self.samples + (samples or 0)
            self.tokens = tokens if self.tokens is None else self.tokens + (tokens or 0)
            self.micro_batch = max(self.micro_batch or 0, samples or 0)
            self._batch = None


class Finished:
    """One step whose device times may not have arrived yet."""

    def __init__(self, cycle, start, end):
        self._timeline = cycle.timeline
        self._start, self._end = start, end
        self._spans = cycle._spans
        self._loader_seen = cycle._loader_seen and cycle._has_all_parts
        self._neighbours_seen = cycle._neighbours_seen
        self._waits, self._knows_waits = cycle._waits, cycle._has_all_parts and (cycle.knows_waits or bool(cycle._waits))
        self._saved_s = cycle._saved_s
        self._losses, self._norms, self._norms_are_local = len(cycle.losses), len(cycle.norms), cycle.norms_are_local
        own = [] if cycle.own_norm is None else [cycle.own_norm]
        self._own_norms = len(own)
        self._declared, self._declares_loss = cycle.declared, cycle.declares_loss
        late = [] if cycle.declared is None or cycle.declared[2] is None else [cycle.declared[2]]
        self._rates, scale = cycle.rates, [] if cycle.loss_scale is None else [cycle.loss_scale]
        self._late = len(late)
        self._scalars = self._timeline.stage(cycle.losses + cycle.norms + own + late + self._rates.kept + scale)
        # The copies of the scalars are enqueued after the step's end, so they need a mark of their own.
        self._staged = self._timeline.mark()
        self._inputs, self._parameters = cycle.inputs, cycle.parameters
        self.samples, self.tokens, self.micro_batch = cycle.samples, cycle.tokens, cycle.micro_batch

    def ready(self):
        return self._timeline.ready(self._staged)

    def fields(self):
        """Returns the measured fields of the step record; unknown ones are absent."""
        fields = self._times()
        scalars = self._timeline.read(self._scalars)
        losses, norms = scalars[: self._losses], scalars[self._losses : self._losses + self._norms]
        rest = scalars[self._losses + self._norms :]
        own, rest = rest[: self._own_norms], rest[self._own_norms :]
        fields.update(self._loss(losses, rest))
        rest = rest[self._late :]
        fields.update(self._steps_with(rest[: len(self._rates.kept)], rest[len(self._rates.kept) :]))
        if own:  # of the scaled loss, if there is a scale
            fields["grad_norm_own"] = own[0] / (fields.get("loss_scale") or 1.0)
        if norms:
            square = sum(norm * norm for norm in norms)
            if self._norms_are_local:
                fields["grad_norm_local_sq"] = square
            else:
                fields["grad_norm"] = norms[0] if len(norms) == 1 else square**0.5
        fields.update(self._inputs)
        if self._parameters is not None:
            fields.update(self._parameters.fields())
        if self.samples:
            fields["samples"] = self.samples
        if self.micro_batch:
            fields["micro_batch"] = self.micro_batch
        if self.tokens:
            fields["tokens"] = self.tokens
        return fields

    def _loss(self, losses, declared):
        """Returns the script's own loss if it logs one. Between two logged losses, returns the loss of `backward` under another name."""
        fields = {}
        if losses:
            fields["loss_backward" if self._declares_loss else "loss"] = sum(losses) / len(losses)
            fields["loss_source"] = "backward" if len(losses) == 1 else "backward_mean"
        if self._declares_loss:
            fields["loss_source"] = "logged"
        if self._declared is not None:
            name, number, _ = self._declared
            fields["loss"], fields["loss_name"] = declared[0] if number is None else number, name
        return fields

    def _steps_with(self, kept_rates, scale):
        rates = self._rates.numbers + kept_rates
        fields = {"lr_min": min(rates), "lr_max": max(rates)} if rates else {}
        if scale:
            fields["loss_scale"] = scale[0]
        return fields

    def _times(self):
        totals, inside_optimizer = {}, 0.0
        waits = [self._timeline.seconds(start, end) for start, end, _ in self._waits]
        for name, start, end, (first, saved_before_s), (last, saved_s), nested in self._spans:
            seconds = self._timeline.seconds(start, end) - sum(waits[first:last]) - (saved_s - saved_before_s)
            seconds = max(0.0, seconds)
            totals[name] = totals.get(name, 0.0) + seconds
            if nested and name != "sync":
                inside_optimizer += seconds
        if "sync" in totals and "backward" in totals:
            totals["backward"] = max(0.0, totals["backward"] - totals["sync"])
        if "optimizer" in totals:
            totals["optimizer"] = max(0.0, totals["optimizer"] - inside_optimizer)
        fields = {}
        if "sync" in totals:
            fields["sync_source"] = "ddp_backward_tail"
        elif self._knows_waits:
            fields["sync_source"] = "collective_wait"
        if self._knows_waits:
            for_neighbours = sum(seconds for seconds, wait in zip(waits, self._waits) if wait[2])
            totals["sync"] = totals.get("sync", 0.0) + sum(waits) - for_neighbours
            if self._neighbours_seen:
                totals["bubble"] = for_neighbours
        if self._saved_s:
            totals["save"] = self._saved_s
        if self._loader_seen:
            totals.setdefault("data", 0.0)
        if self._start is not None:
            fields["step_s"] = self._timeline.seconds(self._start, self._end)
        fields.update((name + "_s", seconds) for name, seconds in totals.items())
        return fields
