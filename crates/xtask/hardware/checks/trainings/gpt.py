"""Trains a GPT-like transformer on synthetic tokens, on one GPU, on a CPU, or with DistributedDataParallel, and times its own steps.

The last line of its output is a JSON object: medians of the phases, memory, loss. `--result FILE` keeps every step as well. It trains `--steps` steps,
or until SIGTERM, which ends it after the step under way.

    step:  | data | forward (copy to the device included) | backward | other | optimizer |      times: CUDA events; the host's clock on a CPU
"""

import argparse
import collections
import contextlib
import json
import os
import signal
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.autograd.profiler import record_function
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

PHASES = ("data", "forward", "backward", "other", "optimizer")
# Of each step six marks are kept until they are read at the end: a training of hours keeps the latest only.
KEPT_STEPS = 5000
# The list of indices of an epoch, which a DistributedSampler makes, stays small.
EPOCH_BATCHES = 1 << 15
# What --cpu-small makes of a model where there is no GPU: a step of some milliseconds on one core.
SMALL = {"layers": 4, "hidden": 64, "heads": 4, "sequence": 64, "batch": 8, "vocabulary": 256}
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "bf16-mixed": torch.float32}


def parser():
    parser = argparse.ArgumentParser(description="Train a GPT-like transformer on synthetic tokens.")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--sequence", type=int, default=1024, help="tokens of a sample")
    parser.add_argument("--batch", type=int, default=8, help="samples per rank and step")
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32", help="bf16: parameters too; bf16-mixed: autocast")
    parser.add_argument("--attention", choices=("flash", "materialised"), default="flash", help="scaled_dot_product_attention, or scores that are kept")
    parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--tf32", action="store_true", help="matrix products of float32 on tensor cores")
    parser.add_argument("--steps", type=int, default=0, help="0: until SIGTERM")
    parser.add_argument("--warmup", type=int, default=5, help="first steps that do not count in the medians")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-workers", type=int, default=0, help="DataLoader worker processes per rank")
    parser.add_argument("--data-delay-ms", type=float, default=0.0, help="what loading a batch takes longer")
    parser.add_argument("--norm-every", type=int, default=0, help="compute the gradient norm every so many steps; 0: never")
    parser.add_argument("--memory-every", type=int, default=0, help="ask the allocator after step 1 and then every so many steps; 0: never")
    parser.add_argument("--log-every", type=int, default=50, help="print the loss, which waits for the GPU; 0: never")
    parser.add_argument("--cpu-small", action="store_true", help="a model that a CPU can train, where there is no GPU")
    parser.add_argument("--threads", type=int, default=1, help="on a CPU")
    parser.add_argument("--result", metavar="FILE", help="write what was measured of every step here too")
    return parser


def main():
    training = start(parser().parse_args())
    signal.signal(signal.SIGTERM, training.stop)
    while not training.is_over():
        training.step()
    training.finish()


def start(arguments):
    device = join()
    if device.type == "cpu":
        torch.set_num_threads(arguments.threads)
        if arguments.cpu_small:
            vars(arguments).update(SMALL)
    return Training(arguments, device)


def join():
    """The device of this rank; joins the process group of torchrun where there are several ranks."""
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return device


class Training:
    """The model, its data and its optimizer; `step` trains one step."""

    def __init__(self, arguments, device):
        torch.manual_seed(arguments.seed)
        if arguments.tf32:
            torch.set_float32_matmul_precision("high")
        self.arguments, self.device, self.clock = arguments, device, Clock(device)
        self.stopped, self.steps = False, 0
        with device:  # random numbers for all parameters take a CPU seconds
            self.model = GPT(arguments).to(dtype=PRECISIONS[arguments.precision])
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())
        kinds = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
        self.optimizer = kinds[arguments.optimizer](self.model.parameters(), lr=arguments.lr)
        if dist.is_initialized():
            self.model = DistributedDataParallel(self.model, device_ids=[device.index] if device.type == "cuda" else None)
        self.batches = batches(arguments)
        self.record = Record(self.clock, KEPT_STEPS)
        # The optimizer's own hooks run inside those of all optimizers: what others hook in is not counted as its work.
        self.optimizer.register_step_pre_hook(self.before_optimizer)
        self.optimizer.register_step_post_hook(self.after_optimizer)

    def stop(self, *_):
        self.stopped = True

    def is_over(self):
        return self.stopped or 0 < self.arguments.steps <= self.steps

    def step(self):
        arguments, record = self.arguments, self.record
        record.begin()
        with record_function("data"):
            inputs, targets = next(self.batches)
        record.mark("forward")
        with record_function("forward"):
            inputs, targets = inputs.to(self.device, non_blocking=True), targets.to(self.device, non_blocking=True)
            with self.autocast():
                loss = F.cross_entropy(self.model(inputs).float().flatten(0, 1), targets.flatten())
        record.mark("backward")
        with record_function("backward"):
            loss.backward()
        record.mark("other")
        if arguments.norm_every and (self.steps + 1) % arguments.norm_every == 0:
            record.values["grad_norm"] = gradient_norm(self.model)
        self.optimizer.step()
        record.values["loss"] = loss.detach()
        self.steps += 1
        if arguments.memory_every and (self.steps - 1) % arguments.memory_every == 0 and self.device.type == "cuda":
            record.values |= memory(self.device)
        self.optimizer.zero_grad(set_to_none=True)
        record.end(self.steps)
        if arguments.log_every and self.steps % arguments.log_every == 0:
            print(f"step {self.steps} loss {loss.item():.6g}", flush=True)

    def before_optimizer(self, *_):
        self.record.mark("optimizer")
        self.in_optimizer = record_function("optimizer")
        self.in_optimizer.__enter__()

    def after_optimizer(self, *_):
        self.in_optimizer.__exit__(None, None, None)
        self.record.mark("end")

    def autocast(self):
        if self.arguments.precision == "bf16-mixed":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def finish(self, **more):
        """Prints what was measured, and leaves the process group."""
        steps = self.record.read()
        summary = {**summarised(steps, self.arguments), **self.about()}
        if self.arguments.result:
            with open(f"{self.arguments.result}.new", "w", encoding="utf-8") as file:
                json.dump({**summary, **more, "each_step": steps}, file)
            os.replace(f"{self.arguments.result}.new", self.arguments.result)
        if dist.is_initialized() and not self.stopped:  # after a stop peers may be gone already
            dist.destroy_process_group()
        print(json.dumps(summary), flush=True)

    def about(self):
        arguments, found = self.arguments, {"pid": os.getpid(), "device": str(self.device), "parameters": self.parameters, "steps": self.steps}
        tokens = arguments.batch * arguments.sequence
        # Of a step: 6 per token and weight that is multiplied; 12·h per token, layer and position that is looked at, half of which flash attention leaves out.
        weights = self.parameters - arguments.hidden * (arguments.vocabulary + arguments.sequence)
        attention = (6 if arguments.attention == "flash" else 12) * arguments.layers * arguments.hidden * arguments.sequence
        found |= {"samples": arguments.batch, "tokens": tokens, "flops": tokens * (6 * weights + attention)}
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            properties = torch.cuda.get_device_properties(self.device)
            found |= {"gpu": properties.name, "gpu_uuid": str(properties.uuid), "gpu_memory_bytes": properties.total_memory, **memory(self.device)}
        return found


class Clock:
    """Marks in time whose differences are read later, so that nothing waits for the GPU."""

    def __init__(self, device):
        self._cuda = device.type == "cuda"

    def mark(self):
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start, end):
        return 1e-3 * start.elapsed_time(end) if self._cuda else end - start

    def wait(self):
        if self._cuda:
            torch.cuda.synchronize()


class Record:
    """Marks and values of each step: `begin`, a mark where each further phase begins, `end`."""

    def __init__(self, clock, most):
        self._clock, self._steps = clock, collections.deque(maxlen=most)
        self._marks, self._before = [], None
        self.values = {}

    def begin(self):
        self._marks, self.values = [("data", self._clock.mark())], {}

    def mark(self, name):
        self._marks.append((name, self._clock.mark()))

    def end(self, number):
        end = self._marks[-1][1]
        self._steps.append((number, time.time(), self._before, self._marks, self.values))
        self._before = end

    def read(self):
        """One dictionary per step; waits for the GPU."""
        self._clock.wait()
        return [self._read(*step) for step in self._steps]

    def _read(self, number, at, before, marks, values):
        spans = {name: self._clock.seconds(start, end) for (name, start), (_, end) in zip(marks, marks[1:])}
        whole = {} if before is None else {"step_s": self._clock.seconds(before, marks[-1][1])}
        numbers = {name: value.item() if torch.is_tensor(value) else value for name, value in values.items()}
        return {"step": number, "at": at, **whole, **{f"{name}_s": seconds for name, seconds in spans.items()}, **numbers}


def summarised(steps, arguments):
    counted = [step for step in steps if step["step"] > arguments.warmup and "step_s" in step]
    if not counted:
        return {}
    found = {f"{name}_s": statistics.median(step[f"{name}_s"] for step in counted) for name in (*PHASES, "step")}
    samples_per_s = arguments.batch / found["step_s"]
    found |= {"steps_counted": len(counted), "samples_per_s": samples_per_s, "tokens_per_s": samples_per_s * arguments.sequence}
    return {**found, "first_loss": steps[0]["loss"], "loss": statistics.fmean(step["loss"] for step in counted[-10:])}


def memory(device):
    """What the allocator says. Peaks are those of the whole training: nothing here resets them."""
    known = torch.cuda.memory_stats(device)
    names = {
        "max_allocated_bytes": "allocated_bytes.all.peak",
        "max_reserved_bytes": "reserved_bytes.all.peak",
        "split_bytes": "inactive_split_bytes.all.current",
        "alloc_retries": "num_alloc_retries",
    }
    return {name: known.get(key, 0) for name, key in names.items()}


def gradient_norm(model):
    squares = [parameter.grad.detach().double().square().sum() for parameter in model.parameters() if parameter.grad is not None]
    return torch.stack(squares).sum().sqrt()


# === The model ===


class GPT(nn.Module):
    def __init__(self, arguments):
        super().__init__()
        hidden = arguments.hidden
        self.embedding = nn.Embedding(arguments.vocabulary, hidden)
        self.positions = nn.Embedding(arguments.sequence, hidden)
        self.blocks = nn.ModuleList(Block(hidden, arguments.heads, arguments.attention == "flash") for _ in range(arguments.layers))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, arguments.vocabulary, bias=False)
        self.apply(self._initialise)

    @staticmethod
    def _initialise(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Block(nn.Module):
    def __init__(self, hidden, heads, flash):
        super().__init__()
        self.heads, self.flash = heads, flash
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        x = x + self.out(self.attend(self.norm1(x)))
        return x + self.down(F.gelu(self.up(self.norm2(x))))

    def attend(self, x):
        batch, length, hidden = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4)
        if self.flash:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(2, 3)) * q.shape[-1] ** -0.5
            mask = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            y = F.softmax(scores.masked_fill(mask, -torch.inf), -1) @ v
        return y.transpose(1, 2).reshape(batch, length, hidden)


# === Data ===


class Tokens(Dataset):
    """Sequences that can be learned: each counts up by a step of its own. The same ones in every run."""

    def __init__(self, arguments):
        self._size, self._sequence, self._vocabulary = EPOCH_BATCHES * arguments.batch, arguments.sequence, arguments.vocabulary
        self._delay_s = arguments.data_delay_ms * 1e-3 / arguments.batch

    def __len__(self):
        return self._size

    def __getitem__(self, index):
        if self._delay_s:
            time.sleep(self._delay_s)
        tokens = (index * 7919 + (1 + index % 4) * torch.arange(self._sequence + 1)) % self._vocabulary
        return tokens[:-1], tokens[1:]


def batches(arguments):
    """Batches without end."""
    tokens = Tokens(arguments)
    sampler = DistributedSampler(tokens, shuffle=False) if dist.is_initialized() else None
    loader = DataLoader(tokens, arguments.batch, sampler=sampler, num_workers=arguments.num_workers, pin_memory=torch.cuda.is_available(), drop_last=True)
    while True:
        yield from loader


if __name__ == "__main__":
    main()
