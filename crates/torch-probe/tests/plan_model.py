"""A transformer with the settings of `lockstep plan memory`, and the memory that PyTorch needs to train it.

The tensors have shape, type and device, and no data: PyTorch runs its own code for them, at the full size of a model, on a machine
that has no GPU. What is counted is what it would allocate for tensors; what a GPU's driver, NCCL and the allocator's rounding add is not.
The forward pass runs the code for CUDA (fused norms, flash attention, autocast) on fake tensors. A backward pass wants a real GPU for
those; it runs on the meta device, which has neither autocast nor a fused RMSNorm.
"""

import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

CUDA = "cuda"
META = "meta"
CPU = "cpu"
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "bf16-mixed": torch.float32, "fp16-amp": torch.float32}
AUTOCAST = {"bf16-mixed": torch.bfloat16, "fp16-amp": torch.float16}  # as in a DDP script
OPTIMIZERS = {
    "adamw": lambda parameters, **options: torch.optim.AdamW(parameters, **options),
    "sgd": lambda parameters, **options: torch.optim.SGD(parameters, lr=0.1, **options),
    "sgd-momentum": lambda parameters, **options: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, **options),
    "adafactor": lambda parameters, **options: torch.optim.Adafactor(parameters, **options),
}


class Block(nn.Module):
    def __init__(self, m, settings, options):
        super().__init__()
        hidden, head = m["hidden"], m["hidden"] // m["heads"]
        linear = {"bias": m["bias"], **options}
        self.shape = (m["heads"], m["kv_heads"], head)
        self.flash, self.dropout = settings["attention"] == "flash", 0.1 if settings["dropout"] else 0.0
        self.norm1, self.norm2 = norm(m, options), norm(m, options)
        widths = [hidden, m["kv_heads"] * head, m["kv_heads"] * head]
        self.qkv = nn.ModuleList(nn.Linear(hidden, width, **linear) for width in ([sum(widths)] if m["fused_qkv"] else widths))
        self.widths = widths
        self.o = nn.Linear(hidden, hidden, **linear)
        self.up, self.down = nn.Linear(hidden, m["mlp"], **linear), nn.Linear(m["mlp"], hidden, **linear)
        self.gate = nn.Linear(hidden, m["mlp"], **linear) if m["gated"] else None

    def forward(self, x):
        x = x + F.dropout(self.o(self.attend(self.norm1(x))), self.dropout)
        return x + F.dropout(self.mlp(self.norm2(x)), self.dropout)

    def attend(self, x):
        heads, kv_heads, head = self.shape
        batch, length, hidden = x.shape
        q, k, v = self.qkv[0](x).split(self.widths, -1) if len(self.qkv) == 1 else (linear(x) for linear in self.qkv)
        q = q.view(batch, length, heads, head).transpose(1, 2)
        k, v = (each.view(batch, length, kv_heads, head).transpose(1, 2) for each in (k, v))
        if self.flash:  # called by its own name, because with fake tensors there is no GPU to choose a kernel for
            y = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, self.dropout, True)[0]
        else:
            k, v = (each.repeat_interleave(heads // kv_heads, dim=1) if heads > kv_heads else each for each in (k, v))
            scores = (q @ k.transpose(2, 3)) * head**-0.5
            scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1), -torch.inf)
            y = F.dropout(F.softmax(scores, -1), self.dropout) @ v
        return y.transpose(1, 2).reshape(batch, length, hidden)

    def mlp(self, x):
        if self.gate is not None:
            return self.down(F.silu(self.gate(x)) * self.up(x))
        return self.down(F.gelu(self.up(x)))


class Transformer(nn.Module):
    def __init__(self, settings, device):
        super().__init__()
        m = settings["model"]
        options = {"device": device, "dtype": TYPES[settings["precision"]]}
        self.checkpointing, self.dropout = settings["checkpointing"], 0.1 if settings["dropout"] else 0.0
        self.embedding = nn.Embedding(m["vocabulary"], m["hidden"], **options)
        self.positions = nn.Embedding(m["positions"], m["hidden"], **options) if m["positions"] else None
        self.blocks = nn.ModuleList(Block(m, settings, options) for _ in range(m["layers"]))
        self.norm = norm(m, options)
        self.head = nn.Linear(m["hidden"], m["vocabulary"], bias=False, **options)
        if m["tied"]:
            self.head.weight = self.embedding.weight

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        x = self.run_blocks(F.dropout(x, self.dropout))
        return F.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), targets.flatten())

    def run_blocks(self, x):
        how, _, count = self.checkpointing.partition("=")
        if how == "sequential":
            return checkpoint_sequential(list(self.blocks), int(count), x, use_reentrant=False)
        every = {"none": 0, "block": 1}.get(how) if not count else int(count)
        for number, block in enumerate(self.blocks, 1):
            again = every and number % every == 0
            x = checkpoint(block, x, use_reentrant=False) if again else block(x)
        return x


def norm(m, options):
    if m["norm"] == "rms":
        return nn.RMSNorm(m["hidden"], **options)
    return nn.LayerNorm(m["hidden"], bias=m["bias"], **options)


def saved(settings, device=CUDA):
    """Returns the bytes that autograd keeps of a forward pass, each storage once, without parameters and other tensors that exist anyway.
    """
    with contextlib.nullcontext() if device == CPU else FakeTensorMode(allow_non_fake_inputs=True):
        model = Transformer(settings, device)
        own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        storages = {}

        def keep(tensor):
            storage = tensor.untyped_storage()
            if storage._cdata not in own and (tensor.is_floating_point() or tensor.dtype == torch.bool):
                storages[storage._cdata] = storage  # kept alive, so that no other storage gets its address
            return tensor

        with saved_tensors_hooks(keep, lambda tensor: tensor), autocast(settings["precision"]):
            loss_of(model, settings, device)
        return sum(storage.nbytes() for storage in storages.values())


def trained(settings):
    """Returns the bytes of the model's states, and the peak of allocated bytes in a step."""
    model = Transformer(settings, META)
    optimizer = OPTIMIZERS[settings["optimizer"]](model.parameters(), foreach=settings["foreach"])
    step(model, optimizer, settings)  # optimizer states exist from the second step on
    states = bytes_of_states(model, optimizer)
    tracker = MemTracker()
    tracker.track_external(model, optimizer)
    with tracker:
        step(model, optimizer, settings)
    peak = tracker.get_tracker_snapshot("peak")
    return {**states, "peak": next(kinds["Total"] for device, kinds in peak.items() if device.type == META)}


def shapes(settings):
    """Returns the bytes of the model's states without a step: gradients and moments are set by hand in their parameters' shapes."""
    model = Transformer(settings, META)
    optimizer = OPTIMIZERS[settings["optimizer"]](model.parameters(), foreach=settings["foreach"])
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    return bytes_of_states(model, optimizer)


def sharded(settings):
    """Returns the bytes of rank 0's states and its peak under FSDP2, on CPU and in a process group that simulates other ranks."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=settings["gpus"])
    try:
        model = Transformer(settings, CPU)
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if settings["precision"] == "bf16-mixed" else MixedPrecisionPolicy()
        shards = {"reshard_after_forward": settings["reshard_after_forward"], "mp_policy": policy}
        if settings["strategy"] == "hsdp":
            groups = (settings["gpus"] // settings["shard_group"], settings["shard_group"])
            shards["mesh"] = init_device_mesh(CPU, groups, mesh_dim_names=("replicate", "shard"))
        for block in model.blocks:
            fully_shard(block, **shards)
        fully_shard(model, **shards)
        optimizer = OPTIMIZERS[settings["optimizer"]](model.parameters(), foreach=settings["foreach"])
        tracker = FSDPMemTracker(model, optimizer)
        tracker.track_inputs(())
        with tracker:
            step(model, optimizer, settings, CPU)
            tracker.reset_mod_stats()
            step(model, optimizer, settings, CPU)
        peak = tracker.get_tracker_snapshot("peak")
        return {**bytes_of_states(model, optimizer), "peak": sum(kinds["Total"] for kinds in peak.values())}
    finally:
        dist.destroy_process_group()


def alone(settings):
    """Returns the bytes of the states on a CPU, with data."""
    model = Transformer(settings, CPU)
    optimizer = OPTIMIZERS[settings["optimizer"]](model.parameters(), foreach=settings["foreach"])
    step(model, optimizer, settings, CPU)
    return bytes_of_states(model, optimizer)


def step(model, optimizer, settings, device=META):
    optimizer.zero_grad()
    loss_of(model, settings, device).backward()
    optimizer.step()


def loss_of(model, settings, device):
    tokens, targets = (torch.zeros(settings["micro_batch"], settings["sequence"], dtype=torch.long, device=device) for _ in range(2))
    return model(tokens, targets)


@contextlib.contextmanager
def autocast(precision):
    """Like `torch.autocast("cuda", …)`, which turns itself off without a GPU."""
    if precision not in AUTOCAST:
        yield
        return
    torch.set_autocast_enabled(CUDA, True)
    torch.set_autocast_dtype(CUDA, AUTOCAST[precision])
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled(CUDA, False)


def bytes_of_states(model, optimizer):
    """Of this rank: under FSDP2 the parameters, their gradients and their optimizer states are this rank's shards."""
    parameters = list(model.parameters())
    kept = [value for state in optimizer.state.values() for name, value in state.items() if name != "step" and torch.is_tensor(value)]
    return {
        "parameters": sum(map(bytes_of, parameters)),
        "gradients": sum(bytes_of(p.grad) for p in parameters if p.grad is not None),
        "optimizer": sum(map(bytes_of, kept)),
    }


def bytes_of(tensor):
    own = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return own.numel() * own.element_size()
