//! What ranks report about themselves is stored with their attempt, whenever it arrives, and does not change the run's state.

use super::*;
use crate::run::mesh::RankMesh;
use crate::run::unobserved::{RankUnobserved, UnobservedLine};

fn mesh(rank: u32) -> NodeReport {
    NodeReport::RankMesh(RankMesh {
        rank: Rank(rank),
        axes: vec!["data".into(), "tensor".into()],
        sizes: vec![2, 2],
        coordinates: vec![rank / 2, rank % 2],
    })
}

fn silent(rank: u32) -> NodeReport {
    NodeReport::RankUnobserved(RankUnobserved {
        rank: Rank(rank),
        silent: true,
        ..RankUnobserved::default()
    })
}

#[test]
fn the_last_reports_of_ranks_are_kept_after_the_end_of_the_run() {
    let mut story = Story::running(2, 0);
    story.report("n1", mesh(3));
    story.end_all(0);
    assert_eq!(story.machine.state, RunState::Succeeded);
    let ended = story.machine.clone();
    assert!(story.report("n0", silent(0)).is_empty() && story.report("n0", mesh(0)).is_empty());
    story.report("n9", silent(1));
    let view = RunView::from(&story.machine);
    let attempt = &view.attempts[0];
    let mesh = attempt.mesh.as_ref().unwrap();
    assert_eq!(mesh.group(Rank(0), 0), [Rank(0)]);
    assert_eq!(mesh.ranks.len(), 2);
    let [UnobservedLine { ranks, .. }] = attempt.unseen.as_slice() else {
        panic!("{:?}", attempt.unseen)
    };
    assert_eq!(
        ranks.to_string(),
        "0",
        "reports of a node without a task are ignored"
    );
    assert_eq!(
        (story.machine.state, &story.machine.outcome),
        (ended.state, &ended.outcome)
    );
    let stored = serde_json::to_string(&V1::from(&story.machine)).unwrap();
    assert_eq!(
        Machine::from(serde_json::from_str::<V1<'_>>(&stored).unwrap()),
        story.machine
    );
}

#[test]
fn each_attempt_keeps_its_own() {
    let mut story = Story::running(1, 0);
    story.report("n0", mesh(0));
    let first = story.machine.current().no;
    story.end_all(1);
    story.event(&Event::ResumeRequested {
        from: None,
        from_start: true,
    });
    story.run_attempt();
    assert_ne!(story.machine.current().no, first);
    assert_eq!(story.machine.current().findings.mesh, None);
    story.event(&Event::Reported {
        attempt: first,
        node: node("n0"),
        report: silent(1),
    });
    assert!(story.machine.current().findings.unobserved.is_empty());
    assert_eq!(story.machine.attempts[0].findings.unobserved.lines().len(), 1);
}
