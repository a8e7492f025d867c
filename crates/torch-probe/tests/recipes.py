"""Runs recipes and scripts by fork, without the probe: ranks share this process's imported torch, with the environment and the store of
torchrun.

Importing torch takes longer than most of these trainings, and a recipe's test needs several of them.
"""

import contextlib
import faulthandler
import os
import pathlib
import re
import runpy
import sys
import time
import traceback

import forked
from conftest import INJECT, PACKAGE

RECIPES = PACKAGE / "recipes"
DEADLINE_S = 300  # seconds of work, on a machine that may be busy with other things
JOINED_S = 5  # a joined thread is still listed for a moment


def with_shared_arguments():
    """Names of the recipes that use `foundation`."""
    return [program.parent.name for program in sorted(RECIPES.glob("*/main.py")) if "arguments.parser(" in program.read_text()]


class Run:
    """A finished training: its exit code, the output of all ranks, and the files that were read."""

    def __init__(self, code, output):
        self.code = code
        self.output = output
        self.losses = {int(step): loss for step, loss in re.findall(r"^step (\d+) loss (\S+)", output, re.MULTILINE)}
        self.resumed = re.findall(r"^resumed from (\S+) at step (\d+), (.*)", output, re.MULTILINE)

    @property
    def values(self):
        return [float(self.losses[step]) for step in sorted(self.losses)]


def run(folder, recipe, *arguments, ranks=2, resume_from=None, attempt=None, meanwhile=None):
    """Trains a recipe, or a script by its path, to the end; `meanwhile(processes)` runs in parallel. Other environment variables are those of
    this process."""
    from torch.distributed import TCPStore

    script = recipe if isinstance(recipe, pathlib.Path) else RECIPES / recipe / "main.py"
    import_what_ranks_import()
    folder.mkdir(exist_ok=True)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    job = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port}
    job.update(TORCHELASTIC_RUN_ID="test", TORCHELASTIC_USE_AGENT_STORE=True, TORCHELASTIC_RESTART_COUNT=0, OMP_NUM_THREADS=1)
    job.update({"LOCKSTEP_RESUME_FROM": resume_from} if resume_from else {})
    job.update({"LOCKSTEP_ATTEMPT": attempt} if attempt else {})
    processes = [
        forked.start(lambda _, rank=rank: become(script, arguments, folder, {**job, "RANK": rank, "LOCAL_RANK": rank}, rank))
        for rank in range(ranks)
    ]
    try:
        if meanwhile is not None:
            meanwhile(processes)
        codes = [forked.wait(process, DEADLINE_S) for process in processes]
    except BaseException as error:
        for process in processes:
            forked.end(process)
        if isinstance(error, Exception):
            raise AssertionError(f"{error}; the ranks said:\n{said(folder, ranks)}") from error
        raise
    return Run(next((code for code in codes if code), 0), said(folder, ranks))


def said(folder, ranks):
    return "".join((folder / f"output-{rank}").read_text() for rank in range(ranks))


def import_what_ranks_import():
    """Imports once here, not in each forked rank. The first two are imported when a sharded optimizer steps."""
    import torch._dynamo
    import torch._inductor.codegen.common
    import torch.distributed.checkpoint.state_dict
    import torch.distributed.fsdp
    import torch.distributed.tensor.parallel  # noqa: F401


def become(script, arguments, folder, variables, rank):
    """Ends the forked process as the script's own would end."""
    output = os.open(folder / f"output-{rank}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout, sys.stderr = open(1, "w", buffering=1), open(2, "w", buffering=1)  # noqa: SIM115 (open as long as the process)
    faulthandler.enable()
    os.chdir(folder)
    os.environ.update({name: str(value) for name, value in variables.items()})
    sys.path[:0] = [str(script.parent), str(INJECT)]
    sys.argv = [str(script), *map(str, arguments)]
    code = 0
    try:
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
            if not isinstance(end.code, int):
                print(end.code)
        lasting = lasting_threads("gloo") if RECIPES in script.parents else []
        assert not lasting, f"Gloo's threads are still there at the end, where they may abort the process: {lasting}"
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)


def lasting_threads(word):
    """Names of threads with that word that do not end by themselves."""
    deadline = time.monotonic() + JOINED_S
    while (found := [name for name in threads() if word in name]) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def threads():
    """Their names; one may end meanwhile."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/self/task/{thread}/comm") as name:
            yield name.read().strip()
