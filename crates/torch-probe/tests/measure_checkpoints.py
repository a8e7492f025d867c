"""Measures the benefit of incremental saving: the recipe `resume` with seven of its eight blocks frozen, saved in three ways.

    python crates/torch-probe/tests/measure_checkpoints.py [FOLDER]

FOLDER contains the checkpoints during the measurement (about 1.5 GB); it must be on the kind of disk to measure. Prints the
table of docs/checkpoints.md: bytes on the disk by `du`, which counts a file with several names once, and the seconds of a save.
"""

import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

RECIPE = pathlib.Path(__file__).resolve().parents[1] / "recipes" / "resume" / "main.py"
TRAINING = "--layers=8 --freeze=7 --width=384 --batch-size=2 --context=16 --steps=20 --checkpoint-every=2 --validate-every=1000".split()
WAYS = {
    "every checkpoint in full": ["--no-link"],
    "unchanged weights linked": [],
    "linked, three of four model-only": ["--full-every=4"],
}


def main():
    parent = sys.argv[1] if len(sys.argv) > 1 else None
    print("| 10 checkpoints, 2 ranks | on the disk | a save, median | a save, range |\n|---|---|---|---|")
    for way, arguments in WAYS.items():
        with tempfile.TemporaryDirectory(dir=parent) as folder:
            seconds = train(folder, arguments)
            print(f"| {way} | {used(folder) / 1e6:.0f} MB | {statistics.median(seconds):.2f} s | {min(seconds):.2f} to {max(seconds):.2f} s |", flush=True)


def train(folder, arguments):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launcher, str(RECIPE), *TRAINING, *arguments, f"--checkpoint-dir={folder}/saved"]
    done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE)
    (pathlib.Path(folder) / "saved" / "best.pth").unlink()
    return [float(found) for found in re.findall(r"^checkpoint \S+ in (\S+) s", done.stdout, re.MULTILINE)]


def used(folder):
    return int(subprocess.run(["du", "-s", "--block-size=1", os.path.join(folder, "saved")], check=True, text=True, stdout=subprocess.PIPE).stdout.split()[0])


if __name__ == "__main__":
    main()
