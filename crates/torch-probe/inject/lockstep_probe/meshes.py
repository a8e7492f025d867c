"""Reports the mesh of a script's ranks: the names of its axes, their sizes, and this rank's coordinates.

Read from each `DeviceMesh` when it is created, by any code (`init_device_mesh`, FSDP2's own default, the script itself). Only a mesh of the
whole world is reported: slices of a mesh, meshes of some ranks and flattened ones say less. Of several, the one with the most axes counts,
then the one with names, then the first.
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


# Axes along which ranks have the same layers and different data, with the names in recipes and common frameworks.
DATA_PARALLEL_AXES = {"dp", "ddp", "data", "data_parallel", "replicate", "shard", "fsdp", "hsdp", "dp_replicate", "dp_shard"}


class Meshes:
    def __init__(self, probe):
        self._probe = probe
        self._known = (0, False)  # (axes, whether they are named) of the chosen mesh
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
        """Returns True if, according to the meshes, all ranks have the same layers and different data: no mesh, one without names, or known
        axes."""
        axes, is_named = self._known
        return set(self._names) <= DATA_PARALLEL_AXES if is_named else axes <= 1

    def tell(self):
        """Reports now, or at the end of a later step when an agent listens."""
        if self._untold is not None and self._probe.say("mesh", self._untold):
            self._untold = None
