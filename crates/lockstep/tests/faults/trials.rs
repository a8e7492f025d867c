//! A file of finished trials, one JSON document per line, so that an interrupted command continues.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Reads the file. Returns nothing if it does not exist.
pub(crate) fn read<T: DeserializeOwned>(file: &Path) -> Vec<T> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

/// Adds a trial, and waits until it is on the disk.
pub(crate) fn add<T: Serialize>(file: &Path, trial: &T) {
    let mut options = OpenOptions::new();
    let mut file = options.create(true).append(true).read(true).open(file).unwrap();
    // Keep the rest of an interrupted write on a line of its own, which is then ignored.
    let separator = if has_open_line(&mut file) { "\n" } else { "" };
    let line = serde_json::to_string(trial).unwrap();
    file.write_all(format!("{separator}{line}\n").as_bytes()).unwrap();
    file.sync_data().unwrap();
}

/// Returns true if the last line has no end.
fn has_open_line(file: &mut File) -> bool {
    let mut last = [0];
    // An empty file has no last byte.
    let has_last = file.seek(SeekFrom::End(-1)).is_ok();
    has_last && file.read_exact(&mut last).is_ok() && last != *b"\n"
}

#[test]
fn a_trial_after_an_interrupted_write_is_not_lost() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trials.jsonl");
    assert_eq!(read::<u32>(&file), Vec::<u32>::new());
    add(&file, &1);
    fs::write(&file, "1\n{\"kind\": \"spi").unwrap();
    add(&file, &2);
    add(&file, &3);
    assert_eq!(read::<u32>(&file), [1, 2, 3]);
}
