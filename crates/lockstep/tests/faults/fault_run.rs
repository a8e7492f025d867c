//! One fault in progress: the fleet, the run, its training, and the clock of the fault.

use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::disk::SmallDisk;
use crate::fault::{Fault, HOLD_AT, STEPS, VICTIM};
use crate::fleet::Fleet;
use crate::product::process::signal;
use crate::training::Training;

/// Time from the submission to the first step: PyTorch is imported three times, the last time by four ranks at once.
const BEGINS_WITHIN: Duration = Duration::from_secs(300);
/// Time from the fault to the end of everything: detection, an end with grace, and another attempt.
const ENDS_WITHIN: Duration = Duration::from_secs(300);
/// Time in which torchrun starts to use the port: it imports PyTorch first, which takes seconds.
const PORT_WITHIN: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// A run with a fault.
pub(crate) struct FaultRun {
    // First field, so that it is unmounted first: the fleet's folder cannot be removed while something is mounted in it.
    disk: Option<SmallDisk>,
    pub(crate) fleet: Fleet,
    pub(crate) training: Training,
    pub(crate) run: String,
    /// Process IDs by rank before the fault, while the ranks waited.
    pub(crate) pids_before: Vec<Value>,
    /// Time of the fault.
    pub(crate) done_ms: Option<i64>,
    /// Time after the fault at which the run was first seen in a state other than running.
    pub(crate) noticed_ms: Option<i64>,
}

impl FaultRun {
    /// Starts everything and submits the run.
    pub(crate) fn begin(fault: &Fault) -> Result<Self> {
        let fleet = Fleet::start(fault.set_up.separate_machine)?;
        let training = Training::new(&fleet.folder().join("training"))?;
        let disk = fault
            .set_up
            .small_disk
            .then(|| SmallDisk::mount(&training.checkpoints()));
        let disk = disk.transpose()?;
        let interface = fleet.link().map_or("lo", |link| link.interface());
        let answer = fleet
            .api
            .post("/api/runs", &training.spec(&fault.set_up, interface));
        let run = answer["id"]
            .as_str()
            .with_context(|| format!("not submitted: {answer}"))?;
        Ok(Self {
            run: run.to_owned(),
            fleet,
            disk,
            training,
            pids_before: Vec::new(),
            done_ms: None,
            noticed_ms: None,
        })
    }

    /// Returns the run as the collector shows it; `null` if it does not exist.
    pub(crate) fn view(&self) -> Value {
        self.fleet.api.get(&format!("/api/runs/{}", self.run))
    }

    /// Returns the stored samples of a rank. There is one series for each node that it ran on; together they are one curve.
    pub(crate) fn curve(&self, metric: &str, rank: u64) -> Vec<(i64, f64)> {
        let selector = format!("{metric}{{run={:?},rank=\"{rank}\"}}[1h]", self.run);
        let mut samples = self.fleet.api.curves(&selector).concat();
        samples.sort_by_key(|(at, _)| *at);
        samples
    }

    // === waits ===

    /// Waits until every rank has ended the step after which faults come.
    pub(crate) fn wait_until_held(&mut self) -> Result<()> {
        self.wait("the ranks to train", BEGINS_WITHIN, |fault_run, _| {
            fault_run.training.has_finished(1, HOLD_AT)
        })?;
        self.wait(
            "every rank's process to be known",
            BEGINS_WITHIN,
            |fault_run, view| {
                fault_run.pids_before = pids(view);
                fault_run.pids_before.iter().all(Value::is_number)
            },
        )
    }

    /// Waits until the run has ended.
    pub(crate) fn wait_for_end(&mut self) -> Result<()> {
        self.wait("the run to end", ENDS_WITHIN, |_, view| {
            view["state"]
                .as_str()
                .is_some_and(|state| ["succeeded", "failed", "stopped"].contains(&state))
        })
    }

    /// Waits until an attempt has begun.
    pub(crate) fn wait_for_attempts(&mut self, attempts: usize) -> Result<()> {
        self.wait(&format!("attempt {attempts}"), ENDS_WITHIN, |_, view| {
            view["attempts"]
                .as_array()
                .is_some_and(|all| all.len() >= attempts)
        })
    }

    /// Waits until the run is in a state other than running.
    pub(crate) fn wait_until_noticed(&mut self) -> Result<()> {
        self.wait("the fault to be noticed", ENDS_WITHIN, |fault_run, _| {
            fault_run.noticed_ms.is_some()
        })
    }

    /// Waits until the collector has stored a step of the last rank.
    pub(crate) fn wait_until_stored(&mut self, step: u64) -> Result<()> {
        self.wait(
            &format!("step {step} to be heard of"),
            ENDS_WITHIN,
            |fault_run, _| {
                let last = fault_run
                    .curve("train_step", VICTIM)
                    .last()
                    .map(|(_, step)| *step);
                last.is_some_and(|last| last >= step as f64)
            },
        )
    }

    fn wait(
        &mut self,
        what: &str,
        within: Duration,
        mut is_so: impl FnMut(&mut Self, &Value) -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + within;
        loop {
            let view = self.view();
            self.note(&view);
            if is_so(self, &view) {
                return Ok(());
            }
            let ended = ["failed", "stopped"].iter().any(|state| view["state"] == *state);
            if ended || Instant::now() > deadline {
                let state = &view["state"];
                let why = view["outcome"]["message"].as_str().unwrap_or_default();
                bail!("waited in vain for {what}; the run is {state}: {why}");
            }
            std::thread::sleep(POLL);
        }
    }

    fn note(&mut self, view: &Value) {
        let calm = ["null", "\"preparing\"", "\"starting\"", "\"running\""];
        let disturbed = !calm.contains(&view["state"].to_string().as_str());
        let second = view["attempts"].as_array().is_some_and(|all| all.len() > 1);
        if self.done_ms.is_some() && self.noticed_ms.is_none() && (disturbed || second) {
            self.noticed_ms = Some(now_ms());
        }
    }

    // === what is done ===

    /// Lets the training continue to its end.
    pub(crate) fn let_finish(&mut self) -> Result<()> {
        self.training.allow_up_to(STEPS)
    }

    /// Lets the training continue to a step. Reads the training's own record, because neither agent nor collector may be running.
    pub(crate) fn train_up_to(&mut self, step: u64) -> Result<()> {
        self.training.allow_up_to(step)?;
        self.wait(
            &format!("the ranks to train to step {step}"),
            ENDS_WITHIN,
            |fault_run, _| {
                fault_run
                    .training
                    .has_finished(fault_run.training.newest_attempt(), step)
            },
        )
    }

    /// Records that the fault has just been done.
    pub(crate) fn mark_done(&mut self) {
        self.done_ms.get_or_insert_with(now_ms);
    }

    /// Waits until the script has caused its fault.
    pub(crate) fn wait_for_script_fault(&mut self) -> Result<()> {
        self.wait("the script to fail", BEGINS_WITHIN, |fault_run, _| {
            fault_run.done_ms = fault_run.training.failed_at_ms();
            fault_run.done_ms.is_some()
        })
    }

    /// Sends a signal to the process of a rank.
    pub(crate) fn signal_rank(&mut self, rank: u64, name: &str) -> Result<()> {
        let pid = self
            .pids_before
            .get(usize::try_from(rank)?)
            .and_then(Value::as_i64);
        signal(i32::try_from(pid.context("the rank has a process")?)?, name);
        self.mark_done();
        Ok(())
    }

    /// Takes the port that was leased for the first attempt, as soon as the first node wants to use it.
    pub(crate) fn take_leased_port(&mut self) -> Result<TcpListener> {
        let launch = self.fleet.attempt_folder("a", &self.run, 1).join("launch.json");
        let mut port = None;
        self.wait("the first node to be told its port", BEGINS_WITHIN, |_, _| {
            let text = std::fs::read_to_string(&launch).unwrap_or_default();
            let after = text.split_once("--master-port=").map(|(_, after)| after);
            let digits =
                after.map(|after| after.chars().take_while(char::is_ascii_digit).collect::<String>());
            port = digits.and_then(|digits| digits.parse::<u16>().ok());
            port.is_some()
        })?;
        let (port, mut held) = (port.context("a port")?, None);
        self.wait(&format!("port {port} to be let go of"), PORT_WITHIN, |_, _| {
            held = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).ok();
            held.is_some()
        })?;
        held.context("a listener")
    }

    pub(crate) fn fill_disk(&self) -> Result<()> {
        self.disk.as_ref().context("no small disk")?.fill()
    }

    pub(crate) fn empty_disk(&self) -> Result<()> {
        self.disk.as_ref().context("no small disk")?.empty()
    }

    pub(crate) fn tear_checkpoint(&self, step: u64) -> Result<()> {
        self.training.tear(step)
    }
}

/// Returns the process IDs of the newest attempt by rank; `null` if one is unknown.
pub(crate) fn pids(view: &Value) -> Vec<Value> {
    let newest = view["attempts"].as_array().and_then(|all| all.last()).cloned();
    let nodes = newest.unwrap_or_default()["nodes"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let ranks = nodes.iter().filter_map(|node| node["ranks"].as_array()).flatten();
    ranks.map(|rank| rank["pid"].clone()).collect()
}

pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}
