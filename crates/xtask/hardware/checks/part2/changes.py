"""A run of trainings/gpt.py whose knobs change while it trains: compares its verdict with the training's own measurements of each attempt.
"""

import importlib.util
import json
import pathlib
import sys

from ..lockstep import ENDED, wait_for

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "trainings" / "gpt.py"
# A verdict needs 20 steps behind a warm-up of 5 on each side. The first 30 steps of an attempt are stored one by one, later ones about once per
# second (docs/knobs.md).
WARMUP_STEPS, JUDGED_STEPS = 5, 30
# A quick training ends by itself, so that the change need not wait for an agreed step. It has a few more steps than are stored one by one.
QUICK_STEPS = 36
# Losses of the earliest steps are compared, at most this many (docs/knobs.md).
LOSSES_MAX = 20
# The launcher and the rank import PyTorch, CUDA starts, and the model is created.
START_S = 60
# From the request to the verdict: 6 s until the agreed step, another start, 25 steps, and a check every 3 s.
VERDICT_S = 50
# The current step, and the end of the launcher.
END_S = 40
# Length of the last output of a training in the row of a failed check.
OUTPUT_CHARACTERS = 250
# Both read the same allocator, Lockstep at every tenth step: only the last steps can add to the peak.
PEAK_RELATIVE = 0.01
# The verdict's median is one of 25 to 200 samples, of which later ones are means of a second; the training's is one of all its steps behind the warm-up.
STEP_RELATIVE = 0.05
# On a CPU with other load, steps of a few milliseconds vary too much.
CPU_STEP_RELATIVE = 0.3
# A loss is a 32-bit number in both places; the differences between two attempts are relative to it.
LOSS_ABSOLUTE = 1e-6
MEMORY_STATS = "torch.cuda.memory_stats in the training"
ON_A_CPU = "it needs PyTorch with CUDA; the training runs on a CPU"


class NotAvailable(Exception):
    """This machine, or this kind of check, cannot measure it."""


def report(sheet, trial, *stages):
    """Runs `stages`: pairs of a function that collects values and the rows for them. A failure affects the rows of its stage and of later
    stages."""
    failure = None
    for gather, rows in stages:
        missing = None
        try:
            if failure is None:
                gather(trial)
        except NotAvailable as reason:
            missing = str(reason)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        for what, row in rows.items():
            if failure is not None:
                sheet.failed(what, failure)
            elif missing is not None:
                sheet.not_available(what, missing)
            else:
                report_row(sheet, trial, what, row)


def report_row(sheet, trial, what, row):
    try:
        row(sheet, what, trial)
    except NotAvailable as reason:
        sheet.not_available(what, str(reason))
    except Exception as error:  # the other rows do not need this one
        sheet.failed(what, f"{type(error).__name__}: {error}")


def need_gpu_memory(lockstep, size):
    """For a training of a fixed size, which would run out of memory on a smaller GPU."""
    sizes = [gpu["memory_total_bytes"] for gpu in lockstep.get("/api/gpus") if not gpu["simulated"]]
    if sizes and min(sizes) < size:
        raise NotAvailable(f"the training needs a GPU with {size >> 30} GiB")


def options(values):
    """Words of a command line."""
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]


class Trial:
    """The run, its attempts, and the values of both sides."""

    def __init__(self, check, lockstep):
        self.check, self.lockstep, self._result = check, lockstep, check.folder / "result.json"
        self.run = self.before = self.after = self.answer = self.exit_code = None
        self.verdict = self.decided = None  # the last verdict, and the decision with which `run apply --wait` ended

    # === Actions ===

    def train_and_apply(self, sizes, *change):
        """Trains, changes, and waits for the verdict; then the first attempt's measurements are known."""
        if importlib.util.find_spec("torch") is None:
            raise NotAvailable("this Python has no PyTorch")
        steps = ["--steps", QUICK_STEPS] if self.check.quick else []
        words = ["--cpu-small", *options(sizes), *steps, "--warmup", WARMUP_STEPS, "--log-every", 0, "--result", self._result]
        self.run = self.lockstep.submit(name="changes", script=str(SCRIPT), args=[str(word) for word in words])
        if self.check.quick:
            ended = self.lockstep.wait_for_end(self.run, START_S)
            if ended["state"] != "succeeded":
                raise RuntimeError(self.how_it_ended(ended))
            self.before = self.measured()
        else:
            self.wait_for_step(1, JUDGED_STEPS)
        done = self.lockstep.command("run", "apply", self.run, *change, "--wait", limit_s=VERDICT_S)
        print(done.stdout, done.stderr, file=sys.stderr)
        self.exit_code, self.verdict = done.returncode, self.verdict_of(2)
        if self.verdict is None:
            raise RuntimeError(f"run apply came to no verdict: {(done.stderr or done.stdout).strip()[-400:]}")
        self.decided = self.verdict["decision"]
        self.answer = next((answer for answer in self.attempt(2)["answers"] if answer["knob"] == change[0].partition("=")[0]), None)
        self.before = self.before or self.measured()

    def wait_for_step(self, number, step, limit_s=START_S):
        def reached():
            view = self.view()
            last = next((attempt.get("last_step") for attempt in view["attempts"] if attempt["attempt"] == number), None)
            if (last or 0) < step and view["state"] in ENDED:
                raise RuntimeError(f"before step {step} of attempt {number} {self.how_it_ended(view)}")
            return (last or 0) >= step

        wait_for(reached, limit_s, f"step {step} of attempt {number}")

    def end(self):
        """Ends the current attempt, so that it writes its measurements."""
        if self.view()["state"] not in ENDED:
            self.lockstep.command("run", "stop", self.run, "--grace", "20s", "--wait", limit_s=END_S)

    def measured(self):
        """Returns the measurements of the attempt that ended last. Removes its file, because the next file belongs to another attempt."""
        wait_for(self._result.is_file, END_S, "the result of the training")
        found = json.loads(self._result.read_text(encoding="utf-8"))
        self._result.unlink()
        return found

    def forget_measured(self):
        self._result.unlink(missing_ok=True)

    # === Values ===

    def how_it_ended(self, view):
        outcome, output = view.get("outcome") or {}, " ".join(self.lockstep.last_output(self.run).split())
        return f"the run ended as {view['state']}: {outcome.get('message')}; {output[-OUTPUT_CHARACTERS:]}"

    def view(self):
        return self.lockstep.run(self.run)

    def attempt(self, number):
        """An attempt as the API shows it; `None` while there is none."""
        return next((attempt for attempt in self.view()["attempts"] if attempt["attempt"] == number), None)

    def verdict_of(self, number):
        """The verdict on the change of an attempt, once there is one."""
        verdict = (((self.attempt(number) or {}).get("change")) or {}).get("verdict")
        return verdict if verdict and verdict["decision"] != "not_yet" else None

    @property
    def on_gpu(self):
        return self.before["device"] != "cpu"

    def need_gpu(self):
        if not self.on_gpu:
            raise NotAvailable(ON_A_CPU)

    @property
    def step_relative(self):
        return STEP_RELATIVE if self.on_gpu else CPU_STEP_RELATIVE

    @property
    def step_ratio(self):
        """Step time from the training's own record: after divided by before."""
        return self.after["step_s"] / self.before["step_s"]

    @property
    def memory_ratio(self):
        """Peaks from the training's own record: after divided by before. On a CPU, which has none, the verdict's bytes kept for the
        backward pass."""
        return self.after["max_allocated_bytes"] / self.before["max_allocated_bytes"] if self.on_gpu else self.verdict["memory"]

    def facts(self):
        """Raw values, without each step's."""
        sides = {name: {key: value for key, value in (getattr(self, name) or {}).items() if key != "each_step"} for name in ("before", "after")}
        return {**sides, "verdict": self.verdict, "answer": self.answer}

    def largest_loss_difference(self):
        """The largest relative difference of losses of the same steps, from the training's own record."""
        before, after = ({step["step"]: step["loss"] for step in side["each_step"] if step["step"] <= LOSSES_MAX} for side in (self.before, self.after))
        return max(abs(before[step] - after[step]) / max(abs(before[step]), abs(after[step])) for step in before.keys() & after.keys())


# === Rows: `row(sheet, what, trial)` ===


def probe_answer(sheet, what, trial):
    answer = trial.answer
    found = "no answer" if answer is None else f"{'applied' if answer['applied'] else 'failed'}: {answer['detail']}"
    sheet.holds(what, answer is not None and answer["applied"], found, "applied")


def exit_code(sheet, what, trial):
    # `run apply --wait` fails if the verdict is against the change (docs/knobs.md).
    expected = 1 if trial.decided in ("rejected", "worse", "not_applied") else 0
    sheet.equal(what, trial.exit_code, expected, f"the verdict: {trial.decided}")


def step_time(side):
    def row(sheet, what, trial):
        own, figures = getattr(trial, side), trial.verdict[side]
        sheet.compare(what, figures["step_seconds"]["value"], own["step_s"], relative=trial.step_relative, unit="s", reference="the training's own median")

    return row


def step_time_ratio(sheet, what, trial):
    sheet.compare(what, trial.verdict["step_time"]["value"], trial.step_ratio, relative=trial.step_relative, reference="the training's own medians")


def samples_ratio(sheet, what, trial):
    sheet.compare(what, trial.verdict["throughput"]["value"], 1 / trial.step_ratio, relative=trial.step_relative, reference="the training's own medians")


def peak(side):
    def row(sheet, what, trial):
        trial.need_gpu()
        expected = getattr(trial, side)["max_allocated_bytes"]
        sheet.compare(what, gpu_peak(trial.verdict[side]), expected, relative=PEAK_RELATIVE, unit="B", reference=MEMORY_STATS)

    return row


def gpu_peak(figures):
    """The allocator's peak in a verdict; `None` if it contains another measure."""
    memory = figures.get("memory") or {}
    return memory.get("bytes") if memory.get("kind") == "cuda_allocated" else None


def loss_difference(sheet, what, trial):
    losses = trial.verdict.get("losses") or {}
    sheet.compare(what, losses.get("largest_difference"), trial.largest_loss_difference(), absolute=LOSS_ABSOLUTE, reference="the training's own losses")
