"""Checks of Lockstep on a machine with NVIDIA GPUs, in three parts.

    __main__     arguments of ./confirm
    runner       runs the steps of a part, each in a process of its own with a time limit
    sheet        what a step reports: rows (agrees, differs, not available) and facts
    table        the Markdown table of all parts
    machine      GPU, driver, PyTorch, operating system
    lockstep     a collector and an agent of this folder's binary, its API and commands
    reference    the same values from nvidia-smi and pynvml
    work         work of known size for a GPU: matrix products, copies
    trainings/   the scripts that are trained
    part1/       NVML, GPM, cost          part2/   probe, memory, planner, knobs          part3/   NCCL, out of memory, Xid
"""
