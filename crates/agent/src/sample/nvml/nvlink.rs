//! The NVLinks of a GPU one by one, all in one call: which are up, how fast, what went over each, and its errors.
//!
//! Which link is down or sick matters only when one is, so the state of a link has a series from its first trouble on, and its
//! errors from the first error on. Bytes have one always.

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::asker::{Asker, GpuLost};
use super::link_rates::LinkRates;
use super::raw::{ALL_LINKS, FieldBatch};
use crate::sample::series::Writer;

/// More links than any GPU has: NVML's own bound is 36.
const LINKS_MAX: usize = 36;
/// Links as labels.
const NAMES: [&str; LINKS_MAX] = [
    "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16", "17", "18",
    "19", "20", "21", "22", "23", "24", "25", "26", "27", "28", "29", "30", "31", "32", "33", "34", "35",
];

/// `NVML_FI_DEV_NVLINK_LINK_COUNT`.
const LINK_COUNT: u32 = 91;

/// What is asked of each link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Up,
    /// Megabytes a second in one direction.
    Speed,
    /// Sent and received in KiB, up to NVLink 4 at least.
    SentKib,
    ReceivedKib,
    /// Sent and received in bytes, from NVLink 5 on.
    Sent,
    Received,
    /// Replays, recoveries and the like; which kind is told by the sums over links.
    Errors,
}

/// Every question, by its field, and what it is called where a GPU refuses it.
const QUESTIONS: [(&str, u32, Kind); 12] = [
    ("nvlink state field", 165, Kind::Up),
    ("nvlink speed", 164, Kind::Speed),
    ("nvlink sent kib", 138, Kind::SentKib),
    ("nvlink received kib", 139, Kind::ReceivedKib),
    ("nvlink sent bytes", 202, Kind::Sent),
    ("nvlink received bytes", 204, Kind::Received),
    ("nvlink replays", 161, Kind::Errors),
    ("nvlink recoveries", 162, Kind::Errors),
    ("nvlink crc", 163, Kind::Errors),
    ("nvlink 5 recoveries", 215, Kind::Errors),
    ("nvlink 5 effective", 219, Kind::Errors),
    ("nvlink 5 symbol", 221, Kind::Errors),
];

/// What is known of one link after a round.
#[derive(Debug, Clone, Copy, Default)]
struct Link {
    up: Option<bool>,
    megabytes: f64,
    sent: Option<f64>,
    received: Option<f64>,
    errors: f64,
}

/// The links of one GPU.
#[derive(Default)]
pub(super) struct Nvlinks<'a> {
    count: Option<usize>,
    /// Places in [`QUESTIONS`].
    asked: Vec<usize>,
    batch: Option<FieldBatch>,
    /// Where no field tells the bytes.
    rates: LinkRates<'a>,
    /// Links that were down, and links that had errors, a bit each.
    troubled: u64,
    erred: u64,
}

impl<'a> Nvlinks<'a> {
    /// Writes how the links are; gives what they can carry together in one direction, in bytes a second.
    pub(super) fn read(
        &mut self,
        asker: &mut Asker<'a>,
        out: &mut Writer<'_>,
    ) -> Result<Option<f64>, GpuLost> {
        let Some(count) = self.count(asker)? else {
            return Ok(None);
        };
        let mut links = self.ask(asker, count)?;
        if links.iter().any(|link| link.up.is_none()) {
            ask_state_by_call(asker, &mut links)?;
        }
        if !self.is_counted() {
            let up: Vec<bool> = links.iter().map(|link| link.up == Some(true)).collect();
            for (link, bytes) in links.iter_mut().zip(self.rates.read(asker, &up)?) {
                (link.sent, link.received) = bytes.map(|[sent, received]| (sent, received)).unzip();
            }
        }
        let active = links.iter().filter(|link| link.up == Some(true)).count();
        out.put("gpu_nvlinks", count as f64);
        out.put("gpu_nvlinks_active", active as f64);
        self.put_links(&links, out);
        let megabytes: f64 = links.iter().map(|link| link.megabytes).sum();
        // Measured against all links: one that is down makes the GPU slower, not its links fuller.
        let up = active.max(1) as f64 / count as f64;
        Ok((megabytes > 0.0).then_some(megabytes * 1e6 / up))
    }

    fn count(&mut self, asker: &mut Asker<'_>) -> Result<Option<usize>, GpuLost> {
        if self.count.is_none() {
            self.count = asker
                .ask("nvlinks", nvlinks)?
                .map(|count| LINKS_MAX.min(count as usize));
            self.asked = (0..QUESTIONS.len()).collect();
        }
        Ok(self.count)
    }

    fn ask(&mut self, asker: &mut Asker<'_>, count: usize) -> Result<Vec<Link>, GpuLost> {
        let mut links = vec![Link::default(); count];
        let asked = &self.asked;
        let batch = self.batch.get_or_insert_with(|| {
            let of_links =
                |&question: &usize| (0..count as u32).map(move |link| (QUESTIONS[question].1, link));
            FieldBatch::new(asked.iter().flat_map(of_links))
        });
        if asker.ask("nvlink fields", |gpu| batch.ask(gpu))?.is_none() {
            return Ok(links);
        }
        let answers: Vec<_> = batch.answers().collect();
        let mut refused = Vec::new();
        for (&question, answers) in asked.iter().zip(answers.chunks(count)) {
            let (name, _, kind) = QUESTIONS[question];
            for (link, answer) in links.iter_mut().zip(answers) {
                if let Ok(value) = answer {
                    link.take(kind, *value);
                }
            }
            // One link that is down may refuse anything; a question that every link refuses is none for this GPU.
            if answers.iter().all(Result::is_err) {
                match answers.iter().find_map(|answer| answer.as_ref().err()) {
                    Some(NvmlError::GpuLost) => return Err(GpuLost(NvmlError::GpuLost)),
                    Some(NvmlError::NotSupported | NvmlError::InvalidArg) => refused.push((question, name)),
                    _ => {}
                }
            }
        }
        if !refused.is_empty() {
            refused.iter().for_each(|(_, name)| asker.refuse(name));
            self.asked
                .retain(|question| !refused.iter().any(|(other, _)| question == other));
            self.batch = None;
        }
        Ok(links)
    }

    /// Whether there is a field for the bytes of a link.
    fn is_counted(&self) -> bool {
        let kinds = self.asked.iter().map(|&question| QUESTIONS[question].2);
        kinds
            .into_iter()
            .any(|kind| matches!(kind, Kind::SentKib | Kind::Sent))
    }

    fn put_links(&mut self, links: &[Link], out: &mut Writer<'_>) {
        for (n, link) in links.iter().enumerate() {
            let label = ("nvlink", NAMES[n]);
            if let Some(sent) = link.sent {
                out.put_by("gpu_nvlink_transmit_bytes_total", label, sent);
            }
            if let Some(received) = link.received {
                out.put_by("gpu_nvlink_receive_bytes_total", label, received);
            }
            let bit = 1 << n;
            self.troubled |= if link.up == Some(false) { bit } else { 0 };
            if self.troubled & bit != 0 {
                out.put_by("gpu_nvlink_up", label, link.up == Some(true));
            }
            if link.errors > 0.0 && self.erred & bit == 0 {
                self.erred |= bit;
                out.born_at_zero("gpu_nvlink_link_errors_total", label);
            }
            if self.erred & bit != 0 {
                out.put_by("gpu_nvlink_link_errors_total", label, link.errors);
            }
        }
    }
}

impl Link {
    fn take(&mut self, kind: Kind, value: f64) {
        match kind {
            Kind::Up => self.up = Some(value != 0.0),
            Kind::Speed => self.megabytes = value,
            Kind::SentKib => self.sent = Some(value * 1024.0),
            Kind::ReceivedKib => self.received = Some(value * 1024.0),
            Kind::Sent => self.sent = Some(value),
            Kind::Received => self.received = Some(value),
            Kind::Errors => self.errors += value,
        }
    }
}

/// Older drivers have no field for a link's state, and a link that is down may refuse it.
fn ask_state_by_call(asker: &mut Asker<'_>, links: &mut [Link]) -> Result<(), GpuLost> {
    for (n, link) in (0..).zip(links) {
        if link.up.is_none() {
            // A link that cannot say is not up; the question stays allowed for the others.
            link.up = asker.ask("nvlink state", |gpu| match gpu.link_wrapper_for(n).is_active() {
                Err(NvmlError::InvalidArg | NvmlError::NotSupported) => Ok(false),
                answer => answer,
            })?;
        }
    }
    Ok(())
}

/// How many NVLinks there are; a GPU without any says it is not supported, or zero.
pub(super) fn nvlinks(device: &Device<'_>) -> Result<u32, NvmlError> {
    let mut count = FieldBatch::new([(LINK_COUNT, 0)]);
    count.ask(device)?;
    let answer = count.answers().next();
    match answer.unwrap_or(Err(NvmlError::NotSupported))? {
        count if count > 0.0 => Ok(count as u32),
        _ => Err(NvmlError::NotSupported),
    }
}

/// The sum over links is no link's name.
const _: () = assert!(ALL_LINKS as usize > LINKS_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_named_by_their_number() {
        for (n, name) in NAMES.iter().enumerate() {
            assert_eq!(*name, n.to_string());
        }
    }

    #[test]
    fn newer_counters_stand_in_for_older_ones() {
        let mut link = Link::default();
        link.take(Kind::SentKib, 2.0);
        assert_eq!(link.sent, Some(2_048.0));
        link.take(Kind::Sent, 4_000.0);
        link.take(Kind::Errors, 1.0);
        link.take(Kind::Errors, 2.0);
        assert_eq!((link.sent, link.errors), (Some(4_000.0), 3.0));
    }
}
