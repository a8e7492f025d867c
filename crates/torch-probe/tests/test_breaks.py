"""Scripts that break hooks run as without the probe; what could not be observed is reported."""

import re
import sys
import types

import pytest
import recipes
from conftest import SCRIPTS, notes_of

from lockstep_probe import compiler, memory

UNSEEN = {
    "spawns": "torch.multiprocessing.spawn",
    "compiled": "torch.compile: the first steps hold its own time",
    "raises": "a backward pass raised ArithmeticError: its loss does not count",
}
# Started without the probe too, not forked: torch's log of a compilation belongs to this process, and a new interpreter imports the script.
STARTED = {"compiled", "spawns"}


@pytest.mark.parametrize(("kind", "steps"), [("compiled", 5), ("raises", 5), ("by-hand", 0), ("reenters", 3), ("patched", 5), ("spawns", 0)])
def test_what_breaks_hooks_runs_as_without_the_probe(ranks, tmp_path, kind, steps):
    script = SCRIPTS / "breaks.py"
    watched = ranks(script, kind, count=1)
    alone = ranks(script, kind, count=1, probe=False) if kind in STARTED else recipes.run(tmp_path, script, kind, ranks=1)
    assert (watched.code, without_times(watched.output)) == (alone.code, without_times(alone.output)) and watched.code == 0
    [bye] = watched.of("bye")
    assert bye["step"] == steps and {record["pid"] for record in watched.records} == {bye["pid"]}
    unseen = UNSEEN.get(kind)
    assert [unseen in note for note in notes_of(bye)] == ([] if unseen is None else [True]), notes_of(bye)


def without_times(output):
    """Removes time and pid from torch's own warnings."""
    return re.sub(r"^W\d{4} \S+ \d+ ", "", output, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("compiled", "step", "note"),
    [
        (0, {}, None),
        (3, {"forward_s": 1.0, "backward_s": 1.0, "loss": 0.0}, compiler.COMPILED),
        (3, {"forward_s": 1.0}, "torch.compile: backward_s, loss of a step are not seen, compiled code holds them"),
    ],
)
def test_what_compiled_code_hides_is_read_from_a_step(monkeypatch, compiled, step, note):
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", types.SimpleNamespace(counters={"frames": {"ok": compiled}}))
    assert compiler.what_it_hides(step) == note and len(compiler.COMPILED) <= 200


# === memory ===


def test_a_host_without_memory_is_described(ranks):
    finished = ranks(SCRIPTS / "breaks.py", "out-of-memory", count=1)
    assert finished.code == 1
    [error] = finished.of("error")
    found = error["memory"]
    assert (found["device"], found["requested_bytes"]) == ("cpu", 1 << 50)
    assert 0 < found["process_bytes"] < found["total_bytes"] < found["requested_bytes"] and found["free_bytes"] > 0


class OutOfMemoryError(RuntimeError):
    pass


MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 1 has a total capacity of 79.15 GiB of which 1.25 GiB is free. Process 7 has 4.00 GiB "
    "memory in use. Including non-PyTorch memory, this process has 73.90 GiB memory in use. Of the allocated memory 60.00 GiB is allocated by "
    "PyTorch, with 10.00 MiB allocated in private pools (e.g., CUDA Graphs), and 12.00 GiB is reserved by PyTorch but unallocated. If reserved "
    "but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)


class Cuda:
    """The reports of torch.cuda about an allocator, according to its documentation."""

    def memory_stats(self, device):
        assert device == 1
        return {"allocated_bytes.all.peak": 66 << 30, "inactive_split_bytes.all.current": 11 << 30, "num_alloc_retries": 3, "active.all.current": 4}

    def memory_snapshot(self):
        def segment(device, *blocks):
            return {"device": device, "blocks": [{"size": size, "state": state} for size, state in blocks]}

        used = "active_allocated"
        return [segment(1, (4096, used), (4096, used), (6000, used), (900, "inactive")), segment(1, (700, "inactive"), (5, "active_pending_free")), segment(0, (1 << 40, "inactive"))]


class Torch:
    cuda = Cuda()


def test_a_gpu_without_memory_is_described_by_the_message_and_the_allocator():
    found = memory.evidence(Torch, OutOfMemoryError(MESSAGE), MESSAGE)
    assert found == {
        "device": "cuda:1", "requested_bytes": 5 << 29, "total_bytes": int(79.15 * 2**30), "free_bytes": 5 << 28, "process_bytes": int(73.9 * 2**30),
        "allocated_bytes": 60 << 30, "unallocated_bytes": 12 << 30, "peak_allocated_bytes": 66 << 30, "inactive_split_bytes": 11 << 30, "retries": 3,
        "largest_free_bytes": 900, "top": [[4096, 2], [6000, 1]],
    }


def test_without_an_allocator_s_books_the_message_is_enough():
    found = memory.evidence(None, OutOfMemoryError("x"), "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 5.00 GiB total capacity)")
    assert found == {"device": "cuda", "requested_bytes": 20 << 20}
    assert memory.evidence(None, ValueError("x"), "x") is None
