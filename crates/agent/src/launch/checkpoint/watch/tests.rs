#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::time::SystemTime;

use domain::ident::{AttemptNo, RunId};
use domain::run::checkpoint::{PruneOrder, RemovalOrder, RequiredCheckpoint};
use domain::run::state::{NodeCommand, NodeReport};

use super::*;

const FULL: &[u8] = include_bytes!("../../../../testdata/checkpoint/full.pt");

struct Node {
    data: tempfile::TempDir,
    attempt: Attempt,
    samples: Samples,
}

impl Node {
    fn new() -> Self {
        let data = tempfile::tempdir().unwrap();
        let (run, number) = (RunId::new("r").unwrap(), AttemptNo(1));
        let folder = Folder::of(data.path(), &run, number);
        folder.create().unwrap();
        std::fs::create_dir(data.path().join("c")).unwrap();
        let spec = Spec {
            checkpoint_dir: Some(data.path().join("c").display().to_string()),
            ..Spec::default()
        };
        let start = Start {
            spec,
            nnodes: 1,
            ..Start::default()
        };
        folder.write_json(files::START, &start).unwrap();
        let (attempt, _commands) = Attempt::open(run, number, folder).unwrap();
        Self {
            data,
            attempt,
            samples: Samples::new(),
        }
    }

    fn watch(&self) -> Watch {
        Watch::new(&self.attempt, "n0", self.samples.clone())
    }

    fn save(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.data.path().join("c").join(name);
        std::fs::write(&path, bytes).unwrap();
        path.display().to_string()
    }

    /// Records a save as the probe does.
    fn noted(&self, path: &str) {
        use std::os::unix::fs::MetadataExt;
        let meta = std::fs::metadata(path).unwrap();
        let changed_ns = meta.mtime() * 1_000_000_000 + meta.mtime_nsec();
        let file = serde_json::json!(["", meta.dev(), meta.ino(), meta.len(), changed_ns, 1, true]);
        let line = serde_json::json!({ "v": 1, "path": path, "files": [file] });
        let saves = self.attempt.folder().file(files::SAVES);
        std::fs::create_dir_all(&saves).unwrap();
        std::fs::write(saves.join("0.jsonl"), format!("{line}\n")).unwrap();
    }

    /// Returns an order to remove checkpoints while `remain` exists.
    fn order(&self, remove: &[&str], remain: &str) -> RemovalOrder {
        RemovalOrder {
            folder: self.data.path().join("c").display().to_string(),
            remove: remove.iter().map(|path| (*path).to_owned()).collect(),
            remain: RequiredCheckpoint {
                path: remain.to_owned(),
                complete: true,
                mark: String::new(),
            },
            ..RemovalOrder::default()
        }
    }

    /// Sends an order to the attempt. Returns true if the attempt accepts it.
    fn accepts(&self, id: u64, order: RemovalOrder) -> bool {
        let answer = self.attempt.accept(id, NodeCommand::Remove(order));
        answer.is_some_and(|entry| matches!(entry.report, NodeReport::Accepted { command } if command == id))
    }

    fn reported(&self) -> Option<(u64, CheckpointReport)> {
        let parts = self.attempt.checkpoints_after(0)?;
        let [entry] = parts.as_slice() else {
            panic!("{} parts", parts.len());
        };
        match &entry.report {
            NodeReport::Checkpoints(report) => Some((entry.id, report.clone())),
            _ => None,
        }
    }

    fn value(&self, metric: &str) -> Option<f64> {
        let latest = self.samples.latest();
        latest
            .iter()
            .find(|sample| sample.series.metric_name() == Some(metric))
            .map(|sample| sample.value)
    }
}

fn saving(phase: Phase, path: &str) -> Saving {
    Saving {
        phase,
        path: path.to_owned(),
        step: Some(7),
        seconds: Some(2.5),
        error: Some("OSError: [Errno 28] No space left on device".into()),
        ..Saving::default()
    }
}

#[tokio::test]
async fn a_change_is_reported_once_also_by_the_next_agent() {
    let node = Node::new();
    let path = node.save("last.pt", FULL);
    let mut watch = node.watch();
    watch.note(&saving(Phase::End, &path));
    assert!(watch.finish(&node.attempt, &BTreeSet::new()).await);
    let (id, report) = node.reported().unwrap();
    let one = &report.checkpoints[0];
    assert_eq!(
        (one.step, one.duration_ms, one.complete),
        (Some(7), Some(2_500), true),
        "the probe knew"
    );
    let mut next = node.watch();
    assert!(next.finish(&node.attempt, &BTreeSet::new()).await);
    assert_eq!(node.reported().unwrap().0, id, "no change");
    node.save("step-9.pt", &FULL[..99]);
    next.note(&saving(Phase::Failure, "/c/step-9.pt"));
    assert!(next.finish(&node.attempt, &BTreeSet::new()).await);
    let (after, report) = node.reported().unwrap();
    assert_eq!((after, report.checkpoints.len()), (id + 1, 2));
    assert!(report.failure.unwrap().error.contains("No space left"));
    assert_eq!(node.value("run_checkpoints_incomplete_total"), Some(1.0));
    assert_eq!(node.value("run_checkpoint_bytes"), Some(FULL.len() as f64));
    assert!(node.value("run_checkpoint_free_bytes").is_some());
}

#[tokio::test]
async fn a_cut_off_file_of_someone_else_is_no_failed_save() {
    let node = Node::new();
    let mut watch = node.watch();
    let cut_off = |origin| {
        let sight = domain::run::checkpoint::CheckpointOnNode {
            origin: Some(origin),
            ..Default::default()
        };
        let checkpoint = Checkpoint {
            path: "/c/last.pt".into(),
            seen: [("n".to_owned(), sight)].into(),
            ..Checkpoint::default()
        };
        CheckpointReport {
            checkpoints: vec![checkpoint],
            ..CheckpointReport::default()
        }
    };
    watch.series.saw(&CheckpointReport::default(), 1);
    watch.series.saw(&cut_off(Origin::BeforeStart), 2);
    assert_eq!(node.value("run_checkpoints_incomplete_total"), Some(0.0));
    watch.series.saw(&cut_off(Origin::SinceStart), 3);
    assert_eq!(node.value("run_checkpoints_incomplete_total"), Some(1.0));
}

#[tokio::test]
async fn an_order_in_the_folder_is_executed_and_its_result_is_reported() {
    let node = Node::new();
    let (old, last) = (node.save("step-1.pt", FULL), node.save("step-2.pt", FULL));
    node.noted(&old);
    assert!(node.accepts(1, node.order(&[&old, "/etc/passwd"], &last)));
    let mut watch = node.watch();
    assert!(watch.finish(&node.attempt, &BTreeSet::new()).await);
    let (_, report) = node.reported().unwrap();
    let left: Vec<_> = report.checkpoints.iter().map(|one| one.path.as_str()).collect();
    assert_eq!(left, [last]);
    assert!(report.problem.unwrap().contains("/etc/passwd was not removed"));
    assert!(!node.attempt.folder().has(files::REMOVAL));
}

/// The next order, for other checkpoints, replaced the reason.
#[tokio::test]
async fn why_a_checkpoint_was_not_removed_stays_until_the_next_order_for_it_is_finished() {
    let node = Node::new();
    let [unproven, old, last] = ["step-1.pt", "step-2.pt", "step-3.pt"].map(|name| node.save(name, FULL));
    node.noted(&old);
    let reason = || {
        let (id, report) = node.reported().unwrap();
        let view = same(&report, &unproven).map(|one| &one.seen["n0"]);
        (id, view.and_then(|view| view.not_removed.clone()))
    };
    let mut watch = node.watch();
    assert!(node.accepts(1, node.order(&[&unproven], &last)));
    assert!(watch.finish(&node.attempt, &BTreeSet::new()).await);
    let (_, first) = reason();
    assert!(
        first.as_ref().is_some_and(|first| first.contains("not proven")),
        "{first:?}"
    );
    assert!(node.accepts(2, node.order(&[&old], &last)));
    assert!(watch.finish(&node.attempt, &BTreeSet::new()).await);
    assert!(!Path::new(&old).exists());
    assert_eq!(reason().1, first);
    let mut next = node.watch();
    assert!(next.finish(&node.attempt, &BTreeSet::new()).await);
    let (id, by_next) = reason();
    assert_eq!(by_next, first, "the next agent knows it too");
    assert!(node.accepts(3, node.order(&[&unproven], &last)));
    assert!(next.finish(&node.attempt, &BTreeSet::new()).await);
    let (again, same_reason) = reason();
    assert!(
        again > id && same_reason == first,
        "a second request is answered too"
    );
    node.noted(&unproven);
    assert!(node.accepts(4, node.order(&[&unproven], &last)));
    assert!(next.finish(&node.attempt, &BTreeSet::new()).await);
    assert!(!Path::new(&unproven).exists());
    assert_eq!(node.reported().unwrap().1.problem, None);
}

/// Such an order may contain anything that was in the folder.
#[tokio::test]
async fn an_order_of_before_proofs_is_not_carried_out() {
    let node = Node::new();
    let (old, last) = (node.save("step-1.pt", FULL), node.save("step-2.pt", FULL));
    node.noted(&old);
    let order = PruneOrder {
        folder: node.data.path().join("c").display().to_string(),
        remove: vec![old.clone()],
        remain: RequiredCheckpoint {
            path: last,
            complete: true,
            mark: String::new(),
        },
    };
    let json = serde_json::to_vec(&order).unwrap();
    node.attempt.folder().write(files::PRUNE, &json).unwrap();
    let mut watch = node.watch();
    assert!(
        !node.attempt.folder().has(files::PRUNE),
        "one that waited since before the upgrade"
    );
    let command = NodeCommand::Checkpoints(order);
    let answer = node.attempt.accept(7, command).unwrap();
    assert!(
        matches!(answer.report, NodeReport::Accepted { command: 7 }),
        "to refuse it would end the attempt: {answer:?}"
    );
    assert!(watch.finish(&node.attempt, &BTreeSet::new()).await);
    let (_, report) = node.reported().unwrap();
    assert_eq!(report.checkpoints.len(), 2);
    let problem = report.problem.unwrap();
    assert!(problem.contains("of an older collector"), "{problem}");
}

/// The agent was down, or the file server did not answer. Meanwhile a person may have pinned the checkpoint.
#[tokio::test]
async fn an_order_that_waited_for_too_long_is_dropped() {
    let node = Node::new();
    let (old, last) = (node.save("step-1.pt", FULL), node.save("step-2.pt", FULL));
    node.noted(&old);
    let long_ago = ClockReading {
        wall_ms: now_ms() - 1_800_000,
        uptime: None,
    };
    let accepted = AcceptedRemoval::new(node.order(&[&old], &last), long_ago);
    let folder = node.attempt.folder();
    folder.write_json(files::REMOVAL, &accepted).unwrap();
    let mut watch = node.watch();
    assert!(watch.finish(&node.attempt, &BTreeSet::new()).await);
    assert!(Path::new(&old).exists() && !node.attempt.folder().has(files::REMOVAL));
    let (_, report) = node.reported().unwrap();
    assert!(
        report
            .problem
            .unwrap()
            .contains("the order to remove it is too old")
    );
}

/// Every tick found the file and began another scan, without a pause, and at the end of the attempt too.
#[tokio::test]
async fn an_order_that_cannot_be_read_is_reported_once_and_starts_no_scan() {
    let node = Node::new();
    let (old, last) = (node.save("step-1.pt", FULL), node.save("step-2.pt", FULL));
    node.noted(&old);
    let mut watch = node.watch();
    assert!(watch.finish(&node.attempt, &BTreeSet::new()).await);
    node.attempt
        .folder()
        .write(files::REMOVAL, b"{\"folder\":")
        .unwrap();
    watch.tick(&node.attempt, BTreeSet::new);
    assert!(watch.work.is_none(), "the next scan is not due yet");
    let (id, report) = node.reported().unwrap();
    let problem = report.problem.unwrap();
    assert!(problem.starts_with(UNREADABLE_ORDER), "{problem}");
    assert_eq!(report.checkpoints.len(), 2);
    watch.tick(&node.attempt, BTreeSet::new);
    assert!(
        watch.finish(&node.attempt, &BTreeSet::new()).await,
        "it ends after one scan"
    );
    let (again, report) = node.reported().unwrap();
    assert_eq!((again, report.problem), (id, Some(problem)), "reported once");
    watch.drop_order(&node.attempt);
    assert!(Path::new(&old).exists() && node.attempt.folder().has(files::REMOVAL));
    // The next order replaces it.
    assert!(node.accepts(1, node.order(&[&old], &last)));
    assert!(watch.finish(&node.attempt, &BTreeSet::new()).await);
    assert!(!Path::new(&old).exists());
    assert_eq!(node.reported().unwrap().1.problem, None);
}

/// The agent's data folder may be on a file server with another clock.
#[tokio::test]
async fn the_age_of_an_order_does_not_depend_on_the_time_of_its_file() {
    let node = Node::new();
    let (old, last) = (node.save("step-1.pt", FULL), node.save("step-2.pt", FULL));
    node.noted(&old);
    assert!(node.accepts(1, node.order(&[&old], &last)));
    let file = node.attempt.folder().file(files::REMOVAL);
    let file = std::fs::File::options().write(true).open(file).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(86_400))
        .unwrap();
    let mut watch = node.watch();
    assert!(watch.finish(&node.attempt, &BTreeSet::new()).await);
    assert!(!Path::new(&old).exists());
}

/// The disk of the agent was full, so the collector never got the result of the order.
#[tokio::test]
async fn the_result_of_an_order_is_reported_when_the_report_can_be_stored() {
    let node = Node::new();
    let [old, unproven, last] = ["step-1.pt", "step-2.pt", "step-3.pt"].map(|name| node.save(name, FULL));
    node.noted(&old);
    assert!(node.accepts(1, node.order(&[&old, &unproven], &last)));
    // A report replaces the file by a rename, which a folder in its place prevents.
    let report_file = node.attempt.folder().file(files::CHECKPOINTS);
    std::fs::create_dir(&report_file).unwrap();
    let mut watch = node.watch();
    assert!(watch.finish(&node.attempt, &BTreeSet::new()).await);
    assert!(!Path::new(&old).exists());
    assert!(!watch.settle(&node.attempt) && node.reported().is_none());
    assert!(
        node.attempt.folder().has(files::REMOVAL),
        "the next agent finds it"
    );
    assert!(!node.accepts(2, node.order(&[&unproven], &last)));

    // It is not carried out again.
    node.noted(&node.save("step-1.pt", FULL));
    watch.tick(&node.attempt, BTreeSet::new);
    assert!(watch.finish(&node.attempt, &BTreeSet::new()).await);
    assert!(Path::new(&old).exists());

    std::fs::remove_dir(&report_file).unwrap();
    assert!(watch.settle(&node.attempt));
    let (_, report) = node.reported().unwrap();
    assert_eq!(report.checkpoints.len(), 3);
    let reason = &same(&report, &unproven).unwrap().seen["n0"].not_removed;
    assert!(
        reason
            .as_ref()
            .is_some_and(|reason| reason.contains("not proven")),
        "{report:?}"
    );
    assert!(!node.attempt.folder().has(files::REMOVAL));
}

#[tokio::test]
async fn the_reason_is_that_of_the_order_and_not_of_a_checkpoint_that_was_saved_later() {
    let node = Node::new();
    let (unproven, last) = (node.save("step-1.pt", FULL), node.save("step-2.pt", FULL));
    let order = RemovalOrder {
        ordered_ms: Some(77),
        ..node.order(&[&unproven], &last)
    };
    assert!(node.accepts(1, order));
    let mut watch = node.watch();
    let view = || {
        let (_, report) = node.reported().unwrap();
        same(&report, &unproven).unwrap().seen["n0"].clone()
    };
    assert!(watch.finish(&node.attempt, &BTreeSet::new()).await);
    assert!(view().not_removed.is_some());
    assert_eq!(view().not_removed_order_ms, Some(77));
    std::fs::remove_file(&unproven).unwrap();
    node.save("other.pt", FULL);
    node.save("step-1.pt", &[FULL, &b"more"[..]].concat());
    assert!(watch.finish(&node.attempt, &BTreeSet::new()).await);
    assert_eq!((view().not_removed, view().not_removed_order_ms), (None, None));
}

/// A later order replaced an earlier one that waited, or was removed together with one that was being executed.
#[tokio::test]
async fn an_order_is_not_accepted_before_the_earlier_one_is_finished() {
    let node = Node::new();
    let [one, two, last] = ["step-1.pt", "step-2.pt", "step-3.pt"].map(|name| node.save(name, FULL));
    let mut watch = node.watch();
    node.noted(&one);
    assert!(watch.finish(&node.attempt, &BTreeSet::new()).await);
    node.noted(&two);
    let later = node.order(&[&two], &last);
    assert!(node.accepts(1, node.order(&[&one], &last)));
    assert!(
        !node.accepts(2, later.clone()),
        "the collector keeps it and sends it again"
    );
    assert!(watch.finish(&node.attempt, &BTreeSet::new()).await);
    assert!(!Path::new(&one).exists() && Path::new(&two).exists());
    assert!(node.accepts(2, later));
    assert!(watch.finish(&node.attempt, &BTreeSet::new()).await);
    assert!(!Path::new(&two).exists() && Path::new(&last).exists());
}

#[tokio::test]
async fn an_order_that_is_dropped_at_the_end_of_an_attempt_is_reported() {
    let node = Node::new();
    let (old, last) = (node.save("step-1.pt", FULL), node.save("step-2.pt", FULL));
    let mut watch = node.watch();
    assert!(watch.finish(&node.attempt, &BTreeSet::new()).await);
    assert!(node.accepts(1, node.order(&[&old], &last)));
    watch.drop_order(&node.attempt);
    assert!(!node.attempt.folder().has(files::REMOVAL));
    let (_, report) = node.reported().unwrap();
    assert_eq!(
        (report.checkpoints.len(), report.problem.as_deref()),
        (2, Some(DROPPED_ORDER))
    );
    let reason = |path| same(&report, path).unwrap().seen["n0"].not_removed.as_deref();
    assert_eq!((reason(&old), reason(&last)), (Some(DROPPED_ORDER), None));
}

/// The thread panicked, so the order was carried out again at every tick.
#[tokio::test]
async fn an_order_that_makes_the_agent_fail_is_dropped_and_reported() {
    let node = Node::new();
    let (old, last) = (node.save("step-1.pt", FULL), node.save("step-2.pt", FULL));
    let mut watch = node.watch();
    assert!(watch.finish(&node.attempt, &BTreeSet::new()).await);
    assert!(node.accepts(1, node.order(&[&old], &last)));
    watch.took(&node.attempt, None);
    assert!(!node.attempt.folder().has(files::REMOVAL));
    let (_, report) = node.reported().unwrap();
    assert_eq!(report.problem.as_deref(), Some(FAILED_ORDER));
    let view = &same(&report, &old).unwrap().seen["n0"];
    assert_eq!(view.not_removed.as_deref(), Some(FAILED_ORDER));
    watch.tick(&node.attempt, BTreeSet::new);
    assert!(watch.work.is_none(), "the next scan is not due yet");
}

/// The disk answered after the order was dropped, and the waiting thread removed the checkpoint all the same.
#[tokio::test]
async fn a_dropped_order_is_not_executed_when_the_disk_answers_again() {
    let node = Node::new();
    let (old, last) = (node.save("step-1.pt", FULL), node.save("step-2.pt", FULL));
    node.noted(&old);
    assert!(node.accepts(1, node.order(&[&old], &last)));
    let mut watch = node.watch();
    let records = watch.records.clone();
    records.lock().hold(|| {
        watch.begin(&node.attempt, BTreeSet::new(), false);
        watch.drop_order(&node.attempt);
    });
    let (_, report) = node.reported().unwrap();
    assert!(report.partial, "the folder has not been read yet: {report:?}");
    assert_eq!(report.problem.as_deref(), Some(DROPPED_ORDER));
    assert!(watch.finish(&node.attempt, &BTreeSet::new()).await);
    assert!(Path::new(&old).exists());
}
