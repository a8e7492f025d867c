//! Logs and secrets of real ranks: logs are followed across a restart and searched, and contain no secret.

use std::path::Path;

use crate::cluster::Cluster;

const VALUE: &str = "hf_0123456789abcdef";

/// In the first attempt rank 1 fails, with the secret in its exception, after rank 0 has written its lines completely. The second attempt
/// succeeds.
const SCRIPT: &str = r#"
import os, sys, time
rank, attempt, token = os.environ["RANK"], os.environ["LOCKSTEP_ATTEMPT"], os.environ["HF_TOKEN"]
print(f"attempt {attempt} begins, token {token}, \x1b]52;c;cm0=\x07\x1b[2Jno escapes", flush=True)
for n in range(3):
    sys.stdout.write(f"\r{n + 1}/3")
    sys.stdout.flush()
sys.stdout.write("\n")
os.write(1, token[:9].encode())
time.sleep(0.3)
os.write(1, token[9:].encode() + b" was cut\n")
os.write(1, b"\xff\xfe is not UTF-8\n" + b"x" * 3_000_000 + b" a long line ends\n")
open(f"{__file__}.{rank}", "w").close()
if attempt == "1" and rank == "1":
    while not os.path.exists(f"{__file__}.0"):
        time.sleep(0.05)
    raise RuntimeError(f"401 for {token}")
if attempt == "1":
    time.sleep(60)
print("the end", flush=True)
"#;

/// Returns the files below a folder that contain the value.
fn holders(data: &Path) -> Vec<String> {
    holders_below(data, data)
}

fn holders_below(data: &Path, folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(holders_below(data, &path));
        } else if path.is_file() {
            let bytes = std::fs::read(&path).unwrap_or_default();
            if bytes.windows(VALUE.len()).any(|part| part == VALUE.as_bytes()) {
                found.push(path.strip_prefix(data).unwrap_or(&path).display().to_string());
            }
        }
    }
    found
}

#[test]
fn logs_are_followed_over_a_restart_and_contain_no_secret() {
    let cluster = Cluster::start();
    let script = cluster.data_dir().join("train.py");
    std::fs::write(&script, SCRIPT).unwrap();
    let spec = cluster.data_dir().join("run.toml");
    let text = format!(
        "script = {:?}\nnproc_per_node = 2\nbackend = \"gloo\"\nmax_restarts = 1\n",
        script.display().to_string()
    );
    std::fs::write(&spec, text).unwrap();
    let submitted = cluster
        .command(&["run", "submit", spec.to_str().unwrap(), "--secret", "HF_TOKEN"])
        .env("HF_TOKEN", VALUE)
        .output()
        .unwrap();
    let run = String::from_utf8(submitted.stdout).unwrap().trim().to_owned();
    let followed = cluster.lockstep(&["run", "logs", "-f", "--all-ranks", "--attempt", "1", &run]);
    cluster.wait_for_state(&run, "succeeded");
    let second = cluster.lockstep(&["run", "logs", "-f", "--all-ranks", &run]);
    for (output, ends) in [(&followed, 0), (&second, 2)] {
        let text = String::from_utf8(output.stdout.clone()).unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(
            !text.contains('\u{1b}') && !text.contains('\r'),
            "an escape came through"
        );
        assert!(
            !text.contains(VALUE) && !text.contains(&VALUE[..9]),
            "a secret came through"
        );
        for line in [
            "no escapes",
            "3/3",
            "************",
            "is not UTF-8",
            "a long line ends",
        ] {
            assert!(text.contains(line), "{line} is not in what was followed");
        }
        assert!(
            text.contains("[rank 0] ") && text.contains("[rank 1] 3/3\n"),
            "each behind its rank"
        );
        assert_eq!(text.matches("the end").count(), ends);
    }

    let found = cluster.lockstep(&["run", "logs", "--grep", "BEGINS", "-i", &run]);
    let found = String::from_utf8(found.stdout).unwrap();
    assert_eq!(found.lines().count(), 4, "two ranks, two attempts: {found}");
    assert!(
        found.contains("[attempt 2 rank 1 stdout] attempt 2 begins, token *"),
        "{found}"
    );
    let tail = cluster.lockstep(&["run", "logs", "--tail", "1", &run]);
    assert_eq!(String::from_utf8(tail.stdout).unwrap(), "the end\n");

    let view = cluster.get(&format!("/api/runs/{run}"));
    assert!(!view.to_string().contains(VALUE), "{view}");
    let exit = &view["attempts"][0]["nodes"][0]["ranks"][1]["exit"];
    assert!(
        exit["message"]
            .as_str()
            .unwrap_or_default()
            .contains("[redacted]"),
        "{exit}"
    );
    // The ranks' own files stay on their node, in a folder of their user.
    cluster.wait_for("the values to be where they belong, and nowhere else", || {
        let kept = |path: &String| {
            path.starts_with("secrets/") || path.contains("/ranks/") || path.contains("/probe/")
        };
        let others: Vec<_> = holders(cluster.data_dir())
            .into_iter()
            .filter(|path| !kept(path))
            .collect();
        let known = |path: &String| path.ends_with("shim.reports") || path.ends_with("launcher.stderr");
        others.iter().all(known).then_some(())
    });
}
