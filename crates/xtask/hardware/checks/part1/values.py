"""Every value of a GPU that the agent reads through NVML, and its names in nvidia-smi and pynvml."""

from dataclasses import dataclass
from typing import Callable

from ..reference import field_value

MEBI = 1 << 20
MEGA = 1e6
# pynvml's names; its numbers are independent of the agent's, which are compared with them.
THRESHOLDS = {
    "shutdown": "NVML_TEMPERATURE_THRESHOLD_SHUTDOWN", "slowdown": "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN",
    "memory_max": "NVML_TEMPERATURE_THRESHOLD_MEM_MAX", "gpu_max": "NVML_TEMPERATURE_THRESHOLD_GPU_MAX",
}  # fmt: skip
REASONS = {
    "sw_power_cap": "SwPowerCap", "hw_slowdown": "HwSlowdown", "sync_boost": "SyncBoost", "sw_thermal_slowdown": "SwThermalSlowdown",
    "hw_thermal_slowdown": "HwThermalSlowdown", "hw_power_brake": "HwPowerBrakeSlowdown", "display_clock_setting": "DisplayClockSetting",
}  # fmt: skip
SMI_REASONS = {
    "sw_power_cap": "sw_power_cap", "hw_slowdown": "hw_slowdown", "sync_boost": "sync_boost", "sw_thermal_slowdown": "sw_thermal_slowdown",
    "hw_thermal_slowdown": "hw_thermal_slowdown", "hw_power_brake": "hw_power_brake_slowdown", "display_clock_setting": "display_clocks_setting",
}  # fmt: skip
PCIE_ERRORS = {
    "correctable": "CORRECTABLE_ERRORS", "nak_received": "NAKS_RECEIVED", "receiver": "RECEIVER_ERROR", "bad_tlp": "BAD_TLP", "nak_sent": "NAKS_SENT",
    "bad_dllp": "BAD_DLLP", "non_fatal": "NON_FATAL_ERROR", "fatal": "FATAL_ERROR", "unsupported_request": "UNSUPPORTED_REQ", "lcrc": "LCRC_ERROR", "lane": "LANE_ERROR",
}  # fmt: skip
NVLINK_ERRORS = {
    "crc_flit": "CRC_FLIT_ERROR_COUNT_TOTAL", "crc_data": "CRC_DATA_ERROR_COUNT_TOTAL", "replay": "REPLAY_ERROR_COUNT_TOTAL", "recovery": "RECOVERY_ERROR_COUNT_TOTAL",
    "ecc_data": "ECC_DATA_ERROR_COUNT_TOTAL",
}  # fmt: skip
# Counters of throttled time: pynvml's field, nvidia-smi's element (microseconds).
THROTTLE_TIMES = {
    "sw_power_cap": ("CLOCKS_EVENT_REASON_SW_POWER_CAP", "sw_power_cap"), "sync_boost": ("CLOCKS_EVENT_REASON_SYNC_BOOST", "sync_boost"),
    "sw_thermal_slowdown": ("CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN", "sw_therm_slowdown"),
    "hw_thermal_slowdown": ("CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN", "hw_therm_slowdown"),
    "hw_power_brake": ("CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN", "hw_power_brake"),
}  # fmt: skip
ALL_LINKS = 0xFFFFFFFF


@dataclass(frozen=True)
class Value:
    """A series of the agent, and its reference."""

    series: str
    labels: tuple
    unit: str
    smi: tuple = ()  # paths of nvidia-smi -q -x, the first with a value counts
    nvml: Callable | None = None  # of pynvml and a handle
    relative: float = 0.0
    absolute: float = 0.0
    smi_absolute: float = 0.0  # nvidia-smi rounds: to MiB, to a percent, to tens of milliwatts

    @property
    def name(self):
        labels = ",".join(f"{name}={value}" for name, value in self.labels)
        return f"{self.series}{{{labels}}}" if labels else self.series

    def selector(self, gpu):
        return self.series + "{" + ",".join([f'gpu="{gpu}"', *(f'{name}="{value}"' for name, value in self.labels)]) + "}"


def field(name, factor=1.0, scope=0):
    """A numbered field of the driver, by pynvml's name for it."""

    def read(nv, handle):
        value = nv.nvmlDeviceGetFieldValues(handle, [(getattr(nv, f"NVML_FI_DEV_{name}"), scope)])[0]
        if value.nvmlReturn != 0:
            return None
        return field_value(value) * factor

    return read


def memory(member):
    return lambda nv, handle: getattr(nv.nvmlDeviceGetMemoryInfo(handle, version=nv.nvmlMemory_v2), member)


def temperature(nv, handle):
    newer = getattr(nv, "nvmlDeviceGetTemperatureV", None)
    return newer(handle, nv.NVML_TEMPERATURE_GPU) if newer else nv.nvmlDeviceGetTemperature(handle, nv.NVML_TEMPERATURE_GPU)


def threshold(name):
    return lambda nv, handle: nv.nvmlDeviceGetTemperatureThreshold(handle, getattr(nv, name))


def reason(name):
    def read(nv, handle):
        bit = getattr(nv, f"nvmlClocksEventReason{name}", None) or getattr(nv, f"nvmlClocksThrottleReason{name}")
        return int(bool(nv.nvmlDeviceGetCurrentClocksEventReasons(handle) & bit))

    return read


def ecc(counter, kind):
    return lambda nv, handle: nv.nvmlDeviceGetTotalEccErrors(handle, kind, counter)


def active_links(nv, handle):
    count = field("NVLINK_LINK_COUNT")(nv, handle)
    return None if count is None else sum(nv.nvmlDeviceGetNvLinkState(handle, link) for link in range(int(count)))


POWER = "gpu_power_readings/"
LINK = "pci/pci_gpu_link_info/"
ECC = "ecc_errors/"


def smi_limit(name):
    return (f"{POWER}{name}", f"module_power_readings/{name}", f"power_readings/{name}")


VALUES = (
    Value("gpu_memory_used_bytes", (), "B", ("fb_memory_usage/used",), memory("used"), absolute=64 * MEBI, smi_absolute=MEBI),
    Value("gpu_memory_total_bytes", (), "B", ("fb_memory_usage/total",), memory("total"), smi_absolute=MEBI),
    Value("gpu_memory_reserved_bytes", (), "B", ("fb_memory_usage/reserved",), memory("reserved"), absolute=MEBI, smi_absolute=MEBI),
    # The agent uses the mean of the driver's sample rings over one second, the others the driver's last value.
    Value("gpu_utilization_ratio", (), "%", ("utilization/gpu_util",), lambda nv, h: nv.nvmlDeviceGetUtilizationRates(h).gpu / 100, absolute=0.1, smi_absolute=0.01),
    Value("gpu_memory_utilization_ratio", (), "%", ("utilization/memory_util",), lambda nv, h: nv.nvmlDeviceGetUtilizationRates(h).memory / 100, absolute=0.1, smi_absolute=0.01),
    Value("gpu_encoder_utilization_ratio", (), "%", ("utilization/encoder_util",), lambda nv, h: nv.nvmlDeviceGetEncoderUtilization(h)[0] / 100, absolute=0.02),
    Value("gpu_decoder_utilization_ratio", (), "%", ("utilization/decoder_util",), lambda nv, h: nv.nvmlDeviceGetDecoderUtilization(h)[0] / 100, absolute=0.02),
    Value("gpu_sm_clock_hertz", (), "Hz", ("clocks/sm_clock",), lambda nv, h: nv.nvmlDeviceGetClockInfo(h, nv.NVML_CLOCK_SM) * MEGA, absolute=30 * MEGA),
    Value("gpu_memory_clock_hertz", (), "Hz", ("clocks/mem_clock",), lambda nv, h: nv.nvmlDeviceGetClockInfo(h, nv.NVML_CLOCK_MEM) * MEGA),
    Value("gpu_sm_clock_max_hertz", (), "Hz", ("max_clocks/sm_clock",), lambda nv, h: nv.nvmlDeviceGetMaxClockInfo(h, nv.NVML_CLOCK_SM) * MEGA),
    # An average over a second, read up to a second apart.
    Value("gpu_power_watts", (), "W", (POWER + "average_power_draw", POWER + "power_draw"), lambda nv, h: nv.nvmlDeviceGetPowerUsage(h) / 1000, relative=0.03, absolute=3),
    Value("gpu_power_limit_watts", (), "W", smi_limit("current_power_limit") + smi_limit("enforced_power_limit"), lambda nv, h: nv.nvmlDeviceGetEnforcedPowerLimit(h) / 1000),
    Value("gpu_power_limit_min_watts", (), "W", smi_limit("min_power_limit"), lambda nv, h: nv.nvmlDeviceGetPowerManagementLimitConstraints(h)[0] / 1000),
    Value("gpu_power_limit_max_watts", (), "W", smi_limit("max_power_limit"), lambda nv, h: nv.nvmlDeviceGetPowerManagementLimitConstraints(h)[1] / 1000),
    Value("gpu_power_limit_default_watts", (), "W", smi_limit("default_power_limit"), lambda nv, h: nv.nvmlDeviceGetPowerManagementDefaultLimit(h) / 1000),
    Value("gpu_energy_joules_total", (), "J", (), lambda nv, h: nv.nvmlDeviceGetTotalEnergyConsumption(h) / 1000, absolute=1),
    Value("gpu_temperature_celsius", (), "°C", ("temperature/gpu_temp",), temperature, absolute=1),
    Value("gpu_memory_temperature_celsius", (), "°C", ("temperature/memory_temp",), field("MEMORY_TEMP"), absolute=1),
    *(Value("gpu_temperature_limit_celsius", (("type", kind),), "°C", (), threshold(name)) for kind, name in THRESHOLDS.items()),
    *(
        Value("gpu_throttle", (("reason", kind),), "", (f"clocks_event_reasons/clocks_event_reason_{SMI_REASONS[kind]}",), reason(name))
        for kind, name in REASONS.items()
    ),
    *(
        Value("gpu_throttle_seconds_total", (("reason", kind),), "s", (f"clocks_event_reasons_counters/clocks_event_reasons_counters_{element}",), field(name, 1e-9), absolute=0.5)
        for kind, (name, element) in THROTTLE_TIMES.items()
    ),
    Value("gpu_nvlinks", (), "", (), field("NVLINK_LINK_COUNT")),
    Value("gpu_nvlinks_active", (), "", (), active_links),
    Value("gpu_pcie_generation", (), "", (LINK + "pcie_gen/current_link_gen",), lambda nv, h: nv.nvmlDeviceGetCurrPcieLinkGeneration(h)),
    Value("gpu_pcie_generation_max", (), "", (LINK + "pcie_gen/max_link_gen",), lambda nv, h: nv.nvmlDeviceGetMaxPcieLinkGeneration(h)),
    Value("gpu_pcie_width", (), "", (LINK + "link_widths/current_link_width",), lambda nv, h: nv.nvmlDeviceGetCurrPcieLinkWidth(h)),
    Value("gpu_pcie_width_max", (), "", (LINK + "link_widths/max_link_width",), lambda nv, h: nv.nvmlDeviceGetMaxPcieLinkWidth(h)),
    Value("gpu_pcie_replays_total", (), "", ("pci/replay_counter",), lambda nv, h: nv.nvmlDeviceGetPcieReplayCounter(h)),
    Value("gpu_pcie_errors_total", (("type", "recovery"),), "", (), field("PCIE_L0_TO_RECOVERY_COUNTER")),
    *(Value("gpu_pcie_errors_total", (("type", kind),), "", (), field(f"PCIE_COUNT_{name}")) for kind, name in PCIE_ERRORS.items()),
    *(Value("gpu_nvlink_errors_total", (("type", kind),), "", (), field(f"NVLINK_{name}", scope=ALL_LINKS)) for kind, name in NVLINK_ERRORS.items()),
    Value("link_transmit_bytes_total", (("link", "nvlink"),), "B", (), field("NVLINK_THROUGHPUT_DATA_TX", 1024, ALL_LINKS)),
    Value("link_receive_bytes_total", (("link", "nvlink"),), "B", (), field("NVLINK_THROUGHPUT_DATA_RX", 1024, ALL_LINKS)),
    *(Value("gpu_ecc_errors_total", (("type", kind),), "", (), ecc(0, number)) for number, kind in enumerate(("corrected", "uncorrected"))),
    *(Value("gpu_ecc_lifetime_errors_total", (("type", kind),), "", (), ecc(1, number)) for number, kind in enumerate(("corrected", "uncorrected"))),
    *(
        Value("gpu_remapped_rows", (("type", kind),), "", (), lambda nv, h, place=place: nv.nvmlDeviceGetRemappedRows(h)[place])
        for place, kind in enumerate(("corrected", "uncorrected", "pending", "failed"))
    ),
    Value("gpu_recovery_action", (), "", (), field("GET_GPU_RECOVERY_ACTION")),
    Value("gpu_processes", (), "", (), lambda nv, h: len(nv.nvmlDeviceGetComputeRunningProcesses(h))),
)
