"""pynvml (nvidia-ml-py) reads everything it can of every GPU."""

import ctypes
import time

import pynvml as nv

from machine import MIB


def check(checks, machine):
    nv.nvmlInit()
    checks.equal("driver version", nv.nvmlSystemGetDriverVersion, machine.driver)
    checks.within("CUDA version", nv.nvmlSystemGetCudaDriverVersion, 11000, 14000)
    checks.equal("GPU count", nv.nvmlDeviceGetCount, machine.count)
    for index in range(machine.count):
        # This is checked first, because the event comes two seconds after the initialisation above.
        if machine.has(index, "xid"):
            check_xid(checks, nv.nvmlDeviceGetHandleByIndex(index))
    for index in range(machine.count):
        handle = nv.nvmlDeviceGetHandleByIndex(index)
        if machine.is_gone(index):
            checks.refused(f"lost GPU {index}", lambda: nv.nvmlDeviceGetName(handle), nv.NVMLError_GpuIsLost)
            continue
        gpu = Gpu(checks, machine, handle, index)
        gpu.check_identity()
        gpu.check_gauges()
        gpu.check_fields()
        gpu.check_gpm()
        gpu.check_health()
        gpu.check_instances()
    nv.nvmlShutdown()


def check_xid(checks, handle):
    events = nv.nvmlEventSetCreate()
    nv.nvmlDeviceRegisterEvents(handle, nv.nvmlEventTypeXidCriticalError, events)
    event = checks.read("event", lambda: nv.nvmlEventSetWait_v2(events, 10_000))
    checks.equal("Xid", lambda: event.eventData, 79)
    nv.nvmlEventSetFree(events)


def sram_errors(handle):
    status = nv.c_nvmlEccSramErrorStatus_v1_t()
    nv.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(status))
    return status


class Gpu:
    def __init__(self, checks, machine, handle, index):
        self.checks, self.machine, self.handle, self.index = checks, machine, handle, index
        self.at = f"GPU {index} "

    def equal(self, what, call, expected):
        self.checks.equal(self.at + what, call, expected)

    def within(self, what, call, low, high):
        self.checks.within(self.at + what, call, low, high)

    def refused(self, what, call, error=nv.NVMLError_NotSupported):
        self.checks.refused(self.at + what, call, error)

    def check_identity(self):
        name, mib, _, links, _, generation, _, _, capability, _ = self.machine.model
        handle = self.handle
        self.equal("name", lambda: nv.nvmlDeviceGetName(handle), name)
        self.equal("index", lambda: nv.nvmlDeviceGetIndex(handle), self.index)
        self.equal("compute capability", lambda: nv.nvmlDeviceGetCudaComputeCapability(handle), capability)
        uuid = self.checks.read(self.at + "UUID", lambda: nv.nvmlDeviceGetUUID(handle))
        self.equal("by UUID", lambda: nv.nvmlDeviceGetIndex(nv.nvmlDeviceGetHandleByUUID(uuid)), self.index)
        pci = self.checks.read(self.at + "PCI", lambda: nv.nvmlDeviceGetPciInfo(handle))
        self.equal("by PCI", lambda: nv.nvmlDeviceGetIndex(nv.nvmlDeviceGetHandleByPciBusId(pci.busId)), self.index)
        self.equal("memory v1", lambda: nv.nvmlDeviceGetMemoryInfo(handle).total, mib * MIB)
        self.equal("memory v2", lambda: nv.nvmlDeviceGetMemoryInfo(handle, version=nv.nvmlMemory_v2).total, mib * MIB)
        self.equal("PCIe generation", lambda: nv.nvmlDeviceGetMaxPcieLinkGeneration(handle), generation)
        self.equal("PCIe width", lambda: nv.nvmlDeviceGetMaxPcieLinkWidth(handle), 16)
        self.equal("PCIe width now", lambda: nv.nvmlDeviceGetCurrPcieLinkWidth(handle), self.machine.pcie_width(self.index))
        if links:
            version = {"b200": 5, "a100": 3}.get(self.machine.profile, 4)
            self.equal("NVLink 0 version", lambda: nv.nvmlDeviceGetNvLinkVersion(handle, 0), version)
            self.refused("one link too far", lambda: nv.nvmlDeviceGetNvLinkState(handle, links), nv.NVMLError_InvalidArgument)
        else:
            self.refused("no NVLink", lambda: nv.nvmlDeviceGetNvLinkState(handle, 0))

    def check_gauges(self):
        machine, handle, watts = self.machine, self.handle, self.machine.model[2]
        cut = machine.instances(self.index) is not None
        rates = lambda: nv.nvmlDeviceGetUtilizationRates(handle)
        if cut:
            self.refused("utilization", rates)
        else:
            info = nv.nvmlDeviceGetMemoryInfo(handle)
            self.within("memory share", lambda: info.used / info.total, *machine.memory_share(self.index))
            self.within("utilization", lambda: rates().gpu, *((0, 0) if machine.idle else (85, 100)))
        power = (1, watts * 250) if machine.idle else (watts * 300, watts * 1000)
        if machine.is_stuck:
            # An average of the last second, which may include normal work.
            power = (watts * 150, watts * 1000)
        self.within("power", lambda: nv.nvmlDeviceGetPowerUsage(handle), *power)
        self.equal("power limit", lambda: nv.nvmlDeviceGetEnforcedPowerLimit(handle), watts * 1000)
        self.within("energy", lambda: nv.nvmlDeviceGetTotalEnergyConsumption(handle), 1_000_000, 1 << 62)
        self.within("temperature", lambda: nv.nvmlDeviceGetTemperatureV(handle, nv.NVML_TEMPERATURE_GPU), 25, 95)
        reasons, clocks = machine.brake(self.index)
        sm = lambda: nv.nvmlDeviceGetClockInfo(handle, nv.NVML_CLOCK_SM)
        self.within("SM clock over maximum", lambda: sm() / nv.nvmlDeviceGetMaxClockInfo(handle, nv.NVML_CLOCK_SM), *clocks)
        self.equal("clock event reasons", lambda: nv.nvmlDeviceGetCurrentClocksEventReasons(handle), reasons)
        expected = 0 if machine.idle else len(machine.instances(self.index) or [None])
        self.equal("process count", lambda: len(nv.nvmlDeviceGetComputeRunningProcesses(handle)), expected)

    def check_fields(self):
        machine, handle, index = self.machine, self.handle, self.index
        _, _, _, links, speed, *_ = machine.model
        thermal = 269 if nv.nvmlSystemGetDriverVersion() >= "580.82" else 251
        moving = [(83, 0), (198, 0)] + ([(138, 0xFFFFFFFF), (139, 0xFFFFFFFF)] if links else [])
        fixed = [(thermal, 0), (186, 0)] + ([(91, 0), (164, 5)] if links else [])
        before = nv.nvmlDeviceGetFieldValues(handle, moving + fixed)
        time.sleep(0.15)
        after = nv.nvmlDeviceGetFieldValues(handle, moving + fixed)
        for field in list(before) + list(after):
            self.equal(f"field {field.fieldId} status", lambda: field.nvmlReturn, 0)
        silent = machine.count == 1 or machine.instances(index) is not None
        for old, new, (field, _) in zip(before, after, moving):
            still = (machine.idle or machine.is_stuck) and field != 83 or silent and field in (138, 139)
            growth = (0, 0) if still else (1, 1 << 40)
            self.within(f"field {field} growth", lambda: new.value.ullVal - old.value.ullVal, *growth)
            self.within(f"field {field} time", lambda: new.timestamp - old.timestamp, 100_000, 60_000_000)
        if links:
            up = machine.link_is_up(index, 5)
            self.equal("link count", lambda: after[-2].value.uiVal, links)
            self.equal("link speed", lambda: after[-1].value.uiVal, speed if up else 0)
            self.equal("link 5 up", lambda: nv.nvmlDeviceGetNvLinkState(handle, 5), int(up))

    def check_gpm(self):
        machine, handle = self.machine, self.handle
        supported = machine.model[6]
        self.equal("GPM support", lambda: nv.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice, int(supported))
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
        silent = machine.count == 1 or machine.instances(self.index) is not None
        ranges = [(20, 100), (10, 80), (0, 0) if silent else (50_000, 1_000_000)]
        if machine.idle:
            ranges = [(0, 0), (0, 0), (0, 0)]
        elif machine.is_stuck:
            ranges = [(5, 20), (0, 0), (0, 0)]
        for slot, (low, high) in enumerate(ranges):
            self.equal(f"GPM {ids[slot]} status", lambda: request.metrics[slot].nvmlReturn, 0)
            self.within(f"GPM {ids[slot]}", lambda: request.metrics[slot].value, low, high)
        nv.nvmlGpmSampleFree(first)
        nv.nvmlGpmSampleFree(second)

    def check_health(self):
        handle, volatile = self.handle, nv.NVML_VOLATILE_ECC
        corrected = lambda: nv.nvmlDeviceGetTotalEccErrors(handle, nv.NVML_MEMORY_ERROR_TYPE_CORRECTED, volatile)
        uncorrected = lambda: nv.nvmlDeviceGetTotalEccErrors(handle, nv.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, volatile)
        rows = lambda: list(nv.nvmlDeviceGetRemappedRows(handle))
        if not self.machine.model[7]:
            self.refused("no ECC", corrected)
            self.refused("no rows to remap", rows)
            return
        storm = self.machine.troubles[self.index].get("ecc")
        if storm is None:
            self.equal("corrected errors", corrected, 0)
            self.equal("remapped rows", rows, [0, 0, 0, 0])
            return
        deadline = time.monotonic() + 10
        while uncorrected() == 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        in_sram = storm.get("where") == "sram"
        self.within("corrected errors", corrected, *((2, 10) if in_sram else (10, 1000)))
        self.equal("uncorrected errors", uncorrected, 1)
        self.equal("remapped rows", rows, [0, 0, 0, 0] if in_sram else [0, 1, 1, 0])
        sram = lambda: sram_errors(handle)
        self.equal("errors in SRAM", lambda: sram().aggregateUncParity, int(in_sram))
        self.equal("errors in multiprocessors", lambda: sram().aggregateUncBucketSm, int(in_sram))

    def check_instances(self):
        handle, names = self.handle, self.machine.instances(self.index)
        if not self.machine.model[7]:
            self.refused("no MIG", lambda: nv.nvmlDeviceGetMigMode(handle))
            return
        self.equal("MIG mode", lambda: nv.nvmlDeviceGetMigMode(handle), [0, 0] if names is None else [1, 1])
        self.equal("MIG instances at most", lambda: nv.nvmlDeviceGetMaxMigDeviceCount(handle), 7)
        for place, name in enumerate(names or []):
            self.check_instance(nv.nvmlDeviceGetMigDeviceHandleByIndex(handle, place), place, name)
        absent = lambda: nv.nvmlDeviceGetMigDeviceHandleByIndex(handle, len(names or []))
        if len(names or []) < 7:
            self.refused("one instance too far", absent, nv.NVMLError_NotFound)

    def check_instance(self, instance, place, name):
        mib, multiprocessors, slices = self.machine.instance(name)
        at = f"instance {place} "
        self.equal(at + "name", lambda: nv.nvmlDeviceGetName(instance), f"{self.machine.model[0]} MIG {name}")
        self.equal(at + "memory", lambda: nv.nvmlDeviceGetMemoryInfo(instance).total, mib * MIB)
        self.equal(at + "is one", lambda: nv.nvmlDeviceIsMigDeviceHandle(instance).value, 1)
        self.equal(at + "compute id", lambda: nv.nvmlDeviceGetComputeInstanceId(instance), 0)
        attributes = self.checks.read(self.at + at, lambda: nv.nvmlDeviceGetAttributes_v2(instance))
        self.equal(at + "SMs", lambda: attributes.multiprocessorCount, multiprocessors)
        self.equal(at + "slices", lambda: attributes.gpuInstanceSliceCount, slices)
        self.equal(at + "memory size", lambda: attributes.memorySizeMB, mib)
        self.refused(at + "utilization", lambda: nv.nvmlDeviceGetUtilizationRates(instance))
        parent = lambda: nv.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instance)
        self.equal(at + "parent", lambda: nv.nvmlDeviceGetIndex(parent()), self.index)
        number = self.checks.read(self.at + at, lambda: nv.nvmlDeviceGetGpuInstanceId(instance))
        running = lambda: [one.gpuInstanceId for one in nv.nvmlDeviceGetComputeRunningProcesses(instance)]
        self.equal(at + "processes", running, [number])
