"""A collector and an agent of this folder's binary: start, queries, stop."""

import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass

START_S = 30
ANSWER_S = 60
ENDED = ("succeeded", "failed", "stopped", "lost")
# With --quick, several steps run at the same time, possibly on two slow cores: the limits of waits are as many times as long.
QUICK_PATIENCE = 3
_patience = 1


def be_patient():
    """For the process of a step that does not run alone."""
    global _patience
    _patience = QUICK_PATIENCE


def patient(limit_s):
    """How long to wait for something that takes at most `limit_s` if nothing else runs."""
    return limit_s * _patience


class CannotStart(Exception):
    """Lockstep itself does not start: the step cannot check anything else."""


@dataclass(frozen=True)
class Settings:
    """The options with which ./confirm was started."""

    quick: bool
    simulate: str | None
    only: tuple
    root: pathlib.Path

    def arguments(self):
        """The same settings for the process of a step."""
        return (["--quick"] if self.quick else []) + (["--simulate", self.simulate] if self.simulate else [])

    @property
    def binary(self):
        return self.root / "bin" / "lockstep"


class Lockstep:
    """`lockstep up` with its own data; a context manager that stops its runs, then itself."""

    def __init__(self, check, name="lockstep", arguments=(), env=None, simulate=None):
        self._settings, self._data = check.settings, check.folder / name
        self._arguments, self._env = list(arguments), env or {}
        self._simulate = simulate or check.settings.simulate
        self.process = self.url = self._token = None

    def __enter__(self):
        command = [self._settings.binary, "up", "--listen", "127.0.0.1:0", "--data", self._data, *self._arguments]
        if self._simulate:
            command += ["--simulate", self._simulate]
        # Not below a folder that is shared with another agent, and without the user's own settings.
        env = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")}
        env |= {"LOCKSTEP_PYTHON": sys.executable, "LOCKSTEP_METRICS_LISTEN": "off", **self._env}
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=sys.stderr, text=True, env=env)
        first = self.process.stdout.readline()
        if not first.startswith("Lockstep is at "):
            raise CannotStart(f"lockstep up did not say where it is, but {first!r}")
        self.url = first.removeprefix("Lockstep is at ").strip()
        self._token = (self._data / "admin.token").read_text().strip()
        wait_for(lambda: any(node["state"] == "up" for node in self.get("/api/nodes")), START_S, "the agent of this machine")
        return self

    def __exit__(self, *_):
        try:
            for run in self.get("/api/runs"):
                if run["state"] not in ENDED:
                    self.command("run", "stop", run["id"], "--grace", "2s", "--wait", limit_s=20)
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            print(f"runs could not be stopped: {error}", file=sys.stderr)
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    @property
    def node(self):
        """This machine as the collector knows it, inventory included."""
        return self.get("/api/nodes")[0]

    def agent_pid(self):
        """The agent is the child of `lockstep up`."""
        children = pathlib.Path(f"/proc/{self.process.pid}/task").glob("*/children")
        pids = [int(pid) for path in children for pid in path.read_text().split()]
        named = [pid for pid in pids if b"\0agent\0" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()]
        return named[0] if named else None

    # === The API ===

    def get(self, path):
        return self._ask(urllib.request.Request(self.url + path))

    def post(self, path, body=None):
        data = json.dumps(body or {}).encode()
        return self._ask(urllib.request.Request(self.url + path, data=data, headers={"Content-Type": "application/json"}))

    def _ask(self, request):
        request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            raise ValueError(f"{request.selector}: {error.code} {error.read(500).decode(errors='replace')}") from error

    def query(self, expression):
        """`(labels, value)` of each series, now."""
        return [(series["metric"], float(series["value"][1])) for series in self._result(expression)]

    def samples(self, selector, seconds):
        """`(labels, [(time, value)])` of each series over the last seconds, every stored sample."""
        found = self._result(f"{selector}[{max(1, round(seconds))}s]")
        return [(series["metric"], [(at, float(value)) for at, value in series["values"]]) for series in found]

    def value(self, expression):
        """The value of the only series, or of the first; `None` without one."""
        found = self.query(expression)
        return found[0][1] if found else None

    def _result(self, expression):
        return self.get("/api/v1/query?" + urllib.parse.urlencode({"query": expression}))["data"]["result"]

    # === Commands ===

    def command(self, *arguments, limit_s=60):
        """The `lockstep` command, with this collector."""
        env = {**os.environ, "LOCKSTEP_URL": self.url, "LOCKSTEP_TOKEN": self._token}
        return subprocess.run([self._settings.binary, *map(str, arguments)], capture_output=True, text=True, timeout=patient(limit_s), env=env, stdin=subprocess.DEVNULL)

    # === Runs ===

    def submit(self, **spec):
        """Submits a run (`Spec` of docs/api.md); returns its id."""
        return self.post("/api/runs", {"nproc_per_node": 1, **spec})["id"]

    def run(self, run):
        return self.get(f"/api/runs/{run}")

    def wait_for_end(self, run, limit_s):
        """The run once it has ended."""
        return wait_for(lambda: (found := self.run(run))["state"] in ENDED and found, limit_s, f"the end of the run {run}")

    def wait_for_step(self, run, step, limit_s):
        """The run once its training has finished this many steps; raises when it ends before."""

        def reached():
            found = self.run(run)
            steps = self.query(f'train_step{{run="{run}"}}')
            if any(value >= step for _, value in steps):
                return found
            if found["state"] in ENDED:
                raise RuntimeError(f"the run {run} ended as {found['state']} before step {step}: {found.get('outcome')}; {self.last_output(run)}")
            return None

        return wait_for(reached, limit_s, f"step {step} of the run {run}")

    def output(self, run, rank=0):
        """What a rank printed, both streams."""
        texts = []
        for stream in ("stdout", "stderr"):
            try:
                texts.append(self.get(f"/api/runs/{run}/logs?rank={rank}&stream={stream}")["text"])
            except ValueError:
                continue
        return "\n".join(texts)

    def last_output(self, run, rank=0, characters=600):
        return self.output(run, rank)[-characters:]

    def alerts(self, run=None):
        """Active alerts (pending ones too), of one run or of all."""
        found = [alert for alert in self.get("/api/alerts?resolved=0")]
        return [alert for alert in found if run is None or alert["labels"].get("run") == run]


def wait_for(condition, limit_s, what):
    """What `condition` returns once it is true."""
    deadline = time.monotonic() + patient(limit_s)
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come within {patient(limit_s):g} s")
        time.sleep(0.2)
    return found
