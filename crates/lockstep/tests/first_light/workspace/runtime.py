"""A container runtime for tests: `docker` or `podman`, by the name it is called by. It runs nothing but a stand-in for Jupyter.

Keeps containers and images as files beside itself, writes down how it was called (`calls`), and answers as Docker 28 and Podman 4.3
do. A file `fails-COMMAND` beside it holds what the command says instead, on stderr, before it ends with 1.
"""

import http.server
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
NAME = Path(__file__).name
DOCKER = NAME == "docker"
CONTAINERS = HERE / f"{NAME}-containers"
IMAGES = HERE / f"{NAME}-images"


def main(words):
    with open(HERE / "calls", "a") as calls:
        calls.write(json.dumps([NAME, *words]) + "\n")
    CONTAINERS.mkdir(exist_ok=True)
    IMAGES.mkdir(exist_ok=True)
    command = "-".join(words[:2]) if words[0] in ("container", "image") else words[0]
    failure = HERE / f"fails-{command}"
    if failure.exists() and command != "run":
        refuse(failure.read_text())
    COMMANDS[command](words)


def refuse(said, status=1):
    sys.stderr.write(said.strip() + "\n")
    sys.exit(status)


def version(_words):
    print("Docker version 28.2.2, build e6534b4" if DOCKER else "podman version 4.3.1")


def info(_words):
    print('["name=seccomp,profile=builtin","name=cgroupns"]' if DOCKER else "false")


def ps(words):
    wanted = value(words, "--filter").removeprefix("label=")
    assert value(words, "--format") == "{{.Names}}", words
    for file in sorted(CONTAINERS.iterdir()):
        labels = json.loads(file.read_text())["labels"]
        if wanted in labels or wanted in (f"{name}={text}" for name, text in labels.items()):
            print(file.name)


def run(words):
    name = value(words, "--name")
    container = {
        "labels": dict(label.split("=", 1) for label in values(words, "--label")),
        "image": words[-1],
        "ports": {inside: outside for _, outside, inside in (port.split(":") for port in values(words, "-p"))},
        "status": "created",
        "started": "0001-01-01T00:00:00Z",
    }
    if (CONTAINERS / name).exists():
        refuse(f'docker: Error response from daemon: Conflict. The container name "/{name}" is already in use by container "1".', 125)
    put(name, container)
    if (HERE / "fails-run").exists():
        refuse((HERE / "fails-run").read_text(), 125)
    begin(name)
    print("0123456789abcdef" * 4)


def start(words):
    begin(words[-1])
    print(words[-1])


def begin(name):
    container = get(name)
    if (HERE / "ends-at-once").exists():
        container["status"] = "exited"
        put(name, container)
        return
    server = subprocess.Popen(
        [sys.executable, __file__, "jupyter", container["ports"]["8888"]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert server.stdout.readline(), "the stand-in listens"
    (HERE / f"{name}.pid").write_text(str(server.pid))
    container.update(status="running", started=time.strftime("%Y-%m-%dT%H:%M:%S.123456789Z", time.gmtime()))
    put(name, container)


def jupyter(words):
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/api" else 403)
            self.end_headers()

    server = http.server.HTTPServer(("127.0.0.1", int(words[1])), Answer)
    os.write(1, b"listening\n")
    server.serve_forever()


def stop(words):
    name = words[-1]
    end(name)
    container = get(name)
    container["status"] = "exited"
    put(name, container)
    print(name)


def rm(words):
    end(words[-1])
    (CONTAINERS / words[-1]).unlink()


def end(name):
    pid = HERE / f"{name}.pid"
    if pid.exists():
        os.kill(int(pid.read_text()), signal.SIGKILL)
        pid.unlink()


def logs(_words):
    print("on stdout")
    sys.stderr.write("workspace: \x1b[31mits last words\n")


def container_inspect(words):
    name = words[-1]
    if not (CONTAINERS / name).exists():
        print("[]")
        refuse(f"Error response from daemon: No such container: {name}" if DOCKER else f"Error: inspecting object: no such container {name}")
    container = get(name)
    running = container["status"] == "running"
    described = {
        "Id": "0123456789abcdef" * 4,
        "Created": "2026-11-22T07:42:34.102901137Z",
        "Path": "/usr/bin/tini",
        "Args": ["--", "/usr/local/bin/workspace-start"],
        "State": {
            "Status": container["status"],
            "Running": running,
            "Paused": False,
            "Restarting": False,
            "OOMKilled": False,
            "Dead": False,
            "Pid": 4711 if running else 0,
            "ExitCode": 0,
            "Error": "",
            "StartedAt": container["started"],
            "FinishedAt": "0001-01-01T00:00:00Z",
        },
        "Image": "sha256:" + "0" * 64 if DOCKER else "0" * 64,
        "Name": f"/{name}" if DOCKER else name,
        "Config": {"Hostname": "x", "Env": ["PATH=/bin"], "Image": container["image"], "Labels": container["labels"]},
    }
    if not DOCKER:
        described |= {"ImageName": f"localhost/{container['image']}", "OCIRuntime": "crun", "Pod": "", "IsInfra": False}
        described["State"] |= {"OciVersion": "1.0.2-dev", "ConmonPid": 4700}
    print(json.dumps([described], indent=4))


def image_inspect(words):
    image = IMAGES / words[-1].replace("/", "_")
    if not image.exists():
        print("[]")
        refuse(f"Error response from daemon: No such image: {words[-1]}" if DOCKER else f"Error: inspecting object: {words[-1]}: image not known")
    labels = json.loads(image.read_text())
    print(json.dumps([{"Id": "0" * 64, "RepoTags": [words[-1]], "Config": {"User": "", "Labels": labels}}]))


def build(words):
    folder = Path(words[-1])
    arguments = dict(argument.split("=", 1) for argument in values(words, "--build-arg"))
    assert sorted(file.name for file in folder.iterdir()) == ["Dockerfile", "sshd_config", "start.sh"]
    assert os.access(folder / "start.sh", os.X_OK)
    print("STEP 1/1: FROM", arguments.get("BASE"))
    labels = {"lockstep.workspace.uid": arguments["WORKSPACE_UID"], "lockstep.workspace.gid": arguments["WORKSPACE_GID"]}
    (IMAGES / value(words, "--tag").replace("/", "_")).write_text(json.dumps(labels))


def get(name):
    return json.loads((CONTAINERS / name).read_text())


def put(name, container):
    (CONTAINERS / name).write_text(json.dumps(container))


def values(words, option):
    return [words[at + 1] for at, word in enumerate(words) if word == option]


def value(words, option):
    return values(words, option)[0]


COMMANDS = {
    "--version": version,
    "info": info,
    "ps": ps,
    "run": run,
    "start": start,
    "stop": stop,
    "rm": rm,
    "logs": logs,
    "container-inspect": container_inspect,
    "image-inspect": image_inspect,
    "build": build,
    "jupyter": jupyter,
}

main(sys.argv[1:])
