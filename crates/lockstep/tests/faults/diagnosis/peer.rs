//! TraceML with the same script and the same draw. Three lines of the script are switched on for it, and at the end of the run it reports
//! which rank was slow.

use std::collections::BTreeSet;
use std::fmt;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tempfile::TempDir;

use super::draw::Draw;
use super::kind::{Inflicted, Kind};
use super::outside::Burner;
use super::trial::{end_early, script};
use crate::fleet::wait;
use crate::product::process::{is_ours, processes, signal};

/// How long the run continues after the fault, in seconds.
const SLOW_S: f64 = 60.0;
/// Time for start, training and summary, on two busy cores.
const ENDS_WITHIN: Duration = Duration::from_secs(420);
/// How long its processes may take to end after SIGKILL.
const GONE_WITHIN: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(250);

/// TraceML's program.
pub(super) struct TraceMl {
    program: PathBuf,
}

/// TraceML while it runs. When this is dropped, no process that works for the folder is left.
struct Running {
    process: Child,
    folder: TempDir,
}

/// TraceML's report at the end of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Verdict {
    /// Kind of its primary diagnosis, for example `INPUT_STRAGGLER`.
    pub(super) primary: String,
    /// The ranks that its findings name as stragglers.
    pub(super) ranks: BTreeSet<u32>,
}

impl Verdict {
    /// Returns true if it names all culprits and no other rank.
    pub(super) fn is_right(&self, culprits: &[u32]) -> bool {
        self.ranks == culprits.iter().copied().collect()
    }

    pub(super) fn is_wrong(&self, culprits: &[u32]) -> bool {
        self.ranks.iter().any(|rank| !culprits.contains(rank))
    }

    /// Reads `final_summary.json`.
    fn of(summary: &Value) -> Result<Self> {
        let step_time = &summary["step_time"];
        let findings = step_time["issues"].as_array().into_iter().flatten();
        let findings = findings.chain([&step_time["diagnosis"]]);
        let stragglers = findings.filter(|finding| {
            let kind = finding["kind"].as_str();
            kind.is_some_and(|kind| kind.ends_with("STRAGGLER"))
        });
        let ranks = stragglers
            .filter_map(|finding| finding["ranks"].as_array())
            .flatten();
        Ok(Self {
            primary: summary["primary_diagnosis"]["kind"]
                .as_str()
                .context("the summary has no primary diagnosis")?
                .to_owned(),
            ranks: ranks
                .filter_map(|rank| u32::try_from(rank.as_u64()?).ok())
                .collect(),
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of ranks {:?}", self.primary, self.ranks)
    }
}

impl TraceMl {
    pub(super) fn new(program: &Path) -> Self {
        Self {
            program: program.to_owned(),
        }
    }

    /// Runs all ranks of the draw on one node.
    pub(super) fn run_trial(&self, kind: &Kind, draw: &Draw) -> Result<Verdict> {
        let folder = tempfile::tempdir()?;
        let steps = steps(kind, draw);
        let mut arguments = draw.arguments(kind, folder.path());
        arguments.extend(["--traceml".to_owned(), "--steps".to_owned(), steps.to_string()]);
        let [own_port, torch_port] = free_ports()?;
        let process = Command::new(&self.program)
            .arg("run")
            .arg(script())
            .args(["--run-name", "trial", "--logs-dir"])
            .arg(folder.path())
            .args(["--nproc-per-node", &draw.ranks().to_string()])
            .args(["--aggregator-port", &own_port.to_string()])
            .args(["--master-port", &torch_port.to_string()])
            .arg("--args")
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        let mut running = Running { process, folder };
        let folder = running.folder.path().to_owned();
        let (began, mut burners) = (Instant::now(), Vec::new());
        while running.process.try_wait()?.is_none() {
            end_early()?;
            let has_come = kind.inflicted == Inflicted::Burn && folder.join("fault").exists();
            if has_come && burners.is_empty() {
                burners = Burner::several()?;
            }
            if began.elapsed() > ENDS_WITHIN {
                bail!("TraceML did not end within {} s", ENDS_WITHIN.as_secs());
            }
            std::thread::sleep(POLL);
        }
        let summary = folder.join("trial/final_summary.json");
        let summary =
            std::fs::read(&summary).with_context(|| format!("TraceML wrote no {}", summary.display()))?;
        Verdict::of(&serde_json::from_slice(&summary)?)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let folder = self.folder.path();
        let _given_up_after_the_limit = wait("what TraceML started to be gone", GONE_WITHIN, || {
            let mut left = processes();
            left.retain(|pid| is_ours(*pid, folder));
            left.iter().for_each(|pid| signal(*pid, "KILL"));
            left.is_empty()
        });
        let _gone_already = self.process.kill();
        let _gone_already = self.process.wait();
    }
}

/// Returns the step after which the run ends. If the magnitude of the fault is no part of a step, steps count as long as before the fault.
fn steps(kind: &Kind, draw: &Draw) -> u32 {
    let lengthens_steps = kind.inflicted == Inflicted::Script && kind.how != "intermittent";
    let extra = if lengthens_steps { draw.magnitude } else { 0.0 };
    draw.at_step + (SLOW_S / (draw.step_s * (1.0 + extra))) as u32
}

/// Returns two ports that are free now.
fn free_ports() -> Result<[u16; 2]> {
    let held = [
        TcpListener::bind("127.0.0.1:0")?,
        TcpListener::bind("127.0.0.1:0")?,
    ];
    let [first, second] = held.map(|listener| listener.local_addr().map(|address| address.port()));
    Ok([first?, second?])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::kinds::named;
    use super::*;

    #[test]
    fn a_run_goes_on_for_a_minute_after_the_fault() {
        let check = |name: &str, expected: u32| {
            let draw = Draw {
                step_s: 0.125,
                at_step: 200,
                magnitude: 0.5,
                ..Draw::new(named(name), 1, 1)
            };
            assert_eq!(steps(named(name), &draw), expected, "{name}");
        };
        check("slow-forward", 520);
        check("intermittent", 680);
        check("busy-neighbour", 680);
    }

    #[test]
    fn ranks_are_those_of_findings_about_stragglers() {
        let summary = json!({
            "primary_diagnosis": { "kind": "INPUT_STRAGGLER" },
            "step_time": {
                "diagnosis": { "kind": "INPUT_STRAGGLER", "ranks": [2] },
                "issues": [{ "kind": "INPUT_STRAGGLER", "ranks": [2] }, { "kind": "INPUT_BOUND", "ranks": [0] }],
            },
        });
        let verdict = Verdict::of(&summary).unwrap();
        assert_eq!(verdict.primary, "INPUT_STRAGGLER");
        assert!(verdict.is_right(&[2]));
        assert!(!verdict.is_right(&[2, 3]) && !verdict.is_wrong(&[2, 3]));
        assert!(verdict.is_wrong(&[0]));
        assert!(Verdict::of(&json!({})).is_err());
    }
}
