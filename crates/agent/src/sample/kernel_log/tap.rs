//! Opening and reading `/dev/kmsg`. The device gives one record a read and never waits; a regular file in its place, which tests
//! use, gives as many as fit, so what is read is cut into lines either way.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use domain::time::TimestampMs;

use super::nvrm::Ear;
use super::record::Record;
use super::{Heard, nvswitch};
use crate::uplink::link::now_ms;

/// The kernel cuts records at 8 KiB, and gives none to a smaller buffer.
const RECORD_BYTES_MAX: usize = 8 << 10;
/// What is longer without a line break is no log.
const LINE_BYTES_MAX: usize = 8 * RECORD_BYTES_MAX;
/// Records read at one go: a driver in trouble writes thousands a second, and the reader has others to serve. What is left waits
/// in the kernel's ring, whose loss is the driver's own.
const RECORDS_MAX: usize = 4_096;
/// How far back a new agent listens: what happened while no agent ran is told late rather than never, and what happened last
/// month is not told as news.
const LOOK_BACK: Duration = Duration::from_secs(3_600);

/// The open log.
#[derive(Debug)]
pub(crate) struct Tap {
    file: File,
    /// What was read and is not yet a whole line.
    rest: Vec<u8>,
}

impl Tap {
    /// Opens the log under `root`, at the oldest record the kernel still has.
    ///
    /// # Errors
    /// When there is none, or it may not be read.
    pub(crate) fn open(root: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(root.join("dev/kmsg"))?;
        Ok(Self {
            file,
            rest: Vec::new(),
        })
    }

    /// Reads once. `false` when nothing is there for now.
    ///
    /// # Errors
    /// When the log cannot be read: on some systems opening is allowed and reading is not.
    pub(crate) fn fill(&mut self) -> io::Result<bool> {
        let mut buffer = [0; RECORD_BYTES_MAX];
        match self.file.read(&mut buffer) {
            Ok(0) => Ok(false),
            Ok(bytes) => {
                if self.rest.len() > LINE_BYTES_MAX {
                    self.rest.clear();
                }
                self.rest.extend_from_slice(&buffer[..bytes]);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            // Records were overwritten before they were read; the next read goes on behind them.
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// The next whole line of what was read.
    fn line(&mut self) -> Option<String> {
        let end = self.rest.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.rest.drain(..=end).collect();
        Some(String::from_utf8_lossy(&line[..end]).into_owned())
    }
}

/// What the NVIDIA driver says in the log, followed from record to record.
#[derive(Debug)]
pub(crate) struct KernelLog {
    root: PathBuf,
    tap: Option<Tap>,
    ear: Ear,
    /// The last record heard, so that a log opened again is not told twice.
    heard: Option<u64>,
    memory: Option<Memory>,
    /// A log that may not be read will not be readable in a second either.
    refused: bool,
}

impl KernelLog {
    /// Opens nothing yet. With a file to remember in, an error is told once in a boot, however often agents start.
    pub(crate) fn new(root: &Path, memory: Option<PathBuf>) -> Self {
        let memory = memory.map(|file| Memory::new(root, file));
        Self {
            root: root.to_owned(),
            tap: None,
            ear: Ear::default(),
            heard: memory.as_ref().and_then(Memory::recall),
            memory,
            refused: false,
        }
    }

    /// What the driver said since the last call, with the wall-clock time of each.
    pub(crate) fn listen(&mut self) -> Vec<(TimestampMs, Heard)> {
        self.listen_at(now_ms(), since_boot())
    }

    /// Lets a log be tried again that could not be opened or read: devices appear, privileges change.
    pub(crate) fn retry(&mut self) {
        self.refused = false;
    }

    fn listen_at(&mut self, now_ms: TimestampMs, since_boot: Duration) -> Vec<(TimestampMs, Heard)> {
        if self.refused {
            return Vec::new();
        }
        if self.tap.is_none() {
            match Tap::open(&self.root) {
                Ok(tap) => self.tap = Some(tap),
                Err(_) => {
                    self.refused = true;
                    return Vec::new();
                }
            }
        }
        let mut said = Vec::new();
        for _ in 0..RECORDS_MAX {
            let Some(tap) = &mut self.tap else { break };
            match tap.fill() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::debug!(%error, "the kernel's log cannot be read");
                    self.tap = None;
                    self.refused = true;
                    break;
                }
            }
            while let Some(line) = self.tap.as_mut().and_then(Tap::line) {
                said.extend(self.take(&line, now_ms, since_boot));
            }
        }
        if let (Some(memory), Some(heard), false) = (&self.memory, self.heard, said.is_empty()) {
            memory.keep(heard);
        }
        said
    }

    fn take(
        &mut self,
        line: &str,
        now_ms: TimestampMs,
        since_boot: Duration,
    ) -> Option<(TimestampMs, Heard)> {
        let record = Record::parse(line)?;
        if self.heard.is_some_and(|heard| record.sequence <= heard) {
            return None;
        }
        self.heard = Some(record.sequence);
        let age = since_boot.saturating_sub(Duration::from_micros(record.since_boot_us));
        if age > LOOK_BACK {
            return None;
        }
        let of_gpu = self.ear.hear(&record.text).map(Heard::Gpu);
        let said = of_gpu.or_else(|| nvswitch::hear(&record.text).map(Heard::Switch))?;
        Some((now_ms - TimestampMs::try_from(age.as_millis()).unwrap_or(0), said))
    }
}

/// How far the log of this boot was heard, in a file: `BOOT-ID SEQUENCE`.
#[derive(Debug)]
struct Memory {
    file: PathBuf,
    boot: String,
}

impl Memory {
    fn new(root: &Path, file: PathBuf) -> Self {
        let boot = std::fs::read_to_string(root.join("proc/sys/kernel/random/boot_id")).unwrap_or_default();
        let boot = boot.trim().to_owned();
        Self { file, boot }
    }

    fn recall(&self) -> Option<u64> {
        let text = std::fs::read_to_string(&self.file).ok()?;
        let (boot, sequence) = text.trim().split_once(' ')?;
        (boot == self.boot).then(|| sequence.parse().ok())?
    }

    /// A memory that cannot be written costs a repetition after the next start.
    fn keep(&self, sequence: u64) {
        if let Err(error) = std::fs::write(&self.file, format!("{} {sequence}\n", self.boot)) {
            tracing::debug!(%error, "how far the kernel's log was heard cannot be kept");
        }
    }
}

/// The clock that stamps the kernel's records.
fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use std::io::Write;

    use super::*;

    const NOW_MS: i64 = 1_000_000_000;
    const UP: Duration = Duration::from_secs(10_000);

    fn log(text: &str) -> (tempfile::TempDir, KernelLog) {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("dev")).unwrap();
        std::fs::write(root.path().join("dev/kmsg"), text).unwrap();
        let log = KernelLog::new(root.path(), None);
        (root, log)
    }

    fn told(said: &[(TimestampMs, Heard)]) -> Vec<(TimestampMs, u32)> {
        let number = |said: &Heard| match said {
            Heard::Gpu(spoken) => spoken.xid,
            Heard::Switch(error) => error.sxid,
        };
        said.iter().map(|(at_ms, said)| (*at_ms, number(said))).collect()
    }

    #[test]
    fn records_are_told_once_with_their_own_time_and_old_ones_not_at_all() {
        let text = "4,1,1000000,-;NVRM: Xid (PCI:0000:05:00): 48, old\n\
                    6,2,9990000000,-;eth0: link up\n SUBSYSTEM=net\n\
                    4,3,9995000000,-;NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n\
                    4,4,9999000000,-;NVRM: Xid (PCI:0000";
        let (root, mut log) = log(text);
        assert_eq!(told(&log.listen_at(NOW_MS, UP)), [(NOW_MS - 5_000, 79)]);
        assert!(log.listen_at(NOW_MS, UP).is_empty());
        let mut file = OpenOptions::new()
            .append(true)
            .open(root.path().join("dev/kmsg"))
            .unwrap();
        writeln!(file, ":06:00): 31, pid=12, name=python, Ch 00000008").unwrap();
        assert_eq!(told(&log.listen_at(NOW_MS, UP)), [(NOW_MS - 1_000, 31)]);
    }

    /// On a machine where it may be read; elsewhere there is nothing to test.
    #[test]
    fn the_machine_s_own_log_is_read_to_its_end_without_waiting() {
        let Ok(mut tap) = Tap::open(Path::new("/")) else {
            return;
        };
        let (mut lines, mut records) = (0, 0);
        for _ in 0..1_000_000 {
            match tap.fill() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return,
                Err(error) => panic!("{error}"),
            }
            while let Some(line) = tap.line() {
                lines += 1;
                records += usize::from(Record::parse(&line).is_some());
            }
            assert!(tap.rest.is_empty(), "a device gives whole records");
        }
        assert!(
            lines == 0 || records * 2 > lines,
            "{records} records in {lines} lines"
        );
    }

    #[test]
    fn a_log_that_is_missing_is_found_when_it_comes() {
        let root = tempfile::tempdir().unwrap();
        let mut log = KernelLog::new(root.path(), None);
        assert!(log.listen_at(NOW_MS, UP).is_empty());
        std::fs::create_dir(root.path().join("dev")).unwrap();
        std::fs::write(
            root.path().join("dev/kmsg"),
            "4,1,9999000000,-;NVRM: Xid (PCI:0000:05:00): 79, x\n",
        )
        .unwrap();
        assert!(
            log.listen_at(NOW_MS, UP).is_empty(),
            "not before it is tried again"
        );
        log.retry();
        assert_eq!(told(&log.listen_at(NOW_MS, UP)), [(NOW_MS - 1_000, 79)]);
    }

    #[test]
    fn a_log_opened_again_is_not_told_twice() {
        let (root, mut log) = log("4,5,9999000000,-;NVRM: Xid (PCI:0000:05:00): 79, x\n");
        assert_eq!(log.listen_at(NOW_MS, UP).len(), 1);
        log.tap = None;
        assert!(log.listen_at(NOW_MS, UP).is_empty());

        let boot = |id: &str| {
            std::fs::create_dir_all(root.path().join("proc/sys/kernel/random")).unwrap();
            std::fs::write(root.path().join("proc/sys/kernel/random/boot_id"), id).unwrap();
            let memory = Some(root.path().join("memory"));
            KernelLog::new(root.path(), memory).listen_at(NOW_MS, UP).len()
        };
        assert_eq!((boot("first"), boot("first"), boot("second")), (1, 0, 1));
    }
}
