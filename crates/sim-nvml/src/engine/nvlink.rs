//! The NVLinks of a GPU: states, traffic, errors.

use super::fault::{Fault, Trouble, Window};
use super::gpu::Gpu;
use super::profile::NvLink;
use super::status::Status;

/// Packet headers and acknowledgements on top of the data.
const RAW_OVERHEAD: f64 = 1.08;
/// Errors a dying link leaves behind.
const DYING_CRC: u64 = 212;
const DYING_REPLAYS: u64 = 41;
const DYING_RECOVERIES: u64 = 5;

/// A kind of error a link counts, as `nvmlNvLinkErrorCounter_t` numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkError {
    Replay,
    Recovery,
    CrcFlit,
    CrcData,
    EccData,
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
        Ok(!self.link_down_window(link).holds(t))
    }

    /// How many links are up.
    pub(crate) fn links_up(&self, t: f64) -> u32 {
        let links = self.profile.nvlink.as_ref().map_or(0, |nvlink| nvlink.links);
        (0..links)
            .filter(|link| !self.link_down_window(*link).holds(t))
            .count() as u32
    }

    /// Bytes of data over one link since boot, the same in both directions: collectives are symmetric.
    pub(crate) fn link_bytes(&self, link: u32, t: f64) -> Result<f64, Status> {
        Ok(self.link_rate(self.nvlink_with(link)?) * self.link_seconds(link, t))
    }

    /// Bytes over all links since boot.
    pub(crate) fn links_bytes(&self, t: f64) -> Result<f64, Status> {
        (0..self.nvlink()?.links)
            .map(|link| self.link_bytes(link, t))
            .sum()
    }

    /// Data plus protocol.
    pub(crate) fn with_overhead(bytes: f64) -> f64 {
        bytes * RAW_OVERHEAD
    }

    /// Errors of one link since boot.
    pub(crate) fn link_errors(&self, link: u32, kind: LinkError, t: f64) -> Result<u64, Status> {
        self.nvlink_with(link)?;
        if !self.link_down_window(link).has_begun(t) {
            return Ok(0);
        }
        Ok(match kind {
            LinkError::Replay => DYING_REPLAYS,
            LinkError::Recovery => DYING_RECOVERIES,
            LinkError::CrcFlit => DYING_CRC,
            LinkError::CrcData | LinkError::EccData => 0,
        })
    }

    /// Errors of all links since boot.
    pub(crate) fn links_errors(&self, kind: LinkError, t: f64) -> Result<u64, Status> {
        (0..self.nvlink()?.links)
            .map(|link| self.link_errors(link, kind, t))
            .sum()
    }

    /// Bytes a second of a busy link; a GPU alone has nobody to send to.
    fn link_rate(&self, nvlink: &NvLink) -> f64 {
        if self.has_peers {
            f64::from(nvlink.megabytes_per_second) * 1e6
        } else {
            0.0
        }
    }

    /// Busy seconds of one link; a link that is down carries nothing.
    fn link_seconds(&self, link: u32, t: f64) -> f64 {
        let Window { start, end } = self.link_down_window(link);
        let busy = |t: f64| self.job.nvlink_seconds(t);
        if t <= start {
            busy(t)
        } else if t <= end {
            busy(start)
        } else {
            busy(start) + (busy(t) - busy(end))
        }
    }

    /// The link that goes down, if one does.
    fn odd_link(&self) -> Option<u32> {
        match self.fault {
            Some(Fault {
                trouble: Trouble::LinkDown(link),
                ..
            }) => Some(link),
            _ => None,
        }
    }

    fn link_down_window(&self, link: u32) -> Window {
        match self.fault {
            Some(fault) if self.odd_link() == Some(link) => fault.window,
            _ => Window::NEVER,
        }
    }
}
