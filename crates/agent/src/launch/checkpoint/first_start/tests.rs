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

/// Returns the first start of a run that declares its folder.
fn start_of_mine() -> Start {
    Start {
        spec: domain::run::spec::Spec {
            checkpoint_dir_is_mine: true,
            ..domain::run::spec::Spec::default()
        },
        is_first: true,
        ..Start::default()
    }
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

    let start = start_of_mine();
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

/// A person pointed the link `current` to the folder of another experiment, and the run's retention removed that folder's checkpoints.
#[test]
fn a_folder_that_leads_elsewhere_since_the_first_start_declares_nothing() {
    let disk = Disk::new();
    let current = disk.path("current");
    let lead_to = |target: &str| {
        let _none_yet = std::fs::remove_file(&current);
        std::os::unix::fs::symlink(target, &current).unwrap();
    };
    disk.put("mine/notes.txt", b"before");
    lead_to("mine");
    let run = disk.run_in("r", current.clone());
    run.first_start(true, true);
    disk.put("mine/step-1.pt", FULL);
    disk.put("others/step-1.pt", FULL);
    let checkpoint = current.join("step-1.pt");
    assert!(declared(&run, &checkpoint));
    lead_to("others");
    assert!(!declared(&run, &checkpoint));
    let problem = run.scan().problem.unwrap();
    assert!(problem.contains("leads elsewhere"), "{problem}");
    lead_to("mine");
    assert!(declared(&run, &checkpoint));
}

#[test]
fn a_folder_that_the_run_creates_is_declared_and_a_link_in_its_place_is_not() {
    let disk = Disk::new();
    let folder = disk.path("a/new");
    let run = disk.run_in("r", folder.clone());
    run.first_start(true, true);
    disk.put("a/new/step-1.pt", FULL);
    disk.put("others/step-1.pt", FULL);
    assert!(declared(&run, &folder.join("step-1.pt")));
    std::fs::rename(&folder, disk.path("a/old")).unwrap();
    std::os::unix::fs::symlink("../others", &folder).unwrap();
    assert!(!declared(&run, &folder.join("step-1.pt")));
}

#[test]
fn a_list_of_an_older_agent_declares_nothing() {
    let disk = Disk::new();
    let start = start_of_mine();
    let mut list = FirstStart::list(&disk.folder(), &start);
    list.real_folder = None;
    let after = disk.put("step-1.pt", FULL);
    let found = Identity::of(&after).unwrap();
    let earlier = list.earlier();
    assert!(!earlier.declares(&after, &found));
    assert!(
        earlier
            .why_not_declared()
            .is_some_and(|why| why.contains("older agent"))
    );
}
