"""Compares the cost of the agent with `nvidia-smi dmon` in the same seconds: CPU time, memory, time in the driver."""

import math
import os
import pathlib
import subprocess
import time

from ..lockstep import Lockstep

SECONDS, QUICK_SECONDS, WARM_UP_S = 60, 4, 3
DMON = ["nvidia-smi", "dmon", "-s", "pucvmet", "-d", "1"]
TICKS = os.sysconf("SC_CLK_TCK")
# The agent reads everything once per second and some values ten times per second; the design limits the CPU time per value. This limit is
# one that a user would accept.
CPU_PER_GPU_MAX = 0.02
ANONYMOUS_BYTES_MAX = 8 << 20
# The agent reads less often if a round takes more than a quarter of its period.
ROUND_S_MAX = 0.25
# On some drivers, a call slower than this delays a training's own calls.
CALL_P99_S_MAX = 0.05


def run(check):
    seconds = QUICK_SECONDS if check.quick else SECONDS
    with Lockstep(check) as lockstep:
        time.sleep(0 if check.quick else WARM_UP_S)
        dmon, why = start_dmon(check.folder)
        agent = Process(lockstep.agent_pid())
        other = Process(dmon.pid) if dmon else None
        calls = lockstep.value("lockstep_agent_nvml_calls_total")
        driver_s = lockstep.value("lockstep_agent_nvml_call_seconds_total")
        time.sleep(seconds)
        agent_share, other_share = agent.cpu_share(), other.cpu_share() if other else None
        other_rss = other.memory("VmRSS") if other else None
        if dmon:
            dmon.terminate()
            dmon.wait(10)
        time.sleep(1.5)
        gpus = max(1, len(lockstep.node["inventory"]["gpus"]))
        series = len(lockstep.query('{__name__=~".+"}'))
        check.sheet.fact("cost", {
            "seconds": seconds, "gpus": gpus, "series": series, "agent_cpu_share": agent_share, "agent_rss_bytes": agent.memory("VmRSS"), "agent_anonymous_bytes": agent.memory("RssAnon"),
            "dmon_cpu_share": other_share, "dmon_rss_bytes": other_rss, "burst_period_s": lockstep.value("lockstep_agent_burst_period_seconds"),
        })  # fmt: skip
        check.sheet.between("processor time of the agent, share of a core", agent_share, -math.inf, CPU_PER_GPU_MAX * gpus, "%", f"{gpus} GPUs, {series} series, once per second and faster")
        if other_share is None:
            check.sheet.not_available("processor time of the agent beside nvidia-smi dmon", why)
        else:
            check.sheet.between("processor time of the agent beside nvidia-smi dmon", agent_share, -math.inf, other_share, "%", "dmon shows about 15 values per GPU and second")
            check.sheet.between("resident memory of the agent beside nvidia-smi dmon", agent.memory("VmRSS"), -math.inf, other_rss, "B")
        check.sheet.between("anonymous memory of the agent", agent.memory("RssAnon"), -math.inf, ANONYMOUS_BYTES_MAX, "B", "with the driver's own in it")
        check.sheet.between("time of a round in the driver", lockstep.value("lockstep_agent_nvml_round_seconds"), -math.inf, ROUND_S_MAX, "s")
        check.sheet.between("time of an NVML call, 99th percentile", lockstep.value("lockstep_agent_nvml_call_p99_seconds"), -math.inf, CALL_P99_S_MAX, "s")
        now = lockstep.value("lockstep_agent_nvml_calls_total"), lockstep.value("lockstep_agent_nvml_call_seconds_total")
        if None not in (calls, driver_s, *now):
            check.sheet.fact("driver", {"calls_per_s": (now[0] - calls) / seconds, "share_of_time": (now[1] - driver_s) / seconds})
        check.sheet.equal("seconds between two readings of all GPUs", lockstep.value("lockstep_agent_nvml_period_seconds"), 1.0, "1 s unless the driver is slow")


def start_dmon(folder):
    try:
        output = open(folder / "dmon.txt", "w", encoding="utf-8")
        process = subprocess.Popen(DMON, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    except OSError as error:
        return None, f"nvidia-smi: {error.strerror}"
    time.sleep(0.5)
    if process.poll() is not None:
        return None, f"nvidia-smi dmon ended with {process.returncode}"
    return process, ""


class Process:
    """CPU share of a process since this object was created, and its memory."""

    def __init__(self, pid):
        self._folder = pathlib.Path(f"/proc/{pid}")
        self._begin, self._cpu_s = time.monotonic(), self._cpu()

    def cpu_share(self):
        return (self._cpu() - self._cpu_s) / (time.monotonic() - self._begin)

    def memory(self, name):
        """Returns bytes from a line of /proc/PID/status."""
        for line in (self._folder / "status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
        return None

    def _cpu(self):
        fields = (self._folder / "stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS
