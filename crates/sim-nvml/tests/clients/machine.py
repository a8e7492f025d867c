"""The values that a spec implies. The readings of every client are compared with them."""

import pathlib

MIB = 1 << 20

# name, MiB, power limit in W, NVLinks, MB/s of a link, PCIe generation, GPM, ECC, compute capability, brand
MODELS = {
    "h100": ("NVIDIA H100 80GB HBM3", 81559, 700, 18, 26562, 5, True, True, (9, 0), "NVIDIA"),
    "h200": ("NVIDIA H200", 143771, 700, 18, 26562, 5, True, True, (9, 0), "NVIDIA"),
    "b200": ("NVIDIA B200", 183359, 1000, 18, 53125, 5, True, True, (10, 0), "NVIDIA"),
    "a100": ("NVIDIA A100-SXM4-80GB", 81920, 400, 12, 25000, 4, False, True, (8, 0), "NVIDIA"),
    "rtx4090": ("NVIDIA GeForce RTX 4090", 24564, 450, 0, 0, 4, False, False, (8, 9), "GeForce"),
}

# The MIG instances that the specs use: MiB, multiprocessors, compute slices.
INSTANCES = {
    ("h100", "3g.40gb"): (40448, 60, 3),
    ("h100", "2g.20gb"): (20096, 32, 2),
    ("h100", "1g.10gb"): (9984, 16, 1),
    ("a100", "1g.10gb"): (9728, 14, 1),
}

# Bits of the clock event reasons, and clocks as a share of their maximum, by the reason for the slowdown.
BRAKES = {"thermal": (0x68, (0.5, 0.6)), "power": (0x4, (0.75, 0.85)), "power-brake": (0x88, (0.45, 0.55))}

# Scenarios that affect every GPU unless the spec names some.
FOR_ALL = ("memory-pressure", "slow-call")


class Machine:
    """A spec, parsed independently of the simulator."""

    def __init__(self, spec):
        head, *options = spec.split(",")
        machine, _, scenario = head.partition(":")
        self.profile, _, count = machine.rpartition("x")
        self.count = int(count)
        options = dict(option.split("=") for option in options)
        self.driver = options.pop("driver", "580.95.05")
        self.idle = scenario == "idle"
        # GPU -> its faults -> their options
        self.troubles = {gpu: {} for gpu in range(self.count)}
        if scenario.startswith("file="):
            for line in pathlib.Path(scenario.removeprefix("file=")).read_text().splitlines():
                words = line.partition("#")[0].split()
                if words:
                    self.add(words[1], dict(word.split("=") for word in words[2:]))
        elif scenario not in ("", "healthy", "idle"):
            self.add(scenario, options)

    def add(self, name, options):
        everyone = "all" if name in FOR_ALL else "0"
        gpus = options.get("gpu", everyone)
        for gpu in range(self.count) if gpus == "all" else [int(gpus)]:
            self.troubles[gpu][name] = options

    @property
    def model(self):
        return MODELS[self.profile]

    @property
    def is_stuck(self):
        """One GPU is gone, so the others spin in a collective that never finishes."""
        return any("lost" in troubles or "xid" in troubles for troubles in self.troubles.values())

    def has(self, gpu, trouble):
        return trouble in self.troubles[gpu]

    def is_gone(self, gpu):
        return self.has(gpu, "lost") or self.has(gpu, "xid")

    def brake(self, gpu):
        """Returns the reason bits and the clocks as a share of their maximum."""
        if self.idle:
            return 0x1, (0.02, 0.4)
        if not self.has(gpu, "throttle"):
            return 0, (0.95, 1.0)
        return BRAKES[self.troubles[gpu]["throttle"].get("reason", "thermal")]

    def instances(self, gpu):
        """Returns the names of the GPU's instances, or None."""
        if not self.has(gpu, "mig"):
            return None
        return self.troubles[gpu]["mig"].get("instances", "+".join(["1g.10gb"] * 7)).split("+")

    def instance(self, name):
        return INSTANCES[self.profile, name]

    def memory_share(self, gpu):
        if self.idle:
            return 0.0, 0.05
        return (0.97, 0.99) if self.has(gpu, "memory-pressure") else (0.78, 0.82)

    def link_is_up(self, gpu, link):
        options = self.troubles[gpu].get("link-down")
        return options is None or int(options.get("link", 0)) != link

    def pcie_width(self, gpu):
        return int(self.troubles[gpu].get("pcie-degraded", {"width": 16}).get("width", 8))
