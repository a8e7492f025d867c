"""Trains a linear layer on a GPU whose memory is in pieces, then asks for a tensor that fits into the sum of the pieces and into none of them.

    one segment:   |block|     |block|     |block|     …      every other block was freed; a segment that is partly in use is never given back
    the rest of the GPU's memory is taken but for LEFT_BYTES, which is less than what is asked for in the end

Before the error ends the script, its last line of output says as a JSON object what PyTorch knows of the memory.
"""

import json
import sys

import torch
from exhaust import STEPS_BEFORE, Training, books

BLOCK_BYTES = 64 << 20
BLOCKS = 48
REQUESTED_BYTES = 512 << 20
LEFT_BYTES = 256 << 20


def main():
    device = torch.device("cuda")
    training = Training(device)
    for _ in range(STEPS_BEFORE):
        training.step()
    kept = fragment()
    training.step()
    try:
        kept.append(allocate(REQUESTED_BYTES))
    except torch.OutOfMemoryError as error:
        holes = {"requested_bytes": REQUESTED_BYTES, "largest_free_bytes": BLOCK_BYTES, "holes_bytes": BLOCKS // 2 * BLOCK_BYTES}
        print(json.dumps({**holes, **books(error, device)}), flush=True)
        raise
    sys.exit("the tensor was found room for: memory was not in pieces")


def fragment():
    """One segment of BLOCKS blocks, every other of them free, and a tensor that takes the rest."""
    torch.cuda.empty_cache()
    segment = allocate(BLOCKS * BLOCK_BYTES)
    rest = allocate(torch.cuda.mem_get_info()[0] - LEFT_BYTES)
    del segment  # PyTorch keeps it, and cuts the blocks from it
    blocks = [allocate(BLOCK_BYTES) for _ in range(BLOCKS)]
    return [rest, *blocks[::2]]


def allocate(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


if __name__ == "__main__":
    main()
