"""Raw results of this driver: every numbered field, every GPM metric, sample rings, events, durations of calls. They serve to correct the
simulator."""

import time

from .. import reference
from ..lockstep import Lockstep

FIELDS, GPM_METRICS = range(1, 310), range(1, 340)
LINKS = 0xFFFFFFFF
GPM_PAUSE_S = 1.0
# nvmlDeviceGetSamples: total power, GPU, memory, encoder and decoder utilization, clocks.
SAMPLE_RINGS = range(0, 7)
CALLS = 50
CALL_S_MAX = 0.05
# GPM metrics that the agent reads, and the series they become.
GPM_SERIES = {1: "gpu_graphics_active_ratio", 2: "gpu_sm_active_ratio", 3: "gpu_sm_occupancy_ratio", 5: "gpu_tensor_active_ratio", 10: "gpu_dram_active_ratio"}


def run(check):
    nv, why = reference.nvml(check.settings.simulate)
    if nv is None:
        check.sheet.not_available("raw answers of the driver", why)
        return
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    for name, scope in (("fields", 0), ("fields of all links", LINKS)):
        check.sheet.fact(name, fields(nv, handle, scope))
    gpm = reference.ask(lambda: gpm_metrics(nv, handle, 0.2 if check.quick else GPM_PAUSE_S)) or {}
    check.sheet.fact("GPM metrics", gpm)
    check.sheet.fact("sample rings", {ring: samples(nv, handle, ring) for ring in SAMPLE_RINGS})
    check.sheet.fact("event types", reference.ask(lambda: nv.nvmlDeviceGetSupportedEventTypes(handle)))
    check.sheet.fact("topology", topology(nv))
    times(check, nv, handle)
    with Lockstep(check) as lockstep:
        time.sleep(1.5)
        for metric, series in GPM_SERIES.items():
            answered = gpm.get(metric, {}).get("return") == 0
            check.sheet.equal(f"{series} is there where GPM metric {metric} has an answer", lockstep.value(f'{series}{{gpu="0"}}') is not None, answered, "pynvml")


def fields(nv, handle, scope):
    """Return code, type, value and latency of every field."""
    found = {}
    for number in FIELDS:
        asked = reference.ask(lambda number=number: nv.nvmlDeviceGetFieldValues(handle, [(number, scope)])[0])
        if asked is None:
            continue
        if asked.nvmlReturn != 0:
            found[number] = {"return": asked.nvmlReturn}
            continue
        found[number] = {"return": 0, "type": asked.valueType, "value": reference.field_value(asked), "latency_us": asked.latencyUsec, "timestamp": asked.timestamp}
    return found


def gpm_metrics(nv, handle, pause_s):
    """Return code and value of every GPM metric over a pause."""
    first, second = nv.nvmlGpmSampleAlloc(), nv.nvmlGpmSampleAlloc()
    try:
        nv.nvmlGpmSampleGet(handle, first)
        time.sleep(pause_s)
        nv.nvmlGpmSampleGet(handle, second)
        return {metric: gpm_metric(nv, first, second, metric) for metric in GPM_METRICS}
    finally:
        nv.nvmlGpmSampleFree(first)
        nv.nvmlGpmSampleFree(second)


def gpm_metric(nv, first, second, metric):
    """Reads one metric per call: an unknown metric may invalidate the whole call."""
    request = nv.c_nvmlGpmMetricsGet_t()
    request.version, request.numMetrics, request.sample1, request.sample2 = nv.NVML_GPM_METRICS_GET_VERSION, 1, first, second
    request.metrics[0].metricId = metric
    try:
        nv.nvmlGpmMetricsGet(request)
    except nv.NVMLError as error:
        return {"call": str(error)}
    one = request.metrics[0]
    return {"return": one.nvmlReturn, "value": one.value if one.nvmlReturn == 0 else None}


def samples(nv, handle, ring):
    """Returns how many samples the driver keeps, and the time between them."""
    asked = reference.ask(lambda: nv.nvmlDeviceGetSamples(handle, ring, 0))
    if not asked:
        return None
    found = asked[1]
    times_us = [sample.timeStamp for sample in found]
    steps = sorted(later - earlier for earlier, later in zip(times_us, times_us[1:]))
    return {"type": asked[0], "count": len(times_us), "median_step_us": steps[len(steps) // 2] if steps else None, "newest_age_us": round(time.time() * 1e6) - times_us[-1]}


def topology(nv):
    """Common ancestor of each pair of GPUs, and the processors near each GPU."""
    handles = [nv.nvmlDeviceGetHandleByIndex(index) for index in range(nv.nvmlDeviceGetCount())]
    pairs = {f"{a}-{b}": reference.ask(lambda a=a, b=b: nv.nvmlDeviceGetTopologyCommonAncestor(handles[a], handles[b])) for a in range(len(handles)) for b in range(a)}
    return {"pairs": pairs, "affinity": [reference.ask(lambda handle=handle: list(nv.nvmlDeviceGetCpuAffinity(handle, 4))) for handle in handles]}


def times(check, nv, handle):
    """The slowest of the calls that the agent makes."""
    calls = {
        "memory": lambda: nv.nvmlDeviceGetMemoryInfo(handle), "utilization": lambda: nv.nvmlDeviceGetUtilizationRates(handle), "power": lambda: nv.nvmlDeviceGetPowerUsage(handle),
        "clock": lambda: nv.nvmlDeviceGetClockInfo(handle, nv.NVML_CLOCK_SM), "reasons": lambda: nv.nvmlDeviceGetCurrentClocksEventReasons(handle),
        "processes": lambda: nv.nvmlDeviceGetComputeRunningProcesses(handle), "PCIe": lambda: nv.nvmlDeviceGetPcieThroughput(handle, 0),
        "fields": lambda: nv.nvmlDeviceGetFieldValues(handle, [83, 185, 138, 139, 197, 198]), "samples": lambda: nv.nvmlDeviceGetSamples(handle, 1, 0),
        "ECC": lambda: nv.nvmlDeviceGetTotalEccErrors(handle, 0, 0),
    }  # fmt: skip
    found = {name: measured(call) for name, call in calls.items()}
    check.sheet.fact("seconds of a call", found)
    slowest = max((one["max_s"], name) for name, one in found.items())
    check.sheet.between("slowest NVML call that the agent makes once per second", slowest[0], 0.0, CALL_S_MAX, "s", slowest[1])


def measured(call):
    took = []
    for _ in range(CALLS):
        began = time.perf_counter()
        reference.ask(call)
        took.append(time.perf_counter() - began)
    took.sort()
    return {"median_s": took[len(took) // 2], "max_s": took[-1]}
