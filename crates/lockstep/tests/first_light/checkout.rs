//! A run whose code is checked out from a git revision.

use std::path::Path;
use std::process::Command;

use crate::cluster::Cluster;

fn git(at: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command
        .args(["-c", "user.name=a", "-c", "user.email=a@b", "-C"])
        .arg(at)
        .args(arguments);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn ranks_run_the_code_of_the_revision_and_the_run_remembers_its_commit() {
    let mut cluster = Cluster::start_without_gpus();
    cluster.add_node("second");
    let code = cluster.data_dir().join("code");
    std::fs::create_dir(&code).unwrap();
    git(&code, &["init", "-q", "-b", "main"]);
    let commit = |text: &str| {
        std::fs::write(code.join("train.py"), text).unwrap();
        git(&code, &["add", "."]);
        git(&code, &["commit", "-qm", "x"]);
        git(&code, &["rev-parse", "HEAD"])
    };
    let first = commit("print('the first', flush=True)\n");
    git(&code, &["tag", "v1"]);
    commit("raise SystemExit('the second')\n");
    let spec = cluster.data_dir().join("run.toml");
    let text = |revision: &str| {
        format!(
            "script = \"train.py\"\nnodes = 2\nnproc_per_node = 1\nbackend = \"gloo\"\n\
             git = {{ repository = {:?}, revision = {revision:?} }}\n",
            code.display().to_string()
        )
    };
    std::fs::write(&spec, text("v1")).unwrap();
    let run = cluster.submit(&[spec.to_str().unwrap()]);
    let view = cluster.wait_for_state(&run, "succeeded");
    assert_eq!(
        view["attempts"][0]["provenance"]["commit"],
        first.as_str(),
        "{view}"
    );
    for rank in 0..2 {
        let log = cluster.get(&format!("/api/runs/{run}/logs?rank={rank}"));
        assert_eq!(log["text"], "the first\n");
    }
    std::fs::write(&spec, text("nope")).unwrap();
    let run = cluster.submit(&[spec.to_str().unwrap()]);
    let outcome = cluster.wait_for_state(&run, "failed")["outcome"].to_string();
    assert!(
        outcome.contains("it holds no such commit, tag or branch"),
        "{outcome}"
    );
    std::fs::write(
        &spec,
        text("v1").replace(code.to_str().unwrap(), "https://a:b@host/x"),
    )
    .unwrap();
    let refused = cluster.lockstep(&["run", "submit", spec.to_str().unwrap()]);
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && stderr.contains("git.repository") && !stderr.contains("a:b@"),
        "{stderr}"
    );
}
