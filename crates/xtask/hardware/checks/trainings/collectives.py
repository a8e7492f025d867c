"""Trains a few linear layers, averages their gradients with one collective per layer, and counts every collective itself.

NCCL where each rank has a GPU of its own, else Gloo. It trains `--steps` steps, or until the file `--until` is there, which rank 0 looks for and tells
the others. Then come the parts that were asked for, each in a function of its own. The last line of each rank's output is a JSON object: calls and bytes by
NCCL's names for the functions, times of a step, and what the parts measured.
"""

import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn

WARM_UP_STEPS = 5
# What --others does of each further collective: little, but more than one.
OTHERS = 3
# Collectives that are looked at with PyTorch's profiler, to see whether NCCL has run a kernel for them.
PROFILED = 4
LARGE_BYTES = 256 << 20
LARGE_TIMES = 200
# `torch.cuda._sleep` counts cycles of the SM clock; GPUs of data centres run at 1.4 to 2 GHz.
CYCLES_PER_S = int(2e9)


def parser():
    parser = argparse.ArgumentParser(description="Train linear layers with one all-reduce per layer.")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--size", type=int, default=1024, help="features of a layer: a gradient has size × size float32")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--until", metavar="FILE", help="train until this file is there, instead of --steps")
    parser.add_argument("--step-delay-ms", type=float, default=0.0, help="sleep in each step")
    parser.add_argument("--others", action="store_true", help="broadcasts, all-gathers and reduce-scatters too")
    parser.add_argument("--large", action="store_true", help=f"time all-reduces of {LARGE_BYTES >> 20} MiB on a communicator of their own; needs GPUs")
    parser.add_argument("--hold", type=float, default=0.0, metavar="S", help="keep the GPU busy with one kernel for so long, twice; needs GPUs")
    parser.add_argument("--rest", type=float, default=0.0, metavar="S", help="do nothing for so long before the end")
    return parser


def main():
    asked = parser().parse_args()
    training = Training(asked, join())
    training.train()
    if asked.others:
        training.exchange_otherwise()
    if training.device.type == "cuda":
        if asked.others:
            training.measured["nccl_kernels"] = training.count_kernels()
        if asked.large:
            training.exchange_large()
        if asked.hold:
            while_a_long_kernel_runs(asked.hold)
            in_synchronize(asked.hold)
    if asked.rest:
        at_rest(asked.rest)
    training.measured["plugin_mapped"] = is_mapped("libnccl_probe.so")
    dist.destroy_process_group()
    print(json.dumps(training.result()), flush=True)


def join():
    local_rank = int(os.environ["LOCAL_RANK"])
    if torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        torch.cuda.set_device(local_rank)
        dist.init_process_group("nccl")
        return torch.device("cuda", local_rank)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    return torch.device("cpu")


class Training:
    def __init__(self, asked, device):
        torch.manual_seed(0)
        self.asked, self.device = asked, device
        self.model = nn.Sequential(*(nn.Linear(asked.size, asked.size, bias=False) for _ in range(asked.layers))).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.batch = torch.randn(asked.batch, asked.size, device=device)
        self.calls, self.bytes = {}, {}
        self.step_s, self.measured = [], {}

    def train(self):
        step, over = 0, False
        while not over:
            began = time.perf_counter()
            self.train_step()
            step += 1
            over = self.is_told_to_end() if self.asked.until else step >= self.asked.steps
            if step > WARM_UP_STEPS:
                self.step_s.append(time.perf_counter() - began)
            if self.asked.step_delay_ms:
                time.sleep(self.asked.step_delay_ms / 1000)
        self.measured["steps"] = step

    def train_step(self):
        self.optimizer.zero_grad(set_to_none=True)
        self.model(self.batch).square().mean().backward()
        self.average_gradients()
        self.optimizer.step()
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def average_gradients(self):
        for parameter in self.model.parameters():
            self.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

    def all_reduce(self, tensor):
        dist.all_reduce(tensor)
        self.count("AllReduce", tensor)

    def is_told_to_end(self):
        flag = torch.zeros(1, device=self.device)
        if dist.get_rank() == 0 and os.path.exists(self.asked.until):
            flag += 1
        self.all_reduce(flag)
        return flag.item() > 0

    def exchange_otherwise(self):
        ranks = dist.get_world_size()
        part = torch.ones(1 << 20, device=self.device)
        whole = torch.ones(ranks << 20, device=self.device)
        for _ in range(OTHERS):
            dist.broadcast(part, 0)
            self.count("Broadcast", part)
            dist.all_gather_into_tensor(whole, part)
            self.count("AllGather", part)
            if self.device.type == "cuda":  # Gloo has none before PyTorch 2.8
                dist.reduce_scatter_tensor(part, whole)
                self.count("ReduceScatter", part)

    def count(self, function, tensor):
        """NCCL counts elements of one rank's part."""
        self.calls[function] = self.calls.get(function, 0) + 1
        self.bytes[function] = self.bytes.get(function, 0) + tensor.numel() * tensor.element_size()

    def count_kernels(self):
        """How many kernels NCCL has run for PROFILED all-reduces: none on a communicator of one rank, which copies at most."""
        tensor = torch.ones(1 << 20, device=self.device)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(PROFILED):
                self.all_reduce(tensor)
            torch.cuda.synchronize()
        return sum("ncclDevKernel" in event.name for event in profile.events())

    def exchange_large(self):
        """Its calls are not counted with the others: they have a communicator of their own."""
        group = dist.new_group()
        tensor = torch.ones(LARGE_BYTES // 4, device=self.device)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        dist.all_reduce(tensor, group=group)
        torch.cuda.synchronize()
        begin.record()
        for _ in range(LARGE_TIMES):
            dist.all_reduce(tensor, group=group)
        end.record()
        torch.cuda.synchronize()
        self.measured |= {"large_calls": LARGE_TIMES + 1, "large_bytes": LARGE_BYTES, "large_s": begin.elapsed_time(end) / 1000 / LARGE_TIMES}

    def result(self):
        median_s = statistics.median(self.step_s) if self.step_s else None
        version = ".".join(map(str, torch.cuda.nccl.version())) if self.device.type == "cuda" else None
        counted = {"calls": self.calls, "bytes": self.bytes, "step_s": median_s}
        return {"ranks": int(os.environ["WORLD_SIZE"]), "device": self.device.type, "nccl": version, **counted, **self.measured}


def is_mapped(library):
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return any(library in line for line in maps)


def while_a_long_kernel_runs(seconds):
    torch.cuda._sleep(int(seconds * CYCLES_PER_S))
    done = torch.cuda.Event()
    done.record()
    while not done.query():
        time.sleep(0.05)


def in_synchronize(seconds):
    torch.cuda._sleep(int(seconds * CYCLES_PER_S))
    torch.cuda.synchronize()


def at_rest(seconds):
    time.sleep(seconds)


if __name__ == "__main__":
    main()
