#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::os::unix::fs::MetadataExt;

use super::super::testing::Disk;
use super::*;

/// Writes what `lockstep_checkpoint` writes last.
fn write(folder: &Path, run: &str, names: &[&str]) {
    let path = folder.join(NAME);
    std::fs::write(&path, b"").unwrap();
    let inode = std::fs::metadata(&path).unwrap().ino();
    let entry = |name: &&str| {
        let meta = std::fs::metadata(folder.join(name)).unwrap();
        let changed_ns = meta.mtime() * 1_000_000_000 + meta.mtime_nsec();
        (
            (*name).to_owned(),
            serde_json::json!([meta.ino(), meta.len(), changed_ns]),
        )
    };
    let inodes: serde_json::Map<_, _> = names.iter().map(entry).collect();
    let sidecar = serde_json::json!({ "version": 1, "step": 7, "files": {}, "run": run, "inode": inode, "inodes": inodes });
    std::fs::write(&path, sidecar.to_string()).unwrap();
}

fn proves(folder: &Path, run: &str, name: &str) -> bool {
    let path = folder.join(name);
    let found = Identity::of(&path).unwrap();
    Proof::in_folder(folder, run).is_some_and(|proof| proof.proves(&path, &found))
}

#[test]
fn a_sidecar_proves_itself_and_the_files_that_it_names_for_its_own_run() {
    let disk = Disk::new();
    disk.put("step-7/__0_0.distcp", b"shard");
    disk.put("step-7/sub/__0_0.distcp", b"shard");
    let folder = disk.path("step-7");
    write(&folder, "r", &["__0_0.distcp"]);
    disk.put("step-7/notes.txt", b"a person's");
    for (name, proven) in [
        ("__0_0.distcp", true),
        (NAME, true),
        ("notes.txt", false),
        ("sub/__0_0.distcp", false),
    ] {
        assert_eq!(proves(&folder, "r", name), proven, "{name}");
        assert!(!proves(&folder, "another", name), "{name}");
    }
    let moved = disk.path("elsewhere");
    std::fs::rename(&folder, &moved).unwrap();
    assert!(proves(&moved, "r", "__0_0.distcp"), "moved as a whole");
    std::fs::write(moved.join("__0_0.distcp"), b"other").unwrap();
    assert!(
        !proves(&moved, "r", "__0_0.distcp"),
        "written to by somebody else"
    );
}

/// A person who copies a checkpoint also copies its sidecar.
#[test]
fn the_copy_of_a_sidecar_proves_nothing() {
    let disk = Disk::new();
    let shard = disk.put("step-7/__0_0.distcp", b"shard");
    write(&disk.path("step-7"), "r", &["__0_0.distcp"]);
    let copy = disk.path("kept");
    std::fs::create_dir(&copy).unwrap();
    std::fs::copy(disk.path("step-7").join(NAME), copy.join(NAME)).unwrap();
    std::fs::hard_link(&shard, copy.join("__0_0.distcp")).unwrap();
    assert!(!proves(&copy, "r", "__0_0.distcp") && !proves(&copy, "r", NAME));
}
