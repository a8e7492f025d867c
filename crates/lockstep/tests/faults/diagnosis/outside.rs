//! Faults that come from outside of the script.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::draw::{Draw, burnt_core};
use super::kind::{Inflicted, Kind};
use crate::disk::SmallDisk;
use crate::fault_run::now_ms;
use crate::fleet::{Fleet, wait};
use crate::product::process::{is_ours, processes, signal};

/// Number of programs that compute on the core of a rank with a busy neighbour.
const BURNERS: usize = 6;
/// Computes until the process that started it is gone.
const BURN: &str = "while kill -0 $PPID; do i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; done";
/// How long the processes of a node may take to end after SIGKILL.
const GONE_WITHIN: Duration = Duration::from_secs(30);

/// The fault of a trial, as far as it comes from outside. It lasts until this is dropped.
pub(super) struct OutsideFault<'a> {
    kind: &'a Kind,
    draw: &'a Draw,
    disk: Option<SmallDisk>,
    burners: Vec<Burner>,
}

impl<'a> OutsideFault<'a> {
    /// Prepares the fault before the run starts. `folder` is the folder of the training.
    pub(super) fn prepare(kind: &'a Kind, draw: &'a Draw, folder: &Path) -> Result<Self> {
        let disk = match (kind.inflicted, draw.culprits.first()) {
            (Inflicted::FillDisk, Some(rank)) => {
                Some(SmallDisk::mount(&folder.join(format!("rank-{rank}")))?)
            }
            _ => None,
        };
        Ok(Self {
            kind,
            draw,
            disk,
            burners: Vec::new(),
        })
    }

    /// Causes the fault. Returns its time in milliseconds: `noted_ms`, as the script noted it, if the script causes it. `nodes` are those of
    /// the culprits.
    pub(super) fn cause(
        &mut self,
        fleet: &mut Fleet,
        run: &str,
        nodes: &[String],
        noted_ms: i64,
    ) -> Result<i64> {
        let needs_node = matches!(self.kind.inflicted, Inflicted::KillAgent | Inflicted::KillNode);
        ensure!(
            !needs_node || !nodes.is_empty(),
            "the node of the rank is not known"
        );
        match self.kind.inflicted {
            Inflicted::Script => return Ok(noted_ms),
            Inflicted::Stop => self.signal_culprits(fleet, run, "STOP")?,
            Inflicted::Kill => self.signal_culprits(fleet, run, "KILL")?,
            Inflicted::Burn => self.burners = Burner::several()?,
            Inflicted::FillDisk => self.disk.as_ref().context("no small disk")?.fill()?,
            Inflicted::KillAgent => nodes.iter().try_for_each(|node| fleet.agent(node)?.kill())?,
            Inflicted::KillNode => nodes.iter().try_for_each(|node| kill_node(fleet, node))?,
        }
        Ok(now_ms())
    }

    fn signal_culprits(&self, fleet: &Fleet, run: &str, name: &str) -> Result<()> {
        std::thread::sleep(Duration::from_secs_f64(self.draw.step_s * self.draw.offset));
        for rank in &self.draw.culprits {
            let pid = fleet.api.pid_of(run, *rank).context("the rank has no process")?;
            signal(pid, name);
        }
        Ok(())
    }
}

/// Kills all processes of a node. The agent comes first, because it could start other processes.
fn kill_node(fleet: &mut Fleet, node: &str) -> Result<()> {
    fleet.agent(node)?.kill()?;
    let folder = fleet.folder().join(node);
    wait("every process of the node to be gone", GONE_WITHIN, || {
        let mut left = processes();
        left.retain(|pid| is_ours(*pid, &folder));
        left.iter().for_each(|pid| signal(*pid, "KILL"));
        left.is_empty()
    })
}

/// A program that computes on one core until it is dropped.
pub(super) struct Burner(Child);

impl Burner {
    /// Starts enough programs to slow a rank down to a fraction of its speed.
    pub(super) fn several() -> Result<Vec<Self>> {
        (0..BURNERS).map(|_| Self::start()).collect()
    }

    fn start() -> Result<Self> {
        let core = burnt_core().to_string();
        // Linux divides a core between sessions first (autogroup). In one session, all of these together would leave half of the core to the
        // rank, which has a session of its own.
        let process = Command::new("setsid")
            .args(["taskset", "--cpu-list", &core, "sh", "-c", BURN])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("setsid (of util-linux) cannot be started")?;
        Ok(Self(process))
    }
}

impl Drop for Burner {
    fn drop(&mut self) {
        let _gone_already = self.0.kill();
        let _gone_already = self.0.wait();
    }
}
