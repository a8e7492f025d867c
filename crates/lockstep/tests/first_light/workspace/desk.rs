//! A machine with container runtimes and nothing else on its `PATH`, and a folder of code.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use crate::product::{process, surroundings};

const RUNTIME: &str = include_str!("runtime.py");
const PUBLIC_KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKGBWt1bq6dW9v1Tj1W4c8rGmO2Yh3m0b0uJzv4aXk7P ann@laptop\n";

pub(super) struct Desk {
    folder: TempDir,
    /// Ports of this machine that were free a moment ago.
    pub(super) jupyter: u16,
    pub(super) ssh: u16,
}

impl Desk {
    /// With these runtimes installed.
    pub(super) fn with(runtimes: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["bin", "code", "home/.ssh"] {
            std::fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        std::fs::write(folder.path().join("home/.ssh/id_ed25519.pub"), PUBLIC_KEY).unwrap();
        let [jupyter, ssh] = free_ports();
        let desk = Self { folder, jupyter, ssh };
        for runtime in runtimes {
            desk.install(
                runtime,
                &format!("#!{}\n{RUNTIME}", surroundings::python().display()),
            );
        }
        desk
    }

    /// `lockstep workspace start ann` with the desk's ports, without GPUs unless they are asked for.
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

    /// `lockstep workspace …`
    pub(super) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(surroundings::program());
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

    /// Where its token and keys are.
    pub(super) fn keys(&self) -> PathBuf {
        self.folder.path().join("state/ann")
    }

    /// Makes an image known, with labels.
    pub(super) fn image(&self, name: &str, labels: &str) {
        std::fs::write(self.bin().join("docker-images").join(name), labels).unwrap();
    }

    /// Lets a command of the runtimes fail with these words.
    pub(super) fn fails(&self, command: &str, said: &str) {
        std::fs::write(self.bin().join(format!("fails-{command}")), said).unwrap();
    }

    /// Docker's daemon ends; its command stays.
    pub(super) fn break_docker(&self) {
        let said = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?";
        let script = format!(
            "#!/bin/sh\ncase $1 in --version) echo 'Docker version 28.2.2';; *) echo '{said}' >&2; exit 1;; esac\n"
        );
        self.install("docker", &script);
    }

    /// How a runtime was called with a command.
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

/// What stands for Jupyter ends with its desk.
impl Drop for Desk {
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

pub(super) fn told(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(super) fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn free_ports() -> [u16; 2] {
    let held = [0, 0].map(|port| TcpListener::bind(("127.0.0.1", port)).unwrap());
    held.map(|listener| listener.local_addr().unwrap().port())
}
