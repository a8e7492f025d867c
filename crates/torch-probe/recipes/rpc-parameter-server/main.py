"""Recipe `rpc-parameter-server`: one rank holds the weights, the others compute gradients and send them there, through torch.distributed.rpc.

It is an ordinary script that needs only `torchrun`. Two ranks or more, on one node or several. The parts:

    main.py             the arguments, and the role of this rank
    server.py           rank 0: the weights, the buffer of gradients, Adam, checkpoints       buffer.py  when a batch of gradients is applied
    worker.py           ranks 1…: --mode sync and async                        through_autograd.py  --mode dist-autograd
    meeting.py          how the ranks connect and disconnect                    peers.py   whether the others still answer
    task.py, faults.py  model and data; faults on request                       signals.py reports to the probe
"""

import argparse
import os
import signal
import sys

sys.path.insert(1, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # the recipes' folder

from foundation.arguments import at_least, positive
from foundation.group import own_device

import torch

# Each rank calls functions of these modules in the others, so all of them are imported before the ranks connect.
import faults
import meeting
import server
import task
import through_autograd
import worker

STOPPED = 128 + signal.SIGTERM  # the exit status that a shell reports for a process ended by SIGTERM

EXPLANATION = """\
Rank 0 is the server: it holds the model and Adam's moments, and trains nothing itself. Every other rank is a worker.

  --mode sync          An update is the mean of --batch-threshold gradients, all of the same weights. They are dealt out to the workers, and
                       a worker's Future completes when its batch is applied. Staleness is 0; the losses are the same for any number of workers.
  --mode async         Each worker goes on with up to --in-flight gradients under way. Whatever --batch-threshold gradients come first are
                       averaged and applied, though the weights may have moved on since they were computed: that is their staleness.
  --mode dist-autograd Weights are fetched inside a distributed autograd context; the backward pass crosses the network by itself, and
                       DistributedOptimizer steps where the weights live. One gradient an update, and workers may overtake each other.

Tensors travel through the host's memory over TensorPipe, whatever the ranks compute on.

  torchrun --standalone --nproc-per-node 4 main.py
  torchrun --standalone --nproc-per-node 4 main.py --mode async --gradients 1000
  torchrun --standalone --nproc-per-node 4 main.py --checkpoint-dir ckpt --resume latest
"""


def main():
    arguments = parse_arguments()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))
    device = own_device()
    try:
        # Before the ranks connect: a worker may call at once.
        own = server.ParameterServer(arguments, range(1, ranks), device) if rank == 0 else None
        meeting.join(rank, ranks, arguments.rpc_timeout_s)
        if own is not None:
            stopped = own.serve()
        else:
            train = through_autograd.train if arguments.mode == "dist-autograd" else worker.train
            stopped = train(arguments, rank, device)
        if not stopped:
            meeting.part()
    except Exception:
        # An interpreter that ends while RPC threads are active may abort or hang in its teardown. So the failure is printed, like any
        # uncaught exception, and the process exits at once: its peers detect this.
        sys.excepthook(*sys.exc_info())
        meeting.leave_at_once(1)
    except SystemExit as end:  # SIGTERM, or the end after an agreed step
        if not meeting.has_begun():
            raise
        meeting.leave_at_once(end.code if isinstance(end.code, int) else 1)
    if stopped:
        meeting.leave_at_once(STOPPED)


def parse_arguments():
    parser = argparse.ArgumentParser(
        description="Train a small next-character model through a parameter server.", epilog=EXPLANATION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--mode", choices=("sync", "async", "dist-autograd"), default="sync", help="see below; default %(default)s")
    parser.add_argument("--steps", type=at_least(1), default=150, help="updates of the weights")
    parser.add_argument("--batch-threshold", type=at_least(1), default=8, metavar="N", help="gradients averaged in an update (sync, async)")
    parser.add_argument(
        "--gradients", type=at_least(1), default=None, metavar="N",
        help="gradients in all, instead of --steps: what does not fill a last batch is applied as it is (sync, async)",
    )
    parser.add_argument(
        "--in-flight", type=at_least(1), default=None, metavar="N",
        help="gradients a worker may have under way (async); default: as many as it takes for all workers together to fill a batch",
    )
    parser.add_argument("--lr", type=positive, default=3e-3)
    parser.add_argument("--batch-size", type=at_least(1), default=32, help="characters to guess in a gradient")
    parser.add_argument("--context", type=at_least(1), default=8, help="characters to guess from")
    parser.add_argument("--width", type=at_least(1), default=96)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=at_least(1), default=10)
    parser.add_argument("--rpc-timeout-s", type=positive, default=60.0, help="a call that takes longer means a lost peer")
    parser.add_argument("--step-delay-ms", type=float, default=0.0, help="workers sleep before each gradient, to pace a demonstration")
    group = parser.add_argument_group("checkpoints (the server's)")
    group.add_argument("--checkpoint-dir", default=None, help="without it nothing is saved")
    group.add_argument("--checkpoint-every", type=at_least(1), default=50, help="updates")
    group.add_argument(
        "--resume", default=None, metavar="PATH|latest",
        help="go on from this checkpoint, or from the newest whole one in --checkpoint-dir; LOCKSTEP_RESUME_FROM goes before it",
    )
    faults.add_arguments(parser)
    arguments = parser.parse_args()
    settle(parser, arguments, int(os.environ.get("WORLD_SIZE", "1")) - 1)
    return arguments


def settle(parser, arguments, workers):
    """Completes the arguments, and refuses those that cannot work."""
    if workers < 1:
        parser.error("rank 0 is the server, so there must be another rank to train: torchrun --nproc-per-node 2 or more")
    if arguments.mode == "dist-autograd":
        if arguments.gradients:
            parser.error("--gradients counts the gradients of --mode sync and async; with dist-autograd say --steps")
        if arguments.fail_how == "leave" and arguments.fail_at_step:
            parser.error("--fail-how leave is for --mode sync and async: with dist-autograd nobody waits for a worker that leaves")
        arguments.batch_threshold = 1
    arguments.workers = workers
    needed = -(-arguments.batch_threshold // workers)
    arguments.in_flight = arguments.in_flight or needed
    if arguments.mode == "async" and arguments.in_flight < needed:
        parser.error(
            f"{workers} workers with {arguments.in_flight} gradients in flight each never fill a batch of {arguments.batch_threshold}: "
            f"raise --in-flight to {needed}, or lower --batch-threshold to {workers * arguments.in_flight}"
        )
    if arguments.gradients is None:
        arguments.gradients = arguments.steps * arguments.batch_threshold
    if arguments.context >= task.SHORTEST_TEXT:
        parser.error(f"--context {arguments.context} is longer than the text allows: at most {task.SHORTEST_TEXT - 1}")


if __name__ == "__main__":
    main()
