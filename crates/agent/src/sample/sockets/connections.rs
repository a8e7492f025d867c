//! Lists established TCP connections with the kernel's figures about each, as `ss -ti` does, by netlink (`sock_diag`).
//!
//! ```text
//! request    nlmsghdr 16 │ inet_diag_req_v2 56
//! answer     nlmsghdr 16 │ inet_diag_msg 72 │ attributes: rtattr 4 │ value, each padded to four bytes
//!            the attribute INET_DIAG_INFO is a tcp_info, which is shorter in older kernels
//! ```
//! Numbers have the byte order of the machine, addresses that of the network. The layouts are published in the kernel's headers
//! `linux/netlink.h`, `linux/inet_diag.h` and `linux/tcp.h`. They only grow at their ends.

use std::collections::HashSet;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// The kernel answers while it is asked. This limit is for a kernel with a fault.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// The kernel fills at most this much per answer.
const ANSWER_BYTES: usize = 32 << 10;
/// The maximum number of connections of the machine that are listed. With more, the list would be costly, and is not used.
const LISTED_MAX: usize = 65_536;

const FAMILY_IPV4: u8 = 2;
const FAMILY_IPV6: u8 = 10;
const PROTOCOL_TCP: u8 = 6;
/// The bit of the state `ESTABLISHED`.
const STATES: u32 = 1 << 1;

const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = HEADER_BYTES + 56;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const FLAGS: u16 = 0x301;
const MESSAGE_ERROR: u16 = 2;
const MESSAGE_DONE: u16 = 3;

/// Offsets in `inet_diag_msg`.
const LOCAL_AT: usize = 8;
const PEER_AT: usize = 24;
const INODE_AT: usize = 68;
const ATTRIBUTES_AT: usize = 72;
const ATTRIBUTE_HEADER_BYTES: usize = 4;
/// The attribute with the `tcp_info`.
const INET_DIAG_INFO: u16 = 2;
/// The bit of that attribute in a request.
const INFO_BIT: u8 = 1 << (INET_DIAG_INFO - 1);

/// Offsets in `tcp_info`. The times exist since Linux 4.10.
const APPLICATION_LIMITED_AT: usize = 7;
const RETRANSMITS_AT: usize = 100;
const ACKNOWLEDGED_AT: usize = 120;
const RECEIVED_AT: usize = 128;
const UNSENT_AT: usize = 144;
const BUSY_AT: usize = 168;
const WINDOW_LIMITED_AT: usize = 176;
const BUFFER_LIMITED_AT: usize = 184;

/// One established connection.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Connection {
    /// The number of its socket, which `/proc/PID/fd` also contains.
    pub(super) inode: u32,
    pub(super) local: IpAddr,
    pub(super) peer: IpAddr,
    pub(super) counters: Counters,
    /// Bytes that the process has written and the kernel has not sent yet.
    pub(super) unsent_bytes: u32,
    /// True if the process, not the network, limited the rate when it was last measured.
    pub(super) application_limited: bool,
}

/// Totals since the connection was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Counters {
    /// Bytes that the peer has acknowledged.
    pub(super) acknowledged_bytes: u64,
    pub(super) received_bytes: u64,
    /// Segments that were sent again.
    pub(super) retransmits: u64,
    /// Time with data that were not acknowledged, without the time for which the peer's window or the send buffer was the limit.
    pub(super) busy_us: u64,
}

/// Lists the connections whose inodes are wanted.
///
/// # Errors
/// Returns an error if the kernel has no `sock_diag` or refuses it, or if the machine has too many connections.
pub(crate) fn connections(wanted: &HashSet<u32>) -> io::Result<Vec<Connection>> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let mut listing = Listing {
        wanted,
        found: Vec::new(),
        listed: 0,
    };
    let mut answer = vec![0_u8; ANSWER_BYTES];
    for family in [FAMILY_IPV4, FAMILY_IPV6] {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            Some(netlink::SOCK_DIAG),
        )?;
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_TIMEOUT))?;
        rustix::net::send(&socket, &request(family), SendFlags::empty())?;
        loop {
            let (length, _) =
                retry_on_intr(|| rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty()))?;
            if listing.take(&answer[..length])? {
                break;
            }
        }
    }
    Ok(listing.found)
}

fn request(family: u8) -> [u8; REQUEST_BYTES] {
    let mut bytes = [0; REQUEST_BYTES];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, &(REQUEST_BYTES as u32).to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &FLAGS.to_ne_bytes());
    put(HEADER_BYTES, &[family, PROTOCOL_TCP, INFO_BIT]);
    put(HEADER_BYTES + 4, &STATES.to_ne_bytes());
    bytes
}

/// The connections found so far.
struct Listing<'a> {
    wanted: &'a HashSet<u32>,
    found: Vec<Connection>,
    listed: usize,
}

impl Listing<'_> {
    /// Takes one answer, which has several messages. Returns true if it was the last one.
    fn take(&mut self, mut answer: &[u8]) -> io::Result<bool> {
        while let Some(message) = Message::first(answer) {
            match message.kind {
                MESSAGE_DONE | MESSAGE_ERROR => return message.status().map(|()| true),
                SOCK_DIAG_BY_FAMILY => self.add(message.payload)?,
                _ => {}
            }
            answer = message.rest;
        }
        Ok(false)
    }

    fn add(&mut self, payload: &[u8]) -> io::Result<()> {
        self.listed += 1;
        if self.listed > LISTED_MAX {
            let text = format!("the machine has more than {LISTED_MAX} TCP connections");
            return Err(io::Error::other(text));
        }
        let is_wanted = u32_at(payload, INODE_AT).is_some_and(|inode| self.wanted.contains(&inode));
        if is_wanted {
            self.found.extend(Connection::parse(payload));
        }
        Ok(())
    }
}

/// One netlink message, and the bytes that follow it.
struct Message<'a> {
    kind: u16,
    payload: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Message<'a> {
    /// Returns the first message, or `None` at the end or if it is cut off.
    fn first(bytes: &'a [u8]) -> Option<Self> {
        let length = usize::try_from(u32_at(bytes, 0)?).ok()?;
        Some(Self {
            kind: u16_at(bytes, 4)?,
            payload: bytes.get(HEADER_BYTES..length)?,
            rest: bytes.get(aligned(length)..).unwrap_or_default(),
        })
    }

    /// Reads the status at the end of a list: 0, or the negative number of an error.
    fn status(&self) -> io::Result<()> {
        match array(self.payload, 0).map_or(0, i32::from_ne_bytes) {
            0.. => Ok(()),
            number => Err(io::Error::from_raw_os_error(number.saturating_neg())),
        }
    }
}

impl Connection {
    /// Parses an `inet_diag_msg` and its attributes. Returns `None` if the kernel is too old for the figures.
    fn parse(message: &[u8]) -> Option<Self> {
        let info = attribute(message.get(ATTRIBUTES_AT..)?, INET_DIAG_INFO)?;
        let limited_us = u64_at(info, WINDOW_LIMITED_AT)?.saturating_add(u64_at(info, BUFFER_LIMITED_AT)?);
        Some(Self {
            inode: u32_at(message, INODE_AT)?,
            local: address(message, LOCAL_AT)?,
            peer: address(message, PEER_AT)?,
            counters: Counters {
                acknowledged_bytes: u64_at(info, ACKNOWLEDGED_AT)?,
                received_bytes: u64_at(info, RECEIVED_AT)?,
                retransmits: u32_at(info, RETRANSMITS_AT)?.into(),
                busy_us: u64_at(info, BUSY_AT)?.saturating_sub(limited_us),
            },
            unsent_bytes: u32_at(info, UNSENT_AT)?,
            // The first bit field of its byte: the lowest bit on the little-endian machines that have NVIDIA GPUs.
            application_limited: info.get(APPLICATION_LIMITED_AT)? & 1 == 1,
        })
    }
}

impl Counters {
    /// Returns the growth since an earlier reading, or `None` if a counter is smaller: another connection with the same inode.
    pub(super) fn since(&self, before: &Self) -> Option<Self> {
        Some(Self {
            acknowledged_bytes: self.acknowledged_bytes.checked_sub(before.acknowledged_bytes)?,
            received_bytes: self.received_bytes.checked_sub(before.received_bytes)?,
            retransmits: self.retransmits.checked_sub(before.retransmits)?,
            busy_us: self.busy_us.checked_sub(before.busy_us)?,
        })
    }
}

/// Returns an address of an `inet_diag_msg`. An IPv4 address in an IPv6 socket is an IPv4 address.
fn address(message: &[u8], at: usize) -> Option<IpAddr> {
    match *message.first()? {
        FAMILY_IPV4 => array::<4>(message, at).map(IpAddr::from),
        FAMILY_IPV6 => array::<16>(message, at).map(|bytes| IpAddr::from(bytes).to_canonical()),
        _ => None,
    }
}

/// Returns the value of the first attribute of a type.
fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16_at(bytes, 0)?);
        let value = bytes.get(ATTRIBUTE_HEADER_BYTES..length)?;
        if u16_at(bytes, 2)? == wanted {
            return Some(value);
        }
        bytes = bytes.get(aligned(length)..)?;
    }
}

/// Rounds up to a multiple of four.
fn aligned(length: usize) -> usize {
    length.saturating_add(3) & !3
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_ne_bytes)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd as _;

    use super::*;

    /// Returns a connection without traffic.
    pub(in crate::sample::sockets) fn connection(inode: u32, local: &str, peer: &str) -> Connection {
        Connection {
            inode,
            local: local.parse().unwrap(),
            peer: peer.parse().unwrap(),
            counters: Counters::default(),
            unsent_bytes: 0,
            application_limited: false,
        }
    }

    /// Encodes a connection by the layouts of the kernel's headers, as Linux 4.19 and newer send it: an attribute that was not requested,
    /// then the `tcp_info`, whose values that are not read are 0xAA.
    fn encode(connection: &Connection, family: u8, addresses: [&[u8]; 2]) -> Vec<u8> {
        let mut info = vec![0xAA_u8; 232];
        let counters = &connection.counters;
        let mut put = |at: usize, value: &[u8]| info[at..at + value.len()].copy_from_slice(value);
        // Two bit fields share the byte.
        put(7, &[0b110 | u8::from(connection.application_limited)]);
        put(100, &u32::try_from(counters.retransmits).unwrap().to_ne_bytes());
        put(120, &counters.acknowledged_bytes.to_ne_bytes());
        put(128, &counters.received_bytes.to_ne_bytes());
        put(144, &connection.unsent_bytes.to_ne_bytes());
        put(168, &(counters.busy_us + 30).to_ne_bytes());
        put(176, &10_u64.to_ne_bytes());
        put(184, &20_u64.to_ne_bytes());
        let mut payload = vec![0_u8; 72];
        payload[..4].copy_from_slice(&[family, 1, 0, 0]);
        payload[4..8].copy_from_slice(&[0x73, 0x44, 0xC3, 0x50]);
        for (at, address) in [(8, addresses[0]), (24, addresses[1])] {
            payload[at..at + address.len()].copy_from_slice(address);
        }
        payload[68..72].copy_from_slice(&connection.inode.to_ne_bytes());
        for (kind, value) in [(8_u16, &[1_u8][..]), (2, &info[..])] {
            let length = u16::try_from(4 + value.len()).unwrap();
            payload.extend(length.to_ne_bytes().into_iter().chain(kind.to_ne_bytes()));
            payload.extend(value);
            payload.resize(aligned(payload.len()), 0);
        }
        message(SOCK_DIAG_BY_FAMILY, &payload)
    }

    fn message(kind: u16, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(16 + payload.len()).unwrap();
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0_u8; 10]);
        bytes.extend(payload);
        bytes
    }

    fn take(answer: &[u8], wanted: &HashSet<u32>) -> (io::Result<bool>, Vec<Connection>) {
        let mut listing = Listing {
            wanted,
            found: Vec::new(),
            listed: 0,
        };
        let is_last = listing.take(answer);
        (is_last, listing.found)
    }

    fn two() -> ([Connection; 2], Vec<u8>) {
        let four = Connection {
            counters: Counters {
                acknowledged_bytes: 5_000_000_000,
                received_bytes: 7,
                retransmits: 3,
                busy_us: 720_000,
            },
            unsent_bytes: 300_000,
            ..connection(77, "10.0.0.1", "10.0.0.2")
        };
        let mapped = Connection {
            application_limited: true,
            ..connection(78, "10.0.0.1", "10.0.0.3")
        };
        let as_six = |last: u8| [&[0_u8; 10][..], &[0xFF, 0xFF, 10, 0, 0, last]].concat();
        let mut answer = encode(&four, FAMILY_IPV4, [&[10, 0, 0, 1], &[10, 0, 0, 2]]);
        answer.extend(encode(&mapped, FAMILY_IPV6, [&as_six(1), &as_six(3)]));
        ([four, mapped], answer)
    }

    #[test]
    fn a_request_has_the_layout_of_the_kernel() {
        let bytes = request(FAMILY_IPV6);
        assert_eq!(bytes.len(), 72);
        assert_eq!(bytes[..4], 72_u32.to_ne_bytes());
        assert_eq!(bytes[4..6], 20_u16.to_ne_bytes());
        assert_eq!(bytes[6..8], 0x301_u16.to_ne_bytes());
        assert_eq!(bytes[16..20], [10, 6, 2, 0]);
        assert_eq!(bytes[20..24], 2_u32.to_ne_bytes());
        assert!(bytes[24..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn connections_are_parsed_and_those_of_other_processes_left_out() {
        let (expected, mut answer) = two();
        answer.extend(message(MESSAGE_DONE, &[0; 4]));
        let (is_last, found) = take(&answer, &HashSet::from([77, 78]));
        assert!(is_last.unwrap());
        assert_eq!(found, expected);
        let (_, found) = take(&answer, &HashSet::from([78, 79]));
        assert_eq!(found, expected[1..]);
    }

    #[test]
    fn an_answer_that_is_cut_off_anywhere_loses_only_what_is_cut() {
        let (expected, answer) = two();
        let wanted = HashSet::from([77, 78]);
        for length in 0..answer.len() {
            let (is_last, found) = take(&answer[..length], &wanted);
            assert!(!is_last.unwrap());
            let whole = usize::from(length >= answer.len() / 2);
            assert_eq!(found, expected[..whole], "{length}");
        }
    }

    #[test]
    fn figures_of_a_kernel_that_has_no_times_are_not_guessed() {
        let (_, mut answer) = two();
        // The attribute's length: its value ends before `tcpi_busy_time`.
        let at = 16 + 72 + 8;
        answer[at..at + 2].copy_from_slice(&(4 + 168_u16).to_ne_bytes());
        let (_, found) = take(&answer, &HashSet::from([77]));
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn an_error_of_the_kernel_is_an_error() {
        for kind in [MESSAGE_ERROR, MESSAGE_DONE] {
            let answer = message(kind, &(-libc::EPERM).to_ne_bytes());
            let (is_last, _) = take(&answer, &HashSet::new());
            assert_eq!(is_last.unwrap_err().raw_os_error(), Some(libc::EPERM));
        }
    }

    #[test]
    fn a_connection_of_this_process_is_listed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        sender.write_all(&[7; 10_000]).unwrap();
        receiver.read_exact(&mut [0; 10_000]).unwrap();
        let link = std::fs::read_link(format!("/proc/self/fd/{}", receiver.as_raw_fd())).unwrap();
        let inode = link
            .to_str()
            .and_then(|link| link.strip_prefix("socket:[")?.strip_suffix(']'))
            .unwrap()
            .parse()
            .unwrap();
        let found = match connections(&HashSet::from([inode])) {
            // A kernel that is built without it.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EPROTONOSUPPORT)) => {
                return;
            }
            found => found.unwrap(),
        };
        let [found] = found.as_slice() else {
            panic!("{found:?}")
        };
        assert!(found.local.is_loopback() && found.peer.is_loopback(), "{found:?}");
        assert_eq!(found.counters.received_bytes, 10_000);
    }
}
