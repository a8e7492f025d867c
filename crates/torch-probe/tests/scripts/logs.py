"""Logs like scripts, with the logger named on the command line: a loss every second step, other values, and values that no logger may
report."""

import sys

import torch

weight = torch.nn.Parameter(torch.full((3,), 2.0))
optimizer = torch.optim.SGD([weight], lr=0.01)
logger = sys.argv[1]
if logger == "wandb":
    import wandb

    run = wandb.init()
elif logger == "tensorboard":
    from tensorboardX import SummaryWriter

    writer = SummaryWriter()
elif logger == "mlflow":
    import mlflow
    from mlflow import log_metric

for step in range(1, 7):
    loss = weight.square().sum()
    optimizer.zero_grad()
    (loss / 16).backward()  # as with sixteen micro-batches
    if step % 2 == 0:
        print(f"step={step} loss={loss.item():.9g}", flush=True)
        if logger == "wandb":
            wandb.log({"train": {"accuracy": step / 10}, "train/loss": loss.detach(), "loss": -1.0, "image": object(), "done": True})
        elif logger == "tensorboard":
            writer.add_scalar("Loss/train", loss.item(), step)
            writer.add_scalars("lr", {"body": 0.01 * step, "head": float("nan")}, step)
        elif logger == "mlflow":
            assert log_metric("train_loss", loss.item(), step=step) == "active: train_loss"
            mlflow.log_metrics({"val/acc": torch.tensor(step / 10), "a\nb": 1.0, "x" * 65: 1.0}, step=step)
            try:
                mlflow.log_metrics(7)
            except TypeError as error:
                assert "no dictionary" in str(error)
            mlflow.log_metrics({f"many-{n}": n for n in range(100)})
    optimizer.step()
