"""The recipe `rpc-parameter-server`, whose last worker begins when the others have made five updates already."""

import os
import pathlib
import runpy
import sys
import time

RECIPE = pathlib.Path(__file__).resolve().parents[2] / "recipes" / "rpc-parameter-server"
sys.path.insert(0, str(RECIPE))


def others_have_made(updates):
    return f"step {updates} " in pathlib.Path("output-0").read_text()  # the server's, which the fixture `ranks` keeps here


if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
    import task

    make = task.make

    def make_late(*arguments):
        while not others_have_made(5):
            time.sleep(0.01)
        return make(*arguments)

    task.make = make_late

runpy.run_path(str(RECIPE / "main.py"), run_name="__main__")
