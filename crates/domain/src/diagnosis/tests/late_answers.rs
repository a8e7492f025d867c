//! Answers of ranks that arrive after the ranks have moved.

use crate::diagnosis::analysis::{Analysis, AnalysisOutput, Measurement, Member, RankRequest};
use crate::diagnosis::finding::{Cause, Culprit, FindingKind};
use crate::diagnosis::input::{FlightAnswer, Page, Phase, Position, ProcessCondition, StackAnswer};
use crate::ident::{NodeName, Rank};
use crate::run::inspect::{FlightDigest, Frame, GroupDigest, Operation};
use crate::time::TimestampMs;

fn node() -> NodeName {
    NodeName::new("a").expect("a name")
}

/// Two ranks: rank 0 waits, and rank 1 is in its optimizer. Both last moved at `moved_ms`.
fn advance(analysis: &mut Analysis, at_ms: TimestampMs, moved_ms: TimestampMs) -> AnalysisOutput {
    for (rank, phase) in [(0, Phase::Collective), (1, Phase::Optimizer)] {
        let page = Page {
            step: 5,
            phase,
            in_phase_s: (at_ms - moved_ms) as f64 / 1e3,
            moves: 7,
        };
        analysis.take(Measurement::Position(Position {
            rank: Rank(rank),
            node: node(),
            at_ms,
            process: ProcessCondition::Alive,
            page: Some(page),
        }));
    }
    analysis.advance(at_ms)
}

/// Returns the beginnings of the suspicions for which stacks, or else Flight Recorders, are requested.
fn requested(output: &AnalysisOutput, stacks: bool) -> Vec<TimestampMs> {
    let of = |request: &RankRequest| match request {
        RankRequest::Stacks { suspected_ms, .. } => stacks.then_some(*suspected_ms),
        RankRequest::Flight { suspected_ms, .. } => (!stacks).then_some(*suspected_ms),
    };
    output.requests.iter().filter_map(of).collect()
}

fn stacks(suspected_ms: TimestampMs, rank: u32, functions: [&str; 2]) -> Measurement {
    let sample = |function: &str| {
        vec![Frame {
            file: "train.py".to_owned(),
            line: 10,
            function: function.to_owned(),
        }]
    };
    let answer = StackAnswer {
        rank: Rank(rank),
        at_ms: 0,
        samples: functions.map(sample).to_vec(),
        pipe_without_writer: None,
    };
    Measurement::Stacks {
        suspected_ms,
        answers: vec![answer],
    }
}

/// Rank `late` has not enqueued the operation in which the other one waits.
fn flight(suspected_ms: TimestampMs, late: u32) -> Measurement {
    let answer = |rank: u32| {
        let operation = Operation {
            sequence: 41,
            name: "gloo:all_reduce".to_owned(),
            ..Operation::default()
        };
        let world = GroupDigest {
            name: "0".to_owned(),
            backend: "gloo".to_owned(),
            members: [0, 1].map(Rank).into_iter().collect(),
            last_enqueued: Some(if rank == late { 40 } else { 41 }),
            oldest_unfinished: (rank != late).then_some(operation),
            ..GroupDigest::default()
        };
        FlightAnswer {
            rank: Rank(rank),
            at_ms: 0,
            digest: Some(FlightDigest {
                groups: vec![world],
                ..FlightDigest::default()
            }),
        }
    };
    Measurement::Flight {
        suspected_ms,
        answers: [0, 1].map(answer).to_vec(),
    }
}

#[test]
fn answers_about_an_earlier_stall_are_not_used_for_a_hang() {
    let member = |rank| Member {
        rank: Rank(rank),
        node: node(),
        role: None,
        data_group: None,
    };
    let mut analysis = Analysis::new([0, 1].map(member).to_vec());
    let (mut of_stacks, mut of_flight, mut last) = (Vec::new(), Vec::new(), AnalysisOutput::default());
    for second in 0..25 {
        let at_ms = second * 1_000;
        // The ranks stall for eight seconds, move once, and then hang.
        last = advance(&mut analysis, at_ms, if second < 8 { 0 } else { 8_000 });
        of_stacks.extend(requested(&last, true));
        of_flight.extend(requested(&last, false));
        if second == 12 {
            // In the stall, rank 0 was late, and rank 1 computed.
            analysis.take(flight(of_flight[0], 0));
            analysis.take(stacks(of_stacks[0], 1, ["forward", "backward"]));
        }
        if second == 17 {
            // In the hang, rank 1 is late, and does not answer.
            analysis.take(flight(of_flight[1], 1));
            analysis.take(stacks(of_stacks[1], 0, ["wait", "wait"]));
        }
    }
    assert_eq!((of_stacks.len(), of_flight.len()), (2, 2));
    let found = last.findings.first().expect("a hang");
    assert_eq!(
        (&found.kind, &found.cause),
        (&FindingKind::Hang, &Cause::HoldsInterpreter)
    );
    let Culprit::Ranks { ranks, .. } = &found.culprit else {
        panic!("a rank: {found:?}")
    };
    assert_eq!(ranks.only(), Some(Rank(1)));
}
