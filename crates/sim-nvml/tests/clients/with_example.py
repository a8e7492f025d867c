"""The example that nvidia-ml-py ships: it prints what it reads as XML."""

import importlib.util
import subprocess
import sys
import xml.etree.ElementTree as xml


def check(checks, machine):
    place = importlib.util.find_spec("example")
    checks.equal("nvidia-ml-py's example is there", lambda: place is not None, True)
    if place is None:
        return
    printed = subprocess.run([sys.executable, place.origin], capture_output=True, text=True, timeout=60)
    checks.equal("example.py", lambda: (printed.returncode, printed.stderr), (0, ""))
    if any(machine.has(gpu, "lost") for gpu in range(machine.count)):
        # It stops at the first error.
        checks.equal("example.py says why it stops", lambda: "example.py: GPU is lost" in printed.stdout, True)
        return
    # Its elements have no root.
    tree = checks.read("example.py's XML", lambda: xml.fromstring(f"<all>{printed.stdout}</all>"))
    if tree is None:
        return
    text = lambda path: (tree.find(f".//{path}").text or "").strip()
    checks.equal("example.py driver", lambda: text("driver_version"), machine.driver)
    checks.equal("example.py count", lambda: int(text("attached_gpus")), machine.count)
    gpus = tree.findall(".//gpu")
    checks.equal("example.py GPUs", lambda: len(gpus), machine.count)
    for index, gpu in enumerate(gpus):
        value = lambda path: gpu.find(path).text.strip()
        at = f"example.py GPU {index} "
        checks.equal(at + "name", lambda: value("product_name"), machine.model[0])
        checks.equal(at + "brand", lambda: value("product_brand"), machine.model[9])
        checks.equal(at + "UUID", lambda: value("uuid").startswith("GPU-"), True)
        checks.equal(at + "virtualization", lambda: value("gpu_virtualization_mode/virtualization_mode"), "None")
