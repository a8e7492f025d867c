//! The answers of simulated ranks when the collector requests their stacks or their position in the collectives.

use domain::diagnosis::input::Phase;
use domain::ident::Rank;
use domain::run::inspect::{
    Answer, FlightDigest, GroupDigest, Operation, ProcessState, Question, RankAnswer, What,
};
use domain::run::ranks::RankSet;
use domain::time::TimestampMs;

use crate::attempt::{Attempt, Held, NodeIndex};
use crate::fault::Hold;
use crate::scenario::WaitPath;

/// The number of collectives in one step: one per bucket of gradients.
const COLLECTIVES_PER_STEP: u64 = 4;
const ELEMENTS: &str = "[6553600]";
/// The stack of a rank that works changes this often, and has this many different lines.
const LINE_MS: TimestampMs = 300;
const LINES: TimestampMs = 97;

/// Returns the answers of the ranks of one node.
pub(crate) fn answers(
    of: &Attempt,
    node: NodeIndex,
    question: &Question,
    now_ms: TimestampMs,
) -> Vec<Answer> {
    let asked = |rank: &u32| question.rank.is_none_or(|Rank(only)| only == *rank);
    let ranks = of.ranks_on(node).map(|(rank, _)| rank).filter(asked);
    match question.what {
        What::Stacks => ranks.map(|rank| answer(stacks(of, rank, now_ms))).collect(),
        What::FlightDigest => ranks.map(|rank| answer(flight(of, rank, now_ms))).collect(),
        _ => vec![Answer::Failed {
            message: "a simulated rank supports only stacks and its position in the collectives".to_owned(),
        }],
    }
}

fn answer(answer: RankAnswer) -> Answer {
    Answer::Rank(Box::new(answer))
}

fn held(of: &Attempt, rank: u32) -> Option<Held> {
    of.held().filter(|held| held.rank == rank)
}

/// Returns the answer for a process that does not answer, if it does not.
fn silence(of: &Attempt, rank: u32) -> Option<RankAnswer> {
    match held(of, rank)?.hold {
        Hold::Stopped => Some(RankAnswer {
            rank: Rank(rank),
            problem: "the process is stopped and does not answer".to_owned(),
            process: Some(ProcessState {
                state: "T (stopped)".to_owned(),
                wchan: "do_signal_stop".to_owned(),
                ..ProcessState::default()
            }),
            ..RankAnswer::default()
        }),
        Hold::HoldsInterpreter => Some(RankAnswer {
            rank: Rank(rank),
            problem: "the rank does not answer".to_owned(),
            process: Some(ProcessState {
                state: "R (running)".to_owned(),
                syscall: "running".to_owned(),
                ..ProcessState::default()
            }),
            ..RankAnswer::default()
        }),
        _ => None,
    }
}

fn stacks(of: &Attempt, rank: u32, now_ms: TimestampMs) -> RankAnswer {
    if let Some(silence) = silence(of, rank) {
        return silence;
    }
    let frames = match held(of, rank).filter(|held| held.hold != Hold::OtherOperation) {
        Some(held) => of_held(held),
        None if of.waits(rank, now_ms) => {
            "  File \"/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py\", line 3004 in all_reduce\n  File \"/srv/train.py\", line 214 in step\n".to_owned()
        }
        None => format!(
            "  File \"/venv/lib/python3.11/site-packages/torch/autograd/graph.py\", line 824 in _engine_run_backward\n  File \"/srv/model.py\", line {} in step\n",
            100 + now_ms / LINE_MS % LINES
        ),
    };
    RankAnswer {
        rank: Rank(rank),
        pid: Some(4_100 + rank % of.nproc),
        text: Some(format!(
            "Current thread 0x00007f15f1ffeb80 (most recent call first):\n{frames}  File \"/srv/train.py\", line 240 in <module>\n"
        )),
        ..RankAnswer::default()
    }
}

/// Returns the calls of a rank that stays where it is.
fn of_held(held: Held) -> String {
    let function = match held.phase {
        Phase::Data => "next_batch",
        Phase::Forward => "forward",
        Phase::Backward => "backward_hook",
        Phase::Optimizer => "optimizer_step",
        Phase::Save => "write_shard",
        _ => "between_steps",
    };
    format!("  File \"/srv/model.py\", line 71 in {function}\n  File \"/srv/train.py\", line 198 in step\n")
}

fn flight(of: &Attempt, rank: u32, now_ms: TimestampMs) -> RankAnswer {
    if let Some(silence) = silence(of, rank) {
        return silence;
    }
    let done = of.training().map_or(0, crate::training::Training::step) * COLLECTIVES_PER_STEP;
    let is_in_other = held(of, rank).is_some_and(|held| held.hold == Hold::OtherOperation);
    let waits = is_in_other || of.waits(rank, now_ms);
    let (backend, has_started) = match of.scenario.waits {
        WaitPath::Demo => ("nccl", Some(true)),
        // Without the timing of kernels, which is off by default, NCCL's recorder does not know.
        WaitPath::Nccl { .. } => ("nccl", None),
        WaitPath::Gloo => ("gloo", None),
    };
    let name = if is_in_other { "broadcast" } else { "all_reduce" };
    let group = GroupDigest {
        name: "0".to_owned(),
        description: "default_pg".to_owned(),
        backend: backend.to_owned(),
        members: (0..of.ranks()).map(Rank).collect::<RankSet>(),
        last_enqueued: Some(done + u64::from(waits)),
        last_completed: Some(done),
        oldest_unfinished: waits.then(|| Operation {
            sequence: done + 1,
            name: format!("{backend}:{name}"),
            sizes: ELEMENTS.to_owned(),
            dtypes: "[BFloat16]".to_owned(),
            has_started,
            ..Operation::default()
        }),
    };
    RankAnswer {
        rank: Rank(rank),
        digest: Some(FlightDigest {
            groups: vec![group],
            groups_left_out: 0,
        }),
        ..RankAnswer::default()
    }
}
