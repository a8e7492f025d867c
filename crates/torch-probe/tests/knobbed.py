"""Ranks with knobs, by fork: the probe starts in a process that has already imported torch.

`train(work, knobs, count)` runs work() in `count` forked ranks with LOCKSTEP_KNOBS set. It returns the result of each rank (through JSON)
and the records of the probe. `script(name, *arguments)` is a work that runs a file as a program; its result is the file's output.
"""

import contextlib
import io
import json
import os
import runpy
import sys

import forked
import torch._dynamo
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp
from conftest import Listener, rank_environment

# Imported above, once and before the fork: modules that the scripts need and that take seconds (DDP itself imports the compiler).


class Trained:
    def __init__(self, results, listener):
        self.results = results
        self.listener = listener

    @property
    def result(self):
        return self.results[0]

    def answers(self, rank=0):
        """Returns name -> (state, detail) of the last answer."""
        return {r["name"]: (r["state"], r["detail"]) for r in self.listener.of("knob", rank)}

    def state(self, name):
        """Returns the state on which all ranks agree."""
        [state] = {self.answers(rank).get(name, ("silent", ""))[0] for rank in range(len(self.results))}
        return state

    def detail(self, name):
        return self.answers()[name][1]

    def saved(self, rank=0):
        """saved_tensor_bytes of the sampled steps."""
        return [r["saved_tensor_bytes"] for r in self.listener.of("step", rank) if "saved_tensor_bytes" in r]


def train(folder, work, knobs=None, count=1, **environ):
    listener = Listener(folder / "socket")
    setting = {**rank_environment(listener.path), **environ}
    if knobs is not None:
        setting["LOCKSTEP_KNOBS"] = json.dumps(knobs)

    def rank_work(rank):
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "TORCHELASTIC_RUN_ID": "test"}
        os.environ.update({**setting, **{name: str(value) for name, value in own.items()}})
        os.environ["MASTER_RENDEZVOUS"] = f"file://{folder}/rendezvous"
        watched_rank(work, folder / f"result-{rank}")

    try:
        pids = [forked.start(rank_work, rank) for rank in range(count)]
        codes = [forked.wait(pid) for pid in pids]
    finally:
        listener.close()
    assert codes == [0] * count
    return Trained([json.loads((folder / f"result-{rank}").read_text()) for rank in range(count)], listener)


def watched_rank(work, path):
    import lockstep_probe

    join_by_file()
    lockstep_probe.probe = None  # if another test has imported the submodule of that name, it would look like a probe
    lockstep_probe.start()
    bind_again()
    result = work()
    lockstep_probe.probe.call(lockstep_probe.probe.at_exit)  # a forked rank ends without exit functions
    path.write_text(json.dumps(result))


def join_by_file():
    """A rendezvous without a launcher's store, for scripts that call init_process_group with only a backend."""
    from torch.distributed import distributed_c10d as module

    original = module.init_process_group
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    def init_process_group(backend=None, init_method=None, timeout=None):
        return original(backend, os.environ["MASTER_RENDEZVOUS"], timeout, rank=rank, world_size=size)

    module.init_process_group = init_process_group


def bind_again():
    """Updates what packages have imported from the modules that the probe changes, as if the probe had started before them."""
    torch.distributed.init_process_group = torch.distributed.distributed_c10d.init_process_group
    torch.distributed.new_group = torch.distributed.distributed_c10d.new_group
    torch.nn.utils.clip_grad_norm_ = torch.nn.utils.clip_grad.clip_grad_norm_
    torch.distributed.fsdp.fully_shard = sys.modules["torch.distributed.fsdp._fully_shard._fully_shard"].fully_shard


def script(path, *arguments):
    def work():
        printed = io.StringIO()
        sys.argv = [str(path), *map(str, arguments)]
        with contextlib.redirect_stdout(printed):
            runpy.run_path(str(path), run_name="__main__")
        return printed.getvalue()

    return work
