"""Recipe `model-parallel`: a CNN split into stages, one per rank, with micro-batches (torch.distributed.pipelining).

NCCL if each rank has a GPU, Gloo on CPUs. It is an ordinary script that needs only `torchrun`. Two ranks or more, on one or several nodes.
The parts:

    main.py     the loop                                      network.py      the network, and the part of each rank
    stage.py    a stage, its schedule, and its bubble         images.py       generated images, by number
    checkpoints.py  one checkpoint of all stages              faults.py       faults on request
"""

import argparse
import os
import sys
import time
from datetime import timedelta

sys.path.insert(1, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # the recipes' folder

from foundation.arguments import at_least, positive
from foundation.group import backend, leave, own_device

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import checkpoints
import faults
import images
import network
import stage

try:
    import lockstep_probe
except ImportError:
    lockstep_probe = None
# Raised by optimizer.step() at the end of the step on which Lockstep's "stop after step" has agreed; `except ()` catches nothing.
StopTraining = () if lockstep_probe is None else lockstep_probe.StopTraining

EXPLANATION = """\
Rank 0 holds the first layers, the last rank the last ones. A batch is cut into --microbatches pieces: while one stage computes a piece, the next
stage computes the piece before. At the beginning and the end of each step stages wait for each other, which is the bubble. For S equal
stages and M micro-batches it is (S-1)/(M+S-1) of the step at best: more micro-batches, less bubble.

  --schedule gpipe   all forwards, then all backwards: every micro-batch's activations are kept at once
  --schedule 1f1b    each stage alternates between one forward and one backward as soon as it can: activations of at most S micro-batches

Printed and reported is the measured bubble: the share of the schedule's step in which a stage runs neither its forward nor its backward.

  torchrun --standalone --nproc-per-node 4 main.py
  torchrun --standalone --nproc-per-node 4 main.py --schedule gpipe --microbatches 16
  torchrun --standalone --nproc-per-node 4 main.py --checkpoint-dir ckpt --resume latest
"""


def main():
    arguments = parse_arguments()
    device = own_device()
    dist.init_process_group(backend(device), timeout=timedelta(seconds=arguments.timeout_s))
    train(arguments, device)
    # Not after a failure: it may wait forever for a peer that is gone. The process ends, and its neighbours detect it.
    leave()


def parse_arguments():
    parser = argparse.ArgumentParser(
        description="Train a small CNN as a pipeline of stages.", epilog=EXPLANATION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schedule", choices=tuple(stage.SCHEDULES), default="1f1b", help="see below; default %(default)s")
    parser.add_argument("--microbatches", type=at_least(1), default=8, metavar="N", help="pieces of a batch; default %(default)s")
    parser.add_argument("--steps", type=at_least(1), default=60)
    parser.add_argument("--lr", type=positive, default=2e-3)
    parser.add_argument("--batch-size", type=at_least(1), default=64, help="images in a step")
    parser.add_argument("--blocks", type=at_least(1), default=8, help="residual blocks; the stages share them out")
    parser.add_argument("--width", type=at_least(1), default=16, help="channels, a multiple of 4")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-workers", type=int, default=0, help="DataLoader worker processes per rank")
    parser.add_argument("--log-every", type=at_least(1), default=10)
    parser.add_argument("--timeout-s", type=positive, default=60.0, help="a neighbour that keeps a stage waiting longer is lost")
    parser.add_argument("--step-delay-ms", type=float, default=0.0, help="sleep after each step, to pace a demonstration")
    group = parser.add_argument_group("checkpoints (DCP: each stage writes its own part)")
    group.add_argument("--checkpoint-dir", default=None, help="the same folder for all ranks; without it nothing is saved")
    group.add_argument("--checkpoint-every", type=at_least(1), default=20, help="steps")
    group.add_argument(
        "--resume", default=None, metavar="PATH|latest",
        help="go on from this checkpoint, or from the newest whole one in --checkpoint-dir; LOCKSTEP_RESUME_FROM goes before it",
    )
    faults.add_arguments(parser)
    arguments = parser.parse_args()
    refuse_what_cannot_work(parser, arguments, int(os.environ.get("WORLD_SIZE", "1")))
    return arguments


def refuse_what_cannot_work(parser, arguments, stages):
    if stages < 2:
        parser.error("a pipeline needs two stages or more, each a rank: torchrun --nproc-per-node 2 or more")
    if stages > arguments.blocks:
        parser.error(f"{arguments.blocks} blocks cannot be shared out to {stages} ranks: raise --blocks to {stages}, or start fewer ranks")
    if arguments.batch_size % arguments.microbatches:
        parser.error(f"--batch-size {arguments.batch_size} cannot be cut into {arguments.microbatches} equal --microbatches")
    if arguments.schedule == "1f1b" and arguments.microbatches < stages:
        parser.error(f"1f1b keeps {stages} stages busy with {stages} micro-batches or more: raise --microbatches, or take --schedule gpipe")
    if arguments.width % network.GROUPS:
        parser.error(f"--width {arguments.width} is no multiple of {network.GROUPS}: its channels are normalised in {network.GROUPS} groups")


def train(arguments, device):
    pipeline = stage.Pipeline(arguments, dist.get_rank(), dist.get_world_size(), device)
    optimizer = torch.optim.Adam(pipeline.module.parameters(), lr=arguments.lr)
    step = checkpoints.restore(arguments, pipeline.module, optimizer)
    parameters = sum(parameter.numel() for parameter in pipeline.module.parameters())
    tell(f"stage {dist.get_rank()} of {dist.get_world_size()}: {pipeline.says}, {parameters} parameters, {device.type}, from step {step}")
    # Every rank generates the same batches; the first stage needs their images, the last one their labels.
    drawn, numbers = images.Batches(arguments.batch_size, arguments.seed), range(step, arguments.steps)
    batches = DataLoader(drawn, batch_size=None, sampler=numbers, num_workers=arguments.num_workers)
    saved = step
    try:
        for inputs, labels in batches:
            faults.strike(arguments, step + 1)
            optimizer.zero_grad(set_to_none=True)
            loss, bubble = pipeline.step(inputs.to(device), labels.to(device))
            step += 1
            if lockstep_probe is not None and bubble is not None:
                lockstep_probe.report(train_pipeline_bubble_ratio=bubble)
            optimizer.step()
            if loss is not None and (step % arguments.log_every == 0 or step == 1 or step == arguments.steps):
                # Nine digits identify any 32-bit number: resumed losses can be compared with uninterrupted ones.
                tell(f"step {step} loss {loss:.9g}" + ("" if bubble is None else f" bubble {bubble:.3f}"))
            if arguments.checkpoint_dir and (step % arguments.checkpoint_every == 0 or step == arguments.steps):
                checkpoints.save(arguments, pipeline.module, optimizer, step)
                saved = step
            if arguments.step_delay_ms > 0:
                time.sleep(arguments.step_delay_ms / 1000)
    except StopTraining:  # every rank is at the end of the same step
        if arguments.checkpoint_dir and saved != step:
            checkpoints.save(arguments, pipeline.module, optimizer, step)
        raise
    tell_bubbles(pipeline)


def tell_bubbles(pipeline):
    """Prints the bubble of each stage, and the theoretical one of S equal stages and M micro-batches."""
    shares = [None] * dist.get_world_size()
    dist.all_gather_object(shares, pipeline.mean_bubble())
    if dist.get_rank() == 0:
        measured = " ".join("-" if share is None else f"{share:.3f}" for share in shares)
        print(f"bubble by stage: measured {measured}, at best {pipeline.bubble_at_best():.3f}", flush=True)


def tell(line):
    print(line, flush=True)


if __name__ == "__main__":
    main()
