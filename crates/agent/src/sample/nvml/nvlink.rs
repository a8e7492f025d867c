//! Reads all NVLinks of a GPU in one call: which are up, their speed, the bytes over each link, and its errors.
//!
//! The state of a link has a series only after it was first down, and its errors only after the first error, because single links matter
//! only then. Bytes always have a series.

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::link_rates::LinkRates;
use super::queries::{GpuLost, GpuQueries};
use super::raw::{ALL_LINKS, FieldBatch};
use crate::sample::series::Writer;

/// The maximum number of links. No GPU has more: it is NVML's own limit.
const LINKS_MAX: usize = 36;
/// The link numbers as label values.
const NAMES: [&str; LINKS_MAX] = [
    "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16", "17", "18",
    "19", "20", "21", "22", "23", "24", "25", "26", "27", "28", "29", "30", "31", "32", "33", "34", "35",
];

/// `NVML_FI_DEV_NVLINK_LINK_COUNT`.
const LINK_COUNT: u32 = 91;

/// What is read of each link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Up,
    /// Megabytes per second in one direction.
    Speed,
    /// Bytes sent and received in KiB, at least up to NVLink 4.
    SentKib,
    ReceivedKib,
    /// Bytes sent and received, from NVLink 5 on.
    Sent,
    Received,
    /// Replays, recoveries and similar errors. The sums over all links have a series per kind.
    Errors,
}

/// All queries: the name of the query if a GPU does not support it, the field, and what it reads.
const QUERIES: [(&str, u32, Kind); 12] = [
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

/// The values of one link after a round.
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
    /// Indexes in [`QUERIES`] of the queries that this GPU supports.
    supported: Vec<usize>,
    batch: Option<FieldBatch>,
    /// Used if no field contains the bytes.
    rates: LinkRates<'a>,
    /// Links that were down, and links that had errors, as bit masks.
    troubled: u64,
    erred: u64,
}

impl<'a> Nvlinks<'a> {
    /// Writes the state of the links. Returns their total capacity in one direction, in bytes per second.
    pub(super) fn read(
        &mut self,
        queries: &mut GpuQueries<'a>,
        out: &mut Writer<'_>,
    ) -> Result<Option<f64>, GpuLost> {
        let Some(count) = self.count(queries)? else {
            return Ok(None);
        };
        let mut links = self.query(queries, count)?;
        if links.iter().any(|link| link.up.is_none()) {
            query_state_by_call(queries, &mut links)?;
        }
        if !self.is_counted() {
            let up: Vec<bool> = links.iter().map(|link| link.up == Some(true)).collect();
            for (link, bytes) in links.iter_mut().zip(self.rates.read(queries, &up)?) {
                (link.sent, link.received) = bytes.map(|[sent, received]| (sent, received)).unzip();
            }
        }
        let active = links.iter().filter(|link| link.up == Some(true)).count();
        out.put("gpu_nvlinks", count as f64);
        out.put("gpu_nvlinks_active", active as f64);
        self.put_links(&links, out);
        let megabytes: f64 = links.iter().map(|link| link.megabytes).sum();
        // The capacity is that of all links: if a link is down, the GPU is slower, but the other links are not fuller.
        let up = active.max(1) as f64 / count as f64;
        Ok((megabytes > 0.0).then_some(megabytes * 1e6 / up))
    }

    fn count(&mut self, queries: &mut GpuQueries<'_>) -> Result<Option<usize>, GpuLost> {
        if self.count.is_none() {
            self.count = queries
                .query("nvlinks", nvlinks)?
                .map(|count| LINKS_MAX.min(count as usize));
            self.supported = (0..QUERIES.len()).collect();
        }
        Ok(self.count)
    }

    fn query(&mut self, queries: &mut GpuQueries<'_>, count: usize) -> Result<Vec<Link>, GpuLost> {
        let mut links = vec![Link::default(); count];
        let supported = &self.supported;
        let batch = self.batch.get_or_insert_with(|| {
            let of_links = |&query: &usize| (0..count as u32).map(move |link| (QUERIES[query].1, link));
            FieldBatch::new(supported.iter().flat_map(of_links))
        });
        if queries.query("nvlink fields", |gpu| batch.query(gpu))?.is_none() {
            return Ok(links);
        }
        let answers: Vec<_> = batch.answers().collect();
        let mut refused = Vec::new();
        for (&query, answers) in supported.iter().zip(answers.chunks(count)) {
            let (name, _, kind) = QUERIES[query];
            for (link, answer) in links.iter_mut().zip(answers) {
                if let Ok(value) = answer {
                    link.take(kind, *value);
                }
            }
            // A link that is down may refuse any query. If all links refuse a query, this GPU does not support it.
            if answers.iter().all(Result::is_err) {
                match answers.iter().find_map(|answer| answer.as_ref().err()) {
                    Some(NvmlError::GpuLost) => return Err(GpuLost(NvmlError::GpuLost)),
                    Some(NvmlError::NotSupported | NvmlError::InvalidArg) => refused.push((query, name)),
                    _ => {}
                }
            }
        }
        if !refused.is_empty() {
            refused.iter().for_each(|(_, name)| queries.refuse(name));
            self.supported
                .retain(|query| !refused.iter().any(|(other, _)| query == other));
            self.batch = None;
        }
        Ok(links)
    }

    /// Returns true if there is a field for the bytes of a link.
    fn is_counted(&self) -> bool {
        let kinds = self.supported.iter().map(|&query| QUERIES[query].2);
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

/// Reads the state of links with calls: older drivers have no field for it, and a link that is down may refuse the field.
fn query_state_by_call(queries: &mut GpuQueries<'_>, links: &mut [Link]) -> Result<(), GpuLost> {
    for (n, link) in (0..).zip(links) {
        if link.up.is_none() {
            // A link that cannot report its state is not up. The query stays allowed for the other links.
            link.up = queries.query("nvlink state", |gpu| match gpu.link_wrapper_for(n).is_active() {
                Err(NvmlError::InvalidArg | NvmlError::NotSupported) => Ok(false),
                answer => answer,
            })?;
        }
    }
    Ok(())
}

/// Returns the number of NVLinks. A GPU without NVLinks reports that it is not supported, or zero.
pub(super) fn nvlinks(device: &Device<'_>) -> Result<u32, NvmlError> {
    let mut count = FieldBatch::new([(LINK_COUNT, 0)]);
    count.query(device)?;
    let answer = count.answers().next();
    match answer.unwrap_or(Err(NvmlError::NotSupported))? {
        count if count > 0.0 => Ok(count as u32),
        _ => Err(NvmlError::NotSupported),
    }
}

/// The scope of all links is not the number of a link.
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
    fn newer_counters_replace_older_ones() {
        let mut link = Link::default();
        link.take(Kind::SentKib, 2.0);
        assert_eq!(link.sent, Some(2_048.0));
        link.take(Kind::Sent, 4_000.0);
        link.take(Kind::Errors, 1.0);
        link.take(Kind::Errors, 2.0);
        assert_eq!((link.sent, link.errors), (Some(4_000.0), 3.0));
    }
}
