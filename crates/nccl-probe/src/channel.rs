//! Sends one datagram per record to the collecting socket. Each is tried for a limited time and then dropped.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// `sun_path` has 108 bytes, including its terminating zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// The wait between two attempts to send. The kernel queues few datagrams (`net.unix.max_dgram_qlen`, often 10), which all ranks of a node
/// share, so there is room again soon.
const BETWEEN_TRIES: Duration = Duration::from_millis(3);

/// A socket that is connected at the first record.
#[derive(Debug)]
pub(crate) struct Channel {
    path: Box<OsStr>,
    socket: Option<UnixDatagram>,
}

impl Channel {
    pub(crate) fn new(path: &OsStr) -> Self {
        Self {
            path: path.into(),
            socket: None,
        }
    }

    /// Returns true if the kernel accepted the datagram. If the kernel's queue is full, it is tried again until `until`.
    pub(crate) fn send(&mut self, datagram: &[u8], until: Instant) -> bool {
        loop {
            match self.try_send(datagram) {
                Ok(()) => return true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => {
                    // There is no receiver, or a new socket with the same path. The next record connects again.
                    self.socket = None;
                    return false;
                }
            }
            if Instant::now() >= until {
                return false;
            }
            thread::sleep(BETWEEN_TRIES);
        }
    }

    fn try_send(&mut self, datagram: &[u8]) -> io::Result<()> {
        if self.socket.is_none() {
            self.socket = Some(connect(Path::new(&*self.path))?);
        }
        let socket = self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        match socket.send(datagram) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                let again = connect(Path::new(&*self.path))?;
                self.socket.insert(again).send(datagram).map(drop)
            }
            sent => sent.map(drop),
        }
    }
}

/// Connects to a path. If the path is longer than an address may be, connects through its opened folder.
fn connect(path: &Path) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    if path.as_os_str().len() <= SOCKET_PATH_BYTES_MAX {
        socket.connect(path)?;
        return Ok(socket);
    }
    let no_file = || io::Error::from(io::ErrorKind::InvalidInput);
    let folder = File::open(path.parent().ok_or_else(no_file)?)?;
    let name = path.file_name().ok_or_else(no_file)?;
    socket.connect(Path::new(&format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name))?;
    Ok(socket)
}
