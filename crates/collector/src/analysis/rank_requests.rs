//! Inspects ranks for the analysers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::diagnosis::analysis::{Measurement, RankRequest, STACK_SAMPLES, STACK_SECONDS};
use domain::diagnosis::input::{FlightAnswer, StackAnswer};
use domain::ident::{AttemptNo, Rank, RunId};
use domain::run::inspect::What;
use domain::run::ranks::RankSet;
use futures::future;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::clock;
use crate::runs::{OfRank, Runs};

/// Number of runs whose ranks are inspected at the same time. The requests of other runs wait in their tasks, one per run.
pub(super) const RUNS_AT_ONCE: usize = 4;
/// Bound of the answers that wait for the analysers: not more than the number of inspected runs.
pub(super) const ANSWERS_MAX: usize = 64;

/// How long the last sample of a stack may take: a live rank answers within milliseconds, on a busy node within a second.
const LAST_SAMPLE_WITHIN: Duration = Duration::from_secs(1);

/// The answers of the ranks of an attempt.
pub(super) struct Answered {
    pub(super) run: RunId,
    pub(super) attempt: AttemptNo,
    pub(super) measurement: Measurement,
}

/// Inspects the ranks and sends the answers back. A rank that does not answer gets an answer that says so.
pub(super) async fn inspect(
    runs: Arc<Runs>,
    run: RunId,
    attempt: AttemptNo,
    request: RankRequest,
    answers: mpsc::Sender<Answered>,
) {
    let measurement = match request {
        RankRequest::Flight { suspected_ms, ranks } => Measurement::Flight {
            suspected_ms,
            answers: flight(&runs, &run, &ranks).await,
        },
        RankRequest::Stacks { suspected_ms, ranks } => Measurement::Stacks {
            suspected_ms,
            answers: stacks(&runs, &run, &ranks).await,
        },
    };
    let answered = Answered {
        run,
        attempt,
        measurement,
    };
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

/// Takes stack samples at even intervals. A rank that does not answer in time has fewer samples. Such ranks do not delay later samples, and
/// the last sample has the same time limit as all others: a rank that holds Python's lock answers none of them.
async fn stacks(runs: &Runs, run: &RunId, ranks: &RankSet) -> Vec<StackAnswer> {
    let gap = Duration::from_secs_f64(STACK_SECONDS / f64::from(STACK_SAMPLES - 1).max(1.0));
    let until = Instant::now() + Duration::from_secs_f64(STACK_SECONDS) + LAST_SAMPLE_WITHIN;
    let rounds = (0..STACK_SAMPLES).map(|number| async move {
        tokio::time::sleep(number * gap).await;
        let answered = answers(runs, run, ranks, What::Stacks);
        tokio::time::timeout_at(until, answered).await.unwrap_or_default()
    });
    let mut of_ranks: BTreeMap<Rank, StackAnswer> = BTreeMap::new();
    for of in future::join_all(rounds).await.into_iter().flatten() {
        let (rank, pipe) = (of.answer.rank, of.answer.pipe_without_writer.clone());
        let stacks = of.stacks();
        let main = stacks.threads.into_iter().next_back();
        let Some(main) = main.filter(|_| stacks.problem.is_empty()) else {
            continue;
        };
        let of_rank = of_ranks.entry(rank).or_insert_with(|| StackAnswer {
            rank,
            at_ms: clock::now_ms(),
            samples: Vec::new(),
            pipe_without_writer: pipe.clone(),
        });
        of_rank.samples.push(main.frames);
        if of_rank.pipe_without_writer != pipe {
            of_rank.pipe_without_writer = None;
        }
    }
    of_ranks.into_values().collect()
}

async fn answers(runs: &Runs, run: &RunId, ranks: &RankSet, what: What) -> Vec<OfRank> {
    match runs.ask_ranks_at_once(run, Some(ranks), what).await {
        Ok((_, answers)) => answers,
        Err(error) => {
            tracing::warn!(%run, %error, "the ranks of a run cannot be inspected for a diagnosis");
            Vec::new()
        }
    }
}
