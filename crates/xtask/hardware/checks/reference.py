"""The same values from NVIDIA's own tools: nvidia-smi -q -x and pynvml."""

import ctypes
import subprocess
import threading
import time
import xml.etree.ElementTree as ET


def nvml(simulate=None):
    """pynvml, initialised, and no reason; or `None` and the reason."""
    try:
        import pynvml
    except ImportError:
        return None, "pynvml (nvidia-ml-py) is not installed"
    try:
        if simulate:
            ctypes.CDLL("libnvidia-ml.so.1").lockstep_sim_configure(simulate.encode())
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, f"pynvml does not work: {error}"
    return pynvml, ""


def ask(call):
    """Returns the value, or `None` if the driver refuses."""
    try:
        return call()
    except Exception:  # any client error means that this machine does not have the value
        return None


def field_value(field):
    """The number in a field's union, by its type."""
    members = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal"}
    return getattr(field.value, members.get(field.valueType, "ullVal"))


def smi():
    """One dictionary per GPU: path of the element (`fb_memory_usage/used`) to text; none where nvidia-smi does not work."""
    try:
        asked = subprocess.run(["nvidia-smi", "-q", "-x"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    if asked.returncode != 0:
        return []
    root = ET.fromstring(asked.stdout)
    versions = {name: root.findtext(name) for name in ("driver_version", "cuda_version")}
    return [{**flat(gpu), **versions, "id": gpu.get("id")} for gpu in root.findall("gpu")]


def flat(element, path=""):
    found = {}
    for child in element:
        below = f"{path}/{child.tag}" if path else child.tag
        if len(child):
            found |= {name: value for name, value in flat(child, below).items() if name not in found}
        else:
            found.setdefault(below, (child.text or "").strip())
    return found


def quantity(text):
    """`71.5` of `71.5 W`, in base units: bytes, hertz, watts, seconds; `None` of `N/A`."""
    parts = (text or "").split()
    try:
        value = float(parts[0])
    except (IndexError, ValueError):
        return None
    factor = {"MiB": 1 << 20, "KiB": 1 << 10, "GiB": 1 << 30, "MHz": 1e6, "KB/s": 1e3, "MB/s": 1e6, "%": 0.01, "us": 1e-6}
    return value * factor.get(parts[1] if len(parts) > 1 else "", 1)


class Recorder:
    """Calls functions repeatedly in a separate thread: name → [(time, value)]."""

    def __init__(self, functions, period_s):
        self._functions, self._period_s = functions, period_s
        self.readings = {name: [] for name in functions}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._record, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join(30)

    def _record(self):
        while not self._stop.is_set():
            began = time.time()
            for name, function in self._functions.items():
                value = ask(function)
                if value is not None:
                    self.readings[name].append((time.time(), value))
            self._stop.wait(max(0.0, self._period_s - (time.time() - began)))

    def near(self, name, at, before_s, after_s):
        """Values read from `before_s` before a time to `after_s` after it."""
        return [value for when, value in self.readings[name] if at - before_s <= when <= at + after_s]
