//! Detects a main thread that reads a pipe which no other process has open. No data can arrive there, so the read never ends: the process
//! is not slow, it is stuck.
//!
//! `/proc/PID/syscall` contains the system call and the descriptor, and `/proc/*/fd` shows the processes that have the pipe open. Whatever
//! cannot be read counts as "perhaps another process writes".

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

use shim::Process;

/// Maximum number of descriptors that are examined. On a node with more, the search ends without a result.
const DESCRIPTORS_MAX: usize = 200_000;

/// The first process of the system. Some systems do not allow anyone to inspect it, not even root, and it never writes to a training's
/// pipe.
const INIT: i32 = 1;

/// Returns the pipe that the main thread of a process reads, if no other process has it open. Runs on a separate thread, because it reads
/// many small files.
pub(super) async fn without_writer(process: Process) -> Option<String> {
    tokio::task::spawn_blocking(move || find(process.pid))
        .await
        .ok()
        .flatten()
}

fn find(pid: i32) -> Option<String> {
    let call = fs::read_to_string(format!("/proc/{pid}/syscall")).ok()?;
    let descriptor = format!("/proc/{pid}/fd/{}", read_descriptor(&call)?);
    let pipe = fs::metadata(&descriptor).ok()?;
    let name = fs::read_link(&descriptor).ok()?.to_string_lossy().into_owned();
    (pipe.file_type().is_fifo() && !others_have_open(pid, &pipe).ok()?).then_some(name)
}

/// Returns the descriptor that a thread reads, from the text of `/proc/PID/syscall`: `0 0x3 0x7ffd… …`, the number of the call and its
/// arguments.
fn read_descriptor(call: &str) -> Option<u32> {
    let mut words = call.split_whitespace();
    let number: libc::c_long = words.next()?.parse().ok()?;
    let first = words.next()?.strip_prefix("0x")?;
    let reads = number == libc::SYS_read || number == libc::SYS_readv;
    reads.then(|| u32::from_str_radix(first, 16).ok()).flatten()
}

/// Returns true if a process other than `pid` has the pipe open.
///
/// # Errors
/// If not all processes can be examined.
fn others_have_open(pid: i32, pipe: &Metadata) -> io::Result<bool> {
    let mut left = DESCRIPTORS_MAX;
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let other = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok());
        if other.is_none_or(|other| other == pid) {
            continue;
        }
        let descriptors = match fs::read_dir(entry.path().join("fd")) {
            Ok(descriptors) => descriptors,
            Err(error) if has_ended(&error) || other == Some(INIT) => continue,
            Err(error) => return Err(error),
        };
        for descriptor in descriptors {
            left = left
                .checked_sub(1)
                .ok_or_else(|| io::Error::other("too many open files"))?;
            let metadata = match descriptor.and_then(|descriptor| fs::metadata(descriptor.path())) {
                Ok(metadata) => metadata,
                Err(error) if has_ended(&error) || other == Some(INIT) => continue,
                Err(error) => return Err(error),
            };
            if (metadata.dev(), metadata.ino()) == (pipe.dev(), pipe.ino()) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Returns true if the process or its descriptor does not exist any more.
fn has_ended(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    /// A process that reads its standard input, a pipe, forever.
    struct Reader(Child);

    impl Reader {
        fn start(script: &str, pipe: Stdio) -> Self {
            Self(
                Command::new("sh")
                    .args(["-c", script])
                    .stdin(pipe)
                    .spawn()
                    .expect("sh starts"),
            )
        }

        fn pid(&self) -> i32 {
            self.0.id() as i32
        }

        /// Waits until the process is in the read.
        fn reads(&self) {
            let until = Instant::now() + Duration::from_secs(20);
            let call = || fs::read_to_string(format!("/proc/{}/syscall", self.pid())).unwrap_or_default();
            while read_descriptor(&call()).is_none() {
                assert!(Instant::now() < until, "it is in {}", call());
                std::thread::yield_now();
            }
        }
    }

    impl Drop for Reader {
        fn drop(&mut self) {
            let _ended = self.0.kill();
            let _reaped = self.0.wait();
        }
    }

    #[test]
    fn a_pipe_that_another_process_can_write_to_is_none() {
        let reader = Reader::start("read line", Stdio::piped());
        reader.reads();
        assert_eq!(find(reader.pid()), None, "the test has the other end");
    }

    #[test]
    fn a_fifo_that_only_its_reader_has_open_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let fifo = folder.path().join("fifo");
        let made = Command::new("mkfifo").arg(&fifo).status().expect("mkfifo runs");
        assert!(made.success());
        let reader = Reader::start(
            &format!("exec 3<>{} && read line <&3", fifo.display()),
            Stdio::null(),
        );
        reader.reads();
        assert_eq!(find(reader.pid()), fifo.to_str().map(str::to_owned));
        let writer = fs::OpenOptions::new()
            .write(true)
            .open(&fifo)
            .expect("the reader has it open");
        assert_eq!(find(reader.pid()), None, "now there is a writer");
        drop(writer);
    }

    #[test]
    fn a_call_that_reads_names_its_descriptor() {
        let read = libc::SYS_read;
        for (call, descriptor) in [
            (
                format!("{read} 0x1f 0x7ffd8 0x1 0x0 0x0 0x0 0x7ffc 0x7f0"),
                Some(31),
            ),
            ("running".to_owned(), None),
            ("-1 0x7ffc 0x7f0".to_owned(), None),
            (format!("{} 0x0 0x0", libc::SYS_futex), None),
            (String::new(), None),
        ] {
            assert_eq!(read_descriptor(&call), descriptor, "{call}");
        }
    }
}
