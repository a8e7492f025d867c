"""Trains as gpt.py does, and takes memory after the warm-up until a share of the GPU's is in use."""

import signal

import gpt
import torch


def main():
    parser = gpt.parser()
    parser.add_argument("--fill", type=float, default=0.0, help="the share of the GPU's memory to have in use")
    arguments = parser.parse_args()
    training = gpt.start(arguments)
    signal.signal(signal.SIGTERM, training.stop)
    taken = None
    while not training.is_over():
        training.step()
        if taken is None and training.device.type == "cuda" and training.steps >= arguments.warmup:
            taken = take(training.device, arguments.fill)
    training.finish()


def take(device, share):
    """What is missing to the share, in one piece; nothing where more is in use."""
    free, total = torch.cuda.mem_get_info(device)
    return torch.empty(max(0, round(share * total) - (total - free)), dtype=torch.uint8, device=device)


if __name__ == "__main__":
    main()
