"""A rank that waits at a named place until the file `leave` exists, and then ends as requested."""

import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist

if "forks" in sys.argv:  # before the group: torch 2.7's Gloo hangs at the end of a child that has a group
    if os.fork() == 0:
        sys.exit(0)  # through the exit functions it inherited
    os.wait()
    pathlib.Path("forked").touch()

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))


def waits_here(seconds):
    end = time.monotonic() + seconds
    while not pathlib.Path("leave").exists() and time.monotonic() < end:
        time.sleep(0.01)


waits_here(300)
dist.destroy_process_group()
