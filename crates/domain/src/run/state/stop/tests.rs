//! Scenario tests of stops that wait for a stop point.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::api::runs::RunView;
use crate::ident::{AttemptNo, Rank, RunId};
use crate::run::spec::Spec;
use crate::run::state::{Event, NodeEnd, Prepared, RankExit, Task, advance};
use crate::run::stored::V1;

const GRACE_MS: u64 = 60_000;

/// A run on two nodes with one rank each, and its clock.
struct Story {
    machine: Machine,
    now_ms: i64,
}

impl Story {
    fn running() -> Self {
        let spec = Spec {
            recipe: Some("ddp".into()),
            nodes: Some(2),
            nproc_per_node: Some(1),
            max_restarts: 3,
            ..Spec::default()
        };
        let (machine, _) = Machine::submit(RunId::new("ddp-1").unwrap(), spec, 0);
        let mut story = Self { machine, now_ms: 0 };
        let attempt = story.machine.current().no;
        story.event(&Event::Placed {
            attempt,
            nodes: ["n0", "n1"].map(|name| NodeName::new(name).unwrap()).into(),
        });
        for name in ["n0", "n1"] {
            story.report(name, NodeReport::Prepared(Prepared::default()));
        }
        for rank in [0, 1] {
            let started = NodeReport::RankStarted {
                rank: Rank(rank),
                local_rank: 0,
                pid: 7,
            };
            story.report(&format!("n{rank}"), started);
        }
        assert_eq!(story.machine.state, RunState::Running);
        story
    }

    fn event(&mut self, event: &Event) -> Vec<String> {
        self.now_ms += 10;
        let (machine, actions) = advance(&self.machine, event, self.now_ms);
        self.machine = machine;
        let words = actions.iter().filter_map(|action| match &action.task {
            Task::Command {
                node,
                command: NodeCommand::StopAfter { step, grace_ms },
            } => Some(format!("{node} after {step} {grace_ms}")),
            Task::Command {
                node,
                command: NodeCommand::Stop { grace_ms },
            } => Some(format!("{node} now {grace_ms}")),
            _ => None,
        });
        words.collect()
    }

    fn stop(&mut self, after: Option<StopPoint>) -> Vec<String> {
        self.event(&Event::StopRequested {
            grace_ms: GRACE_MS,
            after,
        })
    }

    fn report(&mut self, name: &str, report: NodeReport) -> Vec<String> {
        let attempt = self.machine.current().no;
        let node = NodeName::new(name).unwrap();
        self.event(&Event::Reported {
            attempt,
            node,
            report,
        })
    }

    fn reaches(&mut self, rank: u32, step: u64) -> Vec<String> {
        let report = NodeReport::StopStep {
            rank: Rank(rank),
            step,
        };
        self.report(&format!("n{rank}"), report)
    }

    /// The rank ends, and then its node task.
    fn ends(&mut self, rank: u32, code: i32) -> Vec<String> {
        let name = format!("n{rank}");
        let exit = RankExit {
            rank: Rank(rank),
            code: Some(code),
            ..RankExit::default()
        };
        let mut words = self.report(&name, NodeReport::RankExited(exit));
        let end = NodeEnd {
            code: Some(code.min(1)),
            ..NodeEnd::default()
        };
        words.extend(self.report(&name, NodeReport::Ended(end)));
        words
    }

    fn wait(&mut self, ms: u64) -> Vec<String> {
        self.now_ms += i64::try_from(ms).unwrap();
        self.event(&Event::Tick)
    }

    fn save(&mut self, step: u64) -> Vec<String> {
        self.machine
            .checkpoints
            .push(saved(&format!("/c/{step}"), Some(step), 1));
        self.event(&Event::Tick)
    }

    fn end(&self) -> (RunState, String) {
        (
            self.machine.state,
            self.machine.outcome.as_ref().unwrap().message.to_string(),
        )
    }
}

fn saved(path: &str, step: Option<u64>, finished_ms: i64) -> Checkpoint {
    Checkpoint {
        path: path.into(),
        step,
        finished_ms: Some(finished_ms),
        complete: true,
        ..Checkpoint::default()
    }
}

const NOTHING: [&str; 0] = [];

#[test]
fn all_ranks_end_by_themselves_after_the_agreed_step() {
    let mut story = Story::running();
    let orders = story.stop(Some(StopPoint::Step(40)));
    assert_eq!(orders, ["n0 after 40 60000", "n1 after 40 60000"]);
    assert_eq!(story.machine.state, RunState::Running);
    assert_eq!(RunView::from(&story.machine).stop.unwrap().after_step, Some(40));
    assert_eq!(story.reaches(1, 40), NOTHING);
    assert_eq!(story.machine.state, RunState::Stopping);
    // The way the ranks end does not matter: a script may exit with 143 after a signal, or fail because a peer has gone.
    assert_eq!(story.ends(1, 143), NOTHING);
    assert_eq!(story.reaches(0, 40), NOTHING);
    assert_eq!(story.ends(0, 1), NOTHING);
    assert_eq!(
        story.end(),
        (RunState::Stopped, "stopped as asked, after step 40".to_owned())
    );
    assert_eq!(RunView::from(&story.machine).stop, None);
}

#[test]
fn a_rank_that_never_comes_to_the_step_is_stopped_in_the_ordinary_way() {
    let mut story = Story::running();
    story.stop(Some(StopPoint::Step(40)));
    story.wait(10 * GRACE_MS);
    assert_eq!(story.machine.state, RunState::Running, "the step may be far");
    story.reaches(0, 40);
    assert_eq!(story.ends(0, 0), NOTHING);
    assert_eq!(story.wait(GRACE_MS / 2), NOTHING);
    assert_eq!(story.wait(GRACE_MS), ["n1 now 60000"]);
    story.ends(1, 1);
    assert_eq!(story.end().0, RunState::Stopped);
}

#[test]
fn a_rank_whose_word_was_lost_is_known_by_its_last_step() {
    let mut story = Story::running();
    story.stop(Some(StopPoint::Step(40)));
    for rank in [0, 1] {
        let exit = RankExit {
            rank: Rank(rank),
            signal: Some(15),
            last_step: Some(40),
            ..RankExit::default()
        };
        assert_eq!(
            story.report(&format!("n{rank}"), NodeReport::RankExited(exit)),
            NOTHING
        );
    }
    story.ends(0, 1);
    story.ends(1, 1);
    assert_eq!(
        story.end(),
        (RunState::Stopped, "stopped as asked, after step 40".to_owned())
    );
}

#[test]
fn a_failure_before_the_step_ends_the_run_at_once_and_is_no_reason_to_restart() {
    let mut story = Story::running();
    story.stop(Some(StopPoint::Step(40)));
    assert_eq!(story.ends(1, 1), ["n0 now 60000", "n1 now 60000"]);
    story.ends(0, 1);
    assert_eq!(
        story.end(),
        (RunState::Stopped, "stopped as asked, before step 40".to_owned())
    );
    assert_eq!(story.machine.attempts.len(), 1);
}

#[test]
fn a_run_that_is_done_before_the_step_has_succeeded() {
    let mut story = Story::running();
    story.stop(Some(StopPoint::Step(40)));
    story.ends(0, 0);
    story.ends(1, 0);
    assert_eq!(story.end().0, RunState::Succeeded);
}

#[test]
fn an_agent_that_does_not_know_the_order_is_stopped_and_is_not_taken_for_gone() {
    let mut story = Story::running();
    story.stop(Some(StopPoint::Step(40)));
    let order = story.machine.stop.as_ref().unwrap().orders[1];
    let refused = NodeReport::Refused {
        command: order.into(),
        reason: "unknown variant".into(),
    };
    assert_eq!(story.report("n1", refused), ["n0 now 60000", "n1 now 60000"]);
    assert_eq!(story.machine.busy_nodes().count(), 2);
}

#[test]
fn a_step_once_agreed_stays_and_a_stop_at_once_overtakes_it() {
    let mut story = Story::running();
    story.stop(Some(StopPoint::Step(40)));
    assert_eq!(story.stop(Some(StopPoint::Step(90))), NOTHING);
    assert_eq!(story.stop(Some(StopPoint::Checkpoint)), NOTHING);
    assert_eq!(RunView::from(&story.machine).stop.unwrap().after_step, Some(40));
    assert_eq!(story.stop(None), ["n0 now 60000", "n1 now 60000"]);
}

#[test]
fn the_next_complete_checkpoint_ends_the_run() {
    let mut story = Story::running();
    story.save(10);
    assert_eq!(story.stop(Some(StopPoint::Checkpoint)), NOTHING);
    assert!(RunView::from(&story.machine).stop.unwrap().after_checkpoint);
    assert_eq!(story.wait(1_000_000), NOTHING);
    assert_eq!(story.save(20), ["n0 now 60000", "n1 now 60000"]);
    story.ends(0, 143);
    story.ends(1, 143);
    assert_eq!(
        story.end(),
        (
            RunState::Stopped,
            "stopped as asked, after a complete checkpoint".to_owned()
        )
    );
}

#[test]
fn a_run_with_nothing_to_wait_for_stops_at_once() {
    let (machine, _) = Machine::submit(RunId::new("r").unwrap(), Spec::default(), 0);
    assert_eq!(
        machine.cannot_wait().as_deref(),
        Some("none of its ranks is running")
    );
    let stop = Event::StopRequested {
        grace_ms: 5,
        after: Some(StopPoint::Step(3)),
    };
    let (machine, _) = advance(&machine, &stop, 1);
    assert_eq!((machine.state, machine.stop), (RunState::Stopped, None));
}

#[test]
fn what_a_stop_loses_is_counted_from_the_furthest_complete_checkpoint() {
    let mut story = Story::running();
    assert_eq!(story.machine.steps_since_checkpoint(Some(7)), Some(7));
    story.save(10);
    story.save(30);
    story.machine.checkpoints[1].complete = false;
    assert_eq!(story.machine.steps_since_checkpoint(Some(37)), Some(27));
    assert_eq!(story.machine.steps_since_checkpoint(None), None);
    story.machine.checkpoints[0].step = None;
    assert_eq!(story.machine.steps_since_checkpoint(Some(37)), None);
}

#[test]
fn machines_of_earlier_versions_have_no_plan() {
    let mut story = Story::running();
    let text = serde_json::to_string(&V1::from(&story.machine)).unwrap();
    assert!(!text.contains("\"stop\":"));
    assert_eq!(
        Machine::from(serde_json::from_str::<V1<'_>>(&text).unwrap()),
        story.machine
    );
    story.stop(Some(StopPoint::Step(40)));
    let text = serde_json::to_string(&V1::from(&story.machine)).unwrap();
    assert_eq!(
        Machine::from(serde_json::from_str::<V1<'_>>(&text).unwrap()),
        story.machine
    );
}

#[test]
fn a_plan_of_an_earlier_attempt_means_nothing() {
    let mut story = Story::running();
    story.stop(Some(StopPoint::Step(40)));
    let plan = story.machine.stop.as_mut().unwrap();
    plan.attempt = AttemptNo(0);
    assert_eq!(RunView::from(&story.machine).stop, None);
    assert_eq!(story.reaches(0, 40), NOTHING);
    assert_eq!(story.machine.state, RunState::Running);
    assert_eq!(story.stop(Some(StopPoint::Step(90))).len(), 2);
}

#[test]
fn a_step_is_agreed_that_no_rank_can_have_reached() {
    // Long steps: two steps ahead. Short steps: six seconds ahead.
    assert_eq!(agreed_step(10, 60.0), 12);
    assert_eq!(agreed_step(10, 1.0), 16);
    assert_eq!(agreed_step(1_000, 0.001), 7_000);
    assert_eq!(agreed_step(u64::MAX - 1, 0.0), u64::MAX);
}

#[test]
fn only_a_checkpoint_that_was_not_there_before_is_waited_for() {
    let plan = StopPlan {
        attempt: AttemptNo(1),
        point: StopPoint::Checkpoint,
        grace_ms: 0,
        reached_ms: None,
        known: vec![saved("/c/10", Some(10), 1), saved("/c/last.pt", None, 1)],
        orders: Vec::new(),
    };
    assert!(
        !plan.waited_for(&saved("/c/10", Some(10), 5)),
        "seen by another node"
    );
    assert!(!plan.waited_for(&saved("/c/last.pt", None, 1)));
    assert!(plan.waited_for(&saved("/c/last.pt", None, 2)), "written again");
    assert!(plan.waited_for(&saved("/c/20", Some(20), 2)));
    let torn = Checkpoint {
        complete: false,
        ..saved("/c/20", Some(20), 2)
    };
    let model = Checkpoint {
        model_only: true,
        ..saved("/c/20", Some(20), 2)
    };
    assert!(!plan.waited_for(&torn) && !plan.waited_for(&model));
}
