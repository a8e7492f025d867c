#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::super::testing::{Disk, FULL, Run};
use super::*;

fn declared(run: &Run, path: &Path) -> bool {
    let found = Identity::of(path).unwrap();
    run.records().earlier.unwrap().declares(path, &found)
}

#[test]
fn files_since_the_first_start_belong_to_the_run_if_its_spec_declares_it() {
    let disk = Disk::new();
    let before = disk.put("pretrained/base.pt", FULL);
    let (mine, other) = (disk.run("mine"), disk.run("other"));
    mine.first_start(true, true);
    other.first_start(true, false);
    let after = disk.put("step-1/model.safetensors", FULL);
    let beside = disk.put("pretrained/new.pt", FULL);
    assert!(declared(&mine, &after) && declared(&mine, &beside) && !declared(&mine, &before));
    assert!(!declared(&other, &after), "it does not say so");
    let renamed = disk.path("step-2.pt");
    std::fs::rename(&before, &renamed).unwrap();
    assert!(!declared(&mine, &renamed), "another name makes it no other file");
    let link = disk.path("step-3.pt");
    std::fs::hard_link(&renamed, &link).unwrap();
    assert!(!declared(&mine, &link));
    let outside = disk.folder().parent().unwrap().join("outside.pt");
    std::fs::write(&outside, FULL).unwrap();
    assert!(!declared(&mine, &outside));
}

#[test]
fn a_list_that_is_not_of_the_first_start_or_not_whole_declares_nothing() {
    let disk = Disk::new();
    let later = disk.run("later");
    later.first_start(false, true);
    let after = disk.put("step-1.pt", FULL);
    assert!(!declared(&later, &after));
    let problem = later.scan().problem.unwrap();
    assert!(problem.contains("first started elsewhere"), "{problem}");

    let start = Start {
        spec: domain::run::spec::Spec {
            checkpoint_dir_is_mine: true,
            ..domain::run::spec::Spec::default()
        },
        is_first: true,
        ..Start::default()
    };
    let found = Identity::of(&after).unwrap();
    let unlisted = FirstStart::unlisted(&disk.folder(), &start).earlier();
    assert!(!unlisted.declares(&after, &found) && unlisted.why_not_declared().is_some());
    std::fs::remove_file(&after).unwrap();
    let mut listed = FirstStart::list(&disk.folder(), &start);
    assert!(listed.clone().earlier().declares(&after, &found));
    // A disk that is mounted over the folder later contains files that were never listed.
    listed.device += 1;
    assert!(!listed.earlier().declares(&after, &found));
}

#[test]
fn what_has_not_changed_since_was_there() {
    let disk = Disk::new();
    let path = disk.put("model.pt", FULL);
    let run = disk.run("r");
    run.first_start(true, false);
    let was_there = |path: &Path| {
        let found = Identity::of(path).unwrap();
        run.records().earlier.unwrap().was_there(&found)
    };
    assert!(was_there(&path));
    std::fs::rename(&path, disk.path("other.pt")).unwrap();
    assert!(was_there(&disk.path("other.pt")));
    std::fs::write(disk.path("other.pt"), FULL).unwrap();
    assert!(!was_there(&disk.path("other.pt")), "the run has written to it");
}
