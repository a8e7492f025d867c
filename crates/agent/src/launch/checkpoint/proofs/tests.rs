#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::os::unix::fs::MetadataExt;

use super::super::testing::{Disk, FULL, Run};
use super::*;

fn proven(run: &Run, path: &Path) -> bool {
    let records = run.records();
    let found = Identity::of(path).unwrap();
    let proven = records.proofs.proves(path, &found);
    drop(records);
    proven
}

#[test]
fn a_file_of_a_save_is_proven_under_any_name_until_it_is_changed() {
    let disk = Disk::new();
    let run = disk.run("r");
    let path = disk.put("step-1.pt.tmp", FULL);
    run.note(&path, &[""]);
    let last = disk.path("step-1.pt");
    std::fs::rename(&path, &last).unwrap();
    assert!(proven(&run, &last), "a rename at the end of a save");
    run.scan();
    let moved = disk.path("kept/step-1.pt");
    std::fs::create_dir(disk.path("kept")).unwrap();
    std::fs::rename(&last, &moved).unwrap();
    assert!(proven(&run, &moved) && !proven(&disk.run("other"), &moved));
    std::fs::write(&moved, FULL).unwrap();
    assert!(!proven(&run, &moved), "the same bytes, written by somebody else");
}

#[test]
fn a_copy_with_the_times_of_the_original_is_not_proven() {
    let disk = Disk::new();
    let run = disk.run("r");
    let path = disk.put("step-1.pt", FULL);
    run.note(&path, &[""]);
    let copy = disk.put("copy.pt", FULL);
    let at = std::fs::metadata(&path).unwrap().modified().unwrap();
    std::fs::File::options()
        .write(true)
        .open(&copy)
        .unwrap()
        .set_modified(at)
        .unwrap();
    assert!(proven(&run, &path) && !proven(&run, &copy));
}

/// A file system reuses the inode number of a deleted file for the next new file.
#[test]
fn a_reused_inode_number_proves_nothing() {
    let disk = Disk::new();
    let run = disk.run("r");
    let path = disk.put("step-1.pt", FULL);
    run.note(&path, &[""]);
    run.scan();
    let records = run.records();
    let ours = Identity::of(&path).unwrap();
    assert!(records.proofs.proves(&path, &ours));
    for foreign in [
        Identity {
            born_ns: ours.born_ns.map(|born| born + 1),
            changed_ns: ours.changed_ns + 1,
            ..ours
        },
        Identity {
            changed_ns: ours.changed_ns + 1,
            ..ours
        },
        Identity {
            bytes: ours.bytes + 1,
            ..ours
        },
        Identity {
            device: ours.device + 1,
            ..ours
        },
        Identity {
            kind: Kind::Link,
            ..ours
        },
    ] {
        assert!(!records.proofs.proves(&path, &foreign), "{foreign:?}");
    }
    if ours.born_ns.is_some() {
        let restored = Identity {
            born_ns: ours.born_ns.map(|born| born + 1),
            ..ours
        };
        assert!(
            !records.proofs.proves(&path, &restored),
            "a backup with its times, under the same number"
        );
    }
}

#[test]
fn the_proof_of_a_removed_file_is_dropped() {
    let disk = Disk::new();
    let run = disk.run("r");
    let path = disk.put("step-1.pt", FULL);
    let beside = disk.put(
        "notes.txt",
        b"written by torch.save, under a name of no checkpoint",
    );
    run.note(&path, &[""]);
    run.note(&beside, &[""]);
    std::fs::remove_file(&path).unwrap();
    let mut known = Vec::new();
    for _ in 0..=MISSED_MAX {
        run.scan();
        known.push(run.records().proofs.files.len());
    }
    assert_eq!(
        known,
        [2, 2, 1, 1],
        "a scan may miss a file that is being renamed"
    );
    assert!(proven(&run, &beside));
}

#[test]
fn a_file_that_was_still_open_is_proven_once_its_last_bytes_are_written() {
    let disk = Disk::new();
    let run = disk.run("r");
    let path = disk.put("step-1.pt", FULL);
    run.note_as(&path, &[""], false);
    let noted = std::fs::metadata(&path).unwrap().mtime();
    let at = |seconds: i64| {
        let time =
            std::time::UNIX_EPOCH + std::time::Duration::from_secs((noted + seconds).try_into().unwrap());
        std::fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(time)
            .unwrap();
    };
    at(5);
    assert!(proven(&run, &path));
    at(90);
    assert!(!proven(&run, &path), "somebody wrote to it long after the save");
    at(5);
    run.scan();
    at(6);
    assert!(!proven(&run, &path), "its time was noted by the first scan");
}

/// A person keeps a checkpoint with `ln step-1.pt best.pt`. After `step-1.pt` was removed, `best.pt` was the file's only name.
#[test]
fn a_link_that_a_person_made_is_never_proven() {
    let disk = Disk::new();
    let run = disk.run("r");
    let path = disk.put("step-1.pt", FULL);
    run.note(&path, &[""]);
    run.scan();
    let link = disk.path("best.pt");
    std::fs::hard_link(&path, &link).unwrap();
    assert!(proven(&run, &path) && !proven(&run, &link));
    let mut records = run.records();
    let found = Identity::of(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    records.proofs.removed(&path, &found);
    records.store();
    assert!(!proven(&run, &link), "the last name of the file");

    // If a person removes the name that was saved, a scan has seen the link before.
    let path = disk.put("step-2.pt", FULL);
    run.note(&path, &[""]);
    let link = disk.path("best-2.pt");
    std::fs::hard_link(&path, &link).unwrap();
    run.scan();
    std::fs::remove_file(&path).unwrap();
    assert!(!proven(&run, &link));
}

/// Unchanged shards are links into the previous checkpoint, which may belong to another run.
#[test]
fn of_a_linked_shard_only_the_names_that_saves_made_are_proven() {
    let disk = Disk::new();
    let run = disk.run("r");
    let foreign = disk.put("old/__0_30.distcp", b"frozen");
    for step in ["step-1", "step-2"] {
        std::fs::create_dir(disk.path(step)).unwrap();
        std::fs::hard_link(&foreign, disk.path(step).join("__0_30.distcp")).unwrap();
        run.note(&disk.path(step), &["__0_30.distcp"]);
    }
    let own = |step: &str| proven(&run, &disk.path(step).join("__0_30.distcp"));
    assert!(own("step-1") && own("step-2") && !proven(&run, &foreign));
    std::fs::remove_file(disk.path("step-1/__0_30.distcp")).unwrap();
    std::fs::remove_file(disk.path("step-2/__0_30.distcp")).unwrap();
    assert!(!proven(&run, &foreign), "also when it is the last name");
}

#[test]
fn what_does_not_read_is_passed_over_and_the_oldest_go_when_there_are_too_many() {
    let mut proofs = Proofs::default();
    for line in [
        "",
        "{",
        "[]",
        r#"{"path":"/c"}"#,
        r#"{"path":"/c","files":[["a"]]}"#,
    ] {
        proofs.note(line.as_bytes());
    }
    assert_eq!(proofs.files.len(), 0);
    for n in 0..=FILES_MAX {
        proofs.note(format!(r#"{{"v":1,"path":"/c/{n}","files":[["",1,{n},5,7,1,true]]}}"#).as_bytes());
    }
    assert!(proofs.files.len() <= FILES_MAX);
    let found = |inode: u64| Identity {
        device: 1,
        inode,
        kind: Kind::File,
        bytes: 5,
        changed_ns: 7,
        born_ns: None,
        links: 1,
    };
    let path = |n: usize| PathBuf::from(format!("/c/{n}"));
    assert!(!proofs.proves(&path(0), &found(0)), "the oldest");
    assert!(proofs.proves(&path(FILES_MAX), &found(FILES_MAX as u64)));
}

#[test]
fn records_of_ranks_are_read_once_and_again_after_a_crash() {
    let disk = Disk::new();
    let run = disk.run("r");
    let path = disk.put("step-1.pt", FULL);
    run.note(&path, &[""]);
    let saves = disk.folder().parent().unwrap().join("runs/r.1/saves");
    let mut proofs = Proofs::default();
    let taken = TakenSaves::take(&saves, &mut proofs);
    // The agent is killed before the proofs are stored, and the rank saves again.
    drop((taken, proofs));
    let second = disk.put("step-2.pt", FULL);
    run.note(&second, &[""]);
    assert!(proven(&run, &path), "what was taken before comes first");
    assert!(proven(&run, &second));
    assert_eq!(std::fs::read_dir(&saves).unwrap().count(), 0, "all is taken away");
}
