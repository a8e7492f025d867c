//! The summary of the plugin's thread: once per second one datagram for each active communicator, a JSON object of at most 8 KiB.
//!
//! ```text
//! {"v":1,"kind":"nccl",                                              the envelope that all probes share
//!  "run":"ddp-1","attempt":2,"node":"n1","rank":3,"local_rank":3,"pid":42,"wall_ns":…,"mono_ns":…,
//!  "nccl":"2.28.9","abi":5,"timing":true,                            NCCL, the table it uses, whether kernels are timed now
//!  "dropped":0,"unsent":0,"untimed":0,"refused":0,                   losses of this process so far
//!  "comm":"00c0ffee00c0ffee","comm_name":"dp","comm_rank":3,"comm_ranks":8,"comm_nodes":1,"closed":false,
//!  "functions":[{"function":"AllReduce","count":120,"bytes":…,       totals since the communicator was created
//!     "sequence":119,"enqueued_ns":…,                                the last one; wall clock
//!     "timed":7,"timed_ns":…,"bus_bytes":…}],                        the timed ones: their number, GPU time and bus bytes
//!  "arrivals":[["AllReduce",96,wall_ns,0],["AllReduce",112,wall_ns,81920]]}
//! ```
//! An arrival contains a sequence number, the time when the collective was put into its stream, and how long its kernel ran in nanoseconds
//! (0 if it was not timed). Only every 2^k-th sequence number is sent, with the smallest k that keeps their number small. So ranks with
//! similar counts send the same sequence numbers. Missing values are unknown. Fields may be added; a change of meaning changes `v`.

use std::fmt::Write;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::channel::Channel;
use crate::clock::{monotonic_ns, wall_ns};
use crate::comm::{COMMS_MAX, Comm};
use crate::function::{FUNCTIONS, Function};
use crate::probe::{EVENTS_MAX, Event, Origin, Probe};
use crate::settings::Settings;

/// The maximum number of arrivals of one function in a datagram.
const ARRIVALS_MAX: usize = 24;
/// No arrival is added after this length, so the datagram stays within the 8 KiB that the receiver expects.
const ARRIVALS_END_BYTES: usize = 7_900;
/// The maximum number of communicators sent per second. The others are sent in the next second.
const DATAGRAMS_MAX: usize = 32;
/// How long a datagram is tried. The kernel's queue is full for a moment when all ranks of a node send.
const SEND_TIMEOUT: Duration = Duration::from_millis(30);
/// How often unchanged totals are sent again, for a receiver that started later.
const REPEAT_NS: u64 = 15_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// The offset between the ranks of a node, so that they do not all send at the same time.
const STAGGER_NS: u64 = SECOND_NS / 32;

/// The summaries and the channel to send them.
#[derive(Debug)]
pub(crate) struct Summary {
    channel: Channel,
    /// One entry per slot of a communicator.
    comms: Vec<CommSummary>,
    /// The second in which datagrams were last sent.
    sent_second: u64,
    /// The slot to start with, so that it is not always the same communicator that has to wait.
    first: usize,
    unsent: u64,
}

#[derive(Debug, Default)]
struct CommSummary {
    generation: u64,
    functions: [FunctionSummary; FUNCTIONS],
    told_operations: u64,
    told_timed: u64,
    told_ns: u64,
}

#[derive(Debug, Default)]
struct FunctionSummary {
    timed: u64,
    timed_ns: u64,
    bus_bytes: f64,
    arrivals: Vec<Arrival>,
    /// Only sequence numbers that are multiples of 2 to this power are kept.
    stride_bits: u32,
}

#[derive(Debug, Clone, Copy)]
struct Arrival {
    sequence: u64,
    at_ns: u64,
    duration_ns: u64,
}

impl Summary {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            channel: Channel::new(&settings.socket),
            comms: (0..COMMS_MAX).map(|_| CommSummary::default()).collect(),
            sent_second: 0,
            first: 0,
            unsent: 0,
        }
    }

    /// Collects new events. Sends when a second is over.
    pub(crate) fn run_once(&mut self, probe: &Probe) {
        self.drain(probe);
        let stagger_ns = u64::from(probe.settings.local_rank.unwrap_or(0) % 32) * STAGGER_NS;
        let second = (wall_ns() - stagger_ns) / SECOND_NS;
        if second != self.sent_second {
            self.sent_second = second;
            self.send(probe, DATAGRAMS_MAX, |now| now + SEND_TIMEOUT);
        }
    }

    /// Collects new events and sends everything, until `until`.
    pub(crate) fn send_all(&mut self, probe: &Probe, until: Instant) {
        self.drain(probe);
        self.send(probe, COMMS_MAX, |_| until);
    }

    fn drain(&mut self, probe: &Probe) {
        // The loop is bounded, so that many events do not keep the thread here.
        for _ in 0..EVENTS_MAX {
            let Some(record) = probe.events.pop() else { break };
            let event = Event::unpacked(record);
            let origin = Origin::unpacked(event.timed.tag);
            let comm = &mut self.comms[origin.place];
            if comm.generation != origin.generation {
                *comm = CommSummary {
                    generation: origin.generation,
                    ..CommSummary::default()
                };
            }
            let ranks = probe.comms.ranks_of(origin.place);
            comm.functions[origin.function as usize].take(&event, origin, ranks);
        }
    }

    fn send(&mut self, probe: &Probe, datagrams_max: usize, until: impl Fn(Instant) -> Instant) {
        let now_ns = monotonic_ns();
        let first = self.first;
        let mut due: Vec<_> = probe
            .comms
            .used()
            .filter(|(place, generation, comm)| self.comms[*place].is_due(*generation, comm, now_ns))
            .collect();
        due.sort_by_key(|(place, ..)| (place + COMMS_MAX - first) % COMMS_MAX);
        if let Some((next, ..)) = due.get(datagrams_max) {
            self.first = *next;
        }
        for (place, generation, comm) in due.into_iter().take(datagrams_max) {
            self.send_comm(probe, place, generation, comm, now_ns, until(Instant::now()));
        }
    }

    fn send_comm(
        &mut self,
        probe: &Probe,
        place: usize,
        generation: u64,
        comm: &Comm,
        now_ns: u64,
        until: Instant,
    ) {
        // Read this before the totals: nothing is added to a closed communicator.
        let closed = comm.is_closed();
        let summary = &mut self.comms[place];
        if summary.generation != generation {
            *summary = CommSummary {
                generation,
                ..CommSummary::default()
            };
        }
        summary.told_operations = comm.operations();
        summary.told_timed = summary.timed();
        summary.told_ns = now_ns;
        let text = datagram(probe, comm, summary, self.unsent, closed);
        summary.functions.iter_mut().for_each(FunctionSummary::told);
        if !self.channel.send(text.as_bytes(), until) {
            self.unsent += 1;
        }
        if closed {
            comm.free();
        }
    }
}

impl CommSummary {
    /// Returns true if the communicator must be sent. Without operations, only its end is sent.
    fn is_due(&self, generation: u64, comm: &Comm, now_ns: u64) -> bool {
        let operations = comm.operations();
        comm.is_closed()
            || operations > 0
                && (self.generation != generation
                    || self.told_operations != operations
                    || self.told_timed != self.timed()
                    || now_ns.saturating_sub(self.told_ns) >= REPEAT_NS)
    }

    fn timed(&self) -> u64 {
        self.functions.iter().map(|function| function.timed).sum()
    }
}

impl FunctionSummary {
    fn take(&mut self, event: &Event, origin: Origin, ranks: u32) {
        if event.duration_ns > 0 {
            self.timed += 1;
            self.timed_ns += event.duration_ns;
            self.bus_bytes += origin.function.bus_bytes(event.timed.bytes, ranks).unwrap_or(0.0);
        }
        if origin.sequenced {
            self.arrive(Arrival {
                sequence: event.timed.sequence,
                at_ns: event.timed.enqueued_ns,
                duration_ns: event.duration_ns,
            });
        }
    }

    fn arrive(&mut self, arrival: Arrival) {
        if !is_kept(arrival.sequence, self.stride_bits) {
            return;
        }
        let known = self
            .arrivals
            .iter_mut()
            .rev()
            .find(|known| known.sequence == arrival.sequence);
        match known {
            // The kernel of an operation that was put into its stream earlier.
            Some(known) => known.duration_ns = known.duration_ns.max(arrival.duration_ns),
            None => self.arrivals.push(arrival),
        }
        while self.arrivals.len() > ARRIVALS_MAX && self.stride_bits < 32 {
            self.stride_bits += 1;
            let bits = self.stride_bits;
            self.arrivals.retain(|kept| is_kept(kept.sequence, bits));
        }
    }

    /// Starts a new second. When the rate falls, the resolution increases again within some seconds.
    fn told(&mut self) {
        if self.arrivals.len() * 2 <= ARRIVALS_MAX {
            self.stride_bits = self.stride_bits.saturating_sub(1);
        }
        self.arrivals.clear();
    }
}

fn is_kept(sequence: u64, stride_bits: u32) -> bool {
    sequence.trailing_zeros() >= stride_bits
}

// === the datagram ===

fn datagram(probe: &Probe, comm: &Comm, summary: &CommSummary, unsent: u64, closed: bool) -> String {
    let mut out = String::with_capacity(2_048);
    let (wall, mono) = (wall_ns(), monotonic_ns());
    let at_wall = |mono_ns: u64| (wall + mono_ns).saturating_sub(mono);
    out.push_str(r#"{"v":1,"kind":"nccl""#);
    envelope(&mut out, probe, comm);
    let settings = &probe.settings;
    number(&mut out, "pid", std::process::id());
    number(&mut out, "wall_ns", wall);
    number(&mut out, "mono_ns", mono);
    if let Some(version) = probe.version {
        text(&mut out, "nccl", &version.to_string());
    }
    number(&mut out, "abi", probe.abi);
    number(&mut out, "timing", probe.mask.times());
    number(&mut out, "dropped", probe.dropped.load(Ordering::Relaxed));
    number(&mut out, "unsent", unsent);
    number(&mut out, "untimed", probe.untimed.load(Ordering::Relaxed));
    number(&mut out, "refused", probe.comms.refused.load(Ordering::Relaxed));
    if let Some(local_rank) = settings.local_rank {
        number(&mut out, "local_rank", local_rank);
    }
    identity(&mut out, comm);
    number(&mut out, "closed", closed);
    out.push_str(r#","functions":["#);
    for (n, (function, total)) in comm.totals().enumerate() {
        let of = &summary.functions[function as usize];
        let comma = if n == 0 { "" } else { "," };
        let _infallible = write!(
            out,
            r#"{comma}{{"function":"{}","count":{},"bytes":{}"#,
            function.name(),
            total.count.load(Ordering::Relaxed),
            total.bytes.load(Ordering::Relaxed)
        );
        if let Some(sequence) = total.next_sequence.load(Ordering::Relaxed).checked_sub(1) {
            number(&mut out, "sequence", sequence);
        }
        number(
            &mut out,
            "enqueued_ns",
            at_wall(total.enqueued_ns.load(Ordering::Relaxed)),
        );
        if of.timed > 0 {
            number(&mut out, "timed", of.timed);
            number(&mut out, "timed_ns", of.timed_ns);
        }
        if of.bus_bytes > 0.0 {
            number(&mut out, "bus_bytes", of.bus_bytes.round());
        }
        out.push('}');
    }
    out.push_str(r#"],"arrivals":["#);
    arrivals(&mut out, summary, at_wall);
    out.push_str("]}");
    out
}

fn envelope(out: &mut String, probe: &Probe, comm: &Comm) {
    let settings = &probe.settings;
    if let Some(run) = &settings.run {
        text(out, "run", run);
    }
    if let Some(attempt) = settings.attempt {
        number(out, "attempt", attempt);
    }
    if let Some(node) = &settings.node {
        text(out, "node", node);
    }
    // Without a launcher, the communicator's rank is the best information.
    let rank = settings.rank.unwrap_or_else(|| comm.rank.load(Ordering::Relaxed));
    number(out, "rank", rank);
}

fn identity(out: &mut String, comm: &Comm) {
    let known = |figure: u32| Some(figure).filter(|figure| *figure > 0);
    text(
        out,
        "comm",
        &format!("{:016x}", comm.hash.load(Ordering::Relaxed)),
    );
    let name = comm.name();
    if !name.is_empty() {
        text(out, "comm_name", &name);
    }
    number(out, "comm_rank", comm.rank.load(Ordering::Relaxed));
    if let Some(ranks) = known(comm.ranks.load(Ordering::Relaxed)) {
        number(out, "comm_ranks", ranks);
    }
    if let Some(nodes) = known(comm.nodes.load(Ordering::Relaxed)) {
        number(out, "comm_nodes", nodes);
    }
}

fn arrivals(out: &mut String, summary: &CommSummary, at_wall: impl Fn(u64) -> u64) {
    let functions = summary.functions.iter().enumerate();
    let all = functions.flat_map(|(place, of)| {
        of.arrivals
            .iter()
            .map(move |arrival| (Function::at(place), arrival))
    });
    for (n, (function, arrival)) in all.enumerate() {
        if out.len() > ARRIVALS_END_BYTES {
            return;
        }
        let comma = if n == 0 { "" } else { "," };
        let _infallible = write!(
            out,
            r#"{comma}["{}",{},{},{}]"#,
            function.name(),
            arrival.sequence,
            at_wall(arrival.at_ns),
            arrival.duration_ns
        );
    }
}

fn number(out: &mut String, name: &str, value: impl std::fmt::Display) {
    let _infallible = write!(out, r#","{name}":{value}"#);
}

fn text(out: &mut String, name: &str, value: &str) {
    let _infallible = write!(out, r#","{name}":""#);
    for c in value.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => out.push('?'),
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_with_different_rates_report_common_sequence_numbers() {
        let told = |count: u64| {
            let mut function = FunctionSummary::default();
            for sequence in 0..count {
                let arrival = Arrival {
                    sequence,
                    at_ns: 1,
                    duration_ns: 0,
                };
                function.arrive(arrival);
            }
            function
                .arrivals
                .iter()
                .map(|arrival| arrival.sequence)
                .collect::<Vec<_>>()
        };
        assert_eq!(told(3), [0, 1, 2]);
        let (many, more) = (told(1_000), told(1_700));
        assert!(
            many.len() <= ARRIVALS_MAX && many.len() > ARRIVALS_MAX / 3,
            "{many:?}"
        );
        let common = more.iter().filter(|sequence| many.contains(sequence)).count();
        assert!(common >= many.len() / 2, "{many:?} {more:?}");
    }

    #[test]
    fn a_text_of_the_environment_cannot_break_the_object() {
        let mut out = String::new();
        text(&mut out, "run", "a\"b\\c\nd");
        assert_eq!(out, r#","run":"a\"b\\c?d""#);
    }
}
