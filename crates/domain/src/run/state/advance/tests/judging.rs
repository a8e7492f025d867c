//! Root cause and cascade in realistic failures.

use super::*;
use crate::run::state::Memory;

const CLOSED: &str =
    "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:11415";

fn cascades(story: &Story) -> Vec<u32> {
    let view = RunView::from(&story.machine);
    let ranks = view
        .attempts
        .last()
        .unwrap()
        .nodes
        .iter()
        .flat_map(|node| &node.ranks);
    ranks
        .filter(|rank| rank.cascade)
        .map(|rank| rank.rank.0)
        .collect()
}

fn stalled(rank: u32, step: u64, for_ms: u64, cause: StallCause) -> NodeReport {
    NodeReport::RankStalled {
        rank: Rank(rank),
        step: Some(step),
        for_ms,
        cause,
    }
}

#[test]
fn a_closed_connection_is_never_the_cause_though_it_was_noticed_first() {
    let mut story = Story::running(2, 0);
    story.report("n0", raised(0, "RuntimeError", CLOSED, 1_000));
    story.report("n1", raised(3, "ValueError", "bad batch", 2_000));
    story.report("n1", killed(2, 15, 3_000));
    story.report(
        "n0",
        raised(1, "torch.distributed.DistNetworkError", "failed to send", 900),
    );
    story.report("n0", ended(1));
    story.report("n1", ended(1));
    assert_eq!(
        story.outcome(),
        (RunState::Failed, "exception", Some("n1"), Some(3))
    );
    assert_eq!(cascades(&story), [0, 1, 2]);
}

#[test]
fn a_rank_that_exits_with_0_too_early_is_named_by_the_connections_it_closed() {
    let mut story = Story::running(2, 0);
    story.report("n0", first_step(0));
    story.report(
        "n0",
        NodeReport::RankExited(RankExit {
            rank: Rank(1),
            code: Some(0),
            last_step: Some(8),
            at_ns: 500,
            ..RankExit::default()
        }),
    );
    assert_eq!(story.machine.state, RunState::Running);
    story.report("n0", raised(0, "RuntimeError", CLOSED, 1_000));
    story.report("n1", raised(2, "RuntimeError", CLOSED, 1_001));
    story.report("n0", ended(1));
    story.report("n1", ended(1));
    assert_eq!(
        story.outcome(),
        (RunState::Failed, "exited_early", Some("n0"), Some(1))
    );
    assert!(
        story
            .message()
            .starts_with("rank 1 on node n0 exited with 0 after step 8 while other ranks continued"),
        "{}",
        story.message()
    );
    assert_eq!(cascades(&story), [0, 2]);
}

#[test]
fn a_rank_that_exits_with_0_too_early_is_named_when_the_others_only_wait() {
    let mut story = Story::running(2, 0);
    story.report("n0", first_step(0));
    story.report("n1", exited(3, 0, 5));
    assert_eq!(story.wait(119_000), [""; 0]);
    assert_eq!(story.wait(2_000), ["stop n0 10000", "stop n1 10000"]);
    story.report("n0", ended(1));
    story.report("n1", ended(1));
    assert_eq!(
        story.outcome(),
        (RunState::Failed, "exited_early", Some("n1"), Some(3))
    );
}

#[test]
fn the_last_work_of_rank_0_and_scripts_without_steps_are_left_in_peace() {
    let mut last_work = Story::running(1, 0);
    last_work.report("n0", first_step(0));
    last_work.report("n0", exited(1, 0, 5));
    assert_eq!(last_work.wait(1_000_000), [""; 0]);
    let mut inference = Story::running(2, 0);
    inference.report("n0", exited(1, 0, 5));
    assert_eq!(inference.wait(1_000_000), [""; 0]);
    inference.end_all(0);
    assert_eq!(inference.machine.state, RunState::Succeeded);
}

#[test]
fn a_stopped_process_is_the_culprit_though_others_waited_longer() {
    let mut story = Story::running(2, 1);
    story.report("n0", first_step(0));
    story.report("n0", stalled(0, 7, 50_000, StallCause::NoStep));
    story.report("n1", stalled(3, 7, 30_000, StallCause::Stopped));
    assert_eq!(story.wait(29_000), [""; 0]);
    assert_eq!(story.wait(2_000), ["stop n0 10000", "stop n1 10000"]);
    story.report("n0", killed(0, 15, story.now_ms * 1_000_000));
    story.report("n1", killed(3, 9, (story.now_ms + 10_000) * 1_000_000));
    story.report("n0", ended(1));
    story.report("n1", ended(1));
    assert_eq!(
        story.outcome(),
        (RunState::Restarting, "stuck", Some("n1"), Some(3))
    );
    assert_eq!(
        story.message(),
        "rank 3 on node n1 was stopped by a signal (process state T) after step 7 and has done nothing for 61 seconds; the other \
         ranks wait for it"
    );
    assert_eq!(cascades(&story), [0]);
}

#[test]
fn the_rank_furthest_behind_is_stuck_and_one_that_advances_is_not() {
    let mut story = Story::running(2, 0);
    story.report("n0", first_step(0));
    story.report("n0", stalled(0, 8, 10, StallCause::NoStep));
    story.report("n1", stalled(2, 7, 10, StallCause::NoStep));
    story.report("n1", stalled(3, 6, 10, StallCause::NoStep));
    story.report("n1", NodeReport::RankRecovered { rank: Rank(3) });
    story.wait(1_799_000);
    assert_eq!(story.machine.state, RunState::Running);
    story.wait(2_000);
    story.report("n0", ended(1));
    story.report("n1", ended(1));
    assert_eq!(story.outcome(), (RunState::Failed, "stuck", Some("n1"), Some(2)));
}

#[test]
fn of_ranks_that_are_equally_far_none_is_blamed() {
    let mut story = Story::running(2, 0);
    story.report("n0", first_step(0));
    for (node, rank) in [("n0", 0), ("n0", 1), ("n1", 2), ("n1", 3)] {
        story.report(node, stalled(rank, 7, 10, StallCause::NoStep));
    }
    story.wait(1_801_000);
    story.report("n0", ended(1));
    story.report("n1", ended(1));
    assert_eq!(story.outcome(), (RunState::Failed, "stuck", None, None));
    let message = story.message();
    assert!(
        message.contains("4 ranks are equally far, after step 7"),
        "{message}"
    );
}

#[test]
fn a_stall_timeout_of_0_waits_forever() {
    let mut story = Story::running(1, 0);
    story.machine.spec.stall_timeout_s = Some(0);
    story.report("n0", first_step(0));
    for cause in [
        StallCause::Stopped,
        StallCause::Uninterruptible,
        StallCause::NoStep,
    ] {
        story.report("n0", stalled(0, 7, 1_000, cause));
        assert_eq!(story.wait(10_000_000), [""; 0]);
    }
}

#[test]
fn a_lost_node_is_blamed_and_not_the_ranks_that_lost_their_connection() {
    let mut story = Story::running(2, 1);
    story.report("n0", first_step(0));
    story.event(&Event::NodeLost { node: node("n1") });
    story.report("n0", raised(0, "RuntimeError", CLOSED, 1_000));
    story.report("n0", raised(1, "RuntimeError", CLOSED, 1_000));
    story.report("n0", ended(1));
    story.wait(ABANDON_AFTER_MS + 1_000);
    assert_eq!(
        story.outcome(),
        (RunState::Restarting, "node_lost", Some("n1"), None)
    );
    assert_eq!(cascades(&story), [0, 1]);
}

#[test]
fn a_sigkill_at_the_end_of_the_grace_is_ours() {
    let mut story = Story::running(2, 0);
    story.report("n0", raised(0, "RuntimeError", CLOSED, story.now_ms * 1_000_000));
    let late_ns = (story.now_ms + 10_000) * 1_000_000;
    story.report("n1", killed(2, 9, late_ns));
    let shim_died = NodeReport::Ended(NodeEnd {
        cause: EndCause::ShimDied,
        ..NodeEnd::default()
    });
    story.report("n1", shim_died);
    story.report("n0", ended(1));
    assert_eq!(story.outcome(), (RunState::Failed, "shim_died", Some("n1"), None));
    assert_eq!(cascades(&story), [0, 2]);
}

#[test]
fn a_rank_out_of_memory_says_why_there_was_too_little() {
    let memory = Memory {
        device: "cuda:0".into(),
        requested_bytes: Some(2 << 30),
        unallocated_bytes: Some(5 << 30),
        ..Memory::default()
    };
    let mut story = Story::running(2, 0);
    story.report(
        "n0",
        NodeReport::RankExited(RankExit {
            code: Some(1),
            error_type: Some("OutOfMemoryError".into()),
            message: Some("CUDA out of memory. Tried to allocate 2.00 GiB.".into()),
            memory: Some(Box::new(memory)),
            at_ns: 1_000,
            ..RankExit::default()
        }),
    );
    story.report("n0", ended(1));
    story.report("n1", ended(1));
    assert_eq!(
        story.outcome(),
        (RunState::Failed, "out_of_memory", Some("n0"), Some(0))
    );
    assert_eq!(
        story.message(),
        "rank 0 on node n0 ran out of GPU memory (OutOfMemoryError): it asked for 2.0 GiB while 5.0 GiB lay unused, in pieces that were too small: \
         fragmented memory; set cuda_alloc_conf to expandable_segments:True, or keep the shapes of batches constant"
    );
}

#[test]
fn a_second_failure_of_its_own_is_no_cascade() {
    let mut story = Story::running(2, 0);
    story.report(
        "n0",
        raised(0, "torch.OutOfMemoryError", "CUDA out of memory", 1_000),
    );
    story.report("n1", raised(2, "ValueError", "bad batch", 2_000));
    story.report("n0", ended(1));
    story.report("n1", ended(1));
    assert_eq!(
        story.outcome(),
        (RunState::Failed, "out_of_memory", Some("n0"), Some(0))
    );
    assert_eq!(cascades(&story), [0; 0]);
}
