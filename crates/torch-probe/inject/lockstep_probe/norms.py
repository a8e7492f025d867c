"""The norm of the gradients an optimizer is about to apply, from local memory only.

A collective of ours could deadlock a run, so none is ever issued. Under DDP gradients are averaged already and the local norm is
the global one. Sharded gradients (DTensor, FSDP) give a local norm, whose squares the collector adds up over the shards.
"""


def of_optimizer(torch, optimizer):
    """(0-dim tensor, is it local to a shard?), or None where no dense gradient is there."""
    return of_gradients(torch, [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None])


def of_gradients(torch, gradients):
    sharded = any(hasattr(gradient, "_local_tensor") for gradient in gradients)
    local = [getattr(gradient, "_local_tensor", gradient) for gradient in gradients]
    local = [gradient for gradient in local if gradient.numel() > 0]
    if not local or any(gradient.layout != torch.strided for gradient in local):
        return None
    with torch.no_grad():
        groups = {}
        for gradient in local:
            groups.setdefault((gradient.device, gradient.dtype), []).append(gradient)
        parts = [_norm(torch, group) for group in groups.values()]
        total = parts[0] if len(parts) == 1 else torch.linalg.vector_norm(torch.stack([p.to(parts[0].device) for p in parts]))
        return total, sharded


def _norm(torch, group):
    if group[0].dtype in (torch.float16, torch.bfloat16):
        norms = [torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in group]  # half overflows at 65504
    else:
        norms = torch._foreach_norm(group)
    return torch.linalg.vector_norm(torch.stack(list(norms))).to(torch.float32)


class Budget:
    """How often a norm may be computed so that it costs at most SHARE of the run's time.

    Reading every gradient once is nothing to a GPU and noticeable to a CPU with a large model and a short step.
    """

    SHARE = 0.002
    EVERY_MAX = 10  # steps; an explosion should still be seen within seconds

    def __init__(self):
        self._cost_s = 0.0
        self._steps_left = 0

    def allows(self):
        self._steps_left -= 1
        return self._steps_left < 0

    def spent(self, seconds, step_s):
        """Tells what the last norm cost, and how long a step is now."""
        self._cost_s = seconds if self._cost_s == 0.0 else 0.8 * self._cost_s + 0.2 * seconds
        if step_s:
            self._steps_left = min(self.EVERY_MAX, int(self._cost_s / (self.SHARE * step_s) + 0.5)) - 1
