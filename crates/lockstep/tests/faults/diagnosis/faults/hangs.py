"""Hangs: no rank makes progress any more.

    stopped                   the test stops the process
    spin                      computes for ever between two steps
    spin-gil                  the same inside one call of C code that holds the interpreter lock
    unsent-message            waits for a message that no rank sends
    skipped-collective        skips one all_reduce of a group and goes on to the next step
    other-order               enters the collectives of two groups in the other order
    other-operation           gathers where all others reduce
    early-end                 has no more data: goes to the last barrier while all others go on
    data-sleep                its data loader sleeps for ever
    fifo                      reads from a pipe into which no one writes
    before-rendezvous         sleeps before init_process_group, while all others wait in it
    before-model              sleeps before the model is wrapped, while all others are there
    save                      saves its checkpoint to a file that never opens
    main-ended                its main thread ends with an error; another thread keeps the process alive
"""

import os
import re
import threading
import time

import torch
import torch.distributed as dist

FOREVER_S = 1e6


def spin(training):
    while True:
        pass


def spin_with_interpreter_lock(training):
    re.fullmatch("(a|a)*b", 200 * "a")


def wait_for_message(training):
    dist.recv(torch.zeros(1), src=(training.rank + 1) % dist.get_world_size())


def end_data(training):
    training.samples.ended = True


def sleep_in_data(training):
    training.samples.spoil = lambda inputs, targets: time.sleep(FOREVER_S)


def read_empty_pipe(training):
    pipe = training.arguments.dir / "pipe"
    os.mkfifo(pipe)
    os.read(os.open(pipe, os.O_RDWR), 1)


def save_to_pipe(training):
    os.mkfifo(training.checkpoint())  # opened for writing only when someone reads


def end_main_thread(training):
    threading.Thread(target=time.sleep, args=(FOREVER_S,)).start()
    raise RuntimeError("the main thread ends here")


STRIKES = {
    "spin": spin,
    "spin-gil": spin_with_interpreter_lock,
    "unsent-message": wait_for_message,
    "early-end": end_data,
    "data-sleep": sleep_in_data,
    "fifo": read_empty_pipe,
    "save": save_to_pipe,
    "main-ended": end_main_thread,
}
