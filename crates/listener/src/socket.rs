//! The socket that a service listens on.

use std::io;
use std::net::{SocketAddr, TcpListener};

/// The number of connections that may wait to be accepted. The standard library requests 128. Beyond that the system drops
/// connection requests, and clients try again after a second or more: 1,000 agents reconnect at the same moment.
const BACKLOG: i32 = 1_024;

/// Listens on `address`. The socket is non-blocking.
///
/// # Errors
/// Fails if the address is in use or does not belong to this machine.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = TcpListener::bind(address)?;
    // Called a second time, only for the backlog.
    rustix::net::listen(&socket, BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
