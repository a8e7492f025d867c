"""The norm of this rank's own gradients, before they are combined with those of the other ranks.

After the reduction, all ranks have the same gradients, and no rank can be named as their source. The own gradients are read in sampled
steps, for at most PARAMETERS_MAX parameters:

    DistributedDataParallel   tensor hooks on these parameters, only during a backward pass of a sampled step
    FSDP2                     the unsharded gradients that `foreach_reduce` receives
    FSDP1, compiled code      not measured; a hook would make the compiler compile again
    a group of some ranks     not measured: under tensor or pipeline parallelism, ranks hold different parameters

All ranks choose the same parameters without communication: matrices, evenly spread over the order of the model, that had a gradient in
the first step. Vectors (biases, scales) are used only if there are no matrices. Very large tensors are left out, because reading them takes
long. Steps are multiples of powers of two, see Sampling in waits.py and Budget in norms.py, so ranks have steps in common.

Of several backward passes of a step (micro-batches), the first one counts in which all of these parameters get a gradient. If FSDP2 reduces
only the last one, that is the sum over the micro-batches.
"""

import functools
import time
import weakref

from . import compiler
from .norms import Budget
from .replicas import is_ddp, param_groups

PARAMETERS_MAX = 8
ELEMENTS_MAX = 1 << 24  # per parameter
EVERY_MAX = 256  # steps
TRIES_MAX = 3  # optimizer steps in which the parameters are chosen; with LBFGS there are no gradients before the first one
NO_FUNCTION = "this torch has no foreach_reduce: under FSDP2 the norm of a rank's own gradients is not measured"


class OwnNorms:
    def __init__(self, probe):
        self._probe = probe
        self._models = []  # weak references, in the order in which the script made them
        self._tries = 0
        self._chosen = []  # weak references to parameters; under FSDP2, to their FSDPParam
        self._places = {}  # id of these objects -> index in `_chosen`
        self._budget = Budget(EVERY_MAX)
        self._found = None  # index -> norm, during a pass that is measured; None for a gradient that cannot be used
        self._handles = []
        self._spent_s = 0.0
        self.sees_reduction = False  # foreach_reduce is wrapped below

    @property
    def is_measuring(self):
        return self._found is not None

    def add(self, model):
        """Adds a DistributedDataParallel, or the state that FSDP2 keeps for a module."""
        if not is_ddp(model) and not self.sees_reduction:
            self._probe.note(NO_FUNCTION)
            return
        self._models.append(weakref.ref(model))
        self._tries = 0

    def choose(self):
        """Chooses the parameters, before the optimizer's step: then those that get a gradient have it."""
        if self._chosen or not self._models or self._tries == TRIES_MAX:
            return
        self._tries += 1
        try:
            chosen = spread(self._candidates())
            self._chosen = [weakref.ref(owner) for owner, _ in chosen]
            self._places = {id(owner): place for place, (owner, _) in enumerate(chosen)}
        except Exception as error:
            self._give_up(error)

    def begin(self):
        """A backward pass starts."""
        probe = self._probe
        step = probe.steps + 1
        if not self._chosen or probe.cycle.own_norm is not None or not self._budget.allows(step) or not probe.waits.sampling.takes(step):
            return
        if compiler.is_used():
            return
        owners = [owner() for owner in self._chosen]
        if any(owner is None for owner in owners):  # the script has made another model
            self._chosen, self._tries = [], 0
            return
        start, self._found = time.perf_counter(), {}
        try:
            for place, owner in enumerate(owners):
                if hasattr(owner, "register_hook"):
                    self._handles.append(owner.register_hook(functools.partial(self._at_gradient, place)))
        except Exception as error:
            self._give_up(error)
        self._spent_s = time.perf_counter() - start

    def reduced(self, parameters, gradients):
        """FSDP2 is about to reduce these gradients."""
        for parameter, gradient in zip(parameters, gradients):
            place = self._places.get(id(parameter))
            if place is not None:
                self._take(place, gradient)

    def end(self, failed, step_s):
        """The backward pass has ended. `failed`: its exception. `step_s`: the current duration of a step."""
        found, self._found = self._found, None
        if found is None:
            return
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        if failed is None and len(found) == len(self._chosen):
            try:
                self._keep([found[place] for place in range(len(found))])
            except Exception as error:
                self._give_up(error)
        if self._probe.cycle.timeline.device == "cpu":
            self._budget.spent(self._spent_s, step_s)

    def _candidates(self):
        """Returns [(object in `_chosen`, parameter)] of the first DistributedDataParallel that has any, or of all states of FSDP2."""
        world_size = self._probe.torch.distributed.get_world_size()
        sharded = []
        for model in [model() for model in self._models]:
            if model is None:
                continue
            if not is_ddp(model):
                sharded.extend(of_fsdp2(model, world_size))
            elif found := of_ddp(model, world_size):
                return found
        return sharded

    def _at_gradient(self, place, gradient):
        """A tensor hook. It returns None, so the gradient stays as it is."""
        self._probe.call(self._take, place, gradient)

    def _take(self, place, gradient):
        found = self._found
        if found is None:
            return
        start = time.perf_counter()
        try:
            # A second gradient of one pass (reentrant checkpointing) is a part of a sum: without a norm of the sum there is no value.
            found[place] = None if place in found else norm_of(self._probe.torch, gradient)
        except Exception as error:
            self._give_up(error)
        self._spent_s += time.perf_counter() - start

    def _keep(self, norms):
        if len({None if norm is None else norm.device for norm in norms}) != 1 or norms[0] is None:
            return
        torch, cycle, start = self._probe.torch, self._probe.cycle, time.perf_counter()
        total = torch.linalg.vector_norm(torch.stack(norms))
        if cycle.timeline.can_keep(total):
            cycle.own_norm = cycle.timeline.keep(total)
        self._spent_s += time.perf_counter() - start

    def _give_up(self, error):
        """An unknown version of torch: the rest of the probe continues. Hooks are removed at the end of the pass."""
        self._models, self._chosen, self._places = [], [], {}
        self._probe.note(f"the norm of a rank's own gradients is not measured: {type(error).__name__}")


def of_ddp(model, world_size):
    """Returns [(parameter, parameter)] of the parameters with gradients; empty if the model is not replicated on all ranks of the run."""
    if model.process_group.size() != world_size or world_size == 1:
        return []
    ignored = getattr(model, "parameters_to_ignore", ())
    parameters = [parameter for name, parameter in model.module.named_parameters() if name not in ignored]
    return [(p, p) for p in parameters if p.requires_grad and p.grad is not None and not hasattr(p, "_local_tensor")]


def of_fsdp2(state, world_size):
    """Returns [(FSDPParam, sharded parameter)] in the same way."""
    groups = [group for group in param_groups(state) if group.mesh_info.mesh.size() == world_size > 1]
    parameters = [(parameter, parameter.sharded_param) for group in groups for parameter in group.fsdp_params]
    return [(owner, p) for owner, p in parameters if p.requires_grad and p.grad is not None]


def spread(candidates):
    """Returns at most PARAMETERS_MAX of the candidates."""
    small = [one for one in candidates if one[1].numel() <= ELEMENTS_MAX]
    some = [one for one in small if one[1].dim() > 1] or small
    if len(some) <= PARAMETERS_MAX:
        return some
    return [some[at * (len(some) - 1) // (PARAMETERS_MAX - 1)] for at in range(PARAMETERS_MAX)]


def norm_of(torch, gradient):
    """Returns the norm of a gradient as a 0-dim tensor on its device. None if it is not a plain dense tensor."""
    if type(gradient) is not torch.Tensor or gradient.layout != torch.strided:
        return None
    is_half = gradient.dtype in (torch.float16, torch.bfloat16)  # float16 overflows at 65504
    return torch.linalg.vector_norm(gradient.detach(), dtype=torch.float32 if is_half else None).to(torch.float32)


def watch_reduction(probe, module):
    """Wraps `foreach_reduce` where FSDPParamGroup looks it up."""
    original = getattr(module, "foreach_reduce", None)
    if original is None:
        return

    @functools.wraps(original)
    def foreach_reduce(*args, **kwargs):
        if probe.torch is not None and probe.torch.compiler.is_compiling():  # the compiler must see only the original
            return original(*args, **kwargs)
        # It clears the list of gradients, so they are read before. A version with other arguments is left alone.
        if probe.own_norms.is_measuring and takes_lists(args):
            probe.call(probe.own_norms.reduced, args[0], args[1])
        return original(*args, **kwargs)

    module.foreach_reduce = foreach_reduce
    probe.own_norms.sees_reduction = True


def takes_lists(args):
    """Returns True if the first arguments are a list of parameters and the list of their gradients."""
    return len(args) > 1 and all(isinstance(one, list) for one in args[:2]) and len(args[0]) == len(args[1])
