"""The common base of the recipes that shard, split and save memory.

    loop.py         steps, validation, checkpoints, stops       training.py   the content of a checkpoint, and how it is restored
    checkpoints.py  sharded checkpoints through DCP             data.py       the text, divided among the ranks
    model.py        a transformer that can be split in any way  sharding.py   FSDP2, in the versions of torch that have it
    mesh.py         ranks in rows and columns                   trial.py      a comparison of two variants: memory, time, losses
    memory.py       bytes, counted from the tensors             watched.py    reports to Lockstep's probe, if there is one
    group.py        the process group                           arguments.py  the arguments, and checks that refuse invalid ones

Other recipes use only the process group and the types of the arguments.
The text, its sampler, the random numbers' state and the agreement on a last step are those of the recipe `resume`.
"""

import os

# Several ranks share a machine's cores. Must be set before torch is imported, so each recipe imports this package first.
os.environ.setdefault("OMP_NUM_THREADS", "1")
