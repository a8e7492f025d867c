"""Checksums of the parameters that several ranks hold, so that the collector can compare replicas.

Replicas apply the same averaged gradients, so their parameters are equal to the last bit. Faulty memory or arithmetic of one rank can change its parameters
without an error. Every EVERY steps, each rank computes a checksum. The collector compares the checksums of the same step. The ranks do not communicate for it.

    model                              replicas of a rank                                  tensors
    DistributedDataParallel            the ranks of its process group                      its trained parameters; of a DTensor the local part
    FSDP2 on a mesh that replicates    the ranks at the same position of the shard axis    its local shards
    FSDP2 on a mesh that only shards   none                                                none

    parameter   bits as int64 words --sum, wraps around--> one number ─┐
    parameter   …                                                      ├─ hash of the numbers in order --> 52 bits, exact in a float64
    parameter   …                                                      ┘

One flipped bit changes the sum of its parameter by a power of two, so it changes the hash. The sums are computed on the device of the tensors, without a copy of
them, and reach the host together with the other values of the step.

A rank sends no more checksums after one of these, because its replicas may differ without any fault:

    a step after a pass that did not synchronise (local SGD)     replicas differ until the script averages them, which the probe does not see
    a step that trained no replicated parameter                  a rank may make it alone, as rank 0 does when it fits a small model for an
                                                                  evaluation; from then on, its steps have other numbers than those of its replicas
"""

import weakref

# Steps between two checks. The same on all ranks, so it cannot depend on measured time. A check reads each parameter once, which a step does several times
# (forward, backward, optimizer). Measured on CPUs, a check costs 0.19 of a step with 200 tiny tensors and 0.05 with 50 million parameters and one sample, so every
# 256th step costs less than 0.1 % on average. It is a power of two, so that the agent's pools end at it.
EVERY = 256

# Modules with communication hooks after which all ranks have the same gradients. With other hooks, replicas may differ on purpose (local SGD).
EQUALISING_HOOKS = {
    "torch.distributed.algorithms.ddp_comm_hooks.default_hooks",
    "torch.distributed.algorithms.ddp_comm_hooks.mixed_precision_hooks",
    "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook",
}

COPIED_MAX = 1 << 20  # elements that are copied at once, so that a check needs little memory
MASK = (1 << 64) - 1
FACTOR = 0x9E3779B97F4A7C15  # odd, so that a change of one sum always changes the hash
BITS = 52


class Replicas:
    """Finds the parameters to check and computes their sums."""

    def __init__(self, probe):
        self._probe = probe
        self._models = []  # weak references, in the order in which the script made them
        self._has_stopped = False
        self._next_step = probe.steps + 1  # number of the next step if all steps so far trained replicated parameters
        self._known = None  # what `_trained` was made from
        self._trained = []  # weak references to the models with replicated parameters that the leading optimizer trains

    def add(self, model):
        """Adds a DistributedDataParallel, or the state that FSDP2 keeps for a module."""
        self._models.append(weakref.ref(model))

    def check(self, optimizer):
        """Computes the sums if this step is checked.

        The parameters are those before the optimizer's step. After it, a wrapper may still have to send them to other ranks (ZeRO).
        """
        probe = self._probe
        if (probe.steps + 1) % EVERY or self._has_stopped or not self._models or not self._counts_alike():
            return
        if probe.in_backward or probe.cycle.parameters is not None:
            return
        try:
            probe.cycle.parameters = self._sums(optimizer)
        except Exception as error:  # an unknown version of torch: the rest of the probe continues
            self._give_up(error)

    def stepped(self, optimizer):
        """The leading optimizer has stepped, and the probe has not counted the step yet. A closure of the step has run its passes."""
        if self._has_stopped or not self._models:
            return
        try:
            self._trained = self._trained_by(optimizer)
            trained = [model() for model in self._trained]
            counts = self._counts_alike() and (self._probe.declared or bool(trained))
            self._has_stopped = not counts or not all(synchronises(model) for model in trained if model is not None)
            self._next_step += 1
        except Exception as error:
            self._give_up(error)

    def _counts_alike(self):
        """Returns True if a step has the same number on all ranks. A script that numbers its steps itself sees to that."""
        return self._probe.declared or self._next_step == self._probe.steps + 1

    def _trained_by(self, optimizer):
        known = (id(optimizer), len(self._models), sum(len(group["params"]) for group in optimizer.param_groups))
        if self._known == known:
            return self._trained
        self._known = known
        trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
        alive = [(reference, reference()) for reference in self._models]
        replicated = [(reference, replicated_of(model)) for reference, model in alive if model is not None]
        return [reference for reference, groups in replicated if any(id(p) in trained for _, parameters in groups for p in parameters)]

    def _give_up(self, error):
        self._has_stopped = True
        self._probe.note(f"parameters of replicas are not compared: {type(error).__name__}")

    def _sums(self, optimizer):
        torch, timeline = self._probe.torch, self._probe.cycle.timeline
        groups = self._replicated({id(p) for group in optimizer.param_groups for p in group["params"]})
        if len(groups) != 1:  # none; or several, so that no other rank holds all of these parameters
            return None
        [(ranks, tensors)] = groups.items()
        with torch.no_grad():
            locals_ = [local_part(torch, tensor) for tensor in tensors]
            if any(local is None for local in locals_):
                return None
            devices = {str(local.device) for local in locals_}
            if devices not in ({timeline.device}, {"cpu"}):
                return None
            return Sums(ranks[0], timeline, timeline.keep_whole([sum_of_bits(torch, local) for local in locals_]))

    def _replicated(self, trained):
        """Returns the trained parameters by the ranks that hold them, in the order of the models. Empty if a hook may make replicas differ."""
        groups = {}
        for model in [model() for model in self._models]:
            if model is None:
                continue
            for process_group, parameters in replicated_of(model):
                parameters = [p for p in parameters if id(p) in trained and p.requires_grad]
                if not parameters:
                    continue
                if process_group is None:
                    return {}
                ranks = tuple(sorted(self._probe.torch.distributed.get_process_group_ranks(process_group)))
                if len(ranks) > 1:
                    groups.setdefault(ranks, []).extend(parameters)
        return groups


def is_ddp(model):
    return hasattr(model, "require_forward_param_sync")


def replicated_of(model):
    """Returns [(process group, parameters)] of a model. The group is None if a hook may give its ranks different gradients."""
    return of_ddp(model) if is_ddp(model) else of_fsdp2(model)


def of_ddp(model):
    ignored = getattr(model, "parameters_to_ignore", ())
    parameters = [parameter for name, parameter in model.module.named_parameters() if name not in ignored]
    is_alike = all(is_equalising(hook) for hook, _ in getattr(model, "_comm_hooks", ()))
    return [(model.process_group if is_alike else None, parameters)]


def of_fsdp2(state):
    found = []
    for group in param_groups(state):
        process_group = getattr(group.mesh_info, "replicate_process_group", None)
        if process_group is not None:
            found.append((process_group, [parameter.sharded_param for parameter in group.fsdp_params]))
    return found


def synchronises(model):
    """Returns True if the last pass synchronised the gradients of the replicas."""
    if is_ddp(model):
        return model.require_forward_param_sync and model.require_backward_grad_sync
    return all(group.reduce_grads and group.all_reduce_grads for group in param_groups(model))


def is_equalising(hook):
    """Returns True if all ranks have the same gradients after a hook. The hook may wrap another one, which it keeps in its closure."""
    inner = [cell.cell_contents for cell in getattr(hook, "__closure__", None) or ()]
    return getattr(hook, "__module__", None) in EQUALISING_HOOKS and all(is_equalising(one) for one in inner if callable(one))


def param_groups(state):
    """Returns the groups of parameters of FSDP2's state."""
    groups = getattr(state, "_fsdp_param_groups", None)  # older versions have one group
    if groups is None:
        only = getattr(state, "_fsdp_param_group", None)
        groups = [] if only is None else [only]
    return groups


def local_part(torch, parameter):
    """Returns this rank's part of a parameter. None if it is not a plain dense tensor (quantised, sparse, on the meta device)."""
    local = getattr(parameter, "_local_tensor", parameter)
    is_plain = type(local) in (torch.Tensor, torch.nn.Parameter) and local.layout == torch.strided and not local.is_quantized and local.device.type != "meta"
    return local if is_plain and is_dense(local) else None


def is_dense(tensor):
    """Returns True if the elements fill one range of memory without gaps, in any order (channels_last)."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size != 1):
        if stride != expected and tensor.numel():
            return False
        expected *= size
    return True


def sum_of_bits(torch, tensor):
    """Returns the sum of the int64 words of a tensor, as a 0-dim tensor on its device. Elements at the end that fill no word are added one by one."""
    flat, size = tensor.as_strided((tensor.numel(),), (1,)), tensor.element_size()
    if size >= 8:
        return flat.view(torch.int64).sum()
    each = 8 // size  # elements in a word
    rest = flat.numel() % each
    if tensor.storage_offset() % each:  # not aligned to words: copy
        ends = range(0, flat.numel() - rest, COPIED_MAX)
        total = sum(flat[at : min(at + COPIED_MAX, flat.numel() - rest)].clone().view(torch.int64).sum() for at in ends)
    elif rest:
        total = flat[:-rest].view(torch.int64).sum()
    else:
        return flat.view(torch.int64).sum()
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32}[size]
    return total + flat[flat.numel() - rest :].view(whole).sum(dtype=torch.int64)


class Sums:
    """The sums of one step. The device may not have computed them yet."""

    def __init__(self, first_rank, timeline, kept):
        self._first_rank, self._timeline, self._kept = first_rank, timeline, kept

    def fields(self):
        return {"parameters_checksum": mixed(self._timeline.read_whole(self._kept)), "replica_group": self._first_rank}


def mixed(sums):
    """Returns a hash of BITS bits that depends on each sum and on its position."""
    total = 0
    for one in sums:
        total = (total * FACTOR + one + 1) & MASK
    total ^= total >> 33  # the last rounds of MurmurHash3: the upper bits depend on all bits
    total = total * 0xFF51AFD7ED558CCD & MASK
    total ^= total >> 33
    total = total * 0xC4CEB9FE1A85EC53 & MASK
    return (total ^ total >> 33) >> (64 - BITS)
