"""The norm of the gradients that an optimizer is about to apply, computed from local memory only.

A collective of the probe could deadlock a run, so the probe never starts one. Under DDP gradients are averaged already and the local norm
is the global one. If gradients are sharded (DTensor, FSDP), every rank reports the square of its own part, so that the parts of *all* ranks
add up to the true square: if several ranks hold the same part, it is divided by their number.

    placements on a mesh of 2 x 4        ranks that hold the same    weight of a rank's square
    (Shard)            FSDP2, 1-D         1                           1
    (Replicate, Shard) HSDP               2                           1/2
    (Shard, Replicate) a norm layer under FSDP x tensor parallel: 4   1/4
    no DTensor among DTensors             all                         1/world size
"""


def of_optimizer(torch, optimizer, shard_weight=None):
    """Returns (0-dim tensor, is it this rank's part of a sum?), or None if there is no dense gradient."""
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    return of_gradients(torch, gradients, shard_weight)


def of_gradients(torch, gradients, shard_weight=None):
    """The same for gradients. `shard_weight` is the weight of gradients that are shards but not DTensors, such as FSDP1's."""
    sharded = any(hasattr(gradient, "_local_tensor") for gradient in gradients)
    plain_weight = shard_weight or (1.0 / torch.distributed.get_world_size() if sharded else 1.0)
    groups = {}
    for gradient in gradients:
        local = getattr(gradient, "_local_tensor", None)
        weight = plain_weight if local is None else weight_of(gradient)
        local = gradient if local is None else local
        if local.layout != torch.strided:
            return None
        if local.numel() > 0:
            groups.setdefault((local.device, local.dtype, weight), []).append(local)
    sharded = sharded or shard_weight is not None
    if not groups:  # a small model on many ranks: this rank has no part, and the sum needs to know that
        return (torch.zeros((), device=gradients[0].device), True) if sharded and gradients else None
    with torch.no_grad():
        parts = [_norm(torch, group) * weight**0.5 for (_, _, weight), group in groups.items()]
        total = parts[0] if len(parts) == 1 else torch.linalg.vector_norm(torch.stack([p.to(parts[0].device) for p in parts]))
        return total, sharded


_weights = {}  # (id of a mesh, placements) -> (weight, the mesh, so that no other gets its id); a script has few of both


def weight_of(tensor):
    """Returns one divided by the number of ranks that hold the same part of a DTensor."""
    mesh, placements = tensor.device_mesh, tensor.placements
    known = _weights.get((id(mesh), placements))
    if known is None:
        holders = 1
        for dimension, placement in enumerate(placements):
            if placement.is_replicate():
                holders *= mesh.size(dimension)
        known = _weights[id(mesh), placements] = (1.0 / holders, mesh)
    return known[0]


def _norm(torch, group):
    if group[0].dtype in (torch.float16, torch.bfloat16):
        norms = [torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in group]  # float16 overflows at 65504
    else:
        norms = torch._foreach_norm(group)
    return torch.linalg.vector_norm(torch.stack(list(norms))).to(torch.float32)


class Budget:
    """Decides at which steps a norm may be computed, so that it costs at most SHARE of the run's time.

    Reading every gradient once is cheap on a GPU and noticeable on a CPU with a large model and a short step. The steps are the multiples
    of a power of two: ranks with different costs still have steps in common, and only a sum over one step is meaningful.
    """

    SHARE = 0.001
    EVERY_MAX = 8  # steps; an explosion must still be detected within seconds

    def __init__(self, every_max=EVERY_MAX):
        self._every_max = every_max
        self._cost_s = 0.0
        self._every = 1

    def allows(self, step):
        return step % self._every == 0

    def spent(self, seconds, step_s):
        """Records the cost of the last norm, and the current duration of a step."""
        self._cost_s = seconds if self._cost_s == 0.0 else 0.8 * self._cost_s + 0.2 * seconds
        if step_s:
            self._every = 1
            while self._every < min(self._every_max, self._cost_s / (self.SHARE * step_s)):
                self._every *= 2
