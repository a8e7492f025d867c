"""Recipe `ddp`: a small character-level transformer, trained with DistributedDataParallel.

Runs under torchrun, with NCCL where each rank has a GPU and Gloo on CPUs. It is a smoke test for a cluster, an example of an
ordinary training script, and the training in Lockstep's own tests. It contains nothing about Lockstep.
"""

import argparse
import gc
import os
import random
import re
import signal
import sys
import time

if __name__ == "__main__" and "OMP_NUM_THREADS" not in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"  # several ranks share a machine's cores; must be set before torch is imported

import torch
import torch.distributed as dist
import torch.distributed.nn  # before a group exists: its functions keep the group of their creation, and an optimizer imports them
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

STOPPED = 128 + signal.SIGTERM  # the exit status that a shell reports for a process ended by SIGTERM


def main():
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, stop)
    device = join_the_group()
    try:
        train(arguments, device)
    except Exception:
        if stop.asked:  # a peer that stopped first closes its connections: this is not a failure of this rank
            raise SystemExit(STOPPED) from None
        raise
    finally:
        # After a stop, NCCL's own teardown may wait for collectives that peers will never finish: the process exit ends them.
        if not (stop.asked and device.type == "cuda"):
            leave(device)


def leave(device):
    """Destroys the group. No reference to it may remain: Gloo's threads would outlive Python, and a thread that frees a tensor then aborts
    the process.

    Its backend must be freed last: before torch 2.8, only the code that frees the backend releases the GIL while it waits for those
    threads.
    """
    gc.collect()  # a model may be part of a reference cycle
    backends = [dist.distributed_c10d._get_default_group()._get_backend(device)] if device.type == "cpu" else []
    dist.destroy_process_group()
    backends.clear()


def parse_arguments():
    parser = argparse.ArgumentParser(description="Train a small character-level transformer with DDP.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--warmup", type=int, default=10, help="steps over which the learning rate rises from zero")
    parser.add_argument("--batch-size", type=int, default=16, help="sequences per rank and step")
    parser.add_argument("--context", type=int, default=64, help="characters per sequence")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-workers", type=int, default=0, help="DataLoader worker processes per rank")
    parser.add_argument("--grad-clip", type=float, default=0.0, help="largest gradient norm; 0 leaves gradients alone")
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--checkpoint-dir", default=None, help="save here, and go on from the newest checkpoint found here")
    parser.add_argument("--checkpoint-every", type=int, default=50)
    parser.add_argument("--step-delay-ms", type=float, default=0.0, help="sleep after each step, to pace a demonstration")
    return parser.parse_args()


def stop(_signal, _frame):
    stop.asked = True
    raise SystemExit(STOPPED)


stop.asked = False


def join_the_group():
    """Joins the process group that torchrun describes. Each rank gets its own GPU if there are enough."""
    local_rank = int(os.environ["LOCAL_RANK"])
    if torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl")
    else:
        device = torch.device("cpu")
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        dist.init_process_group("gloo")
    return device


def train(arguments, device):
    torch.manual_seed(arguments.seed)
    random.seed(arguments.seed)
    text = Text(arguments.context)
    sampler = DistributedSampler(text, shuffle=True, seed=arguments.seed, drop_last=True)
    loader = DataLoader(text, arguments.batch_size, sampler=sampler, num_workers=arguments.num_workers, drop_last=True)
    model = CharacterModel(len(text.alphabet), arguments.width, arguments.layers, arguments.context).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=arguments.lr)
    step = restore(arguments.checkpoint_dir, model, optimizer, device)
    model = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    say(f"training {sum(p.numel() for p in model.parameters())} parameters on {dist.get_world_size()} x {device.type}, from step {step}")

    for inputs, targets in batches(loader, sampler, step, arguments.steps):
        step += 1
        for group in optimizer.param_groups:
            group["lr"] = arguments.lr * min(1.0, step / max(1, arguments.warmup))
        loss = model(inputs.to(device), targets.to(device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if arguments.grad_clip > 0:
            nn.utils.clip_grad_norm_(model.parameters(), arguments.grad_clip)
        optimizer.step()
        if step % arguments.log_every == 0 or step == 1 or step == arguments.steps:
            say(f"step {step} loss {loss.item():.6g} lr {optimizer.param_groups[0]['lr']:.3g}")
        if arguments.checkpoint_dir and (step % arguments.checkpoint_every == 0 or step == arguments.steps):
            save(arguments.checkpoint_dir, step, model.module, optimizer)
        if arguments.step_delay_ms > 0:
            time.sleep(arguments.step_delay_ms / 1000)


def batches(loader, sampler, done, steps):
    """Returns batches for the steps after `done`, the same ones as in an uninterrupted run."""
    if len(loader) == 0:
        raise SystemExit("the text is too short for this batch size, context and number of ranks: lower one of them")
    epoch, seen = divmod(done, len(loader))
    while done < steps:
        sampler.set_epoch(epoch)
        for position, batch in enumerate(loader):
            if done == steps:
                return
            if position >= seen:
                yield batch
                done += 1
        epoch, seen = epoch + 1, 0


class Text(Dataset):
    """Overlapping windows of the text, as (characters, the next character of each)."""

    STRIDE = 4

    def __init__(self, context):
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "text.txt"), encoding="ascii") as file:
            text = file.read()
        self.alphabet = sorted(set(text))
        index = {character: i for i, character in enumerate(self.alphabet)}
        self.codes = torch.tensor([index[character] for character in text], dtype=torch.long)
        self.context = context

    def __len__(self):
        return max(0, (len(self.codes) - self.context - 1) // self.STRIDE)

    def __getitem__(self, item):
        start = item * self.STRIDE
        window = self.codes[start : start + self.context + 1]
        return window[:-1], window[1:]


class CharacterModel(nn.Module):
    """A decoder-only transformer with learned positions; its forward returns the mean cross entropy, in nats per character."""

    def __init__(self, alphabet, width, layers, context):
        super().__init__()
        self.embed = nn.Embedding(alphabet, width)
        self.position = nn.Parameter(0.02 * torch.randn(context, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, alphabet)

    def forward(self, inputs, targets):
        x = self.embed(inputs) + self.position
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


class Block(nn.Module):
    HEAD_WIDTH = 32

    def __init__(self, width):
        super().__init__()
        self.heads = max(1, width // self.HEAD_WIDTH)
        self.norm_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.norm_feed_forward = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.mix(self.attend(self.norm_attention(x)))
        return x + self.feed_forward(self.norm_feed_forward(x))

    def attend(self, x):
        batch, length, width = x.shape
        split = self.query_key_value(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        # Queries and keys of fixed length keep the attention's exponents small for any weights. So a learning rate that is far too high
        # causes a growing but finite loss, as in most large models, and not NaN at once.
        query, key = F.layer_norm(query, query.shape[-1:]), F.layer_norm(key, key.shape[-1:])
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return seen.transpose(1, 2).reshape(batch, length, width)


def save(folder, step, model, optimizer):
    """Rank 0 writes to a temporary name and renames it, so a file named step-N.pt is always complete."""
    if dist.get_rank() != 0:
        return
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"step-{step}.pt")
    with open(path + ".tmp", "wb") as file:
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".tmp", path)
    say(f"checkpoint {path}")


def restore(folder, model, optimizer, device):
    """Loads the newest checkpoint in the folder. Returns its step, or 0 if there is none."""
    names = os.listdir(folder) if folder and os.path.isdir(folder) else []
    steps = [int(found.group(1)) for found in (re.fullmatch(r"step-(\d+)\.pt", name) for name in names) if found]
    if not steps:
        return 0
    saved = torch.load(os.path.join(folder, f"step-{max(steps)}.pt"), map_location=device, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["step"]


def say(line):
    if dist.get_rank() == 0:
        print(line, flush=True)


if __name__ == "__main__":
    main()
