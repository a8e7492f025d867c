//! Inspects the ranks of a run through the agents of their nodes; see [`domain::run::inspect`].

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use domain::api::inspect::RankStacks;
use domain::api::runs::{NodeTaskView, RankView, RunView};
use domain::event::{Event, Severity};
use domain::ident::{AttemptId, AttemptNo, NodeName, Rank, RunId};
use domain::run::inspect::{
    ANSWER_WITHIN_MS, Answer, LanesAnswer, Question, RankAnswer, StackGroup, Stacks, What, group,
    parse_threads, rank_list,
};
use domain::run::ranks::RankSet;
use domain::run::state::Machine;
use futures::{StreamExt, stream};
use tokio::sync::SemaphorePermit;
use tokio::time::{Instant, timeout_at};

use super::Runs;
use super::agents::Answers;
use super::error::RunError;
use crate::clock;

/// Time limit of an answer: the ranks' own limit, and some time for the way.
const WITHIN: Duration = Duration::from_millis(ANSWER_WITHIN_MS + 10_000);
/// Time limit for Flight Recorders: an agent reads four at once.
const FLIGHTS_WITHIN: Duration = Duration::from_millis(8 * ANSWER_WITHIN_MS + 10_000);
/// Time limit for a trace, to record it or to read its lanes: an agent gives ranks 50 s, and an HTTP request may take one minute.
const TRACE_WITHIN: Duration = Duration::from_secs(56);

/// Number of inspections of all ranks that run at the same time. Each may hold [`HELD_BYTES_MAX`]; traces do not count, because their
/// answers are small. Further requests wait.
pub(super) const QUESTIONS_MAX: usize = 2;
/// How long a request waits until it may run.
const TURN_WITHIN: Duration = Duration::from_secs(5);
/// Number of nodes inspected at the same time. A trace request goes to all nodes at once, because it takes the same time on each.
const NODES_AT_ONCE: usize = 64;
/// Bound of the JSON of all ranks together in one inspection. For later ranks only the problem is reported.
const HELD_BYTES_MAX: usize = 64 << 20;

/// Bounds of the stack groups in an event: number of groups, and characters per group.
const SUMMARY_GROUPS_MAX: usize = 8;
const SUMMARY_CHARS_MAX: usize = 200;

/// Why ranks cannot be inspected.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// The run is unknown or cannot be read.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The run has no living ranks.
    #[error("run {run} has no running ranks, it is {state}; only running ranks can be inspected")]
    NotRunning {
        /// The run.
        run: RunId,
        /// The state of the run.
        state: &'static str,
    },
    /// The run has no such rank.
    #[error("run {run} has no running rank {rank}; its ranks are 0 to {last}")]
    NoRank {
        /// The run.
        run: RunId,
        /// The requested rank.
        rank: Rank,
        /// The highest rank of the run.
        last: u32,
    },
    /// The run was started without the profiler.
    #[error(
        "run {0} was not started with the profiler; submit it with `kineto = true` (--kineto), which prepares PyTorch's profiler for traces"
    )]
    NoKineto(RunId),
    /// The attempt has no such node.
    #[error("no node {node:?} has run {run}")]
    NoNode {
        /// The run.
        run: RunId,
        /// The node.
        node: String,
    },
    /// Too many inspections are running.
    #[error(
        "the ranks of {QUESTIONS_MAX} runs are already being inspected; try again in a few seconds, or inspect a single rank"
    )]
    Busy,
    /// The node is disconnected, did not answer in time, or reported an error.
    #[error("{0}")]
    Unanswered(String),
}

/// The answer of one rank, and its node.
pub struct OfRank {
    /// The node.
    pub node: String,
    /// The answer.
    pub answer: RankAnswer,
}

impl Runs {
    /// Inspects one rank or all living ranks of the current attempt. Each rank has an answer, or the reason why there is none.
    ///
    /// # Errors
    /// Returns an error if the run has no such ranks now, or if too many inspections are running.
    pub async fn ask_ranks(
        &self,
        run: &RunId,
        rank: Option<Rank>,
        what: What,
    ) -> Result<(AttemptNo, Vec<OfRank>), InspectError> {
        let _turn = match (rank, &what) {
            (None, What::Stacks | What::WaitCounters | What::Flight | What::FlightDigest) => {
                Some(self.asking_turn().await?)
            }
            _ => None,
        };
        let ranks = rank.map(|rank| RankSet::from_iter([rank]));
        self.ask_ranks_at_once(run, ranks.as_ref(), what).await
    }

    async fn asking_turn(&self) -> Result<SemaphorePermit<'_>, InspectError> {
        let turn = tokio::time::timeout(TURN_WITHIN, self.asking.acquire()).await;
        turn.ok().and_then(Result::ok).ok_or(InspectError::Busy)
    }

    /// Inspects the `wanted` living ranks of the current attempt, or all, without waiting for a turn. The analysers need no turn: their
    /// answers are small, and they inspect few runs at the same time.
    ///
    /// # Errors
    /// Returns an error if the run has no such ranks now.
    pub(crate) async fn ask_ranks_at_once(
        &self,
        run: &RunId,
        wanted: Option<&RankSet>,
        what: What,
    ) -> Result<(AttemptNo, Vec<OfRank>), InspectError> {
        let view = self.stored_view(run).await?;
        let within = match what {
            What::Trace(_) if !view.spec.kineto => return Err(InspectError::NoKineto(run.clone())),
            What::Trace(_) => TRACE_WITHIN,
            What::Flight | What::FlightDigest => FLIGHTS_WITHIN,
            _ => WITHIN,
        };
        let (attempt, nodes) = living(&view);
        if nodes.is_empty() {
            let state = view.summary.state.as_str();
            return Err(InspectError::NotRunning {
                run: run.clone(),
                state,
            });
        }
        let is_wanted = |of: &RankView| wanted.is_none_or(|wanted| wanted.contains(of.rank));
        let nodes: Vec<(String, Vec<Rank>)> = nodes
            .into_iter()
            .map(|(node, ranks)| {
                let wanted = ranks.into_iter().filter(is_wanted);
                (node, wanted.map(|of| of.rank).collect())
            })
            .filter(|(_, ranks): &(_, Vec<Rank>)| !ranks.is_empty())
            .collect();
        if let (Some(rank), true) = (wanted.and_then(|wanted| wanted.iter().next()), nodes.is_empty()) {
            let last = view.summary.world_size.saturating_sub(1);
            return Err(InspectError::NoRank {
                run: run.clone(),
                rank,
                last,
            });
        }
        let at_once = match what {
            What::Trace(_) => nodes.len(),
            _ => NODES_AT_ONCE,
        };
        let bounds = &Bounds::new(within);
        let id = AttemptId::new(run.clone(), attempt);
        let asked: Vec<_> = nodes
            .iter()
            .map(|(node, ranks)| {
                // A node is asked for one of its ranks or for all.
                let rank = ranks
                    .first()
                    .copied()
                    .filter(|_| wanted.is_some() && ranks.len() == 1);
                let what = what.clone();
                self.ask_node(&id, node, ranks, Question { rank, what }, bounds)
            })
            .collect();
        let answers: Vec<Vec<OfRank>> = stream::iter(asked).buffer_unordered(at_once).collect().await;
        let mut all: Vec<OfRank> = answers.into_iter().flatten().collect();
        all.sort_by_key(|of| of.answer.rank);
        Ok((attempt, all))
    }

    async fn ask_node(
        &self,
        attempt: &AttemptId,
        node: &str,
        ranks: &[Rank],
        question: Question,
        bounds: &Bounds,
    ) -> Vec<OfRank> {
        let in_time = Instant::now() < bounds.until;
        let asked = NodeName::new(node)
            .ok()
            .filter(|_| in_time)
            .and_then(|name| self.agents.ask(&name, attempt, &question));
        let (answers, problem) = match asked {
            None if in_time => (Vec::new(), away(node)),
            None => (Vec::new(), NO_TIME_LEFT.to_owned()),
            Some(asked) => collect(asked, node, bounds).await,
        };
        let of = |rank: &Rank| {
            let found = answers.iter().find(|answer| answer.rank == *rank).cloned();
            let answer = found.unwrap_or_else(|| RankAnswer {
                rank: *rank,
                problem: problem.clone(),
                ..RankAnswer::default()
            });
            OfRank {
                node: node.to_owned(),
                answer,
            }
        };
        ranks.iter().map(of).collect()
    }

    /// Returns a part of a trace file on a node, and the length of the whole file.
    ///
    /// # Errors
    /// Returns an error if the node is disconnected or has no such file, or if the run was never on it.
    pub async fn trace_piece(
        &self,
        run: &RunId,
        attempt: Option<AttemptNo>,
        node: &str,
        file: &str,
        offset: u64,
    ) -> Result<(Vec<u8>, u64), InspectError> {
        let what = What::TracePiece {
            file: file.to_owned(),
            offset,
        };
        match self.ask_about_file(run, attempt, node, what, WITHIN).await? {
            (_, Answer::Piece { length }, bytes) => Ok((bytes, length)),
            _ => Err(InspectError::Unanswered(unreadable(node))),
        }
    }

    /// Returns the lanes of a trace file on a node, and the attempt to which it belongs.
    ///
    /// # Errors
    /// Returns an error if the node is disconnected or has no such file, or if the run was never on it.
    pub async fn trace_lanes(
        &self,
        run: &RunId,
        attempt: Option<AttemptNo>,
        node: &str,
        file: &str,
    ) -> Result<(AttemptNo, LanesAnswer), InspectError> {
        let what = What::TraceLanes {
            file: file.to_owned(),
        };
        match self
            .ask_about_file(run, attempt, node, what, TRACE_WITHIN)
            .await?
        {
            (attempt, Answer::Lanes(answer), _) => Ok((attempt, *answer)),
            _ => Err(InspectError::Unanswered(unreadable(node))),
        }
    }

    /// Asks a node about a trace file of an attempt, by default the current one. Returns the attempt, the answer, and the bytes beside it.
    async fn ask_about_file(
        &self,
        run: &RunId,
        attempt: Option<AttemptNo>,
        node: &str,
        what: What,
        within: Duration,
    ) -> Result<(AttemptNo, Answer, Vec<u8>), InspectError> {
        let view = self.stored_view(run).await?;
        let no = attempt.unwrap_or(view.summary.attempt);
        let of_run = view
            .attempts
            .iter()
            .any(|view| view.attempt == no && view.nodes.iter().any(|task| task.node == node));
        let name = NodeName::new(node).ok().filter(|_| of_run);
        let name = name.ok_or_else(|| InspectError::NoNode {
            run: run.clone(),
            node: node.to_owned(),
        })?;
        let attempt = AttemptId::new(run.clone(), no);
        let asked = self.agents.ask(&name, &attempt, &Question { rank: None, what });
        let mut answers = asked.ok_or_else(|| InspectError::Unanswered(away(node)))?;
        let answer = tokio::time::timeout(within, answers.next()).await;
        let answer = answer.map_err(|_| InspectError::Unanswered(silent(node, within)))?;
        // Without an answer, the node sent only the message that ends the answers.
        let answer = answer.ok_or_else(|| InspectError::Unanswered(unreadable(node)))?;
        match serde_json::from_str(&answer.answer_json) {
            Ok(Answer::Failed { message }) => Err(InspectError::Unanswered(message)),
            Ok(said) => Ok((no, said, answer.bytes)),
            Err(error) => {
                tracing::warn!(%node, %error, "an agent's answer about a trace cannot be read");
                Err(InspectError::Unanswered(unreadable(node)))
            }
        }
    }
}

// === stalled runs ===

/// Returns true if the first rank of a run has stalled, and none was stalled before.
pub(super) fn stands_still(before: Option<&Machine>, after: &Machine) -> bool {
    let stalled = |run: &Machine| {
        run.current()
            .ranks()
            .any(|(_, rank)| rank.stall.is_some() && rank.exit.is_none())
    };
    stalled(after) && !before.is_some_and(stalled)
}

impl Runs {
    /// Requests the stacks of all ranks once, and writes them to the event log: when a person looks, the ranks may already have been ended.
    pub(super) fn note_stacks(self: &Arc<Self>, run: RunId) {
        let runs = Arc::clone(self);
        self.parts.tasks.spawn(async move {
            // However many runs are stalled at once, each waits for its turn.
            let turn = runs.asking.acquire().await;
            let answers = match runs.ask_ranks_at_once(&run, None, What::Stacks).await {
                Ok((_, answers)) => answers,
                Err(error) => {
                    return tracing::warn!(%run, %error, "the stacks of a stalled run cannot be read");
                }
            };
            let message = format!("run {run} is stalled; {}", stack_summary(answers));
            drop(turn);
            let event = Event {
                run: Some(run.to_string()),
                ..Event::new(clock::now_ms(), Severity::Warning, "rank_stacks", message)
            };
            runs.parts.events.append(event).await;
        });
    }
}

/// Returns a summary such as `ranks 0-2: all_reduce at train.py:57; rank 3: data loading at data.py:12`.
fn stack_summary(answers: Vec<OfRank>) -> String {
    let ranks: Vec<RankStacks> = answers.into_iter().map(OfRank::stacks).collect();
    let line = |group: &StackGroup| {
        let doing: String = group.doing.chars().take(SUMMARY_CHARS_MAX).collect();
        format!("{}: {doing}", rank_list(&group.ranks))
    };
    let groups = grouped(&ranks);
    let mut lines: Vec<String> = groups.iter().take(SUMMARY_GROUPS_MAX).map(line).collect();
    if groups.len() > SUMMARY_GROUPS_MAX {
        lines.push(format!("and {} other places", groups.len() - SUMMARY_GROUPS_MAX));
    }
    lines.join("; ")
}

// === answers ===

impl OfRank {
    /// Parses the stacks of the answer.
    #[must_use]
    pub fn stacks(self) -> RankStacks {
        let Self { node, answer } = self;
        let stacks = answer.text.as_deref().map(parse_threads).unwrap_or_default();
        let Stacks { threads, has_main } = stacks;
        let mut problem = answer.problem;
        if problem.is_empty() && threads.is_empty() {
            problem = "answered without stacks".into();
        } else if problem.is_empty() && !has_main {
            problem = format!(
                "has more Python threads than the newest {} that Python reports; the main thread is not among them",
                threads.len()
            );
        }
        RankStacks {
            rank: answer.rank,
            node,
            pid: answer.pid,
            threads,
            cut: answer.cut,
            problem,
            process: answer.process,
        }
    }
}

/// Groups the ranks that are at the same place in the code.
#[must_use]
pub fn grouped(ranks: &[RankStacks]) -> Vec<StackGroup> {
    group(ranks.iter().map(|of| {
        let answered = of.problem.is_empty();
        let stack = if answered {
            Ok(&of.threads[..])
        } else {
            Err(of.problem.as_str())
        };
        (of.rank, stack)
    }))
}

/// Returns the ranks of the current attempt that have not ended, by node.
fn living(view: &RunView) -> (AttemptNo, Vec<(String, Vec<RankView>)>) {
    let attempt = view.attempts.last().filter(|_| !view.summary.state.is_final());
    let ranks = |task: &NodeTaskView| {
        let living = task
            .ranks
            .iter()
            .filter(|rank| rank.pid.is_some() && rank.exit.is_none());
        (task.node.clone(), living.cloned().collect::<Vec<_>>())
    };
    let nodes = attempt.iter().flat_map(|attempt| &attempt.nodes).map(ranks);
    let nodes = nodes.filter(|(_, ranks)| !ranks.is_empty()).collect();
    (view.summary.attempt, nodes)
}

/// The bounds of one inspection, for all its nodes together.
struct Bounds {
    /// Time limit of each node.
    within: Duration,
    /// The time at which the whole inspection ends, also for nodes that are requested last.
    until: Instant,
    /// Bytes of the answers received so far.
    held: AtomicUsize,
}

impl Bounds {
    fn new(within: Duration) -> Self {
        Self {
            within,
            until: Instant::now() + TRACE_WITHIN,
            held: AtomicUsize::new(0),
        }
    }

    /// Returns the answer, without its long parts if the bound is exceeded.
    fn take(&self, bytes: usize, mut answer: RankAnswer) -> RankAnswer {
        let held = self
            .held
            .fetch_add(bytes, Ordering::Relaxed)
            .saturating_add(bytes);
        let is_long = answer.json.is_some() || answer.text.is_some() || answer.digest.is_some();
        if held > HELD_BYTES_MAX && is_long {
            self.held.fetch_sub(bytes, Ordering::Relaxed);
            (answer.json, answer.text, answer.digest) = (None, None, None);
            answer.problem =
                "answered, but the answers of all ranks are too large; inspect this rank alone".to_owned();
        }
        answer
    }
}

/// Returns the received answers, and the problem to report for ranks without an answer.
async fn collect(mut asked: Answers, node: &str, bounds: &Bounds) -> (Vec<RankAnswer>, String) {
    let mut answers = Vec::new();
    let mut problem = "has ended".to_owned();
    let until = bounds.until.min(Instant::now() + bounds.within);
    let all = async {
        while let Some(answer) = asked.next().await {
            let bytes = answer.answer_json.len();
            match serde_json::from_str(&answer.answer_json) {
                Ok(Answer::Rank(answer)) => answers.push(bounds.take(bytes, *answer)),
                Ok(Answer::Failed { message }) => problem = message,
                Ok(Answer::Piece { .. } | Answer::Lanes(_)) | Err(_) => {
                    tracing::warn!(%node, "an agent's answer to an inspection request cannot be read");
                }
            }
        }
    };
    if timeout_at(until, all).await.is_err() {
        problem = silent(node, bounds.within);
    }
    (answers, problem)
}

const NO_TIME_LEFT: &str =
    "was not inspected, because the other nodes took all the time; inspect this rank alone";

fn away(node: &str) -> String {
    format!(
        "the agent of {node} is not connected; its ranks continue, and can be inspected when it reconnects"
    )
}

fn silent(node: &str, within: Duration) -> String {
    format!(
        "the agent of {node} has not answered within {} s; it may be older than this collector",
        within.as_secs()
    )
}

fn unreadable(node: &str) -> String {
    format!("the answer of the agent of {node} cannot be read; the agent may be newer than this collector")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_all_ranks_together_are_bounded_and_problems_always_shown() {
        let bounds = Bounds::new(WITHIN);
        let text = || RankAnswer {
            text: Some("Thread".to_owned()),
            ..RankAnswer::default()
        };
        let problem = RankAnswer {
            problem: "has ended".to_owned(),
            ..RankAnswer::default()
        };
        assert_eq!(bounds.take(HELD_BYTES_MAX - 1, text()), text());
        let surplus = bounds.take(2, text());
        assert!(
            surplus.text.is_none() && surplus.problem.contains("alone"),
            "{surplus:?}"
        );
        assert_eq!(bounds.take(1, text()), text(), "a smaller one fits");
        assert_eq!(bounds.take(100, problem.clone()), problem);
    }

    #[test]
    fn a_rank_without_its_main_thread_is_in_no_group_of_stacks() {
        let of = |text: &str| {
            let answer = RankAnswer {
                text: Some(text.to_owned()),
                ..RankAnswer::default()
            };
            let node = "a".to_owned();
            OfRank { node, answer }.stacks()
        };
        let thread = "Thread 0x1 (most recent call first):\n  File \"/t.py\", line 3 in f\n\n";
        let groups = grouped(&[of(thread)]);
        assert_eq!(groups[0].doing, "f at t.py:3");
        let missing = of(&format!("{thread}...\n"));
        assert_eq!(missing.threads.len(), 1);
        let groups = grouped(&[missing]);
        assert!(
            groups[0].doing.contains("main thread is not among them"),
            "{groups:?}"
        );
        assert!(groups[0].frames.is_empty());
    }
}
