"""An illegal access by a child process: what Lockstep makes of the Xid, beside NVML's own events and the kernel's log.

illegal_access.py is a managed run that writes to an address where nothing is. The driver reports Xid 31 and ends the process's work on the GPU; Lockstep has to
count it, to name process and run, and to judge it as an error of the program, not of the GPU. After it the GPU works as before. Without a GPU the simulator
reports the same Xid, and what comes after the report is checked.
"""

import json
import os
import re
import subprocess
import sys
import threading
import time

from .. import reference
from ..lockstep import Lockstep
from .training import gpus, ranks_of, reported, result, script, within

ILLEGAL_ACCESS = 31
SIMULATED, SIMULATED_XID = "h200x1", f"xid,gpu=0,code={ILLEGAL_ACCESS},after=2s"
RUN_S = 60
# An Xid is reported at once; Lockstep waits two seconds for what comes with it, and asks the kernel's log once per second.
EVENT_S = 20
# What may follow when the driver ends the process's work: 43, 45.
FOLLOWING_S = 3
# Samples come in batches; rules of the hardware are evaluated once per second.
SAMPLE_S, ALERT_S = 5, 10
WAIT_MS = 500
# The kernel's log counts from the machine's start; its times are made into times of the day.
CLOCK_MS = 1000
KERNEL_LOG = "/dev/kmsg"
LINE = re.compile(r"NVRM: Xid \(([^)]+)\): (\d+),(?: pid='?(\d+))?")
PRODUCT = "import torch; a = torch.ones(1024, 1024, device='cuda'); print(int((a @ a).sum().item()))"
PRODUCT_SAYS = str(1024**3)
PRODUCT_S = 60
NO_GPU = "it needs a GPU"
NO_PROCESS = "the simulator has no processes"
RUN_ROWS = ("the run ends as", "cause of the run", "the message names the error")
REAL_ROWS = ("GPU works in a new process", "gpu_up")


def run(check):
    simulate = None if gpus() else f"{(check.settings.simulate or SIMULATED).split(':')[0]}:{SIMULATED_XID}"
    with NvmlEvents(*reference.nvml(simulate)) as events, KernelLog() as log, Lockstep(check, simulate=simulate) as lockstep:
        with reported(check.sheet, "sources: the node's inventory says whether the kernel's log is read"):
            sources(check.sheet, lockstep, log)
        step = Access(check, lockstep, events, log)
        with reported(check.sheet, "illegal access: the run ends as"):
            step.access() if gpus() else step.no_access()
        with reported(check.sheet, "Xid: events of Lockstep"):
            step.told()
        with reported(check.sheet, "Xid: alerts"):
            step.alerts()
        with reported(check.sheet, "after it: gpu_up"):
            afterwards(check.sheet, lockstep)


# === the references ===


class NvmlEvents:
    """Xids of all GPUs that NVML reports to this process."""

    def __init__(self, nv, why_not):
        self._nv, self.why_not, self.seen = nv, why_not, []
        self._stop, self._thread = threading.Event(), threading.Thread(target=self._wait, daemon=True)

    def __enter__(self):
        if self._nv:
            try:
                self._register()
            except self._nv.NVMLError as error:
                self.why_not = f"NVML tells no events: {error}"
            else:
                self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def _register(self):
        self._set = self._nv.nvmlEventSetCreate()
        for gpu in range(self._nv.nvmlDeviceGetCount()):
            self._nv.nvmlDeviceRegisterEvents(self._nv.nvmlDeviceGetHandleByIndex(gpu), self._nv.nvmlEventTypeXidCriticalError, self._set)

    def _wait(self):
        while not self._stop.is_set():
            try:
                self.seen.append((time.time(), self._nv.nvmlEventSetWait_v2(self._set, WAIT_MS).eventData))
            except self._nv.NVMLError_Timeout:
                continue
            except self._nv.NVMLError:
                self._stop.wait(WAIT_MS / 1000)


class KernelLog:
    """Xids in the kernel's log from now on: `(number, process id or None, line)`."""

    def __enter__(self):
        self.why_not, self._file = "", None
        try:
            self._file = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError as error:
            self.why_not = f"{KERNEL_LOG} cannot be read: {error.strerror}"
        return self

    def __exit__(self, *_):
        if self._file is not None:
            os.close(self._file)

    def xids(self):
        """Those since the last call."""
        found = []
        while self._file is not None:
            try:
                record = os.read(self._file, 8192).decode(errors="replace")
            except BlockingIOError:
                break
            except BrokenPipeError:  # records were overwritten before they were read
                continue
            except OSError as error:
                self.why_not, self._file = f"{KERNEL_LOG} cannot be read: {error.strerror}", None
                break
            matched = LINE.search(record)
            if matched:
                found.append((int(matched[2]), matched[3] and int(matched[3]), record.split(";", 1)[-1].strip()))
        return found


def sources(sheet, lockstep, log):
    """Returns which source is missing, and what Lockstep reports about it."""
    log.xids()
    named = {source["name"]: source for source in lockstep.node["inventory"].get("sources", [])}
    source = named.get("kernel_log", {})
    sheet.equal("sources: the node's inventory says whether the kernel's log is read", source.get("available"), not log.why_not, "this process")
    doctor = json.loads(lockstep.command("doctor", "--json").stdout)
    states = [check["state"] for check in doctor if check["name"] == "kernel_log"]
    sheet.equal("sources: lockstep doctor says the same", states[0] if states else "nothing", "absent" if log.why_not else "works", "this process")
    sheet.fact("sources: in words", [source.get("detail"), log.why_not])


# === the access, and what Lockstep says ===


class Access:
    def __init__(self, check, lockstep, events, log):
        self._check, self._sheet, self._lockstep, self._events, self._log = check, check.sheet, lockstep, events, log
        self._before, self._began_ms, self._run, self._pid = {}, 0, None, None

    def no_access(self):
        for row in RUN_ROWS:
            self._sheet.not_available(f"illegal access: {row}", NO_GPU)

    def access(self):
        sheet, lockstep = self._sheet, self._lockstep
        self._run = lockstep.submit(script=script(self._check, "illegal_access"), nproc_per_node=1)
        lockstep.wait_for_step(self._run, 3, RUN_S)
        # A starting agent reports the last hour of the log: that has ended by now.
        self._before, self._began_ms = self._counts(), int(time.time() * 1000) - CLOCK_MS
        self._log.xids()
        self._events.seen.clear()
        found = lockstep.wait_for_end(self._run, RUN_S)
        self._pid = ranks_of(found)[0].get("pid")
        outcome = found.get("outcome") or {}
        message = outcome.get("message", "")
        sheet.equal("illegal access: the run ends as", found["state"], "failed")
        sheet.equal("illegal access: cause of the run", outcome.get("cause"), "exception")
        sheet.holds("illegal access: the message names the error", "illegal memory access" in message, message, "an illegal memory access")
        sheet.fact("illegal access: the script", result(lockstep, self._run))

    def _counts(self):
        return {labels["xid"]: value for labels, value in self._lockstep.query("sum by (xid) (gpu_xid_errors_total)")}

    def told(self):
        sheet, lockstep = self._sheet, self._lockstep
        events = within(EVENT_S, self._told_events)
        if gpus():
            time.sleep(FOLLOWING_S)
        in_log, by_nvml = self._log.xids(), [number for _, number in self._events.seen]
        sheet.fact("Xid: NVML, the kernel's log, Lockstep", [self._events.seen, in_log, events])
        self._references(by_nvml, in_log)
        sheet.equal("Xid: events of Lockstep", len(events), 1)
        new = {xid: value - self._before.get(xid, 0) for xid, value in self._counts().items()}
        counted, seen = numbered(int(xid) for xid, value in new.items() if value), numbered([*by_nvml, *(number for number, *_ in in_log)])
        sheet.equal("Xid: numbers that gpu_xid_errors_total counts", counted, seen or None, "NVML and the kernel's log")
        self._named(events[0] if events else {}, [line for line in in_log if line[0] == ILLEGAL_ACCESS])
        judged = within(SAMPLE_S, lambda: lockstep.query("gpu_xid_judged_total"))
        sheet.fact("Xid: gpu_xid_judged_total", judged)
        words = sorted({f"{labels['severity']}, {labels['cause']}" for labels, _ in judged if labels["xid"] == str(ILLEGAL_ACCESS)})
        sheet.equal("Xid: severity and cause that it is judged by", "; ".join(words), "warning, application", "docs/xid.md")

    def _told_events(self):
        events = self._lockstep.get(f"/api/events?kind=xid&since_ms={self._began_ms}")
        return [event for event in events if f"Xid {ILLEGAL_ACCESS}:" in event["message"]]

    def _references(self, by_nvml, in_log):
        """Whether each of the two sources has it at all on this machine."""
        sheet, wanted = self._sheet, f"among them {ILLEGAL_ACCESS}"
        if self._events.why_not:
            sheet.not_available("Xid: NVML tells it as an event", self._events.why_not)
        else:
            sheet.holds("Xid: NVML tells it as an event", ILLEGAL_ACCESS in by_nvml, numbered(by_nvml) or "none", wanted)
        if not gpus() or self._log.why_not:
            sheet.not_available("Xid: the kernel's log has it", self._log.why_not or NO_GPU)
        else:
            numbers = [number for number, *_ in in_log]
            sheet.holds("Xid: the kernel's log has it", ILLEGAL_ACCESS in numbers, numbered(numbers) or "none", wanted)

    def _named(self, event, in_log):
        """Only the kernel's log names the process; the run that uses the GPU is known without it."""
        sheet = self._sheet
        sheet.equal("Xid: the event names the GPU", event.get("gpu", "none"), 0)
        pid = in_log[0][1] if in_log else None
        why = NO_PROCESS if not gpus() else self._log.why_not or ("" if pid else "the kernel's log names no process")
        if why:
            sheet.not_available("Xid: the event names the process", why)
        else:
            message = event.get("message", "")
            sheet.holds("Xid: the event names the process", f"(pid {self._pid})" in message, message, f"pid {self._pid} (the log: {pid})")
        if self._run:
            sheet.equal("Xid: the event names the run", event.get("run") or "none", self._run)
        else:
            sheet.not_available("Xid: the event names the run", NO_PROCESS)

    def alerts(self):
        sheet = self._sheet

        def of_xid():
            return [alert for alert in self._lockstep.alerts() if alert["labels"].get("xid") == str(ILLEGAL_ACCESS)]

        found = within(ALERT_S, of_xid)
        sheet.fact("Xid: alerts", found)
        sheet.equal("Xid: alerts", ", ".join(sorted(f"{alert['rule']} ({alert['severity']})" for alert in found)), "ProgramError (info)")
        faults = [alert["annotations"].get("summary") for alert in self._lockstep.alerts() if alert["rule"] == "GpuFault"]
        sheet.equal("Xid: alerts GpuFault", len(faults), 0)


def numbered(numbers):
    return ", ".join(str(number) for number in sorted(set(numbers)))


def afterwards(sheet, lockstep):
    if not gpus():
        for row in REAL_ROWS:
            sheet.not_available(f"after it: {row}", NO_GPU)
        return
    sheet.equal("after it: gpu_up", lockstep.value('gpu_up{gpu="0"}'), 1.0)
    said = subprocess.run([sys.executable, "-c", PRODUCT], capture_output=True, text=True, timeout=PRODUCT_S)
    sheet.equal("after it: GPU works in a new process", said.stdout.strip() or said.stderr[-200:], PRODUCT_SAYS)
