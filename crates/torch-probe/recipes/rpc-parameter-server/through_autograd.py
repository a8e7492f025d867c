"""Ranks 1…, `--mode dist-autograd`: the backward pass itself crosses the network.

    with dist_autograd.context() as context:
        fetch weights ──▶ loss ──▶ dist_autograd.backward ──▶ gradients are on the server, under `context`
        DistributedOptimizer.step(context) ──▶ Adam steps on the server, with them

Nothing is averaged, and workers do not wait for each other: others may step between a worker's fetch and its step (staleness). Each worker's
optimizer has its own moments of Adam; the weights are shared.
"""

import logging
import time

import faults
import peers
import server
import signals
import task
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from buffer import share
from torch.distributed.optim import DistributedOptimizer
from torch.func import functional_call


def train(arguments, rank, device):
    """Returns when all workers are done: True if the run was stopped."""
    model, text = task.make(arguments, device)
    holder = rpc.remote("server", server.the_server)
    names, references = holder.rpc_sync().parameters()
    logging.getLogger("torch.distributed.optim.optimizer").setLevel(logging.ERROR)  # server.Adam intentionally has no functional form
    optimizer = DistributedOptimizer(server.Adam, references, lr=arguments.lr)
    start = holder.rpc_sync().start()
    version = start.version
    # From the start of all workers: others may have stepped by now, and leave this worker's share to it.
    own = [number for number in range(start.resumed_at, arguments.steps) if share(number, arguments.workers) == rank - 1]
    for inputs, targets in task.batches(text, own):
        faults.strike(arguments, rank, version + 1)
        if arguments.step_delay_ms > 0:
            time.sleep(arguments.step_delay_ms / 1000)
        version = learn(holder, names, model, (inputs.to(device), targets.to(device)), optimizer, device)
        if version < 0:
            return True
        signals.step(version)
    return peers.wait(holder.rpc_async(timeout=0).ended(), peers.Peers([0]))


def learn(holder, names, model, batch, optimizer, device):
    """Runs one update. Returns the version of the weights after it, or -1 if the run must stop."""
    with dist_autograd.context() as context:
        sent = time.perf_counter()
        version, weights = holder.rpc_sync().weights_to_learn()
        signals.report(train_rpc_seconds=time.perf_counter() - sent)
        loss = functional_call(model, {name: weight.to(device) for name, weight in zip(names, weights)}, batch)
        dist_autograd.backward(context, [loss])
        optimizer.step(context)
        return holder.rpc_sync().stepped(version, loss.item())
