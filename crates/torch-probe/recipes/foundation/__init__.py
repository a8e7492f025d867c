"""What the recipes that shard, cut and save memory stand on: everything but what each of them is about.

    loop.py         steps, validation, checkpoints, stops       training.py   what a checkpoint holds, and how it is put back
    checkpoints.py  sharded checkpoints through DCP             data.py       the text, dealt out to the ranks
    model.py        a transformer that can be cut in every way  sharding.py   FSDP2, in the versions of torch that have it
    mesh.py         ranks in rows and columns                   trial.py      two ways to train beside each other: memory, time, losses
    memory.py       bytes, counted from the tensors             watched.py    what Lockstep's probe is told, where it watches
    group.py        the process group                           arguments.py  the arguments, and refusing what makes no sense

Others take the process group and the arguments' types from here, and no more.
The text, its sampler, the random numbers' state and the agreement on a last step are those of the recipe `resume`.
"""

import os

# Several ranks share a machine's cores. Must be set before torch is imported, which is why this package comes first in each recipe.
os.environ.setdefault("OMP_NUM_THREADS", "1")
