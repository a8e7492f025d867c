//! One fault on its way: the fleet, the run, its training, and the clock of the fault.

use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::disk::SmallDisk;
use crate::fault::{Fault, HOLD_AT, STEPS, VICTIM};
use crate::fleet::Fleet;
use crate::product::process::signal;
use crate::training::Training;

/// From a submission to a trained step: PyTorch is imported three times, by four ranks at once the last time.
const BEGINS_WITHIN: Duration = Duration::from_secs(300);
/// From a fault to the end of everything: detection, an end with grace, and another attempt.
const ENDS_WITHIN: Duration = Duration::from_secs(300);
/// Between the start of torchrun and its use of the port lies the import of PyTorch, seconds.
const PORT_WITHIN: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// A run that a fault is done to.
pub(crate) struct Scene {
    // First: the fleet's folder, which goes with it, cannot be removed while something is mounted in it.
    disk: Option<SmallDisk>,
    pub(crate) fleet: Fleet,
    pub(crate) training: Training,
    pub(crate) run: String,
    /// Process ids by rank while the ranks waited, before anything was done to them.
    pub(crate) pids_before: Vec<Value>,
    /// When the fault was done.
    pub(crate) done_ms: Option<i64>,
    /// When the run was first seen to be anything but running, after that.
    pub(crate) noticed_ms: Option<i64>,
}

impl Scene {
    /// Starts everything and submits the run.
    pub(crate) fn begin(fault: &Fault) -> Result<Self> {
        let fleet = Fleet::start(fault.set_up.apart)?;
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

    /// The run as the collector tells it; `null` while there is none.
    pub(crate) fn view(&self) -> Value {
        self.fleet.api.get(&format!("/api/runs/{}", self.run))
    }

    /// What is stored of a rank: one series for each node it ran on, together one curve.
    pub(crate) fn curve(&self, metric: &str, rank: u64) -> Vec<(i64, f64)> {
        let selector = format!("{metric}{{run={:?},rank=\"{rank}\"}}[1h]", self.run);
        let mut samples = self.fleet.api.curves(&selector).concat();
        samples.sort_by_key(|(at, _)| *at);
        samples
    }

    // === waits ===

    /// Waits until every rank stands behind the step at which faults come.
    pub(crate) fn held(&mut self) -> Result<()> {
        self.wait("the ranks to train", BEGINS_WITHIN, |scene, _| {
            scene.training.has_finished(1, HOLD_AT)
        })?;
        self.wait(
            "every rank's process to be known",
            BEGINS_WITHIN,
            |scene, view| {
                scene.pids_before = pids(view);
                scene.pids_before.iter().all(Value::is_number)
            },
        )
    }

    /// Waits until nothing will change any more.
    pub(crate) fn ended(&mut self) -> Result<()> {
        self.wait("the run to end", ENDS_WITHIN, |_, view| {
            view["state"]
                .as_str()
                .is_some_and(|state| ["succeeded", "failed", "stopped"].contains(&state))
        })
    }

    /// Waits until an attempt has begun.
    pub(crate) fn attempts_begun(&mut self, attempts: usize) -> Result<()> {
        self.wait(&format!("attempt {attempts}"), ENDS_WITHIN, |_, view| {
            view["attempts"]
                .as_array()
                .is_some_and(|all| all.len() >= attempts)
        })
    }

    /// Waits until the run is anything but running.
    pub(crate) fn noticed(&mut self) -> Result<()> {
        self.wait("the fault to be noticed", ENDS_WITHIN, |scene, _| {
            scene.noticed_ms.is_some()
        })
    }

    /// Waits until the collector knows a step of the last rank.
    pub(crate) fn heard_up_to(&mut self, step: u64) -> Result<()> {
        self.wait(&format!("step {step} to be heard of"), ENDS_WITHIN, |scene, _| {
            let last = scene.curve("train_step", VICTIM).last().map(|(_, step)| *step);
            last.is_some_and(|last| last >= step as f64)
        })
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

    /// The training may go to its end.
    pub(crate) fn go_on(&mut self) -> Result<()> {
        self.training.give_leave_to(STEPS)
    }

    /// The training goes on to a step, by its own account: nobody else may live.
    pub(crate) fn let_train_to(&mut self, step: u64) -> Result<()> {
        self.training.give_leave_to(step)?;
        self.wait(
            &format!("the ranks to train to step {step}"),
            ENDS_WITHIN,
            |scene, _| scene.training.has_finished(scene.training.newest_attempt(), step),
        )
    }

    /// The fault has just been done.
    pub(crate) fn done_now(&mut self) {
        self.done_ms.get_or_insert_with(now_ms);
    }

    /// Waits until the script has done what it was told to do wrong.
    pub(crate) fn done_by_script(&mut self) -> Result<()> {
        self.wait("the script to fail", BEGINS_WITHIN, |scene, _| {
            scene.done_ms = scene.training.failed_at_ms();
            scene.done_ms.is_some()
        })
    }

    /// A signal to the process of a rank.
    pub(crate) fn signal_rank(&mut self, rank: u64, name: &str) -> Result<()> {
        let pid = self
            .pids_before
            .get(usize::try_from(rank)?)
            .and_then(Value::as_i64);
        signal(i32::try_from(pid.context("the rank has a process")?)?, name);
        self.done_now();
        Ok(())
    }

    /// Takes the port that was leased for the first attempt as soon as the first node means to use it.
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

/// The processes of the newest attempt by rank; `null` for one that is not known.
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
