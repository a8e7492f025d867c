//! The mid-step page of a rank: its current position, readable even while the rank is stopped or holds Python's interpreter lock.
//!
//! The shim creates the file `page-RANK` before the rank starts, and allocates all of it: if the disk were full, a write into the mapping
//! would end the rank with SIGBUS. The probe maps the file and writes it (`torch-probe/inject/lockstep_probe/page.py`); the agent reads it.
//! The file is never in `/dev/shm`, which belongs to the job and may be small or shared.
//!
//! ```text
//! 0     slot 0, 64 bytes
//! 64    slot 1, 64 bytes
//! 128   not used, up to 4096
//!
//! slot (little endian)
//! 0     u64  number       of this record, from 1
//! 8     u64  since_ns     CLOCK_MONOTONIC at the start of the phase
//! 16    u64  step         the last step that ended
//! 24    u64  batches      number of batches that this process fetched
//! 32    u64  backwards    number of backward passes that this process began
//! 40    u8   version      1
//! 41    u8   phase
//! 42    u8   stage        progress before the first step: the highest of the first phases; 5 from the first batch on
//! 43         zeros
//! 52    u32  crc          CRC-32 (IEEE 802.3, as zlib) of the 52 bytes before
//! 56    u64  number       repeated
//! ```
//! Record N is written to slot N % 2. An interrupted write therefore damages one slot and leaves the other one valid. A reader uses the
//! newest valid slot.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::FallocateFlags;

use crate::folder::Folder;

/// The size of the file in bytes: one memory page on most machines.
pub const PAGE_BYTES: u64 = 4_096;
const SLOT_BYTES: usize = 64;
const CRC_AT: usize = 52;
const VERSION: u8 = 1;
/// Read attempts. A rank that writes continuously can damage both slots during one read.
const READS_MAX: usize = 4;

/// One record that the rank wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRecord {
    /// Increases with each record of one process. A new process of the same rank starts again at 1.
    pub number: u64,
    /// When the phase began, in nanoseconds of `CLOCK_MONOTONIC`.
    pub since_ns: u64,
    /// The last step that ended.
    pub step: u64,
    /// Number of batches that the process fetched.
    pub batches: u64,
    /// Number of backward passes that the process began.
    pub backwards: u64,
    /// The number of the current phase.
    pub phase: u8,
    /// How far the rank has come before its first step: the highest of the first phases, or 5 after the first batch.
    pub stage: u8,
}

impl PageRecord {
    /// A count that increases while the rank makes progress, also within a step.
    #[must_use]
    pub fn moves(&self) -> u64 {
        self.batches
            .saturating_add(self.backwards)
            .saturating_add(self.step)
    }
}

/// Creates the page of a rank. An existing page is not changed.
///
/// # Errors
/// If the file cannot be created or allocated, for example because the disk is full.
pub fn create(folder: &Folder, rank: u32) -> io::Result<()> {
    let path = folder.page(rank);
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&path)?;
    if file.metadata()?.len() == PAGE_BYTES {
        return Ok(());
    }
    let allocated = match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, PAGE_BYTES) {
        // Some network file systems do not support this. Writing the bytes allocates them as well.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
            file.write_all_at(&[0; PAGE_BYTES as usize], 0)
        }
        done => done.map_err(io::Error::from),
    };
    if allocated.is_err() {
        // The rank would not use an incomplete page, but the page would use space.
        let _gone = std::fs::remove_file(path);
    }
    allocated
}

/// Reads the page of one rank repeatedly.
#[derive(Debug)]
pub struct Page(File);

impl Page {
    /// Opens a page. Returns `None` if it does not exist or is not a valid page file.
    #[must_use]
    pub fn open(folder: &Folder, rank: u32) -> Option<Self> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(folder.page(rank))
            .ok()?;
        let about = file.metadata().ok()?;
        (about.is_file() && about.len() == PAGE_BYTES).then_some(Self(file))
    }

    /// Returns the newest valid record, or `None` before the first one.
    #[must_use]
    pub fn read(&self) -> Option<PageRecord> {
        let mut slots = [0; 2 * SLOT_BYTES];
        (0..READS_MAX).find_map(|_| {
            self.0.read_exact_at(&mut slots, 0).ok()?;
            newest(&slots)
        })
    }
}

fn newest(slots: &[u8; 2 * SLOT_BYTES]) -> Option<PageRecord> {
    let (slots, _) = slots.as_chunks::<SLOT_BYTES>();
    slots.iter().filter_map(whole).max_by_key(|record| record.number)
}

/// Parses the record of a slot. Returns `None` if the slot is not completely written.
fn whole(slot: &[u8; SLOT_BYTES]) -> Option<PageRecord> {
    let number = |at: usize| -> Option<u64> {
        let bytes = slot.get(at..at + size_of::<u64>())?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    };
    let crc = u32::from_le_bytes(slot[CRC_AT..CRC_AT + size_of::<u32>()].try_into().ok()?);
    let is_whole = number(0)? > 0 && number(0)? == number(56)? && crc == crc32(&slot[..CRC_AT]);
    if !is_whole || slot[40] != VERSION {
        return None;
    }
    Some(PageRecord {
        number: number(0)?,
        since_ns: number(8)?,
        step: number(16)?,
        batches: number(24)?,
        backwards: number(32)?,
        phase: slot[41],
        stage: slot[42],
    })
}

/// The CRC of Python's `binascii.crc32`, computed bit by bit, which is fast enough for 52 bytes.
fn crc32(bytes: &[u8]) -> u32 {
    const REVERSED_POLYNOMIAL: u32 = 0xedb8_8320;
    let shift = |crc: u32, _| (crc >> 1) ^ (REVERSED_POLYNOMIAL * (crc & 1));
    let byte = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), shift);
    !bytes.iter().fold(!0, byte)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use std::io::{BufRead, BufReader, Write};
    use std::path::Path;
    use std::process::{Child, Command, Stdio};

    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

    use super::*;

    fn folder() -> (tempfile::TempDir, Folder) {
        let data = tempfile::tempdir().unwrap();
        let folder = Folder::at(data.path());
        (data, folder)
    }

    /// Starts the probe's own writer, which runs the given code: it either executes lines from its input or moves continuously.
    fn writer(folder: &Folder, code: &str) -> Child {
        let inject = Path::new(env!("CARGO_MANIFEST_DIR")).join("../torch-probe/inject");
        let begin = "import sys; sys.dont_write_bytecode = True; sys.path.insert(0, sys.argv[1])\n\
                     from lockstep_probe.page import Page\n\
                     page = Page({'LOCKSTEP_PROBE_SOCKET': sys.argv[2] + '/probe.sock', 'RANK': '7'})\n";
        Command::new("python3")
            .args(["-c", &format!("{begin}{code}")])
            .arg(inject)
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    #[test]
    fn the_check_sum_is_that_of_zlib() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b""), 0);
    }

    #[test]
    fn a_page_is_created_once_in_full_and_only_a_page_is_read() {
        let (_data, folder) = folder();
        assert!(Page::open(&folder, 7).is_none());
        create(&folder, 7).unwrap();
        let about = std::fs::metadata(folder.page(7)).unwrap();
        let blocks = std::os::unix::fs::MetadataExt::blocks(&about);
        assert_eq!((about.len(), blocks * 512 >= PAGE_BYTES), (PAGE_BYTES, true));
        assert_eq!(
            Page::open(&folder, 7).unwrap().read(),
            None,
            "nothing is written yet"
        );
        std::fs::write(folder.page(7), [1; PAGE_BYTES as usize]).unwrap();
        create(&folder, 7).unwrap();
        assert_eq!(std::fs::read(folder.page(7)).unwrap()[0], 1, "it stays as it is");
        assert_eq!(Page::open(&folder, 7).unwrap().read(), None);
        std::fs::write(folder.page(8), [0; 100]).unwrap();
        assert!(Page::open(&folder, 8).is_none());
        create(&folder, 8).unwrap();
        assert!(Page::open(&folder, 8).is_some(), "a rest is made whole");
        std::os::unix::fs::symlink(folder.page(7), folder.page(9)).unwrap();
        assert!(Page::open(&folder, 9).is_none() && create(&folder, 9).is_err());
    }

    #[test]
    fn what_the_probe_writes_is_read() {
        const TOLD: &str = "page.step = 41; page.reach(1)\n\
                            for line in sys.stdin: exec(line); print(flush=True)";
        let (_data, folder) = folder();
        create(&folder, 7).unwrap();
        let page = Page::open(&folder, 7).unwrap();
        let mut child = writer(&folder, TOLD);
        let (mut lines, mut said) = (
            child.stdin.take().unwrap(),
            BufReader::new(child.stdout.take().unwrap()),
        );
        let mut last = 0;
        for (line, expected) in [
            ("page.reach(3)", (3, 3, 41, 0, 0)),
            ("page.enter(5)", (5, 3, 41, 0, 0)),
            ("page.fetched(True)", (6, 5, 41, 1, 0)),
            ("page.begin_backward()", (7, 5, 41, 1, 1)),
            ("page.begin(10)", (10, 5, 41, 1, 1)),
            ("page.end()", (7, 5, 41, 1, 1)),
            ("page.stepped(42)", (9, 5, 42, 1, 1)),
        ] {
            writeln!(lines, "{line}").unwrap();
            said.read_line(&mut String::new()).unwrap();
            let record = page.read().unwrap();
            let PageRecord {
                phase,
                stage,
                step,
                batches,
                backwards,
                ..
            } = record;
            assert_eq!((phase, stage, step, batches, backwards), expected, "{line}");
            assert_eq!(record.moves(), step + batches + backwards);
            assert!(record.number > last);
            last = record.number;
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            let now_ns = u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).unwrap();
            assert!((record.since_ns..record.since_ns + 60_000_000_000).contains(&now_ns));
        }
        writeln!(lines, "page.close()").unwrap();
        said.read_line(&mut String::new()).unwrap();
        assert_eq!(page.read(), None, "a probe that is turned off says nothing");
        drop(lines);
        child.wait().unwrap();
    }

    #[test]
    fn of_a_rank_that_is_stopped_anywhere_one_record_is_whole() {
        const MOVES: &str = "page.reach(1); print(flush=True)\n\
                             while True: page.fetched(True); page.begin_backward(); page.stepped(page.step + 1)";
        let (_data, folder) = folder();
        create(&folder, 7).unwrap();
        let page = Page::open(&folder, 7).unwrap();
        let mut child = writer(&folder, MOVES);
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut String::new())
            .unwrap();
        let pid = Pid::from_child(&child);
        let mut last = 0;
        for _ in 0..500 {
            kill_process(pid, Signal::STOP).unwrap();
            waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
            let record = page.read().expect("one slot is whole");
            assert!(record.number >= last && record.batches.abs_diff(record.step) <= 1);
            last = record.number;
            kill_process(pid, Signal::CONT).unwrap();
            // Both slots change during the read, and the read still returns a valid record.
            let moving = page.read().expect("a record");
            assert!(moving.number >= last && moving.batches.abs_diff(moving.step) <= 1);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(page.read().unwrap().number >= last);
    }
}
