//! `lockstep workspace` through the built binary, with a stand-in for Docker and Podman that records its calls.

mod test_machine;

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use self::test_machine::{TestMachine, stderr, stdout};

#[test]
fn one_command_builds_starts_and_says_where_it_is() {
    for runtime in ["docker", "podman"] {
        let machine = TestMachine::with(&[runtime]);
        let started = machine.start(&["--build", "--base", "nvcr.io/nvidia/pytorch:25.06-py3"]);
        assert!(started.status.success(), "{started:?}");
        let (printed, progress) = (stdout(&started), stderr(&started));
        for words in [
            format!("ann runs in the {runtime} container lockstep-workspace-ann, GPUs: none"),
            format!("http://127.0.0.1:{}/lab", machine.jupyter),
            format!(
                "ssh -p {} -o HostKeyAlias=lockstep-workspace-ann workspace@127.0.0.1",
                machine.ssh
            ),
            format!("/workspace/code   {}", machine.code().display()),
            "volume lockstep-workspace-ann-logs".to_owned(),
        ] {
            assert!(printed.contains(&words), "no {words:?} in {printed}");
        }
        assert!(progress.contains("STEP 1/1"), "the build is seen: {progress}");

        let builds = machine.calls("build");
        let words: Vec<&str> = builds[0].iter().map(String::as_str).collect();
        assert_eq!(
            words[..10],
            [
                runtime,
                "build",
                "--build-arg",
                "BASE=nvcr.io/nvidia/pytorch:25.06-py3",
                "--build-arg",
                "WORKSPACE_UID=4321",
                "--build-arg",
                "WORKSPACE_GID=4322",
                "--tag",
                "lockstep-workspace:uid4321"
            ]
        );
        let folder = std::path::Path::new(words[10]);
        assert!(!folder.exists(), "what it was built from is cleaned up");
        let run = machine.calls("run")[0].join(" ");
        for words in [
            format!(
                "-p 127.0.0.1:{}:8888 -p 127.0.0.1:{}:2222",
                machine.jupyter, machine.ssh
            ),
            format!("-v {}:/workspace/code", machine.code().display()),
            format!("-v {}:/run/workspace", machine.keys().display()),
            "--security-opt=no-new-privileges".to_owned(),
        ] {
            assert!(run.contains(&words), "no {words:?} in {run}");
        }
    }
}

#[test]
fn the_token_is_shown_once_and_is_in_no_command() {
    let machine = TestMachine::with(&["docker"]);
    let first = stdout(&machine.start(&["--build"]));
    let file = machine.keys().join("jupyter.token");
    let token = std::fs::read_to_string(&file).unwrap();
    assert!(token.len() == 64 && first.contains(&token), "{first}");
    let again = machine.start(&[]);
    assert!(again.status.success(), "{again:?}");
    assert!(!stdout(&again).contains(&token) && stdout(&again).contains(&file.display().to_string()));
    let calls = machine.all_calls();
    assert!(
        calls.contains("lockstep-workspace-ann") && !calls.contains(&token),
        "{calls}"
    );
    let mode = |path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(machine.keys()), mode(file)), (0o700, 0o600));
}

#[test]
fn a_workspace_is_started_once_listed_stopped_and_started_again() {
    for runtime in ["docker", "podman"] {
        let machine = TestMachine::with(&[runtime]);
        assert!(machine.start(&["--build"]).status.success());
        assert!(machine.start(&[]).status.success(), "starting twice is no error");
        assert_eq!(machine.calls("run").len(), 1, "and starts nothing");

        let other = machine.start(&["--gpus", "0,1", "--ssh-port", "2299"]);
        let why = stderr(&other);
        assert_eq!(other.status.code(), Some(1), "{why}");
        assert!(
            why.contains("gpus is none, not 0,1") && why.contains("not 2299") && why.contains("--remove"),
            "{why}"
        );

        let list = machine.list();
        assert_eq!(list.as_array().map(Vec::len), Some(1), "{list}");
        let shown = &list[0];
        assert_eq!(
            (
                shown["name"].as_str(),
                shown["state"].as_str(),
                shown["runtime"].as_str()
            ),
            (Some("ann"), Some("running"), Some(runtime))
        );
        assert_eq!(shown["container"], "0123456789ab");
        assert_eq!(shown["image"], "lockstep-workspace:uid4321");
        assert_eq!(shown["jupyter_port"], machine.jupyter);
        assert_eq!(shown["url"], format!("http://127.0.0.1:{}/lab", machine.jupyter));
        assert!(shown["uptime_s"].as_u64().is_some_and(|s| s < 600), "{shown}");
        assert_eq!(shown["gpus"]["asked"], "none");

        let stopped = machine.run(&["stop", "ann", "--grace", "7"]);
        assert!(stopped.status.success(), "{stopped:?}");
        assert_eq!(
            machine.calls("stop")[0][1..],
            ["stop", "--time", "7", "lockstep-workspace-ann"]
        );
        assert!(
            machine.run(&["stop", "ann"]).status.success(),
            "stopping twice is no error"
        );
        assert_eq!(machine.calls("stop").len(), 1);
        let list = machine.list();
        assert_eq!(
            (&list[0]["state"], list[0].get("uptime_s")),
            (&"exited".into(), None),
            "{list}"
        );

        let again = machine.run(&["start", "ann"]);
        assert!(again.status.success(), "its settings are known: {again:?}");
        assert_eq!(machine.calls("start").len(), 1);

        assert!(machine.run(&["stop", "ann", "--remove"]).status.success());
        assert!(!machine.keys().exists() && machine.code().exists());
        assert_eq!(machine.list(), serde_json::json!([]));
        let gone = machine.run(&["stop", "ann"]);
        assert!(
            stderr(&gone).contains("no workspace ann here; no workspaces exist"),
            "{gone:?}"
        );
    }
}

#[test]
fn gpus_are_listed_by_index_uuid_and_name() {
    let machine = TestMachine::with(&["docker"]);
    let started = machine.start(&["--build", "--gpus", "1,0"]);
    assert!(started.status.success(), "{started:?}");
    assert!(
        machine.calls("run")[0]
            .join(" ")
            .contains("--gpus \"device=1,0\"")
    );
    let mut list = machine.command(&["list", "--json", "--simulate", "h100x4:healthy"]);
    let list = list
        .env("LOCKSTEP_NVML_LIBRARY", crate::cluster::simulator())
        .output()
        .unwrap();
    let list: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
    let devices = list[0]["gpus"]["devices"].as_array().unwrap();
    let indices: Vec<_> = devices.iter().map(|device| device["index"].as_u64()).collect();
    assert_eq!(indices, [Some(1), Some(0)], "{list}");
    for device in devices {
        assert!(
            device["uuid"]
                .as_str()
                .is_some_and(|uuid| uuid.starts_with("GPU-")),
            "{device}"
        );
        assert!(
            device["name"].as_str().is_some_and(|name| name.contains("H100")),
            "{device}"
        );
    }

    let mut table = machine.command(&["list", "--nvml-library", "/nonexistent/libnvidia-ml.so.1"]);
    let table = stdout(&table.output().unwrap());
    assert!(
        table.contains("1,0") && table.contains("cannot be listed: no NVIDIA driver"),
        "{table}"
    );
}

#[test]
fn a_dry_run_prints_what_would_be_done_and_does_nothing() {
    let machine = TestMachine::with(&[]);
    for (runtime, gpus) in [
        ("docker", "--gpus all"),
        ("podman", "--device nvidia.com/gpu=all"),
    ] {
        let printed = machine.start(&["--runtime", runtime, "--build", "--gpus", "all", "--dry-run"]);
        assert!(printed.status.success(), "{printed:?}");
        let lines = stdout(&printed);
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(
            lines[0].starts_with("lockstep workspace dockerfile --to "),
            "{lines:?}"
        );
        assert!(lines[1].starts_with(&format!("{runtime} build --build-arg WORKSPACE_UID=4321")));
        assert!(lines[2].starts_with(&format!("{runtime} run --detach")) && lines[2].contains(gpus));
    }
    assert!(!machine.keys().exists());

    let printed = machine.run(&["dockerfile"]);
    assert!(stdout(&printed).contains("FROM ${BASE}"), "{printed:?}");
}

#[test]
fn a_start_that_fails_names_the_next_step() {
    let nothing = TestMachine::with(&[]);
    let missing = nothing.start(&[]);
    assert!(
        stderr(&missing).contains("docker or podman is not on the PATH; install"),
        "{missing:?}"
    );

    let machine = TestMachine::with(&["docker"]);
    let no_image = machine.start(&[]);
    assert!(
        stderr(&no_image).contains("there is no image lockstep-workspace:uid4321 here")
            && stderr(&no_image).contains("`lockstep workspace start --build` builds one")
    );
    assert!(!machine.keys().exists(), "nothing is left of it");
    assert!(machine.start(&["--build", "--dry-run"]).status.success());
    machine.image("alpine:3", "{}");
    let foreign = stderr(&machine.start(&["--image", "alpine:3"]));
    assert!(
        foreign.contains("not a workspace image") && foreign.contains("--base alpine:3"),
        "{foreign}"
    );
    machine.image("team:1", r#"{"lockstep.workspace.uid": "7"}"#);
    let others = stderr(&machine.start(&["--image", "team:1"]));
    assert!(
        others.contains("built for uid 7") && others.contains("--build"),
        "{others}"
    );

    let taken = TcpListener::bind(("127.0.0.1", machine.ssh)).unwrap();
    let port = stderr(&machine.start(&["--build"]));
    assert!(
        port.contains(&format!("port {} ", machine.ssh)) && port.contains("--ssh-port"),
        "{port}"
    );
    drop(taken);

    machine.fails(
        "run",
        "docker: Error response from daemon: could not select device driver \"\" with capabilities: [[gpu]].",
    );
    let no_toolkit = stderr(&machine.start(&["--build", "--gpus", "all"]));
    assert!(
        no_toolkit.contains("nvidia-ctk") && no_toolkit.contains("--gpus none"),
        "{no_toolkit}"
    );
    assert_eq!(machine.calls("rm").len(), 1, "what Docker made is taken away");
    assert!(!machine.keys().exists());

    machine.fails("info", "ERROR: Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?");
    for arguments in [&["list"][..], &["stop", "ann"], &["start", "ann"]] {
        let down = stderr(&machine.run(arguments));
        assert!(down.contains("systemctl start docker"), "{arguments:?}: {down}");
    }
}

#[test]
fn podman_replaces_docker_if_its_daemon_is_down() {
    let machine = TestMachine::with(&["docker", "podman"]);
    let docker = machine.start(&["--build"]);
    assert!(stdout(&docker).contains("the docker container"), "{docker:?}");
    assert!(machine.run(&["stop", "ann", "--remove"]).status.success());
    machine.break_docker();
    let podman = machine.start(&["--build"]);
    assert!(stdout(&podman).contains("the podman container"), "{podman:?}");
}

#[test]
fn a_container_that_ends_at_once_is_reported_with_its_last_output() {
    let machine = TestMachine::with(&["podman"]);
    std::fs::write(machine.bin().join("ends-at-once"), "").unwrap();
    let ended = machine.start(&["--build"]);
    let why = stderr(&ended);
    assert_eq!(ended.status.code(), Some(1));
    assert!(
        why.contains("ended at once") && why.contains("workspace: \u{fffd}[31mits last words"),
        "{why}"
    );
}

#[test]
fn wrong_options_are_refused_before_the_runtime_is_called() {
    let machine = TestMachine::with(&["docker"]);
    for (arguments, words) in [
        (&["start", "a b"][..], "is not a valid name"),
        (&["start", "ann", "--gpus", "0;1"], "`all`"),
        (
            &["start", "ann", "--code", "/nonexistent"],
            "mkdir -p /nonexistent",
        ),
        (&["start", "ann", "--user", "0:0"], "does not run as root"),
        (&["start", "ann", "--base", "debian:12"], "--build"),
        (&["start", "ann", "--image=a b"], "is not an image reference"),
        (&["start", "ann", "--jupyter-port", "0"], "--jupyter-port"),
    ] {
        let refused = machine.run(arguments);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {refused:?}");
        assert!(stderr(&refused).contains(words), "{arguments:?}: {refused:?}");
    }
    assert!(machine.all_calls().is_empty());

    let private = machine.bin().join("id");
    std::fs::write(&private, "-----BEGIN OPENSSH PRIVATE KEY-----\n").unwrap();
    let refused = machine.start(&["--ssh-key", private.to_str().unwrap()]);
    assert!(
        stderr(&refused).contains("private key; use the public key file beside it"),
        "{refused:?}"
    );
}
