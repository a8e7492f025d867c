//! The port of a run's rendezvous, from the preparation to the start.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};

/// A port kept from others until the ranks need it.
#[derive(Debug)]
pub(crate) struct Lease(TcpListener);

impl Lease {
    /// Takes a port, 0 for any that is free; of IPv6 too, where the machine has it.
    pub(super) fn take(port: u16) -> io::Result<Self> {
        let both = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port));
        both.or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
            .map(Self)
    }

    /// Its number.
    pub(super) fn port(&self) -> io::Result<u16> {
        Ok(self.0.local_addr()?.port())
    }

    /// The same port, to be listened at while it is leased.
    pub(super) fn listener(&self) -> io::Result<TcpListener> {
        self.0.try_clone()
    }
}
