#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::os::unix::fs::MetadataExt;

use super::super::testing::Disk;
use super::*;

/// Writes what `lockstep_checkpoint` writes last.
fn write(folder: &Path, run: &str, names: &[&str]) {
    let inode = std::fs::metadata(folder).unwrap().ino();
    write_with(folder, run, names, Some(inode));
}

/// Writes what `lockstep_checkpoint` wrote before a sidecar named its folder.
fn write_older(folder: &Path, run: &str, names: &[&str]) {
    write_with(folder, run, names, None);
}

fn write_with(folder: &Path, run: &str, names: &[&str], folder_inode: Option<u64>) {
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
    let mut sidecar = serde_json::json!({ "version": 1, "step": 7, "files": {}, "run": run, "inode": inode, "inodes": inodes });
    if let Some(inode) = folder_inode {
        sidecar["folder"] = inode.into();
    }
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

/// A person keeps a checkpoint with `cp -al`: the folder is new, and everything in it is a hard link, also the sidecar.
#[test]
fn a_copy_of_hard_links_is_not_proven_and_its_original_is() {
    let disk = Disk::new();
    disk.put("step-7/__0_0.distcp", b"shard");
    let (original, kept) = (disk.path("step-7"), disk.path("kept"));
    write(&original, "r", &["__0_0.distcp"]);
    link_all(&original, &kept);
    for name in ["__0_0.distcp", NAME] {
        assert!(proves(&original, "r", name), "{name}");
        assert!(!proves(&kept, "r", name), "{name}");
    }
    std::fs::remove_dir_all(&original).unwrap();
    assert!(
        !proves(&kept, "r", "__0_0.distcp"),
        "the last name is still a person's"
    );
}

#[test]
fn a_linked_sidecar_that_does_not_name_its_folder_proves_nothing() {
    let disk = Disk::new();
    disk.put("step-7/__0_0.distcp", b"shard");
    let (original, kept) = (disk.path("step-7"), disk.path("kept"));
    write_older(&original, "r", &["__0_0.distcp"]);
    assert!(proves(&original, "r", "__0_0.distcp"));
    link_all(&original, &kept);
    assert!(!proves(&original, "r", "__0_0.distcp") && !proves(&kept, "r", "__0_0.distcp"));
}

fn link_all(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::hard_link(entry.path(), to.join(entry.file_name())).unwrap();
    }
}
