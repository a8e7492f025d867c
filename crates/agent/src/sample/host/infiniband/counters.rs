//! The known counters of an RDMA port. They are read without side effects, and never again after an error.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The InfiniBand specification counts octets in words of four.
const WORD_BYTES: f64 = 4.0;
/// The maximum length of a counter file, which contains one number.
const TEXT_BYTES_MAX: usize = 32;

/// What a counter counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Meaning {
    /// Bytes sent, in units of this number of bytes.
    Sent(f64),
    /// Bytes received, in units of this number of bytes.
    Received(f64),
    /// Ticks with data to send but no credit for it.
    Wait,
    /// Signs of congestion.
    Congestion(&'static str),
    /// Errors.
    Error(&'static str),
}

/// The file below the port's folder, and its meaning. Vendors use different names for the same meaning.
const KNOWN: [(&str, Meaning); 48] = {
    use Meaning::{Congestion, Error, Received, Sent, Wait};
    [
        ("counters/port_xmit_data", Sent(WORD_BYTES)),
        ("counters/port_rcv_data", Received(WORD_BYTES)),
        ("counters/port_xmit_wait", Wait),
        ("counters/symbol_error", Error("symbol")),
        ("counters/link_error_recovery", Error("link_recovery")),
        ("counters/link_downed", Error("link_downed")),
        ("counters/port_rcv_errors", Error("receive")),
        (
            "counters/port_rcv_remote_physical_errors",
            Error("remote_physical"),
        ),
        ("counters/port_xmit_discards", Error("transmit_discard")),
        ("counters/local_link_integrity_errors", Error("link_integrity")),
        (
            "counters/excessive_buffer_overrun_errors",
            Error("buffer_overrun"),
        ),
        // mlx5
        ("hw_counters/np_cnp_sent", Congestion("cnp_sent")),
        ("hw_counters/rp_cnp_handled", Congestion("cnp_handled")),
        ("hw_counters/rp_cnp_ignored", Congestion("cnp_ignored")),
        ("hw_counters/np_ecn_marked_roce_packets", Congestion("ecn_marked")),
        ("hw_counters/out_of_sequence", Error("out_of_sequence")),
        ("hw_counters/packet_seq_err", Error("packet_sequence")),
        ("hw_counters/local_ack_timeout_err", Error("ack_timeout")),
        ("hw_counters/rnr_nak_retry_err", Error("rnr_nak_retry")),
        ("hw_counters/implied_nak_seq_err", Error("implied_nak")),
        ("hw_counters/out_of_buffer", Error("out_of_buffer")),
        ("hw_counters/duplicate_request", Error("duplicate_request")),
        ("hw_counters/roce_adp_retrans", Error("adaptive_retransmit")),
        (
            "hw_counters/req_transport_retries_exceeded",
            Error("retries_exceeded"),
        ),
        // efa
        ("hw_counters/tx_bytes", Sent(1.0)),
        ("hw_counters/rx_bytes", Received(1.0)),
        ("hw_counters/rx_drops", Error("receive_drop")),
        ("hw_counters/retrans_pkts", Error("retransmit")),
        ("hw_counters/retrans_timeout_events", Error("ack_timeout")),
        (
            "hw_counters/impaired_remote_conn_events",
            Error("impaired_remote"),
        ),
        (
            "hw_counters/unresponsive_remote_events",
            Error("unresponsive_remote"),
        ),
        // bnxt_re
        ("hw_counters/tx_roce_only_bytes", Sent(1.0)),
        ("hw_counters/rx_roce_only_bytes", Received(1.0)),
        ("hw_counters/tx_cnp_pkts", Congestion("cnp_sent")),
        ("hw_counters/rx_cnp_pkts", Congestion("cnp_handled")),
        ("hw_counters/rx_ecn_marked_pkts", Congestion("ecn_marked")),
        ("hw_counters/to_retransmits", Error("ack_timeout")),
        ("hw_counters/seq_err_naks_rcvd", Error("packet_sequence")),
        ("hw_counters/rnr_naks_rcvd", Error("rnr_nak_retry")),
        ("hw_counters/max_retry_exceeded", Error("retries_exceeded")),
        // irdma
        ("hw_counters/ip4OutOctets", Sent(1.0)),
        ("hw_counters/ip6OutOctets", Sent(1.0)),
        ("hw_counters/ip4InOctets", Received(1.0)),
        ("hw_counters/ip6InOctets", Received(1.0)),
        ("hw_counters/cnpSent", Congestion("cnp_sent")),
        ("hw_counters/cnpHandled", Congestion("cnp_handled")),
        ("hw_counters/cnpIgnored", Congestion("cnp_ignored")),
        ("hw_counters/RxECNMrkd", Congestion("ecn_marked")),
    ]
};

/// Files that returned an error when read.
#[derive(Debug, Default)]
pub(super) struct Broken(HashSet<PathBuf>);

/// One counter of one port.
#[derive(Debug)]
pub(super) struct Counter {
    path: PathBuf,
    pub(super) meaning: Meaning,
    /// The open file: reading an open counter each second takes one call instead of four.
    file: Option<File>,
}

/// Returns the counters of a port. Each meaning occurs once, except bytes, which add up. Byte counters of the specification take precedence
/// over those of a driver.
pub(super) fn of_port(port: &Path) -> Vec<Counter> {
    let mut counters: Vec<Counter> = KNOWN
        .iter()
        .map(|(file, meaning)| Counter {
            path: port.join(file),
            meaning: *meaning,
            file: None,
        })
        .filter(|counter| counter.path.exists())
        .collect();
    let is_bytes = |meaning| matches!(meaning, Meaning::Sent(_) | Meaning::Received(_));
    let specified = |counter: &Counter| {
        counter
            .path
            .parent()
            .is_some_and(|folder| folder.ends_with("counters"))
    };
    if counters
        .iter()
        .any(|counter| is_bytes(counter.meaning) && specified(counter))
    {
        counters.retain(|counter| !is_bytes(counter.meaning) || specified(counter));
    }
    let mut seen = Vec::new();
    counters.retain(|counter| {
        let again = seen.contains(&counter.meaning);
        seen.push(counter.meaning);
        !again || is_bytes(counter.meaning)
    });
    counters
}

impl Counter {
    /// Returns the current value. After an error it returns `None` forever, except if the device is gone, because it may come back.
    pub(super) fn read(&mut self, broken: &mut Broken) -> Option<f64> {
        if broken.0.contains(&self.path) {
            return None;
        }
        match self.try_read() {
            Ok(Some(value)) => Some(value),
            Err(error) if is_gone(&error) => {
                self.file = None;
                None
            }
            // "N/A (no PMA)" is as final as an error.
            Ok(None) | Err(_) => {
                self.file = None;
                broken.0.insert(self.path.clone());
                None
            }
        }
    }

    fn try_read(&mut self) -> io::Result<Option<f64>> {
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(File::open(&self.path)?),
        };
        let mut text = [0; TEXT_BYTES_MAX];
        let bytes = file.read_at(&mut text, 0)?;
        let text = std::str::from_utf8(&text[..bytes]).unwrap_or_default();
        Ok(text.trim().parse().ok())
    }
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}
