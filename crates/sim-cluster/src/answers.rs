//! The answers of simulated ranks when the collector requests their stacks or their position in the collectives.

use domain::ident::Rank;
use domain::run::inspect::{
    Answer, FlightDigest, GroupDigest, Operation, ProcessState, Question, RankAnswer, What,
};
use domain::run::ranks::RankSet;

use crate::attempt::{Attempt, AttemptPhase, NodeIndex};

/// The number of collectives in one step: one per bucket of gradients.
const COLLECTIVES_PER_STEP: u64 = 4;
const ELEMENTS: &str = "[6553600]";

/// Returns the answers of the ranks of one node.
pub(crate) fn answers(of: &Attempt, node: NodeIndex, question: &Question) -> Vec<Answer> {
    let asked = |rank: &u32| question.rank.is_none_or(|Rank(only)| only == *rank);
    let ranks = of.ranks_on(node).map(|(rank, _)| rank).filter(asked);
    match question.what {
        What::Stacks => ranks.map(|rank| answer(stacks(of, rank))).collect(),
        What::FlightDigest => ranks.map(|rank| answer(flight(of, rank))).collect(),
        _ => vec![Answer::Failed {
            message: "a simulated rank supports only stacks and its position in the collectives".to_owned(),
        }],
    }
}

fn answer(answer: RankAnswer) -> Answer {
    Answer::Rank(Box::new(answer))
}

fn is_stopped(of: &Attempt, rank: u32) -> bool {
    matches!(of.phase, AttemptPhase::Frozen { stopped: Some(stopped), .. } if stopped == rank)
}

fn stopped(rank: u32) -> RankAnswer {
    RankAnswer {
        rank: Rank(rank),
        problem: "the process is stopped and does not answer".to_owned(),
        process: Some(ProcessState {
            state: "T (stopped)".to_owned(),
            wchan: "do_signal_stop".to_owned(),
            ..ProcessState::default()
        }),
        ..RankAnswer::default()
    }
}

fn stacks(of: &Attempt, rank: u32) -> RankAnswer {
    if is_stopped(of, rank) {
        return stopped(rank);
    }
    let frames = if matches!(of.phase, AttemptPhase::Frozen { .. }) {
        "  File \"/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py\", line 3004 in all_reduce\n  File \"/srv/train.py\", line 214 in step\n"
    } else {
        "  File \"/venv/lib/python3.11/site-packages/torch/autograd/graph.py\", line 824 in _engine_run_backward\n  File \"/srv/train.py\", line 212 in step\n"
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

fn flight(of: &Attempt, rank: u32) -> RankAnswer {
    if is_stopped(of, rank) {
        return stopped(rank);
    }
    let done = of.training().map_or(0, crate::training::Training::step) * COLLECTIVES_PER_STEP;
    let waits = matches!(of.phase, AttemptPhase::Frozen { .. });
    let group = GroupDigest {
        name: "0".to_owned(),
        description: "default_pg".to_owned(),
        backend: "nccl".to_owned(),
        members: (0..of.ranks()).map(Rank).collect::<RankSet>(),
        last_enqueued: Some(done + u64::from(waits)),
        last_completed: Some(done),
        oldest_unfinished: waits.then(|| Operation {
            sequence: done + 1,
            name: "nccl:all_reduce".to_owned(),
            sizes: ELEMENTS.to_owned(),
            dtypes: "[BFloat16]".to_owned(),
            has_started: Some(true),
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
