"""Trains as gpt.py does, in blocks of steps: before each it waits for a line on its standard input, and nothing of it runs while another process has
its turn. It ends with its input. Each line that it prints is a JSON object: `ready`, then what each block took.
"""

import json
import os
import sys
import time

import gpt

# The first steps allocate and choose kernels.
WARMUP_STEPS = 3
# On a CPU a step has to be long enough for a share of it to mean something.
gpt.SMALL |= {"hidden": 128, "sequence": 128}


def main():
    parser = gpt.parser()
    parser.add_argument("--block", type=int, default=10, help="steps of a block")
    arguments = parser.parse_args()
    training = gpt.start(arguments)
    block(training, WARMUP_STEPS)
    say({"ready": os.getpid(), "device": str(training.device)})
    for _ in sys.stdin:
        say(block(training, arguments.block))


def block(training, steps):
    processor_s, began = time.process_time(), time.perf_counter()
    for _ in range(steps):
        training.step()
    training.clock.wait()
    return {"wall_s": time.perf_counter() - began, "processor_s": time.process_time() - processor_s, "steps": steps}


def say(words):
    print(json.dumps(words), flush=True)


if __name__ == "__main__":
    main()
