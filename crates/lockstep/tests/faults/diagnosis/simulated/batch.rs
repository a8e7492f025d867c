//! Several trials at the same time: one collector, and one run per trial on its own nodes.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::Value;
use sim_cluster::Scenario;

use super::super::draw::Draw;
use super::super::kind::Kind;
use super::super::score::Outcome;
use super::super::trial::{self, Trial};
use super::super::watch::Watch;
use super::kinds::{Group, scenario};
use super::session::Session;

/// How long after its planned time a fault may begin. All ranks start within seconds.
const FAULT_WITHIN: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(500);

/// A run without faults, with its nodes and ranks per node.
pub(super) type HealthyScenario = (Scenario, (u32, u32));

/// A trial that is not done yet.
#[derive(Debug, Clone)]
pub(super) struct Planned {
    /// As this trial plays it.
    pub(super) kind: Kind,
    /// How long it goes on after the culprit was named.
    pub(super) watched_after: Duration,
    pub(super) number: u32,
    pub(super) draw: Draw,
}

impl Planned {
    /// Returns the name of its run.
    pub(super) fn name(&self) -> String {
        format!("{}-{}", self.kind.name, self.number)
    }
}

/// A trial whose run is active.
struct Active<'a> {
    planned: &'a Planned,
    name: String,
    watch: Watch,
    deadline: Instant,
    fault: Option<SeenFault>,
    named: Option<Instant>,
    trial: Trial,
}

struct SeenFault {
    at_ms: i64,
    seen: Instant,
    /// All nodes of the run.
    nodes: Vec<String>,
}

/// What a batch found besides its trials.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// The names of trials whose fault did not begin.
    pub(super) failed: Vec<String>,
    /// Alerts about the healthy runs.
    pub(super) false_alarms: Vec<String>,
}

/// Carries out the trials beside healthy runs, and passes on each trial that is done.
pub(super) fn run(
    (group, seed): (Group, u64),
    planned: &[Planned],
    healthy: &[HealthyScenario],
    mut done: impl FnMut(&Planned, Trial),
) -> Result<Ended> {
    let scenarios = planned
        .iter()
        .map(|planned| scenario(group, &planned.name(), &planned.kind, &planned.draw, seed));
    let scenarios: Vec<Scenario> = scenarios.collect();
    let nodes: u32 = planned.iter().map(|planned| planned.draw.nodes).sum();
    let nodes = nodes + healthy.iter().map(|(_, (nodes, _))| nodes).sum::<u32>();
    let all = healthy.iter().map(|(scenario, _)| scenario).chain(&scenarios);
    let mut session = Session::start(nodes, group.has_gpus(), all.cloned().collect())?;
    let (mut active, mut ended) = (Vec::new(), Ended::default());
    let mut silent = Vec::new();
    for (scenario, size) in healthy {
        silent.push(Watch::new(&session.submit(scenario, *size)?));
    }
    for (planned, scenario) in planned.iter().zip(&scenarios) {
        let run = session.submit(scenario, (planned.draw.nodes, planned.draw.ranks_per_node))?;
        active.push(Active::new(planned, seed, &run));
    }
    while !active.is_empty() {
        for begun in session.begun() {
            if let Some(active) = active.iter_mut().find(|active| active.name == begun.scenario) {
                active.fault_begun(&session, begun.at_ms);
            }
        }
        let alerts = session.alerts();
        active.iter_mut().for_each(|active| active.look(&alerts));
        for watch in &mut silent {
            let run = watch.run().to_owned();
            watch.take(&alerts, |alert| alert["labels"]["run"] == run.as_str());
        }
        let (over, rest): (Vec<Active<'_>>, Vec<Active<'_>>) =
            active.into_iter().partition(|active| active.is_over());
        active = rest;
        for mut active in over {
            if active.fault.is_none() {
                ended.failed.push(active.name);
                continue;
            }
            active.trial.why = trial::why(&session.api, &session.data(), active.watch.run())?;
            done(active.planned, active.trial);
        }
        std::thread::sleep(POLL);
    }
    let false_alarms = silent.iter().flat_map(|watch| watch.alerts(0));
    ended.false_alarms = false_alarms.map(|alert| alert.rule).collect();
    Ok(ended)
}

impl<'a> Active<'a> {
    fn new(planned: &'a Planned, seed: u64, run: &str) -> Self {
        let planned_s = f64::from(planned.draw.at_step + 1) * planned.draw.step_s;
        Self {
            planned,
            name: planned.name(),
            watch: Watch::new(run),
            deadline: Instant::now() + Duration::from_secs_f64(planned_s) + FAULT_WITHIN,
            fault: None,
            named: None,
            trial: Trial {
                kind: planned.kind.name.to_owned(),
                seed,
                number: planned.number,
                draw: planned.draw.clone(),
                nodes: Vec::new(),
                alerts: Vec::new(),
                why: String::new(),
                traceml: None,
            },
        }
    }

    /// If there are several faults, they begin at the same time.
    fn fault_begun(&mut self, session: &Session, at_ms: i64) {
        if self.fault.is_some() {
            return;
        }
        let run = self.watch.run();
        let culprits = self.planned.draw.culprits.iter();
        self.trial.nodes = culprits
            .filter_map(|rank| trial::node_of(&session.api, run, *rank))
            .collect();
        self.fault = Some(SeenFault {
            at_ms,
            seen: Instant::now(),
            nodes: session.nodes_of(run),
        });
    }

    fn look(&mut self, alerts: &Value) {
        let run = self.watch.run().to_owned();
        let nodes = self
            .fault
            .as_ref()
            .map_or(&[][..], |fault| fault.nodes.as_slice());
        self.watch.take(alerts, |alert| {
            let labels = &alert["labels"];
            let is_on = |name: &str| nodes.iter().any(|node| node == name);
            match labels["run"].as_str() {
                Some(of) => of == run,
                None => labels["node"].as_str().is_some_and(is_on),
            }
        });
        if let Some(fault) = &self.fault {
            self.trial.alerts = self.watch.alerts(fault.at_ms);
            if let Outcome::Right { .. } = self.trial.outcome(&self.planned.kind) {
                self.named.get_or_insert_with(Instant::now);
            }
        }
    }

    fn is_over(&self) -> bool {
        match &self.fault {
            None => Instant::now() > self.deadline,
            Some(fault) => {
                fault.seen.elapsed() >= self.planned.kind.watched
                    || self
                        .named
                        .is_some_and(|at| at.elapsed() >= self.planned.watched_after)
            }
        }
    }
}
