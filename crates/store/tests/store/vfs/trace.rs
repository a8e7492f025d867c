//! What happened to the write-ahead files of a disk, for the message of a failed test.

use std::fmt;
use std::fs;
use std::path::Path;

use super::faults::{Call, Fault, Files};

/// The calls on write-ahead files in their order. Equal calls in a row are counted.
#[derive(Debug, Default)]
pub(super) struct Trace(Vec<Entry>);

#[derive(Debug)]
struct Entry {
    file: String,
    call: Call,
    fault: Option<Fault>,
    times: u32,
}

impl Trace {
    /// Records a call. A read that succeeds changes nothing and is left out.
    pub(super) fn note(&mut self, call: Call, file: &str, fault: Option<Fault>) {
        if !Files::WriteAhead.has(file) || (call == Call::Read && fault.is_none()) {
            return;
        }
        match self.0.last_mut() {
            Some(last) if last.call == call && last.fault == fault && last.file == file => last.times += 1,
            _ => self.0.push(Entry {
                file: file.to_owned(),
                call,
                fault,
                times: 1,
            }),
        }
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for entry in &self.0 {
            let Entry {
                file,
                call,
                fault,
                times,
            } = entry;
            let result = fault.map_or_else(|| "ok".to_owned(), |fault| format!("{fault:?}"));
            writeln!(f, "  {file} {call:?} {result} ×{times}")?;
        }
        Ok(())
    }
}

/// Describes the write-ahead files of a folder: sizes, and the beginning of each. A journal begins with its header: page size at
/// byte 8, salts at 16. A database has its page size at byte 16, the change counter at 24, the number of pages at 28.
pub(crate) fn contents(folder: &Path) -> String {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut lines: Vec<String> = files
        .filter_map(|path| {
            let name = path.file_name()?.to_str()?.to_owned();
            let bytes = Files::WriteAhead.has(&name).then(|| fs::read(&path).unwrap())?;
            let start = hex::encode(&bytes[..bytes.len().min(32)]);
            Some(format!("  {name} {} bytes, {start}\n", bytes.len()))
        })
        .collect();
    lines.sort_unstable();
    lines.concat()
}
