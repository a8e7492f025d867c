"""Stands in for W&B: `wandb.log` is a method of the run that `init` made."""

from wandb.sdk.wandb_run import Run


def init():
    global log
    run = Run()
    log = run.log
    return run
