"""Other people's NVML clients read the simulator: pynvml (nvidia-ml-py) and nvitop, from PyPI.

    ln -s .../libsim_nvml.so DIR/libnvidia-ml.so.1
    LD_LIBRARY_PATH=DIR python clients.py            every spec below
    LD_LIBRARY_PATH=DIR python clients.py h100x8     one spec

Exits 0 when every value is there and in its range, 1 with one line for each that is not, 2 when the
library that the loader finds is not the simulator or a client is not installed.
"""

import ctypes
import os
import subprocess
import sys
import time

SPECS = [
    "h100x8",
    "h200x1",
    "b200x8",
    "a100x8",
    "rtx4090x2",
    "h100x4:idle",
    "h100x4:throttle,gpu=1,after=0s",
    "a100x4:memory-pressure,after=0s",
    "h100x4:ecc,gpu=2,after=0s,for=4s",
    "b200x4:link-down,gpu=3,link=5,after=0s",
    "h100x4:xid,gpu=1,after=2s",
    "h100x4:lost,gpu=0,after=0s",
    "h100x2,driver=570.172.08",
]

MIB = 1 << 20

# name, MiB, power limit in W, NVLinks, MB/s of a link, PCIe generation, GPM, ECC, compute capability
MODELS = {
    "h100": ("NVIDIA H100 80GB HBM3", 81559, 700, 18, 26562, 5, True, True, (9, 0)),
    "h200": ("NVIDIA H200", 143771, 700, 18, 26562, 5, True, True, (9, 0)),
    "b200": ("NVIDIA B200", 183359, 1000, 18, 53125, 5, True, True, (10, 0)),
    "a100": ("NVIDIA A100-SXM4-80GB", 81920, 400, 12, 25000, 4, False, True, (8, 0)),
    "rtx4090": ("NVIDIA GeForce RTX 4090", 24564, 450, 0, 0, 4, False, False, (8, 9)),
}


# Scenarios in which one GPU is gone: the others spin in a collective that nobody will ever finish.
STUCK = ("lost", "xid")


class Checks:
    """Collects what is wrong instead of stopping at the first."""

    def __init__(self, spec):
        self.spec = spec
        self.wrong = []
        self.done = 0

    def read(self, what, call):
        """The value of `call`, or None and a complaint."""
        try:
            return call()
        except Exception as error:  # any client error is a finding
            self.wrong.append(f"{what}: {type(error).__name__}: {error}")
            return None

    def within(self, what, call, low, high):
        value = self.read(what, call)
        self.done += 1
        if value is not None and not (isinstance(value, (int, float)) and low <= value <= high):
            self.wrong.append(f"{what}: {value!r}, expected {low} to {high}")

    def equal(self, what, call, expected):
        value = self.read(what, call)
        self.done += 1
        if value is not None and value != expected:
            self.wrong.append(f"{what}: {value!r}, expected {expected!r}")

    def refused(self, what, call, error):
        """`call` must raise `error`."""
        self.done += 1
        try:
            value = call()
        except error:
            return
        except Exception as other:
            self.wrong.append(f"{what}: {type(other).__name__}: {other}, expected {error.__name__}")
            return
        self.wrong.append(f"{what}: {value!r}, expected {error.__name__}")


def parse(spec):
    """The few parts of a spec that the expectations depend on."""
    head, *options = spec.split(",")
    machine, _, scenario = head.partition(":")
    profile, _, count = machine.rpartition("x")
    options = dict(option.split("=") for option in options)
    return profile, int(count), scenario or "healthy", options


# === pynvml ===


def check_pynvml(checks):
    import pynvml as nv

    profile, count, scenario, options = parse(checks.spec)
    nv.nvmlInit()
    checks.equal("driver version", nv.nvmlSystemGetDriverVersion, options.get("driver", "580.95.05"))
    checks.within("CUDA version", nv.nvmlSystemGetCudaDriverVersion, 11000, 14000)
    checks.equal("GPU count", nv.nvmlDeviceGetCount, count)
    troubled = int(options.get("gpu", -1))
    if scenario == "xid":
        # First, because the event comes two seconds after the initialisation above.
        check_xid(checks, nv, troubled)
    for index in range(count):
        handle = nv.nvmlDeviceGetHandleByIndex(index)
        if scenario in STUCK and index == troubled:
            checks.refused(f"lost GPU {index}", lambda: nv.nvmlDeviceGetName(handle), nv.NVMLError_GpuIsLost)
            continue
        in_trouble = scenario if index == troubled or scenario in ("idle", "memory-pressure") else "healthy"
        alone = count == 1
        check_identity(checks, nv, handle, index, profile)
        check_gauges(checks, nv, handle, index, profile, in_trouble, scenario)
        check_fields(checks, nv, handle, index, profile, in_trouble, scenario, alone)
        check_gpm(checks, nv, handle, index, profile, scenario, alone)
        check_health(checks, nv, handle, index, profile, in_trouble)
    nv.nvmlShutdown()


def check_identity(checks, nv, handle, index, profile):
    name, mib, _, links, _, generation, _, _, capability = MODELS[profile]
    at = f"GPU {index} "
    checks.equal(at + "name", lambda: nv.nvmlDeviceGetName(handle), name)
    checks.equal(at + "index", lambda: nv.nvmlDeviceGetIndex(handle), index)
    checks.equal(at + "compute capability", lambda: nv.nvmlDeviceGetCudaComputeCapability(handle), capability)
    uuid = checks.read(at + "UUID", lambda: nv.nvmlDeviceGetUUID(handle))
    checks.equal(at + "by UUID", lambda: nv.nvmlDeviceGetIndex(nv.nvmlDeviceGetHandleByUUID(uuid)), index)
    pci = checks.read(at + "PCI", lambda: nv.nvmlDeviceGetPciInfo(handle))
    checks.equal(at + "by PCI", lambda: nv.nvmlDeviceGetIndex(nv.nvmlDeviceGetHandleByPciBusId(pci.busId)), index)
    checks.equal(at + "memory v1", lambda: nv.nvmlDeviceGetMemoryInfo(handle).total, mib * MIB)
    checks.equal(at + "memory v2", lambda: nv.nvmlDeviceGetMemoryInfo(handle, version=nv.nvmlMemory_v2).total, mib * MIB)
    checks.equal(at + "PCIe generation", lambda: nv.nvmlDeviceGetMaxPcieLinkGeneration(handle), generation)
    checks.equal(at + "PCIe width", lambda: nv.nvmlDeviceGetMaxPcieLinkWidth(handle), 16)
    if links:
        checks.equal(at + "NVLink 0 version", lambda: nv.nvmlDeviceGetNvLinkVersion(handle, 0), 5 if profile == "b200" else 3 if profile == "a100" else 4)
        checks.refused(at + "one link too far", lambda: nv.nvmlDeviceGetNvLinkState(handle, links), nv.NVMLError_InvalidArgument)
    else:
        checks.refused(at + "no NVLink", lambda: nv.nvmlDeviceGetNvLinkState(handle, 0), nv.NVMLError_NotSupported)


def check_gauges(checks, nv, handle, index, profile, in_trouble, scenario):
    watts = MODELS[profile][2]
    at = f"GPU {index} "
    memory = {"idle": (0.0, 0.05), "memory-pressure": (0.97, 0.99)}.get(in_trouble, (0.78, 0.82))
    info = nv.nvmlDeviceGetMemoryInfo(handle)
    checks.within(at + "memory share", lambda: info.used / info.total, *memory)
    busy = (0, 0) if scenario == "idle" else (85, 100)
    checks.within(at + "utilization", lambda: nv.nvmlDeviceGetUtilizationRates(handle).gpu, *busy)
    power = (1, watts * 250) if scenario == "idle" else (watts * 300, watts * 1000)
    if scenario in STUCK:
        # An average of the last second, which may still have been a good one.
        power = (watts * 150, watts * 1000)
    checks.within(at + "power", lambda: nv.nvmlDeviceGetPowerUsage(handle), *power)
    checks.equal(at + "power limit", lambda: nv.nvmlDeviceGetEnforcedPowerLimit(handle), watts * 1000)
    checks.within(at + "energy", lambda: nv.nvmlDeviceGetTotalEnergyConsumption(handle), 1_000_000, 1 << 62)
    checks.within(at + "temperature", lambda: nv.nvmlDeviceGetTemperatureV(handle, nv.NVML_TEMPERATURE_GPU), 25, 95)
    clock = nv.nvmlDeviceGetClockInfo(handle, nv.NVML_CLOCK_SM) / nv.nvmlDeviceGetMaxClockInfo(handle, nv.NVML_CLOCK_SM)
    clocks = {"idle": (0.02, 0.4), "throttle": (0.4, 0.6)}.get(in_trouble, (0.95, 1.0))
    checks.within(at + "SM clock over maximum", lambda: clock, *clocks)
    reasons = {"idle": 0x1, "throttle": 0x68}.get(in_trouble, 0)
    checks.equal(at + "clock event reasons", lambda: nv.nvmlDeviceGetCurrentClocksEventReasons(handle), reasons)
    processes = checks.read(at + "processes", lambda: nv.nvmlDeviceGetComputeRunningProcesses(handle))
    checks.equal(at + "process count", lambda: len(processes), 0 if scenario == "idle" else 1)


def check_fields(checks, nv, handle, index, profile, in_trouble, scenario, alone):
    _, _, _, links, speed, _, _, _, _ = MODELS[profile]
    at = f"GPU {index} field "
    newer = nv.nvmlSystemGetDriverVersion() >= "580.82"
    thermal = 269 if newer else 251
    moving = [(83, 0), (198, 0)] + ([(138, 0xFFFFFFFF), (139, 0xFFFFFFFF)] if links else [])
    fixed = [(thermal, 0), (186, 0)] + ([(91, 0), (164, 5)] if links else [])
    before = nv.nvmlDeviceGetFieldValues(handle, moving + fixed)
    time.sleep(0.15)
    after = nv.nvmlDeviceGetFieldValues(handle, moving + fixed)
    for field in list(before) + list(after):
        checks.equal(f"{at}{field.fieldId} status", lambda: field.nvmlReturn, 0)
    for old, new, (field, _) in zip(before, after, moving):
        at_rest = scenario == "idle" or scenario in STUCK
        still = at_rest and field != 83 or alone and field in (138, 139)
        value = lambda: new.value.ullVal - old.value.ullVal
        checks.within(f"{at}{field} growth", value, 0 if still else 1, 0 if still else 1 << 40)
        checks.within(f"{at}{field} time", lambda: new.timestamp - old.timestamp, 100_000, 60_000_000)
    if links:
        checks.equal(at + "link count", lambda: after[-2].value.uiVal, links)
        checks.equal(at + "link speed", lambda: after[-1].value.uiVal, 0 if in_trouble == "link-down" else speed)
        checks.equal(at + "link 5 up", lambda: nv.nvmlDeviceGetNvLinkState(handle, 5), 0 if in_trouble == "link-down" else 1)


def check_gpm(checks, nv, handle, index, profile, scenario, alone):
    at = f"GPU {index} GPM "
    supported = MODELS[profile][6]
    checks.equal(at + "support", lambda: nv.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice, int(supported))
    if not supported:
        return
    first, second = nv.nvmlGpmSampleAlloc(), nv.nvmlGpmSampleAlloc()
    nv.nvmlGpmSampleGet(handle, first)
    time.sleep(0.3)
    nv.nvmlGpmSampleGet(handle, second)
    request = nv.c_nvmlGpmMetricsGet_t()
    request.version = nv.NVML_GPM_METRICS_GET_VERSION
    request.sample1, request.sample2 = first, second
    ids = [nv.NVML_GPM_METRIC_SM_UTIL, nv.NVML_GPM_METRIC_ANY_TENSOR_UTIL, nv.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC]
    request.numMetrics = len(ids)
    for slot, metric in enumerate(ids):
        request.metrics[slot].metricId = metric
    nv.nvmlGpmMetricsGet(request)
    # SM, tensor in percent; NVLink in MiB/s.
    ranges = [(20, 100), (10, 80), (0, 0) if alone else (50_000, 1_000_000)]
    if scenario == "idle":
        ranges = [(0, 0), (0, 0), (0, 0)]
    elif scenario in STUCK:
        ranges = [(5, 20), (0, 0), (0, 0)]
    for slot, (low, high) in enumerate(ranges):
        checks.equal(f"{at}{ids[slot]} status", lambda: request.metrics[slot].nvmlReturn, 0)
        checks.within(f"{at}{ids[slot]}", lambda: request.metrics[slot].value, low, high)
    nv.nvmlGpmSampleFree(first)
    nv.nvmlGpmSampleFree(second)


def check_health(checks, nv, handle, index, profile, in_trouble):
    at = f"GPU {index} "
    corrected = lambda: nv.nvmlDeviceGetTotalEccErrors(handle, nv.NVML_MEMORY_ERROR_TYPE_CORRECTED, nv.NVML_VOLATILE_ECC)
    uncorrected = lambda: nv.nvmlDeviceGetTotalEccErrors(handle, nv.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nv.NVML_VOLATILE_ECC)
    if not MODELS[profile][7]:
        checks.refused(at + "no ECC", corrected, nv.NVMLError_NotSupported)
        return
    if in_trouble != "ecc":
        checks.equal(at + "corrected errors", corrected, 0)
        checks.equal(at + "remapped rows", lambda: list(nv.nvmlDeviceGetRemappedRows(handle)), [0, 0, 0, 0])
        return
    deadline = time.monotonic() + 10
    while uncorrected() == 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    checks.within(at + "corrected errors", corrected, 10, 1000)
    checks.equal(at + "uncorrected errors", uncorrected, 1)
    checks.equal(at + "remapped rows", lambda: list(nv.nvmlDeviceGetRemappedRows(handle)), [0, 1, 1, 0])


def check_xid(checks, nv, troubled):
    events = nv.nvmlEventSetCreate()
    handle = nv.nvmlDeviceGetHandleByIndex(troubled)
    nv.nvmlDeviceRegisterEvents(handle, nv.nvmlEventTypeXidCriticalError, events)
    event = checks.read("event", lambda: nv.nvmlEventSetWait_v2(events, 10_000))
    checks.equal("Xid", lambda: event.eventData, 79)
    checks.refused("GPU after Xid 79", lambda: nv.nvmlDeviceGetName(handle), nv.NVMLError_GpuIsLost)
    nv.nvmlEventSetFree(events)


# === nvitop ===


def check_nvitop(checks):
    import nvitop

    profile, count, scenario, options = parse(checks.spec)
    name, mib, watts, links, _, _, _, _, _ = MODELS[profile]
    idle = scenario == "idle"
    checks.equal("nvitop count", nvitop.Device.count, count)
    for device in nvitop.Device.all():
        if scenario in STUCK and device.index == int(options["gpu"]):
            continue
        at = f"nvitop GPU {device.index} "
        checks.equal(at + "name", device.name, name)
        checks.equal(at + "memory", device.memory_total, mib * MIB)
        checks.within(at + "utilization", device.gpu_utilization, 0 if idle else 85, 0 if idle else 100)
        checks.within(at + "power", device.power_usage, 1, watts * 1000)
        checks.within(at + "temperature", device.temperature, 25, 95)
        checks.equal(at + "processes", lambda: len(device.processes()), 0 if idle else 1)
        snapshot = checks.read(at + "snapshot", device.as_snapshot)
        checks.equal(at + "snapshot's name", lambda: snapshot.name, name)
        if links:
            checks.equal(at + "links", device.nvlink_link_count, links)
    screen = subprocess.run([sys.executable, "-m", "nvitop", "-1"], capture_output=True, text=True, timeout=120)
    checks.equal("nvitop -1", lambda: screen.returncode, 0)
    shown = name.removeprefix("NVIDIA ")[:15]
    checks.equal("nvitop -1 shows the GPUs", lambda: shown in screen.stdout, True)


# === The script ===


def check_one(spec):
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        library.lockstep_sim_configure
    except (OSError, AttributeError) as error:
        print(f"the loader does not find the simulator as libnvidia-ml.so.1: {error}; set LD_LIBRARY_PATH", file=sys.stderr)
        return 2
    checks = Checks(spec)
    for client in (check_pynvml, check_nvitop):
        try:
            client(checks)
        except ImportError as error:
            print(f"{error}; pip install nvidia-ml-py nvitop", file=sys.stderr)
            return 2
        except Exception as error:  # a client that gives up is a finding too
            checks.wrong.append(f"{client.__name__} stopped: {type(error).__name__}: {error}")
    for line in checks.wrong:
        print(f"{spec}: {line}", file=sys.stderr)
    print(f"{spec}: {checks.done} values, {len(checks.wrong)} wrong")
    return 1 if checks.wrong else 0


def check_refusal():
    """A spec that means nothing must stop the client, and say why."""
    environment = dict(os.environ, LOCKSTEP_SIMULATE="h100x8:burn")
    command = [sys.executable, "-c", "import pynvml; pynvml.nvmlInit()"]
    client = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    if client.returncode == 0 or "use one of healthy" not in client.stderr:
        print(f"h100x8:burn: not refused with a reason, but: {client.stderr!r}", file=sys.stderr)
        return 1
    return 0


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--in-this-process":
        return check_one(sys.argv[2])
    # The library chooses what to simulate once, so each spec takes a process.
    codes = []
    for spec in sys.argv[1:] or SPECS:
        environment = dict(os.environ, LOCKSTEP_SIMULATE=spec)
        command = [sys.executable, __file__, "--in-this-process", spec]
        codes.append(subprocess.run(command, env=environment, timeout=300).returncode)
    return max(codes + [check_refusal()])


if __name__ == "__main__":
    sys.exit(main())
