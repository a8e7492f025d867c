//! TraceML with the same script and the same draw. Three lines of the script are switched on for it, and at the end of the run it reports
//! which rank was slow.

use std::collections::BTreeSet;
use std::fmt;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::draw::Draw;
use super::kind::{Inflicted, Kind};
use super::outside::Burner;
use super::trial::script;

/// How long the run continues after the fault, in seconds.
const SLOW_S: f64 = 60.0;
/// Time for start, training and summary, on two busy cores.
const ENDS_WITHIN: Duration = Duration::from_secs(420);
const POLL: Duration = Duration::from_millis(250);

/// TraceML's program.
pub(super) struct TraceMl {
    program: PathBuf,
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
        let slow_step_s = draw.step_s * (1.0 + draw.magnitude);
        let steps = draw.at_step + (SLOW_S / slow_step_s) as u32;
        let mut arguments = draw.arguments(kind, folder.path());
        arguments.extend(["--traceml".to_owned(), "--steps".to_owned(), steps.to_string()]);
        let [own_port, torch_port] = free_ports()?;
        let mut process = Command::new(&self.program)
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
        let (began, mut burners) = (Instant::now(), Vec::new());
        while process.try_wait()?.is_none() {
            let has_come = kind.inflicted == Inflicted::Burn && folder.path().join("fault").exists();
            if has_come && burners.is_empty() {
                burners = Burner::several()?;
            }
            if began.elapsed() > ENDS_WITHIN {
                crate::product::process::signal(i32::try_from(process.id())?, "TERM");
                process.wait()?;
                bail!("TraceML did not end within {} s", ENDS_WITHIN.as_secs());
            }
            std::thread::sleep(POLL);
        }
        let summary = folder.path().join("trial/final_summary.json");
        let summary =
            std::fs::read(&summary).with_context(|| format!("TraceML wrote no {}", summary.display()))?;
        Verdict::of(&serde_json::from_slice(&summary)?)
    }
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

    use super::*;

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
