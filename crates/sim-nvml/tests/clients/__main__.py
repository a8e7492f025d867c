"""Third-party NVML clients read the simulator: pynvml (nvidia-ml-py) with its example, nvitop, and all-smi.

    ln -s .../libsim_nvml.so DIR/libnvidia-ml.so.1
    LD_LIBRARY_PATH=DIR python clients            every spec below, and over_time.py
    LD_LIBRARY_PATH=DIR python clients h100x8     one spec

all-smi is included if LOCKSTEP_TEST_ALL_SMI names its program (`cargo xtask test --only nvml-clients` builds it).

Exits with 0 if every value exists and is in its range, with 1 and one line for each value that is not, and with 2
if the library that the loader finds is not the simulator or if a client is not installed.
"""

import concurrent.futures
import ctypes
import os
import pathlib
import subprocess
import sys

from checks import Checks
from machine import Machine

HERE = pathlib.Path(__file__).parent
SPECS = [
    "h100x8",
    "h200x1",
    "b200x8",
    "a100x8",
    "rtx4090x2",
    "h100x4:idle",
    "h100x4:throttle,gpu=1,after=0s",
    "h100x2:throttle,gpu=1,after=0s,reason=power-brake",
    "a100x4:memory-pressure,after=0s",
    "h100x4:ecc,gpu=2,after=0s,for=4s",
    "b200x4:link-down,gpu=3,link=5,after=0s",
    "h100x4:xid,gpu=1,after=2s",
    "h100x4:lost,gpu=0,after=0s",
    "h100x2,driver=570.172.08",
    "a100x2:mig,gpu=1,after=0s",
    "h100x2:mig,gpu=0,after=0s,instances=3g.40gb+2g.20gb+1g.10gb",
    f"h100x8:file={HERE / 'many.scenario'}",
]

# They mostly wait for time to pass.
AT_ONCE = 4


def clients():
    """Returns the name and the check of each client."""
    import with_example
    import with_nvitop
    import with_pynvml

    found = {"pynvml": with_pynvml.check, "nvitop": with_nvitop.check, "example.py": with_example.check}
    program = os.environ.get("LOCKSTEP_TEST_ALL_SMI")
    if program:
        import with_all_smi

        found["all-smi"] = lambda checks, machine: with_all_smi.check(checks, machine, program)
    return found


def check_one(spec):
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        library.lockstep_sim_configure
    except (OSError, AttributeError) as error:
        print(f"the loader does not find the simulator as libnvidia-ml.so.1: {error}; set LD_LIBRARY_PATH", file=sys.stderr)
        return 2
    try:
        present = clients()
    except ImportError as error:
        print(f"{error}; pip install nvidia-ml-py nvitop", file=sys.stderr)
        return 2
    checks, machine = Checks(spec), Machine(spec)
    for name, check in present.items():
        try:
            check(checks, machine)
        except Exception as error:  # a client that stops is an error too
            checks.wrong.append(f"{name} stopped: {type(error).__name__}: {error}")
    for line in checks.wrong:
        print(f"{spec}: {line}", file=sys.stderr)
    print(f"{spec}: {checks.done} values, {len(checks.wrong)} wrong")
    return 1 if checks.wrong else 0


def check_refusal():
    """An invalid spec must stop the client, with the reason."""
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
    if len(sys.argv) > 1:
        return max(map(run, sys.argv[1:]))
    # The check over time runs alone, because its result depends on time.
    changing = run(f"h100x2:file={HERE / 'changing.scenario'}", "over_time.py")
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        codes = list(pool.map(run, SPECS))
    return max(codes + [changing, check_refusal()])


def run(spec, script=None):
    """The library is configured once per process, so each spec needs its own process."""
    environment = dict(os.environ, LOCKSTEP_SIMULATE=spec)
    command = [sys.executable, __file__, "--in-this-process", spec] if script is None else [sys.executable, HERE / script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    # One write each, so that the lines of specifications that end at the same time do not mix.
    sys.stderr.write(done.stderr)
    sys.stdout.write(done.stdout)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
