//! The total traffic over a GPU's links, and its share of their capacity.

use std::time::Instant;

use super::counters::{Counters, Rates};
use super::fields::{self, NVLINK_BYTES, Numbering, PCIE_BYTES, Tier};
use super::links::{Flow, Pair};
use super::queries::{GpuLost, GpuQueries};
use crate::sample::series::Writer;

/// The fields and counters of the core tier, and the byte counts computed from them.
pub(super) struct Traffic<'a> {
    core: Tier<{ fields::CORE.len() }>,
    counters: Counters<'a>,
    nvlink: Flow,
    pcie: Flow,
}

/// The capacity of each kind of link in one direction, in bytes per second. `None` if it is not known.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Limits {
    pub(super) nvlink: Option<f64>,
    pub(super) pcie: Option<f64>,
}

impl<'a> Traffic<'a> {
    /// The state before the first reading.
    pub(super) fn new(numbering: Numbering) -> Self {
        Self {
            core: Tier::new("fields", &fields::CORE, numbering),
            counters: Counters::default(),
            nvlink: Flow::default(),
            pcie: Flow::default(),
        }
    }

    /// Writes the traffic over the links since the last reading, and the other values of the same calls.
    pub(super) fn read(
        &mut self,
        queries: &mut GpuQueries<'a>,
        limits: Limits,
        out: &mut Writer<'_>,
    ) -> Result<(), GpuLost> {
        let rates = self.counters.read(queries, out)?;
        if rates.as_ref().is_some_and(|rates| rates.pcie.is_some()) {
            // PCIe's own counters wrap within 0.1 s. They are used only if the GPU has nothing better.
            queries.refuse("pcie tx");
            queries.refuse("pcie rx");
        }
        let now = Instant::now();
        let given = self.core.read(queries, out)?;
        let pair = |at: usize| given[at].zip(given[at + 1]).map(Pair::from);
        let rated = |of: fn(&Rates) -> Option<Pair>| {
            let rates = rates.as_ref()?;
            Some((rates.interval, of(rates)?))
        };
        // The counters of NVLink are exact: KiB since the driver was loaded. Those of PCIe wrap, so for PCIe rates are preferred.
        let nvlink = match pair(NVLINK_BYTES) {
            Some(kib) => self.nvlink.counted(now, kib.map(|kib| kib * 1024.0)),
            None => self.nvlink.rated_if(rated(|rates| rates.nvlink)),
        };
        let pcie = match rated(|rates| rates.pcie) {
            None => pair(PCIE_BYTES).and_then(|bytes| self.pcie.counted(now, bytes)),
            rates => self.pcie.rated_if(rates),
        };
        put_link(out, "nvlink", &self.nvlink, nvlink, limits.nvlink);
        put_link(out, "pcie", &self.pcie, pcie, limits.pcie);
        Ok(())
    }
}

fn put_link(out: &mut Writer<'_>, link: &'static str, flow: &Flow, rates: Option<Pair>, max: Option<f64>) {
    let Some(rates) = rates else { return };
    let link = ("link", link);
    let [sent, received] = flow.total();
    out.put_by("link_transmit_bytes_total", link, sent);
    out.put_by("link_receive_bytes_total", link, received);
    if let Some(max) = max {
        out.put_by("link_bandwidth_bytes_per_second", link, max);
        out.put_by("link_utilization_ratio", link, rates[0].max(rates[1]) / max);
    }
}
