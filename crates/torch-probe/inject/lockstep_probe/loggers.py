"""Values that the script logs itself, with MLflow, Weights & Biases or TensorBoard: its author chose better names than we could.

    log_metric, log_metrics, Run.log, add_scalar, … ──▶ Logged ─┬─ a training loss ─▶ `loss` of the next step record
                                                                └─ any other name ──▶ `logged` records, at most one per second

Nothing is imported for this: if the script imports a logger, its functions are wrapped, as in torch. A logged loss is in the record of the
step that ends next, which is the following step if a script logs after `optimizer.step()`. A tensor on a GPU is used only as the loss,
because reading it would wait for the device.
"""

import functools
import numbers

from . import record

# Best first. `Loss/train` is from TensorBoard's own tutorial; a plain `loss` may be any loss, so it comes last.
LOSSES = ("train/loss", "train_loss", "training/loss", "training_loss", "loss/train", "loss")
LAPSE_STEPS = 1000  # steps without a logged loss: the script has stopped logging, and the loss of `backward` counts again
NAMES_MAX = 64  # per run; a script that creates names as it runs must not fill the store
NAME_BYTES_MAX = 64
DEPTH_MAX = 3  # W&B accepts nested dictionaries
SAY_EVERY_NS = 1_000_000_000


class Logged:
    """Logged values that were not sent yet."""

    def __init__(self, probe):
        self._probe = probe
        self._loss_preference = len(LOSSES)
        self._loss_step = None  # the number of finished steps when a loss was last logged
        self._values = {}
        self._names = set()
        self._next_say_ns = 0

    def take(self, pairs):
        for name, value in pairs:
            name = clean(name)
            if name is None:
                self._probe.note("the script logs values under names that are too long or hold control characters: these are not shown")
            elif name.lower() in LOSSES:
                self._take_loss(name, value)
            else:
                self._take_value(name, value)

    def declares_loss(self, step):
        """Returns True if the script's own loss counts at this step."""
        return self._loss_step is not None and step - self._loss_step <= LAPSE_STEPS

    def say(self, now_ns, at_once=False):
        if not self._values or (now_ns < self._next_say_ns and not at_once):
            return
        values, self._values = self._values, {}
        self._next_say_ns = now_ns + SAY_EVERY_NS
        self._probe.say("logged", {"step": self._probe.steps, "values": {name: record.json_value(value) for name, value in values.items()}})

    def _take_loss(self, name, value):
        preference = LOSSES.index(name.lower())
        if preference > self._loss_preference:
            return
        cycle = self._probe.cycle
        number = plain(value)
        if number is None and (not is_scalar_tensor(value) or not cycle.timeline.can_keep(value)):
            return
        self._loss_preference, self._loss_step = preference, self._probe.steps
        cycle.declared = (name, number, None if number is not None else cycle.timeline.keep(value))

    def _take_value(self, name, value):
        number = plain(value)
        if number is None:
            if is_scalar_tensor(value):
                self._probe.note("values that the script logs as tensors on a GPU are not shown: reading them would wait for the GPU")
            return
        if name not in self._names:
            if len(self._names) >= NAMES_MAX:
                return self._probe.note(f"the script logs values under more than {NAMES_MAX} names: only the first are shown")
            self._names.add(name)
        self._values[name] = number


def clean(name):
    """Returns a name that is valid as a label, or None if the text is not a name."""
    if type(name) is not str or not name.isprintable() or not 0 < len(name.encode()) <= NAME_BYTES_MAX:
        return None
    return name.replace('"', "_").replace("\\", "_")


def plain(value):
    """Returns a number as a float if reading it does not wait for a device."""
    if isinstance(value, numbers.Real):
        return None if isinstance(value, bool) else float(value)
    if is_scalar_tensor(value):
        return float(value.item()) if value.is_cpu else None
    if getattr(value, "size", None) == 1 and hasattr(value, "item"):  # an array of NumPy
        item = value.item()
        return float(item) if isinstance(item, numbers.Real) else None
    return None


def is_scalar_tensor(value):
    """Not a DTensor: reading it may take a collective, and often only one rank logs."""
    return hasattr(value, "is_cpu") and hasattr(value, "numel") and value.numel() == 1 and not hasattr(value, "_local_tensor")


def flat(values, prefix="", depth=DEPTH_MAX):
    """Yields (name, value) of a dictionary and its nested dictionaries."""
    for name, value in values.items():
        name = f"{prefix}{name}"
        if isinstance(value, dict):
            if depth > 1:
                yield from flat(value, f"{name}.", depth - 1)
        else:
            yield name, value


# === the loggers ===


def after(probe, owner, name, pairs_of):
    """Wraps `owner.name`: calls it, then uses what `pairs_of(*its arguments)` returns."""
    original = getattr(owner, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def logging(*args, **kwargs):
        result = original(*args, **kwargs)
        probe.call(lambda: probe.logged.take(pairs_of(*args, **kwargs)))
        return result

    logging._torchdynamo_disable = True
    setattr(owner, name, logging)


def watch_mlflow(probe, module):
    after(probe, module, "log_metric", lambda key, value, *_, **__: [(key, value)])
    after(probe, module, "log_metrics", lambda metrics, *_, **__: metrics.items())


def watch_mlflow_client(probe, module):
    """The client that frameworks use; the functions above also call it, so they report the same value twice."""
    after(probe, module.MlflowClient, "log_metric", lambda _self, run_id, key, value, *_, **__: [(key, value)])
    after(probe, module.MlflowClient, "log_batch", lambda _self, run_id, metrics=(), *_, **__: of_entities(metrics))


def of_entities(metrics):
    """Leaves out MLflow's own measurements of the machine."""
    return [(metric.key, metric.value) for metric in metrics if not metric.key.startswith("system/")]


def watch_wandb(probe, module):
    """`wandb.log` is the method of the run that `wandb.init` has created."""
    after(probe, module.Run, "log", lambda _self, data, *_, **__: flat(data))


def watch_tensorboard(probe, module):
    after(probe, module.SummaryWriter, "add_scalar", lambda _self, tag, scalar_value, *_, **__: [(tag, scalar_value)])
    after(probe, module.SummaryWriter, "add_scalars", lambda _self, main_tag, tag_scalar_dict, *_, **__: flat(tag_scalar_dict, f"{main_tag}/"))
