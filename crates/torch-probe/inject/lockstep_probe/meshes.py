"""The mesh a script puts its ranks into: the names of its axes, their sizes, and this rank's coordinates.

Read from each `DeviceMesh` as it is made, whoever makes it (`init_device_mesh`, FSDP2's own default, the script itself). Told is what covers the
whole world: slices of a mesh, meshes of a part of the ranks and flattened ones say less. Of several the one with the most axes counts, then the one
that names them, then the first.
"""

import functools
import math
import os


def watch(probe, module):
    kind = module.DeviceMesh
    original = kind.__init__

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        probe.call(probe.meshes.made, self)

    kind.__init__ = __init__


# Axes along which ranks have the same layers and other data, as recipes and common frameworks name them.
DATA_PARALLEL_AXES = {"dp", "ddp", "data", "data_parallel", "replicate", "shard", "fsdp", "hsdp", "dp_replicate", "dp_shard"}


class Meshes:
    def __init__(self, probe):
        self._probe = probe
        self._known = (0, False)  # (axes, whether they are named) of the one that counts
        self._names = []
        self._untold = None

    def made(self, mesh):
        sizes = [int(size) for size in mesh.mesh.shape]
        names = list(mesh.mesh_dim_names or [])
        if (len(sizes), bool(names)) <= self._known or math.prod(sizes) != int(os.environ["WORLD_SIZE"]):
            return
        coordinates = mesh.get_coordinate()
        if coordinates is None:
            return
        self._known, self._names = (len(sizes), bool(names)), names
        self._untold = {"axes": names or None, "sizes": sizes, "coordinates": [int(at) for at in coordinates]}
        self.tell()

    def is_data_parallel(self):
        """Whether all ranks have the same layers and other data, as far as meshes tell: none, one without names, or axes known for it."""
        axes, is_named = self._known
        return set(self._names) <= DATA_PARALLEL_AXES if is_named else axes <= 1

    def tell(self):
        """Now, or at the end of a later step, when somebody listens."""
        if self._untold is not None and self._probe.say("mesh", self._untold):
            self._untold = None
