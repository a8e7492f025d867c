//! A machine whose `PATH` has only container runtimes, and a folder of code.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use crate::product::{environment, process};

const RUNTIME: &str = include_str!("runtime.py");
const PUBLIC_KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKGBWt1bq6dW9v1Tj1W4c8rGmO2Yh3m0b0uJzv4aXk7P ann@laptop\n";

pub(super) struct TestMachine {
    folder: TempDir,
    /// Ports of this machine that were free at the start.
    pub(super) jupyter: u16,
    pub(super) ssh: u16,
}

impl TestMachine {
    /// Makes a machine with these runtimes installed.
    pub(super) fn with(runtimes: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["bin", "code", "home/.ssh"] {
            std::fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        std::fs::write(folder.path().join("home/.ssh/id_ed25519.pub"), PUBLIC_KEY).unwrap();
        let [jupyter, ssh] = free_ports();
        let machine = Self { folder, jupyter, ssh };
        for runtime in runtimes {
            machine.install(
                runtime,
                &format!("#!{}\n{RUNTIME}", environment::python().display()),
            );
        }
        machine
    }

    /// Runs `lockstep workspace start ann` with this machine's ports, and without GPUs unless `further` requests them.
    pub(super) fn start(&self, further: &[&str]) -> Output {
        let (jupyter, ssh) = (self.jupyter.to_string(), self.ssh.to_string());
        let mut arguments = vec!["start", "ann"];
        for (option, default) in [
            ("--user", "4321:4322"),
            ("--gpus", "none"),
            ("--jupyter-port", &jupyter),
            ("--ssh-port", &ssh),
        ] {
            if !further.contains(&option) {
                arguments.extend([option, default]);
            }
        }
        self.run(&[&arguments, further].concat())
    }

    /// Runs `lockstep workspace …`.
    pub(super) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(environment::program());
        command
            .arg("workspace")
            .args(arguments)
            .current_dir(self.code())
            .env("PATH", self.bin())
            .env("HOME", self.folder.path().join("home"))
            .env("LOCKSTEP_WORKSPACE_STATE", self.folder.path().join("state"))
            .env_remove("LOCKSTEP_WORKSPACE_RUNTIME");
        command
    }

    pub(super) fn list(&self) -> Value {
        let listed = self.run(&["list", "--json"]);
        serde_json::from_slice(&listed.stdout).unwrap_or_else(|_| panic!("{listed:?}"))
    }

    pub(super) fn bin(&self) -> PathBuf {
        self.folder.path().join("bin")
    }

    pub(super) fn code(&self) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join("code")
    }

    /// Returns the folder with the token and the keys.
    pub(super) fn keys(&self) -> PathBuf {
        self.folder.path().join("state/ann")
    }

    /// Adds an image with labels to the runtime's list.
    pub(super) fn image(&self, name: &str, labels: &str) {
        std::fs::write(self.bin().join("docker-images").join(name), labels).unwrap();
    }

    /// Makes a command of the runtimes fail with this message.
    pub(super) fn fails(&self, command: &str, message: &str) {
        std::fs::write(self.bin().join(format!("fails-{command}")), message).unwrap();
    }

    /// Stops Docker's daemon. Its command stays installed.
    pub(super) fn break_docker(&self) {
        let message = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?";
        let script = format!(
            "#!/bin/sh\ncase $1 in --version) echo 'Docker version 28.2.2';; *) echo '{message}' >&2; exit 1;; esac\n"
        );
        self.install("docker", &script);
    }

    /// Returns the calls of a runtime with a command.
    pub(super) fn calls(&self, command: &str) -> Vec<Vec<String>> {
        let calls = self.all_calls();
        let calls = calls
            .lines()
            .map(|line| serde_json::from_str::<Vec<String>>(line).unwrap());
        calls.filter(|call| call[1] == command).collect()
    }

    pub(super) fn all_calls(&self) -> String {
        std::fs::read_to_string(self.bin().join("calls")).unwrap_or_default()
    }

    fn install(&self, name: &str, script: &str) {
        let path = self.bin().join(name);
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// Ends the process that replaces Jupyter.
impl Drop for TestMachine {
    fn drop(&mut self) {
        for entry in std::fs::read_dir(self.bin()).into_iter().flatten().flatten() {
            let path = entry.path();
            let pid = std::fs::read_to_string(&path)
                .ok()
                .and_then(|pid| pid.parse().ok());
            if let (Some("pid"), Some(pid)) = (path.extension().and_then(|end| end.to_str()), pid) {
                process::signal(pid, "KILL");
            }
        }
    }
}

pub(super) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(super) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn free_ports() -> [u16; 2] {
    let held = [0, 0].map(|port| TcpListener::bind(("127.0.0.1", port)).unwrap());
    held.map(|listener| listener.local_addr().unwrap().port())
}
