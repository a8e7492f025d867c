"""Mixed precision through `run apply amp=bf16`: compares the verdict with the training's own record, and with GPM's activity of tensor cores.

    attempt 1, float32 ── apply ──▶ attempt 2, the same in bf16 by autocast, which the probe enters
"""

import statistics
import time

from ..lockstep import Lockstep
from . import changes
from .changes import NotAvailable, Trial

# TF32 stays off, as it is by default. By `lockstep plan memory` 9.6 GiB in float32 and 7.3 GiB in bf16; an H200 takes about 0.2 s for a step in float32.
TRAINED = {"layers": 12, "hidden": 1024, "heads": 16, "vocabulary": 16384, "sequence": 1024, "batch": 8, "precision": "fp32"}
NEEDED_BYTES = 13 << 30
CHANGE = "amp=bf16"
# Products in bf16 have 15 times float32's peak on Hopper without TF32, 8 times on Ampere; what is bound by memory and by launches gains less.
STEP_RATIO_MAX = 0.5
# the plan is 0.76
MEMORY_RATIO_MAX = 0.9
# bf16 has 8 bits of mantissa: losses at the same of the first 20 steps differ in the third digit at most.
LOSSES_MAX = 0.02
# Float32 products do not use tensor cores; attention in float32 may, for a small part of the step.
TENSOR_BEFORE_MAX, TENSOR_AFTER_MIN = 0.15, 0.15
# GPM averages over a second that began before the first step that counts.
GPM_LATE_S, GPM_SAMPLES_MIN, GPM_TRAINS_S = 1.5, 3, 8
# On a CPU bf16 may be faster or slower: closer to 1 than this, the direction is not checked.
CLEAR_RATIO = 0.2
# docs/knobs.md: what counts in a verdict.
STEP_MATTERS, MEMORY_MATTERS = 0.02, 0.05


def run(check):
    with Lockstep(check) as lockstep:
        trial = Mixed(check, lockstep)
        changes.report(check.sheet, trial, (Mixed.judge, JUDGED), (Mixed.finish, FINISHED))
    for name, value in trial.facts().items():
        check.sheet.fact(name, value)


class Mixed(Trial):
    """A float32 attempt, and one in mixed precision."""

    def judge(self):
        changes.need_gpu_memory(self.lockstep, NEEDED_BYTES)
        self.train_and_apply(TRAINED, CHANGE)

    def finish(self):
        if self.on_gpu and not self.check.quick:
            time.sleep(GPM_TRAINS_S)
        self.end()
        self.after, self.verdict = self.measured(), self.verdict_of(2)

    def tensor_activity(self, own):
        """GPM's samples of the training's GPU while steps behind the warm-up were trained."""
        counted = [step["at"] for step in own["each_step"] if step["step"] > changes.WARMUP_STEPS]
        gpus = [gpu["index"] for gpu in self.lockstep.get("/api/gpus") if own["gpu_uuid"] in gpu["uuid"]]
        if not gpus:
            raise NotAvailable(f"no GPU of the inventory has the UUID {own['gpu_uuid']}, as a MIG instance has none")
        series = self.lockstep.samples(f'gpu_tensor_active_ratio{{gpu="{gpus[0]}"}}', time.time() - counted[0] + 5)
        return [value for _, values in series for at, value in values if counted[0] + GPM_LATE_S <= at <= counted[-1]]


# === Rows: `row(sheet, what, trial)` ===


def decision(sheet, what, trial):
    step, memory = trial.step_ratio, trial.memory_ratio
    own = f"by the training's own record {100 * (step - 1):+.1f} % of the step time, {100 * (memory - 1):+.1f} % of the memory"
    if not trial.on_gpu and abs(step - 1) < CLEAR_RATIO:
        raise NotAvailable(f"too close to tell: {own}")
    better, worse = step < 1 - STEP_MATTERS or memory < 1 - MEMORY_MATTERS, step > 1 + STEP_MATTERS or memory > 1 + MEMORY_MATTERS
    expected = "mixed" if better and worse else "better" if better else "worse" if worse else "no_difference"
    sheet.equal(what, trial.verdict["decision"], expected, own)


def faster(sheet, what, trial):
    trial.need_gpu()
    sheet.between(what, trial.verdict["step_time"]["value"], 0, STEP_RATIO_MAX)


def smaller(sheet, what, trial):
    trial.need_gpu()
    sheet.between(what, trial.verdict["memory"], 0, MEMORY_RATIO_MAX)


def memory_ratio(sheet, what, trial):
    trial.need_gpu()
    sheet.compare(what, trial.verdict["memory"], trial.memory_ratio, relative=changes.PEAK_RELATIVE, reference=changes.MEMORY_STATS)


def losses(sheet, what, trial):
    sheet.between(what, (trial.verdict.get("losses") or {}).get("largest_difference"), 0, LOSSES_MAX, note="relative, of the first 20 steps")


def tensor(side, low, high):
    def row(sheet, what, trial):
        trial.need_gpu()
        samples = trial.tensor_activity(getattr(trial, side))
        if len(samples) < GPM_SAMPLES_MIN:
            raise NotAvailable(f"only {len(samples)} samples of gpu_tensor_active_ratio: a short training, or a GPU without GPM (before Hopper)")
        sheet.between(what, statistics.median(samples), low, high, "%", f"median of {len(samples)} samples")

    return row


JUDGED = {f"the probe's answer to {CHANGE}": changes.probe_answer, "exit code of run apply --wait": changes.exit_code}
FINISHED = {
    f"the verdict on {CHANGE}": decision,
    "step time in bf16 by float32": faster,
    "memory peak in bf16 by float32": smaller,
    "tensor activity in float32 (GPM)": tensor("before", 0, TENSOR_BEFORE_MAX),
    "tensor activity in bf16 (GPM)": tensor("after", TENSOR_AFTER_MIN, 1),
    "the verdict's step time before": changes.step_time("before"),
    "the verdict's step time after": changes.step_time("after"),
    "the verdict's step time, after ÷ before": changes.step_time_ratio,
    "the verdict's samples per second, after ÷ before": changes.samples_ratio,
    "the verdict's memory peak before": changes.peak("before"),
    "the verdict's memory peak after": changes.peak("after"),
    "the verdict's memory, after ÷ before": memory_ratio,
    "the verdict's largest difference of losses at the same steps": changes.loss_difference,
    "losses in bf16 beside those in float32": losses,
}
