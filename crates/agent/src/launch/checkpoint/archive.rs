//! Checks whether a file of `torch.save` is complete, by its zip directory, and a safetensors file by its header.
//!
//! ```text
//! local header, name, padding, bytes │ … │ directory: one entry per file │ end64 │ locator64 │ end
//!                                          └ offset, size, name ────────── position, count ───┘
//! ```
//! A zip is written from front to back, so a truncated one has lost its end. One that was assembled wrongly has entries outside of its
//! data.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::pickle;

/// The end record of a zip with the longest possible comment, and the records before it in large files.
const TAIL_BYTES: u64 = 22 + 65_535 + 20 + 56;
/// Maximum size of the directory: that of a file with half a million tensors.
const DIRECTORY_BYTES_MAX: u64 = 64 << 20;
/// How much of `data.pkl` is searched for the names of a training's state.
const PICKLE_BYTES_MAX: u64 = 8 << 20;
/// Maximum number of entries whose local header is checked, evenly distributed.
const HEADERS_MAX: usize = 64;
/// Maximum size of a safetensors header, as in its own reader.
const SAFETENSORS_HEADER_MAX: u64 = 100 << 20;
/// The first bytes of the format before zip: a pickle of a magic number.
const OLD_FORMAT: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

/// The result of checking a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FileCheck {
    /// The file is complete.
    Complete {
        /// It contains no optimizer, step or epoch; or the file's name contains `best`, and it contains no optimizer.
        model_only: bool,
    },
    /// Data is missing.
    Incomplete(String),
    /// The check is not possible.
    Uncertain(String),
}

/// Checks a file by the extension of its name and its bytes.
pub(super) fn check_file(path: &Path) -> FileCheck {
    let safetensors = path
        .extension()
        .is_some_and(|extension| extension == "safetensors");
    let check = File::open(path).and_then(|file| {
        let length = file.metadata()?.len();
        match safetensors {
            _ if length == 0 => Ok(incomplete("is 0 bytes")),
            true => safetensors_file(&file, length),
            false => zip(&file, length, is_best(path)),
        }
    });
    check.unwrap_or_else(|error| FileCheck::Uncertain(format!("cannot be read: {error}")))
}

fn incomplete(why: &str) -> FileCheck {
    FileCheck::Incomplete(why.to_owned())
}

fn zip(file: &File, length: u64, best: bool) -> io::Result<FileCheck> {
    let tail_at = length.saturating_sub(TAIL_BYTES);
    let tail = read_at(file, tail_at, length - tail_at)?;
    let Some(end) = End::find(&tail, tail_at, file)? else {
        let begins = read_at(file, 0, length.min(16))?;
        return Ok(if begins.starts_with(OLD_FORMAT) {
            FileCheck::Uncertain(
                "is in the format of torch.save before 1.6, which cannot be checked without running it"
                    .into(),
            )
        } else {
            incomplete("is cut off: the end of the archive is missing")
        });
    };
    if end
        .directory_at
        .checked_add(end.directory_bytes)
        .is_none_or(|over| over > end.at)
    {
        return Ok(incomplete("is damaged: its directory is outside of the file"));
    }
    if end.directory_bytes > DIRECTORY_BYTES_MAX {
        return Ok(FileCheck::Uncertain(
            "has a directory that is too large to check".into(),
        ));
    }
    let directory = read_at(file, end.directory_at, end.directory_bytes)?;
    let Some(entries) = entries(&directory, &end) else {
        return Ok(incomplete("is damaged: its directory is incomplete"));
    };
    if entries
        .iter()
        .any(|entry| entry.over().is_none_or(|over| over > end.directory_at))
    {
        return Ok(incomplete("is damaged: an entry is outside of the file"));
    }
    for entry in entries.iter().step_by(entries.len().div_ceil(HEADERS_MAX).max(1)) {
        if read_at(file, entry.at, 4)? != LOCAL {
            return Ok(incomplete("is damaged: an entry is not where the directory says"));
        }
    }
    let Some(pickle) = entries.iter().find(|entry| entry.is_pickle && entry.bytes > 0) else {
        return Ok(incomplete("has no data.pkl"));
    };
    let pickle = pickle.read(file)?;
    // A script stores the step and the loss with its best weights, but training never resumes from those.
    let best_weights = best && !pickle::names_optimizer(&pickle);
    Ok(FileCheck::Complete {
        model_only: best_weights || !pickle::names_training(&pickle),
    })
}

/// Returns true for `best.pth`, `best_model.pt`, `model-best.pth`: the word alone or between separators.
fn is_best(path: &Path) -> bool {
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
    words.any(|word| word.eq_ignore_ascii_case("best"))
}

const LOCAL: &[u8] = b"PK\x03\x04";
const LOCAL_BYTES: u64 = 30;
const ENTRY: &[u8] = b"PK\x01\x02";
const ENTRY_BYTES: usize = 46;
const END: &[u8] = b"PK\x05\x06";
const END_BYTES: usize = 22;
const LOCATOR64: &[u8] = b"PK\x06\x07";
const LOCATOR64_BYTES: usize = 20;
const END64: &[u8] = b"PK\x06\x06";
const END64_BYTES: u64 = 56;

/// The end record of a zip, which describes its directory.
struct End {
    at: u64,
    entries: u64,
    directory_at: u64,
    directory_bytes: u64,
}

impl End {
    fn find(tail: &[u8], tail_at: u64, file: &File) -> io::Result<Option<Self>> {
        let ends_the_file = |at: &usize| {
            tail[*at..].starts_with(END)
                && u16_at(tail, at + 20)
                    .is_some_and(|comment| at + END_BYTES + usize::from(comment) == tail.len())
        };
        let last = tail.len().checked_sub(END_BYTES);
        let Some(at) = last.and_then(|last| (0..=last).rev().find(ends_the_file)) else {
            return Ok(None);
        };
        let locator = at
            .checked_sub(LOCATOR64_BYTES)
            .filter(|at| tail[*at..].starts_with(LOCATOR64));
        if let Some(locator) = locator {
            let end64_at = u64_at(tail, locator + 8).unwrap_or(u64::MAX);
            return Self::read64(file, end64_at, tail_at + locator as u64);
        }
        let number = |offset| u32_at(tail, at + offset).map(u64::from);
        let entries = u16_at(tail, at + 10).map(u64::from);
        Ok(entries
            .zip(number(12))
            .zip(number(16))
            .map(|((entries, directory_bytes), directory_at)| Self {
                at: tail_at + at as u64,
                entries,
                directory_at,
                directory_bytes,
            }))
    }

    fn read64(file: &File, at: u64, locator_at: u64) -> io::Result<Option<Self>> {
        if at.checked_add(END64_BYTES).is_none_or(|over| over > locator_at) {
            return Ok(None);
        }
        let bytes = read_at(file, at, END64_BYTES)?;
        let number = |offset| u64_at(&bytes, offset);
        let read = number(32).zip(number(40)).zip(number(48));
        Ok(read
            .filter(|_| bytes.starts_with(END64))
            .map(|((entries, directory_bytes), directory_at)| Self {
                at,
                entries,
                directory_at,
                directory_bytes,
            }))
    }
}

/// One file in the zip.
struct Entry {
    at: u64,
    name_bytes: u64,
    bytes: u64,
    is_pickle: bool,
}

fn entries(directory: &[u8], end: &End) -> Option<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut rest = directory;
    while !rest.is_empty() {
        if !rest.starts_with(ENTRY) || rest.len() < ENTRY_BYTES {
            return None;
        }
        let length = |offset| u16_at(rest, offset).map(usize::from);
        let (name, extra, comment) = (length(28)?, length(30)?, length(32)?);
        let name_bytes = rest.get(ENTRY_BYTES..ENTRY_BYTES + name)?;
        let extra_at = ENTRY_BYTES + name;
        let sizes = Sizes::read(rest, rest.get(extra_at..extra_at + extra)?)?;
        entries.push(Entry {
            at: sizes.at,
            name_bytes: name as u64,
            bytes: sizes.stored,
            is_pickle: name_bytes == b"data.pkl" || name_bytes.ends_with(b"/data.pkl"),
        });
        rest = rest.get(extra_at + extra + comment..)?;
    }
    (entries.len() as u64 == end.entries).then_some(entries)
}

/// The position and the size of an entry. In large files they are in an extra field, in this order, each only if needed.
struct Sizes {
    stored: u64,
    at: u64,
}

impl Sizes {
    fn read(entry: &[u8], extra: &[u8]) -> Option<Self> {
        let mut large = zip64(extra).unwrap_or_default().chunks_exact(8);
        let mut number = |offset| {
            let small = u32_at(entry, offset)?;
            if small == u32::MAX {
                u64_at(large.next()?, 0)
            } else {
                Some(u64::from(small))
            }
        };
        let _unpacked = number(24)?;
        Some(Self {
            stored: number(20)?,
            at: number(42)?,
        })
    }
}

fn zip64(mut extra: &[u8]) -> Option<&[u8]> {
    loop {
        let (id, length) = (u16_at(extra, 0)?, usize::from(u16_at(extra, 2)?));
        let field = extra.get(4..4 + length)?;
        if id == 1 {
            return Some(field);
        }
        extra = &extra[4 + length..];
    }
}

impl Entry {
    fn over(&self) -> Option<u64> {
        self.at
            .checked_add(LOCAL_BYTES + self.name_bytes)?
            .checked_add(self.bytes)
    }

    fn read(&self, file: &File) -> io::Result<Vec<u8>> {
        let header = read_at(file, self.at, LOCAL_BYTES)?;
        let behind = |offset| u16_at(&header, offset).map_or(0, u64::from);
        read_at(
            file,
            self.at + LOCAL_BYTES + behind(26) + behind(28),
            self.bytes.min(PICKLE_BYTES_MAX),
        )
    }
}

/// Checks `length of header, header, data`. The header contains where each tensor's data ends.
fn safetensors_file(file: &File, length: u64) -> io::Result<FileCheck> {
    let head = read_at(file, 0, length.min(8))?;
    let Some(header_bytes) = u64_at(&head, 0).filter(|bytes| *bytes <= SAFETENSORS_HEADER_MAX) else {
        return Ok(incomplete("is damaged: it has no header"));
    };
    let Some(data_at) = header_bytes.checked_add(8).filter(|at| *at <= length) else {
        return Ok(incomplete("is cut off within its header"));
    };
    let header = read_at(file, 8, header_bytes)?;
    let Ok(tensors) =
        serde_json::from_slice::<std::collections::BTreeMap<String, serde_json::Value>>(&header)
    else {
        return Ok(incomplete("is damaged: its header cannot be read"));
    };
    let ends = tensors
        .values()
        .filter_map(|tensor| tensor["data_offsets"][1].as_u64());
    let data = ends.max().unwrap_or(0);
    Ok(if data_at.checked_add(data).is_none_or(|over| over > length) {
        incomplete("is cut off: tensors are missing at its end")
    } else {
        FileCheck::Complete { model_only: true }
    })
}

fn read_at(file: &File, at: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    let mut read = 0;
    while read < bytes.len() {
        match file.read_at(&mut bytes[read..], at + read as u64)? {
            0 => break,
            more => read += more,
        }
    }
    // The file may have become shorter in the meantime; then the missing part shows in what is read.
    bytes.truncate(read);
    Ok(bytes)
}

/// Reads a small file completely. Returns `None` if it is larger than `bytes_max`.
pub(super) fn read_small(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= bytes_max).then_some(bytes))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    /// Written by PyTorch 2.15 from `{"model": Linear(4, 4), "optimizer": AdamW, "step": 7}`.
    const FULL: &[u8] = include_bytes!("../../../testdata/checkpoint/full.pt");
    /// From the model's `state_dict` only.
    const MODEL: &[u8] = include_bytes!("../../../testdata/checkpoint/model.pt");
    /// From `{"model": …, "step": 7, "val_loss": 2.5, "epoch": 1}`.
    const BEST: &[u8] = include_bytes!("../../../testdata/checkpoint/best.pt");
    /// With `_use_new_zipfile_serialization=False`.
    const OLD: &[u8] = include_bytes!("../../../testdata/checkpoint/old.pt");

    fn check(name: &str, bytes: &[u8]) -> FileCheck {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        check_file(&path)
    }

    #[test]
    fn files_of_torch_are_complete_and_a_model_differs_from_a_training() {
        assert_eq!(check("a.pt", FULL), FileCheck::Complete { model_only: false });
        assert_eq!(check("a.pt", MODEL), FileCheck::Complete { model_only: true });
        // The recipe `resume` stores the step with its best weights. A run would have resumed from them, without an optimizer.
        for (name, bytes, model_only) in [
            ("best.pth", BEST, true),
            ("model_best.pt", BEST, true),
            ("BestModel.pt", BEST, false),
            ("step-7.pt", BEST, false),
            ("best.pth", FULL, false),
        ] {
            assert_eq!(check(name, bytes), FileCheck::Complete { model_only }, "{name}");
        }
        assert!(matches!(check("a.pt", OLD), FileCheck::Uncertain(why) if why.contains("before 1.6")));
    }

    #[test]
    fn one_that_is_cut_off_anywhere_is_torn() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.pt");
        for length in 0..FULL.len() {
            std::fs::write(&path, &FULL[..length]).unwrap();
            assert!(
                matches!(check_file(&path), FileCheck::Incomplete(_)),
                "{length} of {} bytes",
                FULL.len()
            );
        }
        // As after a full disk or a power failure: the length is correct, but bytes are missing.
        for length in (0..FULL.len() - 100).step_by(61) {
            let mut bytes = FULL.to_vec();
            bytes[length..].fill(0);
            std::fs::write(&path, &bytes).unwrap();
            assert!(
                matches!(check_file(&path), FileCheck::Incomplete(_)),
                "zeros from {length}"
            );
        }
    }

    #[test]
    fn damage_within_never_panics_and_a_damaged_directory_is_seen() {
        let directory_at = FULL.len() - 22 - 20 - 56 - 841;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.pt");
        for at in 0..FULL.len() {
            let mut bytes = FULL.to_vec();
            bytes[at] ^= 0xff;
            std::fs::write(&path, &bytes).unwrap();
            let _no_panic = check_file(&path);
        }
        let mut bytes = FULL.to_vec();
        bytes[directory_at] ^= 0xff;
        assert!(matches!(check("a.pt", &bytes), FileCheck::Incomplete(_)));
        for hostile in [
            &b"PK\x05\x06"[..],
            &[0xff; 300],
            &[b"PK\x06\x07".as_slice(), &[0xff; 16], b"PK\x05\x06", &[0; 18]].concat(),
        ] {
            assert!(matches!(check("a.pt", hostile), FileCheck::Incomplete(_)));
        }
    }

    #[test]
    fn safetensors_are_judged_by_where_their_tensors_end() {
        let header = br#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
        let whole = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 8]].concat();
        assert_eq!(
            check("m.safetensors", &whole),
            FileCheck::Complete { model_only: true }
        );
        for length in 0..whole.len() {
            assert!(
                matches!(check("m.safetensors", &whole[..length]), FileCheck::Incomplete(_)),
                "{length}"
            );
        }
    }
}
