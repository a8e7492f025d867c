//! The NVLinks of a GPU: state, traffic, errors.
//!
//! Most links are equal. Only links with an incident are computed one by one.

use super::fault::{Fault, FaultKind, Window};
use super::gpu::Gpu;
use super::partition::Partitions;
use super::profile::NvLink;
use super::status::Status;

/// Packet headers and acknowledgements in addition to the data.
const RAW_OVERHEAD: f64 = 1.08;
/// The errors of a link that goes down.
const DYING_CRC: u64 = 212;
const DYING_REPLAYS: u64 = 41;
const DYING_RECOVERIES: u64 = 5;
/// The number of errors after which a link is retrained once.
const ERRORS_A_RECOVERY: u64 = 100;

/// A kind of link error, with the numbers of `nvmlNvLinkErrorCounter_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkError {
    Replay,
    Recovery,
    CrcFlit,
    CrcData,
    EccData,
}

/// When which links carry no data, and which make errors.
#[derive(Debug, Clone, Default)]
pub(crate) struct Links {
    /// When no link carries data: a partitioned GPU does not communicate with others.
    silent: Vec<Window>,
    faulty: Vec<FaultyLink>,
}

#[derive(Debug, Clone)]
struct FaultyLink {
    link: u32,
    down: Vec<Window>,
    /// When the link is down, or silent with all the others.
    silent: Vec<Window>,
    /// When the link makes errors, and how many per second.
    errors: Vec<(Window, f64)>,
}

impl Links {
    pub(crate) fn new(faults: &[Fault], partitions: &Partitions) -> Links {
        let silent = merged(partitions.0.iter().map(|(window, _)| *window).collect());
        let mut links = Links {
            silent,
            faulty: Vec::new(),
        };
        for fault in faults {
            match fault.kind {
                FaultKind::LinkDown(link) => links.faulty(link).down.push(fault.window),
                FaultKind::LinkErrors { link, per_second } => {
                    links
                        .faulty(link)
                        .errors
                        .push((fault.window, f64::from(per_second)));
                }
                _ => {}
            }
        }
        for faulty in &mut links.faulty {
            faulty.silent = merged(faulty.down.iter().chain(&links.silent).copied().collect());
        }
        links
    }

    fn faulty(&mut self, link: u32) -> &mut FaultyLink {
        let known = self.faulty.iter().position(|faulty| faulty.link == link);
        let index = known.unwrap_or_else(|| {
            self.faulty.push(FaultyLink {
                link,
                down: Vec::new(),
                silent: Vec::new(),
                errors: Vec::new(),
            });
            self.faulty.len() - 1
        });
        &mut self.faulty[index]
    }

    fn find(&self, link: u32) -> Option<&FaultyLink> {
        self.faulty.iter().find(|faulty| faulty.link == link)
    }
}

impl Gpu {
    /// Returns the links, or `NotSupported` for a GPU without NVLink.
    pub(crate) fn nvlink(&self) -> Result<&'static NvLink, Status> {
        self.profile.nvlink.as_ref().ok_or(Status::NotSupported)
    }

    /// Returns the links if `link` is one of them.
    pub(crate) fn nvlink_with(&self, link: u32) -> Result<&'static NvLink, Status> {
        let nvlink = self.nvlink()?;
        if link < nvlink.links {
            Ok(nvlink)
        } else {
            Err(Status::InvalidArgument)
        }
    }

    pub(crate) fn link_is_up(&self, link: u32, t: f64) -> Result<bool, Status> {
        self.nvlink_with(link)?;
        Ok(self.links.find(link).is_none_or(|faulty| faulty.is_up(t)))
    }

    /// Returns the number of links that are up.
    pub(crate) fn links_up(&self, t: f64) -> u32 {
        let links = self.profile.nvlink.as_ref().map_or(0, |nvlink| nvlink.links);
        let down = self.links.faulty.iter().filter(|faulty| !faulty.is_up(t)).count();
        links - down as u32
    }

    /// Returns the bytes of data over one link since the driver was loaded. Both directions are equal: collectives are symmetric.
    pub(crate) fn link_bytes(&self, link: u32, t: f64) -> Result<f64, Status> {
        let rate = self.link_rate(self.nvlink_with(link)?);
        let silent = self
            .links
            .find(link)
            .map_or(&self.links.silent, |faulty| &faulty.silent);
        Ok(self.since_load(|t| rate * self.busy_seconds(silent, t), t))
    }

    /// Returns the bytes over all links since the driver was loaded.
    pub(crate) fn links_bytes(&self, t: f64) -> Result<f64, Status> {
        let nvlink = self.nvlink()?;
        let alike = f64::from(nvlink.links - self.links.faulty.len() as u32);
        let seconds = |t| {
            let faulty = self
                .links
                .faulty
                .iter()
                .map(|faulty| self.busy_seconds(&faulty.silent, t));
            alike * self.busy_seconds(&self.links.silent, t) + faulty.sum::<f64>()
        };
        Ok(self.link_rate(nvlink) * self.since_load(seconds, t))
    }

    /// Returns the bytes of data and protocol.
    pub(crate) fn with_overhead(bytes: f64) -> f64 {
        bytes * RAW_OVERHEAD
    }

    /// Returns the errors of one link since the driver was loaded.
    pub(crate) fn link_errors(&self, link: u32, kind: LinkError, t: f64) -> Result<u64, Status> {
        self.nvlink_with(link)?;
        let faulty = self.links.find(link);
        Ok(faulty.map_or(0, |faulty| self.since_load(|t| faulty.errors(kind, t), t)))
    }

    /// Returns the errors of all links since the driver was loaded.
    pub(crate) fn links_errors(&self, kind: LinkError, t: f64) -> Result<u64, Status> {
        self.nvlink()?;
        let faulty = self.links.faulty.iter();
        Ok(faulty
            .map(|faulty| self.since_load(|t| faulty.errors(kind, t), t))
            .sum())
    }

    /// Returns the bytes per second of a busy link; 0 if there is no other GPU.
    fn link_rate(&self, nvlink: &NvLink) -> f64 {
        if self.has_peers {
            f64::from(nvlink.megabytes_per_second) * 1e6
        } else {
            0.0
        }
    }

    /// Returns the busy seconds outside of these windows. They are the sum of the periods between the windows, none of which can decrease.
    fn busy_seconds(&self, silent: &[Window], t: f64) -> f64 {
        let busy = |t: f64| self.job.nvlink_seconds(t);
        let (mut sum, mut before) = (0.0, 0.0);
        for window in silent.iter().filter(|window| window.has_begun(t)) {
            sum += busy(window.start) - before;
            if t <= window.end {
                return sum;
            }
            before = busy(window.end);
        }
        sum + (busy(t) - before)
    }
}

impl FaultyLink {
    fn is_up(&self, t: f64) -> bool {
        !self.down.iter().any(|window| window.holds(t))
    }

    fn errors(&self, kind: LinkError, t: f64) -> u64 {
        let deaths = self.down.iter().filter(|window| window.has_begun(t)).count() as u64;
        let made = |(window, rate): &(Window, f64)| (rate * window.passed(t)) as u64;
        let errors: u64 = self.errors.iter().map(made).sum();
        match kind {
            LinkError::Replay => deaths * DYING_REPLAYS + errors,
            LinkError::Recovery => deaths * DYING_RECOVERIES + errors / ERRORS_A_RECOVERY,
            LinkError::CrcFlit => deaths * DYING_CRC + errors,
            LinkError::CrcData | LinkError::EccData => 0,
        }
    }
}

/// Returns the same periods in order, with those that touch or overlap merged.
fn merged(mut windows: Vec<Window>) -> Vec<Window> {
    windows.sort_by(|one, other| one.start.total_cmp(&other.start));
    let mut apart: Vec<Window> = Vec::with_capacity(windows.len());
    for window in windows {
        match apart.last_mut() {
            Some(last) if window.start <= last.end => last.end = last.end.max(window.end),
            _ => apart.push(window),
        }
    }
    apart
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_that_touch_become_one() {
        let window = |start, end| Window { start, end };
        assert_eq!(
            merged(vec![
                window(5.0, 6.0),
                window(1.0, 3.0),
                window(2.0, 4.0),
                window(6.0, 9.0)
            ]),
            [window(1.0, 4.0), window(5.0, 9.0)]
        );
    }
}
