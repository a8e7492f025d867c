//! The port of a run's rendezvous, from the preparation to the start.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};

/// A port that is reserved until the ranks need it.
#[derive(Debug)]
pub(crate) struct Lease(TcpListener);

impl Lease {
    /// Reserves a port; 0 means any free port. Includes IPv6, if the machine has it.
    pub(super) fn take(port: u16) -> io::Result<Self> {
        let both = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port));
        both.or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
            .map(Self)
    }

    /// Returns the port number.
    pub(super) fn port(&self) -> io::Result<u16> {
        Ok(self.0.local_addr()?.port())
    }

    /// Returns a listener on the reserved port.
    pub(super) fn listener(&self) -> io::Result<TcpListener> {
        self.0.try_clone()
    }
}
