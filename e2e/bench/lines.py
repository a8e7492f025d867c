"""Prints numbered lines as fast as it can, then waits: the log of a long training within seconds."""

import argparse
import sys
import time


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, required=True)
    parser.add_argument("--word", required=True, help="stands in the middle line only")
    parser.add_argument("--hold-s", type=float, default=0.0, help="seconds to wait after the last line")
    arguments = parser.parse_args()
    middle = arguments.lines // 2
    for number in range(1, arguments.lines + 1):
        word = arguments.word if number == middle else "loss"
        sys.stdout.write(f"line {number:07d} {word} {2.0 + 8.0 / number:.6f} lr 0.0003 tokens {4096 * number}\n")
    sys.stdout.flush()
    time.sleep(arguments.hold_s)


if __name__ == "__main__":
    main()
