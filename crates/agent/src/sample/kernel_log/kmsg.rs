//! Opens and reads `/dev/kmsg`. The device returns one record per read and does not block. Tests use a regular file instead, which returns
//! as many records as fit, so the data is split into lines in both cases.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use domain::time::TimestampMs;

use super::nvrm::NvrmParser;
use super::record::Record;
use super::{KernelMessage, nvswitch};
use crate::uplink::link::now_ms;

/// The kernel cuts records at 8 KiB, and returns none to a smaller buffer.
const RECORD_BYTES_MAX: usize = 8 << 10;
/// The maximum length of data without a line break. Longer data is not a log.
const LINE_BYTES_MAX: usize = 8 * RECORD_BYTES_MAX;
/// The maximum number of records per reading. A failing driver writes thousands per second, and the reader has other work. The rest stays
/// in the kernel's ring; if the ring overflows, only the driver's own messages are lost.
const RECORDS_MAX: usize = 4_096;
/// How far back a new agent reads. Errors that happened while no agent ran are reported late; errors of last month are not reported as new.
const AGE_MAX: Duration = Duration::from_secs(3_600);

/// The open log.
#[derive(Debug)]
pub(crate) struct Kmsg {
    file: File,
    /// Data that was read but is not a whole line yet.
    rest: Vec<u8>,
}

impl Kmsg {
    /// Opens the log under `root`, at the oldest record that the kernel still has.
    ///
    /// # Errors
    /// Returns an error if there is no log, or if it may not be read.
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

    /// Reads once. Returns `false` if there is no data now.
    ///
    /// # Errors
    /// Returns an error if the log cannot be read. On some systems opening is allowed and reading is not.
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
            // Records were overwritten before they were read. The next read continues after them.
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Returns the next whole line of the data.
    fn line(&mut self) -> Option<String> {
        let end = self.rest.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.rest.drain(..=end).collect();
        Some(String::from_utf8_lossy(&line[..end]).into_owned())
    }
}

/// The messages of the NVIDIA driver in the log, read record by record.
#[derive(Debug)]
pub(crate) struct KernelLog {
    root: PathBuf,
    kmsg: Option<Kmsg>,
    parser: NvrmParser,
    /// The sequence number of the last record read, so that a reopened log is not reported twice.
    last_sequence: Option<u64>,
    position_file: Option<PositionFile>,
    /// True if the log cannot be read. It is tried again only after [`KernelLog::retry`].
    refused: bool,
}

impl KernelLog {
    /// Creates a log that is not open yet. With a `position_file`, each error is reported only once per boot, even if the agent restarts.
    pub(crate) fn new(root: &Path, position_file: Option<PathBuf>) -> Self {
        let position_file = position_file.map(|file| PositionFile::new(root, file));
        Self {
            root: root.to_owned(),
            kmsg: None,
            parser: NvrmParser::default(),
            last_sequence: position_file.as_ref().and_then(PositionFile::load),
            position_file,
            refused: false,
        }
    }

    /// Returns the driver's messages since the last call, each with its wall-clock time.
    pub(crate) fn read_new(&mut self) -> Vec<(TimestampMs, KernelMessage)> {
        self.read_at(now_ms(), since_boot())
    }

    /// Allows another attempt to open a log that could not be opened or read: devices appear, and privileges change.
    pub(crate) fn retry(&mut self) {
        self.refused = false;
    }

    fn read_at(&mut self, now_ms: TimestampMs, since_boot: Duration) -> Vec<(TimestampMs, KernelMessage)> {
        if self.refused {
            return Vec::new();
        }
        if self.kmsg.is_none() {
            match Kmsg::open(&self.root) {
                Ok(kmsg) => self.kmsg = Some(kmsg),
                Err(_) => {
                    self.refused = true;
                    return Vec::new();
                }
            }
        }
        let mut messages = Vec::new();
        for _ in 0..RECORDS_MAX {
            let Some(kmsg) = &mut self.kmsg else { break };
            match kmsg.fill() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::debug!(%error, "cannot read the kernel log");
                    self.kmsg = None;
                    self.refused = true;
                    break;
                }
            }
            while let Some(line) = self.kmsg.as_mut().and_then(Kmsg::line) {
                messages.extend(self.take(&line, now_ms, since_boot));
            }
        }
        if let (Some(file), Some(last_sequence), false) =
            (&self.position_file, self.last_sequence, messages.is_empty())
        {
            file.store(last_sequence);
        }
        messages
    }

    fn take(
        &mut self,
        line: &str,
        now_ms: TimestampMs,
        since_boot: Duration,
    ) -> Option<(TimestampMs, KernelMessage)> {
        let record = Record::parse(line)?;
        if self.last_sequence.is_some_and(|last| record.sequence <= last) {
            return None;
        }
        self.last_sequence = Some(record.sequence);
        let age = since_boot.saturating_sub(Duration::from_micros(record.since_boot_us));
        if age > AGE_MAX {
            return None;
        }
        let of_gpu = self.parser.parse(&record.text).map(KernelMessage::Gpu);
        let message = of_gpu.or_else(|| nvswitch::parse(&record.text).map(KernelMessage::Switch))?;
        Some((
            now_ms - TimestampMs::try_from(age.as_millis()).unwrap_or(0),
            message,
        ))
    }
}

/// A file with the position up to which the log of this boot was read: `BOOT-ID SEQUENCE`.
#[derive(Debug)]
struct PositionFile {
    file: PathBuf,
    boot: String,
}

impl PositionFile {
    fn new(root: &Path, file: PathBuf) -> Self {
        let boot = std::fs::read_to_string(root.join("proc/sys/kernel/random/boot_id")).unwrap_or_default();
        let boot = boot.trim().to_owned();
        Self { file, boot }
    }

    fn load(&self) -> Option<u64> {
        let text = std::fs::read_to_string(&self.file).ok()?;
        let (boot, sequence) = text.trim().split_once(' ')?;
        (boot == self.boot).then(|| sequence.parse().ok())?
    }

    /// Stores the position. If writing fails, errors may be reported again after the next start.
    fn store(&self, sequence: u64) {
        if let Err(error) = std::fs::write(&self.file, format!("{} {sequence}\n", self.boot)) {
            tracing::debug!(%error, "cannot store the position in the kernel log");
        }
    }
}

/// Returns the time of the clock that the kernel uses for its records.
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

    fn xids(messages: &[(TimestampMs, KernelMessage)]) -> Vec<(TimestampMs, u32)> {
        let number = |message: &KernelMessage| match message {
            KernelMessage::Gpu(message) => message.xid,
            KernelMessage::Switch(error) => error.sxid,
        };
        messages
            .iter()
            .map(|(at_ms, message)| (*at_ms, number(message)))
            .collect()
    }

    #[test]
    fn records_are_reported_once_with_their_own_time_and_old_ones_are_skipped() {
        let text = "4,1,1000000,-;NVRM: Xid (PCI:0000:05:00): 48, old\n\
                    6,2,9990000000,-;eth0: link up\n SUBSYSTEM=net\n\
                    4,3,9995000000,-;NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n\
                    4,4,9999000000,-;NVRM: Xid (PCI:0000";
        let (root, mut log) = log(text);
        assert_eq!(xids(&log.read_at(NOW_MS, UP)), [(NOW_MS - 5_000, 79)]);
        assert!(log.read_at(NOW_MS, UP).is_empty());
        let mut file = OpenOptions::new()
            .append(true)
            .open(root.path().join("dev/kmsg"))
            .unwrap();
        writeln!(file, ":06:00): 31, pid=12, name=python, Ch 00000008").unwrap();
        assert_eq!(xids(&log.read_at(NOW_MS, UP)), [(NOW_MS - 1_000, 31)]);
    }

    /// Needs a machine whose log may be read; otherwise it tests nothing.
    #[test]
    fn the_machine_s_own_log_is_read_to_its_end_without_waiting() {
        let Ok(mut kmsg) = Kmsg::open(Path::new("/")) else {
            return;
        };
        let (mut lines, mut records) = (0, 0);
        for _ in 0..1_000_000 {
            match kmsg.fill() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return,
                Err(error) => panic!("{error}"),
            }
            while let Some(line) = kmsg.line() {
                lines += 1;
                records += usize::from(Record::parse(&line).is_some());
            }
            assert!(kmsg.rest.is_empty(), "a device gives whole records");
        }
        assert!(
            lines == 0 || records * 2 > lines,
            "{records} records in {lines} lines"
        );
    }

    #[test]
    fn a_missing_log_is_found_when_it_appears() {
        let root = tempfile::tempdir().unwrap();
        let mut log = KernelLog::new(root.path(), None);
        assert!(log.read_at(NOW_MS, UP).is_empty());
        std::fs::create_dir(root.path().join("dev")).unwrap();
        std::fs::write(
            root.path().join("dev/kmsg"),
            "4,1,9999000000,-;NVRM: Xid (PCI:0000:05:00): 79, x\n",
        )
        .unwrap();
        assert!(log.read_at(NOW_MS, UP).is_empty(), "not before it is tried again");
        log.retry();
        assert_eq!(xids(&log.read_at(NOW_MS, UP)), [(NOW_MS - 1_000, 79)]);
    }

    #[test]
    fn a_reopened_log_is_not_reported_twice() {
        let (root, mut log) = log("4,5,9999000000,-;NVRM: Xid (PCI:0000:05:00): 79, x\n");
        assert_eq!(log.read_at(NOW_MS, UP).len(), 1);
        log.kmsg = None;
        assert!(log.read_at(NOW_MS, UP).is_empty());

        let boot = |id: &str| {
            std::fs::create_dir_all(root.path().join("proc/sys/kernel/random")).unwrap();
            std::fs::write(root.path().join("proc/sys/kernel/random/boot_id"), id).unwrap();
            let file = Some(root.path().join("position"));
            KernelLog::new(root.path(), file).read_at(NOW_MS, UP).len()
        };
        assert_eq!((boot("first"), boot("first"), boot("second")), (1, 0, 1));
    }
}
