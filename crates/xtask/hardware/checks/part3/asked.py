"""Ranks that are asked while they train: stacks, wait counters, NCCL's Flight Recorder, beside what the script does at that time.

The script `collectives.py` has a function for each of its parts; Lockstep has to name that function, also while a kernel of seconds runs and while the rank
waits in torch.cuda.synchronize(). The Flight Recorder's last collective is held against the script's own count. Then one rank of several is stopped by SIGSTOP
between its collectives: which rank Lockstep names, why, after how many seconds; the script goes on after SIGCONT. With one GPU that is done on CPUs with Gloo.
"""

import math
import os
import signal
import time

from ..lockstep import Lockstep, wait_for
from .training import gpus, ranks_of, reported, result, script, within

CPU_RANKS, QUICK_RANKS = 2, 1
START_S = 60
# Each rank has five seconds to answer; all of them at the same time, and a second to collect the answers.
ANSWER_S = 6
# The parts of the script last this long; stacks are asked for again and again until they show the part.
PART_S, QUICK_PART_S = 4, 1
PART_WITHIN_S = 15
SIZE, LAYERS = 256, 4
# One per layer, and one for the flag that tells the ranks to go on.
CALLS_PER_STEP = LAYERS + 1
PACED = ["--size", str(SIZE), "--layers", str(LAYERS), "--batch", "64", "--step-delay-ms", "20"]
# NCCL keeps no record unless it is told how many entries; the older name is that of PyTorch before 2.8.
RECORDER = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}
WAIT_COUNTERS_FROM = (2, 10)
# docs/supervision.md: stopped for 3 s, checked once per second, plus the time until the report arrives.
STOPPED_S = (3, 7)
# The rule RankStuck uses the same report and is evaluated once per second.
STUCK_S = (3, 10)
STOPPED_ROWS = (
    "seconds until Lockstep reports it", "ranks that are reported as stalled", "cause", "stacks say that it is stopped",
    "stacks name the function in which the others wait", "the event rank_stacks names it", "lockstep run why names it", "ranks that the alert RankStuck names",
    "seconds until the alert RankStuck names it", "lockstep run why gives the alert", "after SIGCONT the run continues and no rank is stalled",
)  # fmt: skip
ON_S = 15


def run(check):
    ranks = gpus() or (QUICK_RANKS if check.quick else CPU_RANKS)
    with Lockstep(check) as lockstep:
        with reported(check.sheet, "stacks: every rank answers"):
            of_ranks(check, lockstep, ranks)
        if check.quick:
            for row in STOPPED_ROWS:
                check.sheet.not_available(f"stopped rank: {row}", "it takes too long for --quick")
        elif ranks == 1:
            with reported(check.sheet, "stopped rank: cause"), Training(check, lockstep, CPU_RANKS, "gloo") as training:
                stopped(check.sheet, training)


class Training:
    """A run of collectives.py that trains until it is told to go on with its other parts."""

    def __init__(self, check, lockstep, ranks, backend="auto"):
        self.lockstep, self.ranks, self._until = lockstep, ranks, check.folder / f"until-{backend}"
        part_s = str(QUICK_PART_S if check.quick else PART_S)
        arguments = [*PACED, "--until", str(self._until), "--hold", part_s, "--rest", part_s]
        self.run = lockstep.submit(script=script(check, "collectives"), args=arguments, nproc_per_node=ranks, backend=backend, env=RECORDER)

    def __enter__(self):
        self.lockstep.wait_for_step(self.run, 3, START_S)
        return self

    def __exit__(self, *_):
        self.go_on()

    def go_on(self):
        self._until.touch()

    def ask(self, what):
        """What the ranks answer, and in how many seconds."""
        began = time.monotonic()
        return self.lockstep.post(f"/api/runs/{self.run}/{what}"), time.monotonic() - began

    def wait_in(self, function):
        """The stacks once every rank is in this function of the script, and how long that answer took."""

        def there():
            view, took_s = self.ask("stacks")
            return (view, took_s) if all(function in functions(rank) for rank in view["ranks"]) else None

        return wait_for(there, PART_WITHIN_S, f"{function} in the stacks of every rank")


def functions(rank):
    """Functions of the script in which a rank's main thread is, the innermost first."""
    threads = rank.get("threads") or [{"frames": []}]
    return [frame["function"] for frame in threads[-1]["frames"] if frame["file"].endswith("collectives.py")]


def problems(view):
    return "; ".join(f"rank {rank['rank']}: {rank['problem']}" for rank in view["ranks"] if rank.get("problem"))


# === ranks that train ===


def of_ranks(check, lockstep, ranks):
    sheet = check.sheet
    with Training(check, lockstep, ranks) as training:
        stacks(sheet, training)
        with reported(sheet, "wait counters: every rank answers"):
            wait_counters(sheet, training)
        with reported(sheet, "flight: entries are the script's collectives"):
            flight(sheet, training)
        if ranks > 1 and not check.quick:
            with reported(sheet, "stopped rank: cause"):
                stopped(sheet, training)
        training.go_on()
        for what, function in (("while a long kernel runs", "while_a_long_kernel_runs"), ("in torch.cuda.synchronize()", "in_synchronize")):
            with reported(sheet, f"stacks {what}: every rank answers"):
                held(sheet, training, what, function)
        with reported(sheet, "flight: number of the last collective"):
            at_rest(sheet, training)


def stacks(sheet, training):
    view, took_s = training.ask("stacks")
    sheet.equal("stacks: every rank answers", sum(not rank.get("problem") for rank in view["ranks"]), training.ranks)
    named = {rank["rank"]: functions(rank) for rank in view["ranks"]}
    sheet.fact("stacks", [view["groups"], named])
    found = "; ".join(f"rank {rank}: {' in '.join(names) or 'nothing'}" for rank, names in named.items())
    sheet.holds("stacks: the script's function of each rank", all("train" in names for names in named.values()), found, "train")
    sheet.between("stacks: seconds until all answers are there", took_s, 0, ANSWER_S, "s")
    said = training.lockstep.command("run", "stacks", training.run)
    sheet.holds("lockstep run stacks: names the script", "collectives.py:" in said.stdout, (said.stdout or said.stderr).splitlines()[0], "collectives.py")


def wait_counters(sheet, training):
    view, _ = training.ask("wait-counters")
    answered = sum(isinstance(rank.get("value"), dict) for rank in view["ranks"])
    sheet.fact("wait counters", [rank.get("value") or rank.get("problem") for rank in view["ranks"]])
    version = tuple(int(part) for part in torch_of(training).split(".")[:2])
    if version < WAIT_COUNTERS_FROM:
        return sheet.not_available("wait counters: every rank answers", f"PyTorch {'.'.join(map(str, version))} has none: {problems(view)}")
    return sheet.equal("wait counters: every rank answers", answered, training.ranks)


def torch_of(training):
    """Of the ranks, as they told Lockstep."""
    return training.lockstep.query(f'train_info{{run="{training.run}"}}')[0][0]["torch"]


def flight(sheet, training):
    view, took_s = training.ask("flight")
    kept = {rank["rank"]: (rank.get("value") or {}).get("entries", []) for rank in view["ranks"]}
    newest = [entries[-1] for entries in kept.values() if entries]
    sheet.fact("flight: newest entries", [newest, problems(view), took_s])
    strange = [entry for entries in kept.values() for entry in entries if not is_own(entry)]
    agrees = len(newest) == training.ranks and not strange
    found = f"{sum(map(len, kept.values()))} entries, {len(strange)} strange; newest: {newest[0]['profiling_name'] if newest else problems(view)}"
    sheet.holds("flight: entries are the script's collectives", agrees, found, f"all_reduce of {SIZE} × {SIZE} or of 1")
    if newest and newest[0]["profiling_name"].startswith("nccl:"):
        states = {entry["state"] for entries in kept.values() for entry in entries[:-CALLS_PER_STEP]}
        sheet.equal("flight: earlier collectives are known to be completed", ", ".join(sorted(states)), "completed")
    else:
        sheet.not_available("flight: earlier collectives are known to be completed", "only NCCL's record has their ends")


def is_own(entry):
    """A gradient of a layer, or the flag that tells the ranks to go on."""
    return entry["profiling_name"].endswith(":all_reduce") and entry["input_sizes"] in ([[SIZE, SIZE]], [[1]])


def held(sheet, training, what, function):
    rows = [f"stacks {what}: {row}" for row in ("every rank answers", "seconds until all answers are there")]
    if not is_cuda(training):
        for row in rows:
            sheet.not_available(row, "it needs a GPU")
        return
    view, took_s = training.wait_in(function)
    sheet.equal(rows[0], sum(function in functions(rank) for rank in view["ranks"]), training.ranks)
    sheet.between(rows[1], took_s, 0, ANSWER_S, "s")
    sheet.fact(f"stacks {what}", [view["groups"], took_s])


def is_cuda(training):
    """By the device that the ranks told Lockstep; a wrong one shows in the rows of the recipes."""
    return any(labels.get("device", "").startswith("cuda") for labels, _ in training.lockstep.query(f'train_info{{run="{training.run}"}}'))


def at_rest(sheet, training):
    training.wait_in("at_rest")
    view, _ = training.ask("flight")
    last = [max(entry["collective_seq_id"] for entry in rank["value"]["entries"]) for rank in view["ranks"]]
    found = training.lockstep.wait_for_end(training.run, START_S)
    own = [result(training.lockstep, training.run, rank["rank"])["calls"]["AllReduce"] for rank in ranks_of(found)]
    sheet.equal("flight: number of the last collective", ", ".join(map(str, last)), ", ".join(map(str, own)), "the script's own count")
    sheet.equal("the asked run ends as", found["state"], "succeeded")


# === a rank that is stopped ===


def stopped(sheet, training):
    ranks = ranks_of(training.lockstep.run(training.run))
    victim = ranks[-1]
    sheet.fact("stopped rank: device", "cuda" if is_cuda(training) else "cpu")
    began_ms, began = time.time() * 1000, time.monotonic()
    os.kill(victim["pid"], signal.SIGSTOP)
    try:
        named = within(STOPPED_S[1] + 10, lambda: stalled(training))
        sheet.between("stopped rank: seconds until Lockstep reports it", time.monotonic() - began if named else math.inf, *STOPPED_S, "s")
        sheet.equal("stopped rank: ranks that are reported as stalled", ", ".join(str(rank["rank"]) for rank in named), str(victim["rank"]))
        sheet.equal("stopped rank: cause", ", ".join(rank["stall"]["cause"] for rank in named), "stopped")
        whose_stacks(sheet, training, victim["rank"], began_ms)
        stuck(sheet, training, victim["rank"], began)
    finally:
        os.kill(victim["pid"], signal.SIGCONT)
    on = within(ON_S, lambda: is_on(training, ranks))
    found = f"steps {[rank.get('step') for rank in ranks]}, then {[rank.get('step') for rank in ranks_of(training.lockstep.run(training.run))]}"
    sheet.holds("stopped rank: after SIGCONT the run continues and no rank is stalled", on, found, f"more steps within {ON_S} s")


def stalled(training):
    return [rank for rank in ranks_of(training.lockstep.run(training.run)) if rank.get("stall")]


def whose_stacks(sheet, training, victim, began_ms):
    """The stopped rank cannot answer; the others are in the collective, or wait for the GPU that is in it."""
    view, _ = training.ask("stacks")
    by_rank = {rank["rank"]: rank for rank in view["ranks"]}
    state = (by_rank[victim].get("process") or {}).get("state", "unknown")
    sheet.holds("stopped rank: stacks say that it is stopped", state.startswith("T"), f"{by_rank[victim].get('problem')}; {state}", "T (stopped)")
    others = {number: functions(rank) for number, rank in by_rank.items() if number != victim}
    sheet.fact("stopped rank: where the others are", [view["groups"], others])
    found = "; ".join(f"rank {number}: {' in '.join(names) or 'nothing'}" for number, names in others.items())
    agrees = all({"train_step", "is_told_to_end"} & set(names) for names in others.values())
    sheet.holds("stopped rank: stacks name the function in which the others wait", agrees, found, "train_step")
    asked = f"/api/events?run={training.run}&kind=rank_stacks&since_ms={began_ms:.0f}"
    messages = " ".join(event["message"] for event in within(ANSWER_S, lambda: training.lockstep.get(asked)))
    sheet.holds("stopped rank: the event rank_stacks names it", f"rank {victim}" in messages, messages, f"rank {victim}")
    sheet.holds("stopped rank: lockstep run why names it", *says(training, f"rank {victim}: cannot answer"))


def says(training, words):
    """Whether `lockstep run why` says these words, the line in which it does, and the words."""
    lines = training.lockstep.command("run", "why", training.run).stdout.splitlines()
    found = next((line for line in lines if words in line), None)
    return found is not None, found or lines[-1:], words


def stuck(sheet, training, victim, began):
    def alerts():
        found = [alert for alert in training.lockstep.alerts(training.run) if alert["rule"] == "RankStuck" and alert["state"] == "firing"]
        return {alert["labels"].get("rank") for alert in found}

    named = within(STUCK_S[1] + 10, alerts)
    sheet.equal("stopped rank: ranks that the alert RankStuck names", ", ".join(sorted(named)), str(victim))
    sheet.between("stopped rank: seconds until the alert RankStuck names it", time.monotonic() - began if str(victim) in named else math.inf, *STUCK_S, "s")
    sheet.holds("stopped rank: lockstep run why gives the alert", *says(training, "makes no progress (stopped)"))


def is_on(training, before):
    """Each rank has finished more steps than before it was stopped, and none is stalled."""
    now = ranks_of(training.lockstep.run(training.run))
    return all((new.get("step") or 0) > (old.get("step") or 0) + 1 and not new.get("stall") for old, new in zip(before, now))
