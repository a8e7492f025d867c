//! The socket that a service listens on.

use std::io;
use std::net::{SocketAddr, TcpListener};

/// Connections that wait to be accepted. The standard library asks for 128, beyond which the system drops connection requests and
/// clients try again after a second or more: a thousand agents come back at the same moment.
const BACKLOG: i32 = 1_024;

/// Listens on `address`, without blocking.
///
/// # Errors
/// When the address is taken or not this machine's.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = TcpListener::bind(address)?;
    // A second time, for its backlog only.
    rustix::net::listen(&socket, BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
