//! The probe's socket. Receives the ranks' datagrams and writes them as lines to segments of bounded size. The oldest segment is deleted
//! first.
//!
//! The kernel queues few datagrams (`net.unix.max_dgram_qlen`, often 10), and a full queue makes the probe drop records. So this code only
//! copies, and parses only the beginning of a record.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;

use crate::files::{FileName, PROBE, PROBE_SOCKET};
use crate::folder::Folder;

/// Twice the probe's own limit.
const DATAGRAM_BYTES_MAX: usize = 16_384;
/// A segment is closed once it reaches this size.
pub(crate) const SEGMENT_BYTES: u64 = 8 << 20;
/// Number of segments kept: 128 MiB, or one hour of 8 ranks at 10 steps per second. An agent that is away longer finds only the newest.
pub(crate) const SEGMENTS_MAX: u64 = 16;
/// `sun_path` has 108 bytes, including its terminating zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The socket, and the segment that is being written.
#[derive(Debug)]
pub struct Datagrams {
    /// Readable when a datagram is queued.
    pub socket: UnixDatagram,
    folder: Folder,
    segment: u64,
    file: File,
    written: u64,
    /// The last line was not written completely, because the disk was full.
    line_incomplete: bool,
}

impl Datagrams {
    /// Binds the socket and creates a segment.
    ///
    /// # Errors
    /// If the socket or the segment cannot be created.
    pub fn open(folder: &Folder) -> io::Result<Self> {
        let segment = segments(folder).last().map_or(1, |last| last + 1);
        let socket = bind(folder, PROBE_SOCKET)?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            folder: folder.clone(),
            segment,
            file: create(folder, segment)?,
            written: 0,
            line_incomplete: false,
        })
    }

    /// Receives all queued datagrams and calls `handle` with each line. If the disk is full, only the lines that do not fit are lost.
    ///
    /// # Errors
    /// If the socket fails.
    pub fn take(&mut self, mut handle: impl FnMut(&[u8])) -> io::Result<()> {
        let mut buffer = [0_u8; DATAGRAM_BYTES_MAX];
        loop {
            match self.socket.recv(&mut buffer[..DATAGRAM_BYTES_MAX - 1]) {
                Ok(0) => {}
                Ok(length) => {
                    let line = &mut buffer[..length];
                    line.iter_mut()
                        .filter(|byte| **byte == b'\n')
                        .for_each(|byte| *byte = b' ');
                    handle(line);
                    buffer[length] = b'\n';
                    self.line_incomplete = self.write(&buffer[..=length]).is_err();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.line_incomplete {
            self.file.write_all(b"\n")?;
        }
        self.file.write_all(line)?;
        self.written += line.len() as u64;
        if self.written < SEGMENT_BYTES {
            return Ok(());
        }
        self.segment += 1;
        self.file = create(&self.folder, self.segment)?;
        self.written = 0;
        if let Some(oldest) = self.segment.checked_sub(SEGMENTS_MAX) {
            let _gone = std::fs::remove_file(segment_path(&self.folder, oldest));
        }
        Ok(())
    }
}

/// Returns the numbers of the existing segments, in ascending order.
#[must_use]
pub fn segments(folder: &Folder) -> Vec<u64> {
    let entries = std::fs::read_dir(folder.file(PROBE))
        .into_iter()
        .flatten()
        .flatten();
    let number = |name: &str| name.strip_suffix(".jsonl")?.parse().ok();
    let mut numbers: Vec<u64> = entries
        .filter_map(|entry| number(entry.file_name().to_str()?))
        .collect();
    numbers.sort_unstable();
    numbers
}

/// Returns the path of a segment.
#[must_use]
pub fn segment_path(folder: &Folder, segment: u64) -> std::path::PathBuf {
    folder.file(PROBE).join(format!("{segment}.jsonl"))
}

fn create(folder: &Folder, segment: u64) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(segment_path(folder, segment))
}

/// Binds a socket. If the path is too long for a socket address, it binds through the opened folder in `/proc/self/fd`.
fn bind(folder: &Folder, name: FileName) -> io::Result<UnixDatagram> {
    folder.remove(name)?;
    let path = folder.file(name);
    if path.as_os_str().len() <= SOCKET_PATH_BYTES_MAX {
        return UnixDatagram::bind(path);
    }
    let opened = File::open(folder.path())?;
    UnixDatagram::bind(format!("/proc/self/fd/{}/{}", opened.as_raw_fd(), name.as_str()))
}
