//! Rule files of a service: wrong ones make the start fail with exit code 2, and SIGHUP reads them again.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::cluster::TIMEOUT;

const RULES: &str = "groups: [{ name: g, interval: 100ms, rules: [{ record: one, expr: vector(1) }] }]";

fn collector(data: &Path, rules: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    command
        .args([
            "collector",
            "--listen",
            "127.0.0.1:0",
            "--no-shipped-rules",
            "--data",
        ])
        .arg(data)
        .arg("--rules")
        .arg(rules)
        .env_remove("LOCKSTEP_ADMIN_TOKEN")
        .env_remove("LOCKSTEP_RULES");
    command
}

struct Running(Child, String);

impl Running {
    fn start(data: &Path, rules: &Path) -> Self {
        let mut child = collector(data, rules)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().expect("it says where it is").unwrap();
        let url = first.rsplit(' ').next().unwrap().to_owned();
        Self(child, url)
    }

    fn list(&self, data: &Path) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_lockstep"))
            .args(["rules", "list", "--url", &self.1])
            .env(
                "LOCKSTEP_TOKEN",
                std::fs::read_to_string(data.join("admin.token")).unwrap().trim(),
            )
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    fn hang_up(&self) {
        let id = self.0.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-HUP", &id])
                .status()
                .unwrap()
                .success()
        );
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[test]
fn rules_that_cannot_be_used_are_wrong_usage() {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("a.rules");
    std::fs::write(&rules, RULES.replace("vector(1)", "vector(")).unwrap();
    let mut child = collector(folder.path(), &rules)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(2), "{stderr}");
    for part in ["a.rules: group \"g\", rule 1, \"one\"", "could not parse expr"] {
        assert!(stderr.contains(part), "{stderr}");
    }
}

#[test]
fn a_hangup_reads_the_rules_again() {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("a.rules");
    std::fs::write(&rules, RULES).unwrap();
    let running = Running::start(folder.path(), &rules);
    assert!(running.list(folder.path()).contains("one"));
    std::fs::write(&rules, RULES.replace("record: one", "record: two")).unwrap();
    running.hang_up();
    let began = Instant::now();
    loop {
        let list = running.list(folder.path());
        if list.contains("two") && !list.contains("one") {
            return;
        }
        assert!(began.elapsed() < TIMEOUT, "{list}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
