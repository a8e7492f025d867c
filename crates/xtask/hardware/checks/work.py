"""Work of known size for a GPU, each for some seconds. The amount is counted, so that counters can be compared with it."""

import time
from dataclasses import dataclass


@dataclass
class Done:
    """What was done between two times (seconds since the epoch)."""

    begin: float
    end: float
    flops: float = 0.0
    bytes: float = 0.0

    @property
    def seconds(self):
        return self.end - self.begin

    @property
    def flops_per_s(self):
        return self.flops / self.seconds

    @property
    def bytes_per_s(self):
        return self.bytes / self.seconds


def repeat(torch, seconds, once, *, flops=0.0, size=0.0, batch=8):
    """Runs `once` repeatedly for some seconds; at most `batch` calls wait on the GPU."""
    once()
    torch.cuda.synchronize()
    begin, count = time.time(), 0
    while time.time() - begin < seconds:
        for _ in range(batch):
            once()
        torch.cuda.synchronize()
        count += batch
    return Done(begin, time.time(), flops * count, size * count)


def products(torch, seconds, size=8192):
    """bf16 matrix products on tensor cores: 2·n³ FLOPs each."""
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    return repeat(torch, seconds, lambda: torch.mm(a, b, out=out), flops=2.0 * size**3)


def device_copies(torch, seconds, size=1 << 31):
    """Copies in the GPU's memory: each byte is read and written."""
    source = torch.empty(size, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    return repeat(torch, seconds, lambda: target.copy_(source), size=2.0 * size)


def host_copies(torch, seconds, to_device, size=1 << 28):
    """Copies over PCIe from or to pinned memory."""
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(size, device="cuda", dtype=torch.uint8)
    target, source = (device, host) if to_device else (host, device)
    return repeat(torch, seconds, lambda: target.copy_(source, non_blocking=True), size=float(size), batch=2)


def half_busy(torch, seconds, size=8192):
    """Products half of the time, alternating about every 20 ms: a known busy share."""
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    torch.mm(a, b, out=out)
    torch.cuda.synchronize()
    begin, busy = time.time(), 0.0
    while time.time() - begin < seconds:
        started = time.perf_counter()
        while time.perf_counter() - started < 0.02:
            torch.mm(a, b, out=out)
            torch.cuda.synchronize()
        took = time.perf_counter() - started
        busy += took
        time.sleep(took)
    done = Done(begin, time.time())
    return done, busy / done.seconds
