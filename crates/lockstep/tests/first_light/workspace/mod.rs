//! `lockstep workspace` through the built binary, with a stand-in for Docker and Podman that writes down how it was called.

mod desk;

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use self::desk::{Desk, said, told};

#[test]
fn one_command_builds_starts_and_says_where_it_is() {
    for runtime in ["docker", "podman"] {
        let desk = Desk::with(&[runtime]);
        let started = desk.start(&["--build", "--base", "nvcr.io/nvidia/pytorch:25.06-py3"]);
        assert!(started.status.success(), "{started:?}");
        let (told, progress) = (told(&started), said(&started));
        for words in [
            format!("ann runs in the {runtime} container lockstep-workspace-ann, GPUs: none"),
            format!("http://127.0.0.1:{}/lab", desk.jupyter),
            format!(
                "ssh -p {} -o HostKeyAlias=lockstep-workspace-ann workspace@127.0.0.1",
                desk.ssh
            ),
            format!("/workspace/code   {}", desk.code().display()),
            "volume lockstep-workspace-ann-logs".to_owned(),
        ] {
            assert!(told.contains(&words), "no {words:?} in {told}");
        }
        assert!(progress.contains("STEP 1/1"), "the build is seen: {progress}");

        let builds = desk.calls("build");
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
        let run = desk.calls("run")[0].join(" ");
        for words in [
            format!(
                "-p 127.0.0.1:{}:8888 -p 127.0.0.1:{}:2222",
                desk.jupyter, desk.ssh
            ),
            format!("-v {}:/workspace/code", desk.code().display()),
            format!("-v {}:/run/workspace", desk.keys().display()),
            "--security-opt=no-new-privileges".to_owned(),
        ] {
            assert!(run.contains(&words), "no {words:?} in {run}");
        }
    }
}

#[test]
fn the_token_is_told_once_and_is_in_no_command() {
    let desk = Desk::with(&["docker"]);
    let first = told(&desk.start(&["--build"]));
    let file = desk.keys().join("jupyter.token");
    let token = std::fs::read_to_string(&file).unwrap();
    assert!(token.len() == 64 && first.contains(&token), "{first}");
    let again = desk.start(&[]);
    assert!(again.status.success(), "{again:?}");
    assert!(!told(&again).contains(&token) && told(&again).contains(&file.display().to_string()));
    let calls = desk.all_calls();
    assert!(
        calls.contains("lockstep-workspace-ann") && !calls.contains(&token),
        "{calls}"
    );
    let mode = |path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(desk.keys()), mode(file)), (0o700, 0o600));
}

#[test]
fn a_workspace_is_started_once_listed_stopped_and_started_again() {
    for runtime in ["docker", "podman"] {
        let desk = Desk::with(&[runtime]);
        assert!(desk.start(&["--build"]).status.success());
        assert!(desk.start(&[]).status.success(), "starting twice is no error");
        assert_eq!(desk.calls("run").len(), 1, "and starts nothing");

        let other = desk.start(&["--gpus", "0,1", "--ssh-port", "2299"]);
        let why = said(&other);
        assert_eq!(other.status.code(), Some(1), "{why}");
        assert!(
            why.contains("gpus is none, not 0,1") && why.contains("not 2299") && why.contains("--remove"),
            "{why}"
        );

        let list = desk.list();
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
        assert_eq!(shown["jupyter_port"], desk.jupyter);
        assert_eq!(shown["url"], format!("http://127.0.0.1:{}/lab", desk.jupyter));
        assert!(shown["uptime_s"].as_u64().is_some_and(|s| s < 600), "{shown}");
        assert_eq!(shown["gpus"]["asked"], "none");

        let stopped = desk.run(&["stop", "ann", "--grace", "7"]);
        assert!(stopped.status.success(), "{stopped:?}");
        assert_eq!(
            desk.calls("stop")[0][1..],
            ["stop", "--time", "7", "lockstep-workspace-ann"]
        );
        assert!(
            desk.run(&["stop", "ann"]).status.success(),
            "stopping twice is no error"
        );
        assert_eq!(desk.calls("stop").len(), 1);
        let list = desk.list();
        assert_eq!(
            (&list[0]["state"], list[0].get("uptime_s")),
            (&"exited".into(), None),
            "{list}"
        );

        let again = desk.run(&["start", "ann"]);
        assert!(again.status.success(), "its settings are known: {again:?}");
        assert_eq!(desk.calls("start").len(), 1);

        assert!(desk.run(&["stop", "ann", "--remove"]).status.success());
        assert!(!desk.keys().exists() && desk.code().exists());
        assert_eq!(desk.list(), serde_json::json!([]));
        let gone = desk.run(&["stop", "ann"]);
        assert!(
            said(&gone).contains("no workspace ann here; there is none"),
            "{gone:?}"
        );
    }
}

#[test]
fn gpus_are_listed_by_index_uuid_and_name() {
    let desk = Desk::with(&["docker"]);
    let started = desk.start(&["--build", "--gpus", "1,0"]);
    assert!(started.status.success(), "{started:?}");
    assert!(desk.calls("run")[0].join(" ").contains("--gpus \"device=1,0\""));
    let mut list = desk.command(&["list", "--json", "--simulate", "h100x4:healthy"]);
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

    let mut table = desk.command(&["list", "--nvml-library", "/nonexistent/libnvidia-ml.so.1"]);
    let table = told(&table.output().unwrap());
    assert!(
        table.contains("1,0") && table.contains("cannot be listed: no NVIDIA driver"),
        "{table}"
    );
}

#[test]
fn a_dry_run_prints_what_would_be_done_and_does_nothing() {
    let desk = Desk::with(&[]);
    for (runtime, gpus) in [
        ("docker", "--gpus all"),
        ("podman", "--device nvidia.com/gpu=all"),
    ] {
        let printed = desk.start(&["--runtime", runtime, "--build", "--gpus", "all", "--dry-run"]);
        assert!(printed.status.success(), "{printed:?}");
        let lines = told(&printed);
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(
            lines[0].starts_with("lockstep workspace dockerfile --to "),
            "{lines:?}"
        );
        assert!(lines[1].starts_with(&format!("{runtime} build --build-arg WORKSPACE_UID=4321")));
        assert!(lines[2].starts_with(&format!("{runtime} run --detach")) && lines[2].contains(gpus));
    }
    assert!(!desk.keys().exists());

    let printed = desk.run(&["dockerfile"]);
    assert!(told(&printed).contains("FROM ${BASE}"), "{printed:?}");
}

#[test]
fn what_cannot_be_started_is_told_with_the_next_step() {
    let nothing = Desk::with(&[]);
    let missing = nothing.start(&[]);
    assert!(
        said(&missing).contains("docker or podman is not on the PATH; install"),
        "{missing:?}"
    );

    let desk = Desk::with(&["docker"]);
    let no_image = desk.start(&[]);
    assert!(
        said(&no_image).contains("there is no image lockstep-workspace:uid4321 here")
            && said(&no_image).contains("`lockstep workspace start --build` builds one")
    );
    assert!(!desk.keys().exists(), "nothing is left of it");
    assert!(desk.start(&["--build", "--dry-run"]).status.success());
    desk.image("alpine:3", "{}");
    let foreign = said(&desk.start(&["--image", "alpine:3"]));
    assert!(
        foreign.contains("no workspace's image") && foreign.contains("--base alpine:3"),
        "{foreign}"
    );
    desk.image("team:1", r#"{"lockstep.workspace.uid": "7"}"#);
    let others = said(&desk.start(&["--image", "team:1"]));
    assert!(
        others.contains("built for uid 7") && others.contains("--build"),
        "{others}"
    );

    let taken = TcpListener::bind(("127.0.0.1", desk.ssh)).unwrap();
    let port = said(&desk.start(&["--build"]));
    assert!(
        port.contains(&format!("port {} ", desk.ssh)) && port.contains("--ssh-port"),
        "{port}"
    );
    drop(taken);

    desk.fails(
        "run",
        "docker: Error response from daemon: could not select device driver \"\" with capabilities: [[gpu]].",
    );
    let no_toolkit = said(&desk.start(&["--build", "--gpus", "all"]));
    assert!(
        no_toolkit.contains("nvidia-ctk") && no_toolkit.contains("--gpus none"),
        "{no_toolkit}"
    );
    assert_eq!(desk.calls("rm").len(), 1, "what Docker made is taken away");
    assert!(!desk.keys().exists());

    desk.fails("info", "ERROR: Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?");
    for arguments in [&["list"][..], &["stop", "ann"], &["start", "ann"]] {
        let down = said(&desk.run(arguments));
        assert!(down.contains("systemctl start docker"), "{arguments:?}: {down}");
    }
}

#[test]
fn podman_stands_in_for_a_docker_whose_daemon_is_down() {
    let desk = Desk::with(&["docker", "podman"]);
    let docker = desk.start(&["--build"]);
    assert!(told(&docker).contains("the docker container"), "{docker:?}");
    assert!(desk.run(&["stop", "ann", "--remove"]).status.success());
    desk.break_docker();
    let podman = desk.start(&["--build"]);
    assert!(told(&podman).contains("the podman container"), "{podman:?}");
}

#[test]
fn a_container_that_ends_at_once_is_told_with_its_last_words() {
    let desk = Desk::with(&["podman"]);
    std::fs::write(desk.bin().join("ends-at-once"), "").unwrap();
    let ended = desk.start(&["--build"]);
    let why = said(&ended);
    assert_eq!(ended.status.code(), Some(1));
    assert!(
        why.contains("ended at once") && why.contains("workspace: \u{fffd}[31mits last words"),
        "{why}"
    );
}

#[test]
fn wrong_wishes_are_refused_before_anything_is_asked() {
    let desk = Desk::with(&["docker"]);
    for (arguments, words) in [
        (&["start", "a b"][..], "is no name"),
        (&["start", "ann", "--gpus", "0;1"], "`all`"),
        (
            &["start", "ann", "--code", "/nonexistent"],
            "mkdir -p /nonexistent",
        ),
        (&["start", "ann", "--user", "0:0"], "does not run as root"),
        (&["start", "ann", "--base", "debian:12"], "--build"),
        (&["start", "ann", "--image=a b"], "is no image"),
        (&["start", "ann", "--jupyter-port", "0"], "--jupyter-port"),
    ] {
        let refused = desk.run(arguments);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {refused:?}");
        assert!(said(&refused).contains(words), "{arguments:?}: {refused:?}");
    }
    assert!(desk.all_calls().is_empty());

    let private = desk.bin().join("id");
    std::fs::write(&private, "-----BEGIN OPENSSH PRIVATE KEY-----\n").unwrap();
    let refused = desk.start(&["--ssh-key", private.to_str().unwrap()]);
    assert!(
        said(&refused).contains("private key, which stays where it is"),
        "{refused:?}"
    );
}
