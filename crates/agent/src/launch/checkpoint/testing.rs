//! One node for tests: a data folder, a checkpoint folder, runs, and saves that are recorded as the probe records them.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use domain::ident::RunId;
use domain::run::checkpoint::{CheckpointReport, RemovalOrder, RequiredCheckpoint};
use domain::run::spec::Spec;
use domain::run::state::Start;
use shim::{Folder, files};

use super::records::{Records, RecordsFolder, list_before_start};
use super::removal::{RemovalError, carry_out};
use super::scan::{Limits, ScanCache, ScanInput, scan};

pub(super) const FULL: &[u8] = include_bytes!("../../../testdata/checkpoint/full.pt");

/// The node's name.
pub(super) const NODE: &str = "n0";

/// A node's disk.
pub(super) struct Disk {
    data: tempfile::TempDir,
}

/// A run on the node that saves to a folder.
pub(super) struct Run {
    place: RecordsFolder,
    saves: PathBuf,
    folder: PathBuf,
}

impl Disk {
    pub(super) fn new() -> Self {
        let data = tempfile::tempdir().unwrap();
        std::fs::create_dir(data.path().join("c")).unwrap();
        Self { data }
    }

    /// The checkpoint folder.
    pub(super) fn folder(&self) -> PathBuf {
        self.data.path().join("c")
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    /// Writes a file that no run wrote, and the folders that it needs.
    pub(super) fn put(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    pub(super) fn run(&self, name: &str) -> Run {
        self.run_in(name, self.folder())
    }

    pub(super) fn run_in(&self, name: &str, folder: PathBuf) -> Run {
        let attempt = Folder::at(self.data.path().join("runs").join(format!("{name}.1")));
        std::fs::create_dir_all(attempt.path()).unwrap();
        Run {
            place: RecordsFolder::of(&RunId::new(name).unwrap(), &attempt),
            saves: attempt.file(files::SAVES),
            folder,
        }
    }

    /// Returns all names below the checkpoint folder, sorted; a folder's name ends with `/`.
    pub(super) fn names(&self) -> Vec<String> {
        names_in(&self.folder())
    }
}

/// Returns all names below a folder, sorted; a folder's name ends with `/`.
pub(super) fn names_in(folder: &Path) -> Vec<String> {
    fn add(names: &mut Vec<String>, folder: &Path, below: &str) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{below}{}", entry.file_name().to_string_lossy());
            if entry.file_type().unwrap().is_dir() {
                names.push(format!("{name}/"));
                add(names, &entry.path(), &format!("{name}/"));
            } else {
                names.push(name);
            }
        }
    }
    let mut names = Vec::new();
    add(&mut names, folder, "");
    names.sort();
    names
}

impl Run {
    /// Records the contents of the folder before the first start, as the follower does.
    pub(super) fn first_start(&self, is_first: bool, is_mine: bool) {
        let start = Start {
            spec: Spec {
                checkpoint_dir_is_mine: is_mine,
                ..Spec::default()
            },
            is_first,
            ..Start::default()
        };
        list_before_start(&self.folder, &start).note(&self.place).unwrap();
    }

    /// Records that a save wrote these files of a path, as the probe does at the end of the save; `""` is the path itself.
    pub(super) fn note(&self, path: &Path, files: &[&str]) {
        self.note_as(path, files, true);
    }

    /// Like `note`; `exact` is false for a file that is still open.
    pub(super) fn note_as(&self, path: &Path, files: &[&str], exact: bool) {
        let file = |name: &&str| {
            // `join("")` would end with a slash.
            let path = if name.is_empty() {
                path.to_owned()
            } else {
                path.join(name)
            };
            let meta = std::fs::symlink_metadata(path).unwrap();
            let changed_ns = meta.mtime() * 1_000_000_000 + meta.mtime_nsec();
            serde_json::json!([
                name,
                meta.dev(),
                meta.ino(),
                meta.len(),
                changed_ns,
                meta.nlink(),
                exact
            ])
        };
        let files: Vec<_> = files.iter().map(file).collect();
        let line = serde_json::json!({ "v": 1, "path": path, "files": files }).to_string() + "\n";
        std::fs::create_dir_all(&self.saves).unwrap();
        let before = std::fs::read(self.saves.join("0.jsonl")).unwrap_or_default();
        std::fs::write(self.saves.join("0.jsonl"), [before, line.into_bytes()].concat()).unwrap();
    }

    /// Saves to one file, this many seconds ago.
    pub(super) fn save(&self, name: &str, bytes: &[u8], age_s: u64) -> String {
        let path = self.folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        aged(&path, Duration::from_secs(age_s));
        self.note(&path, &[""]);
        path.display().to_string()
    }

    /// Returns the current records.
    pub(super) fn records(&self) -> Records {
        let mut records = Records::open(&self.place);
        records.take_saves(&self.saves);
        records
    }

    /// One scan, as by the watch.
    pub(super) fn scan(&self) -> CheckpointReport {
        let mut records = self.records();
        let input = ScanInput {
            node: NODE,
            folder: Some(&self.folder),
            named: &[],
            records: Some(&records),
            over: true,
            limits: Limits::for_nodes(1),
        };
        let result = scan(&input, &mut ScanCache::default());
        records.proofs.settle(&result.files, !result.incomplete);
        assert!(records.store());
        result.report
    }

    /// Executes an order, as the watch does. Returns the first reason why something stays.
    pub(super) fn carry_out(&self, order: &RemovalOrder) -> Option<RemovalError> {
        let mut records = self.records();
        let kept = carry_out(
            order,
            &|| true,
            &std::collections::BTreeSet::new(),
            NODE,
            &mut records,
        );
        assert!(records.store());
        kept.into_iter().next().map(|(_, error)| error)
    }

    /// Returns an order to remove these paths while another one remains.
    pub(super) fn order(&self, remain: &str, remove: &[&str]) -> RemovalOrder {
        RemovalOrder {
            folder: self.folder.display().to_string(),
            remove: remove.iter().map(|path| (*path).to_owned()).collect(),
            remain: RequiredCheckpoint {
                path: remain.to_owned(),
                complete: true,
                mark: String::new(),
            },
            ..RemovalOrder::default()
        }
    }
}

/// Sets a file's modification time back, as if it had been saved then.
pub(super) fn aged(path: &Path, age: Duration) {
    let at = SystemTime::now() - age;
    std::fs::File::options()
        .write(true)
        .open(path)
        .unwrap()
        .set_modified(at)
        .unwrap();
}
