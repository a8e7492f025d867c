//! The task that owns the analysers of all attempts.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use domain::api::findings::RunFindings;
use domain::diagnosis::analysis::Measurement;
use domain::ident::{NodeName, RunId};
use store::SeriesStore;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{MissedTickBehavior, interval};

use super::active_attempt::ActiveAttempt;
use super::alone_before::longest_alone;
use super::assembly::{NodeMemory, assemble};
use super::attempts::{Attempt, Attempts};
use super::feed::{Fed, FedQueue};
use super::findings::Findings;
use super::hangs_before::HangsBefore;
use super::rank_requests::{self, ANSWERS_MAX, Answered, RUNS_AT_ONCE};
use super::scores;
use crate::append::Publisher;
use crate::clock;
use crate::evaluator::Evaluator;
use crate::event_log::EventLog;
use crate::runs::Runs;
use crate::tasks::Tasks;

/// How often the analysers evaluate. Positions are also read twice per second.
const PERIOD: Duration = Duration::from_millis(500);
/// Number of messages that are processed before other events get their turn.
const MESSAGES_AT_ONCE: usize = 64;

/// The series of a run that makes no progress. They keep their last value until they end.
const STANDSTILL: &str = r#"{__name__=~"diagnosis_(hang|alone|alone_longest)_seconds"}"#;

/// The parts of the collector that the analysers' task uses.
pub(crate) struct AnalysisParts {
    pub(crate) attempts: Arc<Attempts>,
    pub(crate) findings: Arc<Findings>,
    pub(crate) runs: Arc<Runs>,
    pub(crate) series: SeriesStore,
    pub(crate) evaluator: Evaluator,
    /// Hangs that were found before the start.
    pub(crate) hangs: HangsBefore,
    pub(crate) events: EventLog,
    pub(crate) tasks: Tasks,
}

/// Feeds the analysers and publishes their findings, until the collector stops.
pub(crate) async fn run(parts: AnalysisParts, mut queue: FedQueue) {
    let (answers, mut answered) = mpsc::channel(ANSWERS_MAX);
    let longest_alone = longest_alone(&parts.evaluator).await;
    // The process before could not end the series that it wrote.
    let publisher = Publisher::continuing("the scores of the analysers", &parts.evaluator, STANDSTILL).await;
    let mut all = AnalysisTask {
        parts,
        runs: HashMap::new(),
        nodes: HashMap::new(),
        memories: HashMap::new(),
        longest_alone,
        publisher,
        asking: Arc::new(Semaphore::new(RUNS_AT_ONCE)),
        answers,
    };
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut messages = Vec::with_capacity(MESSAGES_AT_ONCE);
    loop {
        let advances = tokio::select! {
            count = queue.receive(&mut messages, MESSAGES_AT_ONCE) => {
                if count == 0 {
                    return;
                }
                false
            }
            // The analysers have waited for this answer.
            Some(answered) = answered.recv() => {
                all.answer(answered);
                true
            }
            _ = ticks.tick() => true,
        };
        if advances {
            // If this task was held up, for example by a slow disk, nodes whose messages wait here are not blind.
            queue.receive_waiting(&mut messages);
        }
        messages.drain(..).for_each(|fed| all.take(&fed));
        if advances {
            all.advance().await;
        }
    }
}

struct AnalysisTask {
    parts: AnalysisParts,
    runs: HashMap<RunId, ActiveAttempt>,
    /// The runs of each node.
    nodes: HashMap<NodeName, Vec<RunId>>,
    memories: HashMap<NodeName, NodeMemory>,
    /// How long ranks worked alone before the start, for runs whose analysis has not begun yet.
    longest_alone: HashMap<RunId, f64>,
    publisher: Publisher,
    asking: Arc<Semaphore>,
    answers: mpsc::Sender<Answered>,
}

impl AnalysisTask {
    fn take(&mut self, fed: &Fed) {
        let Some(of_node) = self.nodes.get(&fed.node) else {
            return;
        };
        let memory = self.memories.entry(fed.node.clone()).or_default();
        let runs = &mut self.runs;
        let own = assemble(&fed.node, &fed.frames, memory, |run, rank, input| {
            // A node may report values of its own ranks only.
            let of_run = runs.get_mut(run).filter(|of_run| of_run.is_on(rank, &fed.node));
            if let Some(of_run) = of_run {
                of_run.take(rank, input);
            }
        });
        for run in of_node {
            let Some(of_run) = runs.get_mut(run) else { continue };
            if let Some(own) = &own {
                of_run.analysis.take(Measurement::Node(own.clone()));
            }
            of_run.analysis.take(Measurement::CompleteUntil {
                node: fed.node.clone(),
                at_ms: fed.until_ms,
            });
        }
    }

    fn answer(&mut self, answered: Answered) {
        let of_run = self.runs.get_mut(&answered.run);
        if let Some(of_run) = of_run.filter(|of_run| of_run.no == answered.attempt) {
            of_run.analysis.take(answered.measurement);
        }
    }

    async fn advance(&mut self) {
        let now_ms = clock::now_ms();
        self.follow(&self.parts.attempts.all());
        let (mut series, mut events) = (Vec::new(), Vec::new());
        for (run, of_run) in &mut self.runs {
            let output = of_run.analysis.advance(now_ms);
            series.extend(output.scores.iter().map(|score| scores::series(run, score)));
            events.extend(of_run.news(run, &output, now_ms));
            for request in output.requests {
                let (runs, answers) = (Arc::clone(&self.parts.runs), self.answers.clone());
                let inspection = rank_requests::inspect(runs, run.clone(), of_run.no, request, answers);
                let turns = Arc::clone(&self.asking);
                self.parts.tasks.spawn(async move {
                    let _turn = turns.acquire_owned().await;
                    inspection.await;
                });
            }
            of_run.findings = output.findings;
            let found = RunFindings {
                attempt: Some(of_run.no),
                at_ms: now_ms,
                over_since_ms: None,
                findings: of_run.findings.iter().cloned().map(Into::into).collect(),
            };
            self.parts.findings.set(run, found);
        }
        let runs = &self.runs;
        self.parts
            .findings
            .keep_over(now_ms, |run| runs.contains_key(run));
        for event in events {
            self.parts.events.append(event).await;
        }
        self.publisher.publish(&self.parts.series, series, now_ms).await;
    }

    /// Adds new attempts, and removes ended ones.
    fn follow(&mut self, attempts: &BTreeMap<RunId, Attempt>) {
        let count = self.runs.len();
        self.runs
            .retain(|run, of_run| attempts.get(run).is_some_and(|attempt| of_run.is_of(attempt)));
        let mut has_changed = self.runs.len() != count;
        for (run, attempt) in attempts {
            if let Some(of_run) = self.runs.get_mut(run) {
                of_run.set_roles(attempt);
            } else {
                let hang = self.parts.hangs.remove(run).filter(|(no, _)| *no == attempt.no);
                let hang = hang.map(|(_, hang)| hang);
                let mut of_run = ActiveAttempt::new(attempt, hang);
                if let Some(seconds) = self.longest_alone.remove(run) {
                    of_run.analysis.set_longest_alone(seconds);
                }
                self.runs.insert(run.clone(), of_run);
                has_changed = true;
            }
        }
        if !has_changed {
            return;
        }
        self.nodes.clear();
        for (run, of_run) in &self.runs {
            let nodes: HashSet<&NodeName> = of_run.members.iter().map(|member| &member.node).collect();
            for node in nodes {
                self.nodes.entry(node.clone()).or_default().push(run.clone());
            }
        }
        let (nodes, runs) = (&self.nodes, &self.runs);
        self.memories.retain(|node, memory| {
            memory.retain(|run| runs.contains_key(run));
            nodes.contains_key(node)
        });
    }
}
