//! The NVLinks of a GPU: states, traffic, errors.
//!
//! Most links are like each other; only the odd ones, of which some incident tells, are looked at one by one.

use super::fault::{Fault, Trouble, Window};
use super::gpu::Gpu;
use super::partition::Partitions;
use super::profile::NvLink;
use super::status::Status;

/// Packet headers and acknowledgements on top of the data.
const RAW_OVERHEAD: f64 = 1.08;
/// Errors a dying link leaves behind.
const DYING_CRC: u64 = 212;
const DYING_REPLAYS: u64 = 41;
const DYING_RECOVERIES: u64 = 5;
/// So many errors make a link train anew once.
const ERRORS_A_RECOVERY: u64 = 100;

/// A kind of error a link counts, as `nvmlNvLinkErrorCounter_t` numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkError {
    Replay,
    Recovery,
    CrcFlit,
    CrcData,
    EccData,
}

/// When which links carry nothing, and which make errors.
#[derive(Debug, Clone, Default)]
pub(crate) struct Links {
    /// When no link carries anything: a partitioned GPU talks to no other.
    silent: Vec<Window>,
    odd: Vec<OddLink>,
}

#[derive(Debug, Clone)]
struct OddLink {
    link: u32,
    down: Vec<Window>,
    /// Down, or silent with all the others.
    silent: Vec<Window>,
    /// When it makes how many errors a second.
    errors: Vec<(Window, f64)>,
}

impl Links {
    pub(crate) fn new(faults: &[Fault], partitions: &Partitions) -> Links {
        let silent = merged(partitions.0.iter().map(|(window, _)| *window).collect());
        let mut links = Links {
            silent,
            odd: Vec::new(),
        };
        for fault in faults {
            match fault.trouble {
                Trouble::LinkDown(link) => links.odd(link).down.push(fault.window),
                Trouble::LinkErrors { link, per_second } => {
                    links.odd(link).errors.push((fault.window, f64::from(per_second)));
                }
                _ => {}
            }
        }
        for odd in &mut links.odd {
            odd.silent = merged(odd.down.iter().chain(&links.silent).copied().collect());
        }
        links
    }

    fn odd(&mut self, link: u32) -> &mut OddLink {
        let known = self.odd.iter().position(|odd| odd.link == link);
        let index = known.unwrap_or_else(|| {
            self.odd.push(OddLink {
                link,
                down: Vec::new(),
                silent: Vec::new(),
                errors: Vec::new(),
            });
            self.odd.len() - 1
        });
        &mut self.odd[index]
    }

    fn find(&self, link: u32) -> Option<&OddLink> {
        self.odd.iter().find(|odd| odd.link == link)
    }
}

impl Gpu {
    /// The links, or `NotSupported` on a GPU without.
    pub(crate) fn nvlink(&self) -> Result<&'static NvLink, Status> {
        self.profile.nvlink.as_ref().ok_or(Status::NotSupported)
    }

    /// The links, if `link` is one of them.
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
        Ok(self.links.find(link).is_none_or(|odd| odd.is_up(t)))
    }

    /// How many links are up.
    pub(crate) fn links_up(&self, t: f64) -> u32 {
        let links = self.profile.nvlink.as_ref().map_or(0, |nvlink| nvlink.links);
        let down = self.links.odd.iter().filter(|odd| !odd.is_up(t)).count();
        links - down as u32
    }

    /// Bytes of data over one link since the driver was loaded, the same in both directions: collectives are symmetric.
    pub(crate) fn link_bytes(&self, link: u32, t: f64) -> Result<f64, Status> {
        let rate = self.link_rate(self.nvlink_with(link)?);
        let silent = self
            .links
            .find(link)
            .map_or(&self.links.silent, |odd| &odd.silent);
        Ok(self.since_load(|t| rate * self.busy_seconds(silent, t), t))
    }

    /// Bytes over all links since the driver was loaded.
    pub(crate) fn links_bytes(&self, t: f64) -> Result<f64, Status> {
        let nvlink = self.nvlink()?;
        let alike = f64::from(nvlink.links - self.links.odd.len() as u32);
        let seconds = |t| {
            let odd = self.links.odd.iter().map(|odd| self.busy_seconds(&odd.silent, t));
            alike * self.busy_seconds(&self.links.silent, t) + odd.sum::<f64>()
        };
        Ok(self.link_rate(nvlink) * self.since_load(seconds, t))
    }

    /// Data plus protocol.
    pub(crate) fn with_overhead(bytes: f64) -> f64 {
        bytes * RAW_OVERHEAD
    }

    /// Errors of one link since the driver was loaded.
    pub(crate) fn link_errors(&self, link: u32, kind: LinkError, t: f64) -> Result<u64, Status> {
        self.nvlink_with(link)?;
        let odd = self.links.find(link);
        Ok(odd.map_or(0, |odd| self.since_load(|t| odd.errors(kind, t), t)))
    }

    /// Errors of all links since the driver was loaded.
    pub(crate) fn links_errors(&self, kind: LinkError, t: f64) -> Result<u64, Status> {
        self.nvlink()?;
        let odd = self.links.odd.iter();
        Ok(odd.map(|odd| self.since_load(|t| odd.errors(kind, t), t)).sum())
    }

    /// Bytes a second of a busy link; a GPU alone has nobody to send to.
    fn link_rate(&self, nvlink: &NvLink) -> f64 {
        if self.has_peers {
            f64::from(nvlink.megabytes_per_second) * 1e6
        } else {
            0.0
        }
    }

    /// Busy seconds outside of these windows. Added up from the stretches between them, of which none can shrink.
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

impl OddLink {
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

/// The same stretches of time in order, none touching another.
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
