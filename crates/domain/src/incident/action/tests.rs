//! Tests: which actions are possible in which context.

use super::*;
use crate::api::runs::{ChangePreview, KnobsView};
use crate::ident::{AttemptNo, NodeName, RunId};
use crate::incident::NamedCulprit;
use crate::run::checkpoint::Checkpoint;
use crate::run::knob::{Change, ChangeId, How, KnobDiff};
use crate::run::spec::Spec;
use crate::run::state::{
    Cause, Event, KnobRequest, Machine, NodePhase, Outcome, RankTask, RunState, advance,
};
use crate::series::Labels;

/// Returns a run with two ranks on one node and a checkpoint of step 40.
fn running() -> Machine {
    let spec = Spec {
        recipe: Some("ddp".into()),
        nodes: Some(1),
        nproc_per_node: Some(2),
        kineto: true,
        ..Spec::default()
    };
    let (machine, _) = Machine::submit(RunId::new("ddp-1").expect("a name"), spec, 0);
    let placed = Event::Placed {
        attempt: machine.current().no,
        nodes: vec![NodeName::new("n1").expect("a name")],
    };
    let (mut machine, _) = advance(&machine, &placed, 10);
    machine.state = RunState::Running;
    machine.checkpoints = vec![Checkpoint {
        path: "/c/step-40".into(),
        step: Some(40),
        complete: true,
        ..Checkpoint::default()
    }];
    let task = &mut machine.attempts[0].nodes[0];
    task.phase = NodePhase::Running;
    for local in 0..2 {
        let rank = RankTask {
            pid: Some(7),
            ..RankTask::default()
        };
        task.ranks.insert(local, rank);
    }
    machine
}

fn ended(cause: Cause) -> Machine {
    let mut machine = running();
    machine.state = RunState::Failed;
    machine.attempts[0].ended_ms = Some(20);
    machine.outcome = Some(Outcome {
        cause,
        node: None,
        rank: None,
        message: "it failed".to_owned().into(),
    });
    machine
}

fn measurements() -> Measurements {
    Measurements {
        loading: Some(Loading {
            cores: 16,
            ranks: 2,
            wait_s: 0.3,
            step_s: 0.4,
        }),
        last_step: Some(52),
        step_s: Some(0.4),
        spare_nodes: 1,
        ..Measurements::default()
    }
}

fn possible(run: &Machine, hints: &str, measurements: &Measurements) -> Vec<Action> {
    let labels = Labels::new([("run", "ddp-1"), ("node", "n1"), ("rank", "1")]).expect("well formed");
    propose(&ActionContext {
        hints: &Hint::read(hints).expect("hints"),
        culprit: &NamedCulprit::of(&labels, None),
        fired_ms: 1_000,
        run,
        measurements,
    })
}

fn ids(run: &Machine, hints: &str, measurements: &Measurements) -> Vec<String> {
    possible(run, hints, measurements)
        .into_iter()
        .map(|action| action.id)
        .collect()
}

const ALL: &str = "exclude_node, restart, trace, num_workers, prune_checkpoints";

#[test]
fn what_is_possible_is_listed_in_the_order_of_the_hints() {
    let found = ids(&running(), ALL, &measurements());
    assert_eq!(
        found,
        [
            "exclude_node:n1",
            "restart",
            "trace:rank=1",
            "apply_knob:num_workers=7"
        ],
        "the only checkpoint is not pruned"
    );
}

#[test]
fn a_node_is_excluded_only_where_another_is_free() {
    let alone = Measurements {
        spare_nodes: 0,
        ..measurements()
    };
    assert_eq!(ids(&running(), "exclude_node", &alone), [""; 0]);
}

#[test]
fn a_restart_says_what_is_trained_again() {
    let actions = possible(&running(), "restart", &measurements());
    let [restart] = actions.as_slice() else {
        panic!("one action: {actions:?}");
    };
    assert_eq!((restart.steps_lost, restart.ranks), (Some(12), 2));
    assert_eq!(
        restart.cost,
        "Ends attempt 1 and restarts with 2 ranks from the checkpoint of step 40; at most 12 steps are trained again, about 5 s."
    );
    let unknown = possible(&running(), "restart", &Measurements::default());
    assert_eq!(unknown[0].steps_lost, None);
}

#[test]
fn a_run_that_has_ended_is_resumed_from_a_checkpoint_or_not_at_all() {
    assert_eq!(
        ids(&ended(Cause::ExitCode), ALL, &measurements()),
        ["restart", "apply_knob:num_workers=7"]
    );
    let mut lost = ended(Cause::ExitCode);
    lost.checkpoints.clear();
    assert_eq!(ids(&lost, "restart", &measurements()), [""; 0]);
}

#[test]
fn out_of_memory_suggests_what_saves_memory() {
    let batch = Measurements {
        micro_batch: Some(8),
        ..measurements()
    };
    assert_eq!(
        ids(&ended(Cause::OutOfMemory), "restart", &batch),
        [
            "apply_knob:activation_checkpointing=block",
            "apply_knob:micro_batch=4",
            "restart"
        ]
    );
}

#[test]
fn nothing_is_done_to_a_run_that_is_only_watched_or_already_changing() {
    let mut watched = running();
    watched.watched = true;
    assert_eq!(ids(&watched, ALL, &measurements()), [""; 0]);
    let request = crate::run::state::KnobRequest::Restart { without: vec![] };
    let event = Event::KnobsChanged {
        request,
        grace_ms: 1,
        after: None,
    };
    let (changing, _) = advance(&running(), &event, 30);
    assert!(changing.pending.is_some(), "{changing:?}");
    assert_eq!(ids(&changing, ALL, &measurements()), [""; 0]);
}

#[test]
fn a_recent_change_is_the_first_to_be_reverted() {
    let mut changed = running();
    changed.attempts[0].knobs.change = Some(Box::new(Change {
        set: vec![KnobDiff {
            knob: "lr_scale".into(),
            old: None,
            new: Some("10".into()),
            how: How::Injected,
        }],
        ..Change::default()
    }));
    assert_eq!(
        ids(&changed, "restart", &measurements()),
        ["revert_knobs:1.0", "restart"]
    );
    changed.attempts[0].started_ms = -3_600_001;
    assert_eq!(
        ids(&changed, "restart", &measurements()),
        ["restart"],
        "too long ago"
    );
}

#[test]
fn a_trace_needs_the_profiler() {
    let mut run = running();
    run.spec.kineto = false;
    assert_eq!(ids(&run, "trace", &measurements()), [""; 0]);
}

/// Returns the preview of a request, with one free node.
fn previewed(run: &Machine, request: &KnobRequest) -> ChangePreview {
    let pending = run
        .change_for(request)
        .expect("it is possible")
        .expect("a change");
    preview(run, request, &pending, &measurements())
}

fn apply(name: &str, value: &str, from_start: bool) -> KnobRequest {
    KnobRequest::Apply {
        set: [(name.to_owned(), value.to_owned())].into(),
        auto_revert: None,
        from_start,
        restart: false,
        try_larger_batch: None,
        follows: None,
    }
}

#[test]
fn a_preview_says_what_a_change_costs_and_how_to_undo_it() {
    let run = running();
    let by_restart = previewed(&run, &apply("num_workers", "4", false));
    assert_eq!(
        by_restart.cost,
        "Ends attempt 1 and restarts with 2 ranks from the checkpoint of step 40; at most 12 steps are trained again, about 5 s."
    );
    assert_eq!((by_restart.in_place, by_restart.steps_lost), (false, Some(12)));
    assert_eq!(
        by_restart.undo,
        "Revert it on the page of the run, or with `lockstep run revert ddp-1`."
    );
    let from_start = previewed(&run, &apply("num_workers", "4", true));
    assert_eq!(from_start.steps_lost, Some(52), "{}", from_start.cost);
    let exclusion = KnobRequest::Restart {
        without: vec![NodeName::new("n1").expect("a name")],
    };
    let excluded = previewed(&run, &exclusion);
    assert!(
        excluded
            .cost
            .ends_with("n1 is excluded from this run; 1 other node is free."),
        "{}",
        excluded.cost
    );
    assert!(excluded.undo.contains("resume the run"), "{}", excluded.undo);
}

#[test]
fn a_change_in_place_costs_no_step() {
    let mut run = running();
    let prepared = crate::run::state::Prepared {
        turns_live: true,
        ..Default::default()
    };
    run.attempts[0].nodes[0].prepared = Some(prepared);
    let in_place = previewed(&run, &apply("process_group_timeout_s", "1200", false));
    assert_eq!((in_place.in_place, in_place.steps_lost), (true, Some(0)));
    assert!(
        in_place.cost.contains("each of its 2 ranks applies the change"),
        "{}",
        in_place.cost
    );
}

#[test]
fn changes_are_listed_as_revertible_until_a_later_one_sets_the_same_knob() {
    let mut run = running();
    assert_eq!(KnobsView::from(&run).revertible, []);
    let diff = |new: &str| KnobDiff {
        knob: "num_workers".into(),
        old: None,
        new: Some(new.into()),
        how: How::Injected,
    };
    let change = |new| Change {
        set: vec![diff(new)],
        ..Change::default()
    };
    run.attempts[0].knobs.change = Some(Box::new(change("2")));
    run.attempts[0]
        .knobs
        .values
        .insert("num_workers".into(), "2".into());
    let view = KnobsView::from(&run);
    assert_eq!(view.revertible, [ChangeId::of(run.attempts[0].no)]);
    let workers = view.knobs.iter().find(|knob| knob.name == "num_workers");
    let workers = workers.expect("a knob of every run");
    assert_eq!(workers.value.as_deref(), Some("2"));
    assert!(!workers.live && workers.problem.is_empty());
    let amp = view.knobs.iter().find(|knob| knob.name == "amp").expect("a knob");
    assert_eq!(amp.choices, ["off", "bf16", "fp16"]);
    let mut later = run.attempts[0].clone();
    later.no = AttemptNo(2);
    later.knobs.change = Some(Box::new(change("4")));
    run.attempts.push(later);
    assert_eq!(KnobsView::from(&run).revertible, [ChangeId::of(AttemptNo(2))]);
}
