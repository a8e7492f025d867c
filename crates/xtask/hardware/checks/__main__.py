"""Arguments of ./confirm."""

import argparse
import pathlib
import sys

from . import runner
from .lockstep import Settings

EPILOG = """Each part ends within 9 minutes and writes part-N.json, part-N.log and table.md into --out. A part that is cut off keeps the steps that are done.
Exit codes: 0 every step came to its end (rows may differ), 1 some step did not, 2 wrong usage."""


def main():
    steps = "\n".join(f"  {step.part}  {step.name:14} {step.says}" for step in runner.STEPS)
    parser = argparse.ArgumentParser(
        prog="confirm", description="Compares what Lockstep reads and says about this machine's GPUs with NVIDIA's own tools and with known work.\n\nSteps:\n" + steps,
        epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("part", choices=("1", "2", "3", "all"), help="which part; `all` runs them one after the other; with --quick, steps of all parts at the same time")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("results"), metavar="DIR", help="where the results go (default: results)")
    parser.add_argument("--only", action="append", metavar="STEP", help="only this step; may be repeated")
    parser.add_argument("--quick", action="store_true", help="small work and few repetitions, to see that every step runs; its figures mean little")
    parser.add_argument("--simulate", metavar="SPEC", help="simulated GPUs, like h200x1, on a machine without any")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    names = [step.name for step in runner.STEPS]
    for name in asked.only or ():
        if name not in names:
            parser.error(f"argument --only: there is no step {name!r}; there are: {', '.join(names)}")
    settings = Settings(quick=asked.quick, simulate=asked.simulate, only=tuple(asked.only or ()), root=runner.ROOT)
    if asked.step:
        return runner.step_main(int(asked.part), asked.step, asked.folder, settings)
    out = asked.out.resolve()
    if asked.part != "all":
        return 0 if runner.run_part(int(asked.part), settings, out) else 1
    if asked.quick:
        return 0 if runner.run_at_once((1, 2, 3), settings, out) else 1
    return 0 if all([runner.run_part(part, settings, out) for part in (1, 2, 3)]) else 1


if __name__ == "__main__":
    sys.exit(main())
