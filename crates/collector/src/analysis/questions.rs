//! Asks ranks what the analysers want to know.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::diagnosis::analysis::{Question, STACK_SAMPLES, STACK_SECONDS, Tick};
use domain::diagnosis::input::{FlightAnswer, StackAnswer};
use domain::ident::{AttemptNo, Rank, RunId};
use domain::run::inspect::{Frame, What};
use domain::run::ranks::RankSet;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use crate::clock;
use crate::runs::{OfRank, Runs};

/// Runs whose ranks are asked at a time. The questions of other runs wait in their tasks: one per run.
pub(super) const RUNS_AT_ONCE: usize = 4;
/// Answers that wait for the analysers: no more than there are runs asked.
pub(super) const ANSWERS_MAX: usize = 64;

/// What the ranks of an attempt have answered.
pub(super) struct Answered {
    pub(super) run: RunId,
    pub(super) attempt: AttemptNo,
    pub(super) tick: Tick,
}

/// Asks, and sends the answers back. Ranks that do not answer get an answer that says so.
pub(super) async fn ask(
    runs: Arc<Runs>,
    run: RunId,
    attempt: AttemptNo,
    question: Question,
    answers: mpsc::Sender<Answered>,
) {
    let tick = match &question {
        Question::Flight { ranks } => Tick::Flight(flight(&runs, &run, ranks).await),
        Question::Stacks { ranks } => Tick::Stacks(stacks(&runs, &run, ranks).await),
    };
    let answered = Answered { run, attempt, tick };
    let _analysers_are_gone = answers.send(answered).await;
}

async fn flight(runs: &Runs, run: &RunId, ranks: &RankSet) -> Vec<FlightAnswer> {
    let answers = answers(runs, run, ranks, What::FlightDigest).await;
    let at_ms = clock::now_ms();
    let answer = |of: OfRank| FlightAnswer {
        rank: of.answer.rank,
        at_ms,
        digest: of.answer.digest,
    };
    answers.into_iter().map(answer).collect()
}

/// Samples at even distances; a rank that does not answer one of them has fewer.
async fn stacks(runs: &Runs, run: &RunId, ranks: &RankSet) -> Vec<StackAnswer> {
    let mut samples: BTreeMap<Rank, Vec<Vec<Frame>>> = BTreeMap::new();
    let gaps = f64::from(STACK_SAMPLES - 1).max(1.0);
    let mut ticks = interval(Duration::from_secs_f64(STACK_SECONDS / gaps));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for _ in 0..STACK_SAMPLES {
        ticks.tick().await;
        for of in answers(runs, run, ranks, What::Stacks).await {
            let rank = of.answer.rank;
            let of_rank = samples.entry(rank).or_default();
            let stacks = of.stacks();
            if stacks.problem.is_empty() {
                of_rank.extend(stacks.threads.into_iter().next_back().map(|main| main.frames));
            }
        }
    }
    let at_ms = clock::now_ms();
    let answer = |(rank, samples)| StackAnswer { rank, at_ms, samples };
    samples.into_iter().map(answer).collect()
}

async fn answers(runs: &Runs, run: &RunId, ranks: &RankSet, what: What) -> Vec<OfRank> {
    match runs.ask_some_ranks(run, ranks, what).await {
        Ok(answers) => answers,
        Err(error) => {
            tracing::warn!(%run, %error, "the ranks of a run cannot be asked for a diagnosis");
            Vec::new()
        }
    }
}
