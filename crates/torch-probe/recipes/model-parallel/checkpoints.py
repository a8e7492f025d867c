"""One checkpoint of the whole network: each stage writes its own layers with their names in the whole network, and Adam's state for them.

    DIR/step-000020/            through DCP, by all ranks (lockstep_checkpoint)
    DIR/latest                  the name of the newest

No name contains a stage, so another number of ranks can resume from it.
"""

import os
import sys

import torch.distributed as dist

HERE = os.path.dirname(os.path.abspath(__file__))
try:
    import lockstep_checkpoint
except ImportError:  # not in a run of Lockstep, which has it on PYTHONPATH: it is in the folder of the recipes
    sys.path.append(os.path.join(HERE, "..", "..", "inject"))
    import lockstep_checkpoint


def save(arguments, module, optimizer, step):
    moments = {name: dict(optimizer.state[parameter]) for name, parameter in module.named_parameters()}
    progress = {"step": step, "stages": dist.get_world_size()}
    path = lockstep_checkpoint.save({"model": module.state_dict(), "optimizer": moments, "progress": progress}, arguments.checkpoint_dir, step)
    if dist.get_rank() == 0:
        print(f"checkpoint {path}", flush=True)


def restore(arguments, module, optimizer):
    """Returns the step that was saved, or 0."""
    path = choose(os.environ.get("LOCKSTEP_RESUME_FROM") or arguments.resume, arguments.checkpoint_dir)
    if not path:
        return 0
    names = [name for name, _ in module.named_parameters()]
    keys = [f"{kind}.{name}" for kind in ("model", "optimizer") for name in names]
    state = lockstep_checkpoint.load(path, keys=("progress", *keys))
    missing = [name for name in names if name not in state.get("model", {})]
    if missing:
        raise SystemExit(f"{path} is of another network: it has no {missing[0]}; give --blocks and --width as they were")
    module.load_state_dict(state["model"])
    for name, parameter in module.named_parameters():
        optimizer.state[parameter] = {key: value.to(parameter.device) if value.dim() else value for key, value in state["optimizer"][name].items()}
    step = state["progress"]["step"]
    if dist.get_rank() == 0:
        print(f"resumed from {path} at step {step}", flush=True)
    return step


def choose(asked, folder):
    """Returns the path to resume from, or None to start from the beginning. `latest` without a checkpoint starts; a missing path is an
    error."""
    if asked == "latest":
        # All ranks must resume from the same checkpoint: rank 0 finds it.
        found = [lockstep_checkpoint.newest(folder) if folder and dist.get_rank() == 0 else None]
        dist.broadcast_object_list(found)
        return found[0]
    if asked and not os.path.exists(asked):
        raise SystemExit(f"there is no checkpoint {asked} to go on from")
    return asked or None
