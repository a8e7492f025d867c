"""Compares GPM, power and PCIe counters of the agent with work of known size; and every NVML value once more, under that load."""

import time

from .. import work
from ..lockstep import Lockstep
from . import beside

SECONDS = 10
# Pause between two kinds of work, so that no second contains both.
PAUSE_S = 2.5
# The first and the last second of a kind of work contain it only partly.
EDGE_S = 1.2
ARRIVAL_S = 1.5
# Dense bf16 FLOPs of a multiprocessor's tensor cores per clock, by compute capability: 989.4 TFLOP/s of an H100 are 132 × 1.83 GHz × 4,096.
FLOPS_PER_CLOCK = {(8, 0): 2048, (9, 0): 4096, (10, 0): 8192}
# The pipe counts as active in cycles in which it cannot accept an instruction, and clocks vary within a second.
TENSOR_RELATIVE = 0.15
# Opening and refreshing rows counts as active time in some counters and not in others.
DRAM_ABSOLUTE = 0.1
# Packet headers count: 12 to 24 bytes for each 128 or 256 of payload.
PCIE_HEADERS = 1.25
PCIE_RELATIVE = 0.05


def run(check):
    torch = check.cuda("GPM and PCIe counters under known work")
    if torch is None:
        return
    seconds = 2 if check.quick else SECONDS
    with beside.Beside(check) as recording, Lockstep(check) as lockstep:
        known = Known(check, lockstep, torch)
        known.products(seconds)
        known.device_copies(seconds)
        known.host_copies(seconds, to_device=True)
        known.host_copies(seconds, to_device=False)
        known.half_busy(seconds)
        known.utilization_of_nothing(PAUSE_S + 2)
        beside.report(check, lockstep, recording, suffix=" under load")


class Known:
    """One kind of work after the other, and a row for each counter that it moves."""

    def __init__(self, check, lockstep, torch):
        self.sheet, self.lockstep, self.torch = check.sheet, lockstep, torch
        self.gpu = gpu_index(torch, lockstep)
        self.properties = torch.cuda.get_device_properties(0)

    def samples(self, series, done, labels=""):
        """Returns samples within the work, as `(time, value)`. Its last samples arrive a moment after its end."""
        time.sleep(max(0.0, done.end + ARRIVAL_S - time.time()))
        found = self.lockstep.samples(f'{series}{{gpu="{self.gpu}"{labels}}}', time.time() - done.begin)
        return [(when, value) for when, value in found[0][1] if done.begin + EDGE_S <= when <= done.end] if found else []

    def mean(self, series, done, labels=""):
        values = [value for _, value in self.samples(series, done, labels)]
        return sum(values) / len(values) if values else None

    def rate(self, series, done, labels):
        """Bytes per second between the first and the last sample."""
        values = self.samples(series, done, labels)
        return (values[-1][1] - values[0][1]) / (values[-1][0] - values[0][0]) if len(values) > 1 else None

    def products(self, seconds):
        done = work.products(self.torch, seconds)
        clock = self.mean("gpu_sm_clock_hertz", done)
        self.sheet.fact("products", {"flops_per_s": done.flops_per_s, "sm_clock_hertz": clock, "multiprocessors": self.properties.multi_processor_count})
        per_clock = FLOPS_PER_CLOCK.get((self.properties.major, self.properties.minor))
        what = "gpu_tensor_active_ratio in bf16 products"
        if per_clock and clock:
            expected = done.flops_per_s / (per_clock * self.properties.multi_processor_count * clock)
            self.sheet.compare(what, self.mean("gpu_tensor_active_ratio", done), expected, relative=TENSOR_RELATIVE, unit="%", reference="FLOPs done over FLOPs possible at this clock")
        else:
            self.sheet.not_available(what, f"FLOPs per clock of compute capability {self.properties.major}.{self.properties.minor} are not known here")
        for series, least in (("gpu_sm_active_ratio", 0.9), ("gpu_graphics_active_ratio", 0.95), ("gpu_utilization_ratio", 0.95)):
            self.sheet.between(f"{series} in bf16 products", self.mean(series, done), least, 1.0, "%")
        hmma = self.mean("gpu_pipe_active_ratio", done, ',pipe="tensor_hmma"')
        self.sheet.compare("gpu_pipe_active_ratio{pipe=tensor_hmma} in bf16 products", hmma, self.mean("gpu_tensor_active_ratio", done), absolute=0.05, unit="%", reference="gpu_tensor_active_ratio")
        for pipe in ("fp64", "tensor_dfma"):
            self.sheet.between(f"gpu_pipe_active_ratio{{pipe={pipe}}} in bf16 products", self.mean("gpu_pipe_active_ratio", done, f',pipe="{pipe}"'), 0.0, 0.02, "%")
        time.sleep(PAUSE_S)

    def device_copies(self, seconds):
        done = work.device_copies(self.torch, seconds)
        peak = self.memory_peak()
        self.sheet.fact("device copies", {"bytes_per_s": done.bytes_per_s, "peak_bytes_per_s": peak})
        what = "gpu_dram_active_ratio in copies within the GPU"
        if peak:
            self.sheet.compare(what, self.mean("gpu_dram_active_ratio", done), done.bytes_per_s / peak, absolute=DRAM_ABSOLUTE, unit="%", reference="bytes copied over bytes possible")
        else:
            self.sheet.not_available(what, "pynvml has no memory clock or bus width")
        self.sheet.between("gpu_tensor_active_ratio in copies within the GPU", self.mean("gpu_tensor_active_ratio", done), 0.0, 0.01, "%")
        time.sleep(PAUSE_S)

    def memory_peak(self):
        """Bytes per second: double data rate on the whole bus."""
        from ..reference import ask, nvml

        nv, _ = nvml()
        handle = nv and ask(lambda: nv.nvmlDeviceGetHandleByIndex(self.gpu))
        clock, width = (ask(lambda: nv.nvmlDeviceGetMaxClockInfo(handle, nv.NVML_CLOCK_MEM)), ask(lambda: nv.nvmlDeviceGetMemoryBusWidth(handle))) if handle else (None, None)
        return 2e6 * clock * width / 8 if clock and width else None

    def host_copies(self, seconds, to_device):
        done = work.host_copies(self.torch, seconds, to_device)
        moved, still = ("receive", "transmit") if to_device else ("transmit", "receive")
        way = "host to device" if to_device else "device to host"
        self.sheet.fact(f"copies {way}", {"bytes_per_s": done.bytes_per_s})
        rate = self.rate(f"link_{moved}_bytes_total", done, ',link="pcie"')
        what = f"link_{moved}_bytes_total{{link=pcie}} in copies {way}"
        low, high = done.bytes_per_s * (1 - PCIE_RELATIVE), done.bytes_per_s * PCIE_HEADERS
        self.sheet.between(what, rate, low, high, "B/s", f"copied: {done.bytes_per_s / 1e9:.2f} GB/s")
        other = self.rate(f"link_{still}_bytes_total", done, ',link="pcie"')
        self.sheet.between(f"link_{still}_bytes_total{{link=pcie}} in copies {way}", other, 0.0, 0.25 * done.bytes_per_s, "B/s")
        limit = self.mean("link_bandwidth_bytes_per_second", done, ',link="pcie"') or self.lockstep.value(f'link_bandwidth_bytes_per_second{{gpu="{self.gpu}",link="pcie"}}')
        if limit:
            share = self.mean("link_utilization_ratio", done, ',link="pcie"')
            self.sheet.compare(f"link_utilization_ratio{{link=pcie}} in copies {way}", share, done.bytes_per_s / limit, absolute=0.1, unit="%", reference="bytes copied over link_bandwidth_bytes_per_second")
        time.sleep(PAUSE_S)

    def half_busy(self, seconds):
        done, share = work.half_busy(self.torch, seconds)
        self.sheet.compare("gpu_sm_active_ratio of a GPU that is busy about half of the time", self.mean("gpu_sm_active_ratio", done), share, absolute=0.1, unit="%", reference="measured by the work itself")
        time.sleep(PAUSE_S)

    def utilization_of_nothing(self, seconds):
        begin = time.time()
        time.sleep(seconds)
        done = work.Done(begin, time.time())
        for series in ("gpu_sm_active_ratio", "gpu_tensor_active_ratio", "gpu_dram_active_ratio"):
            self.sheet.between(f"{series} of an idle GPU", self.mean(series, done), 0.0, 0.02, "%")


def gpu_index(torch, lockstep):
    """Returns NVML's index of PyTorch's first GPU, which CUDA_VISIBLE_DEVICES may change."""
    uuid = str(getattr(torch.cuda.get_device_properties(0), "uuid", ""))
    for gpu in lockstep.node["inventory"]["gpus"]:
        if uuid and uuid in gpu["uuid"]:
            return gpu["index"]
    return 0
