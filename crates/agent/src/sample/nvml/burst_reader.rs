//! Reads a few values of one GPU ten times per second, in at most three calls.

use std::time::Instant;

use super::burst::{self, Row};
use super::counters::{MIB, first_sample};
use super::links::{Flow, Pair};
use super::queries::{GpuLost, GpuQueries};
use super::raw::{ALL_LINKS, FieldBatch, Gpm};

/// The time between two rows, slightly more than the hardware's counters need.
pub(super) const BURST_INTERVAL: std::time::Duration =
    super::raw::GPM_INTERVAL_MIN.saturating_add(std::time::Duration::from_millis(1));

/// The performance counters and their columns. Values are percentages; for links they are MiB per second.
const COUNTERS: [(u32, usize); 7] = [
    (2, burst::SM),
    (5, burst::TENSOR),
    (10, burst::DRAM),
    (61, burst::NVLINK),
    (60, burst::NVLINK + 1),
    (20, burst::PCIE),
    (21, burst::PCIE + 1),
];

/// The field of the current power, in milliwatts.
const POWER: (u32, u32) = (186, 0);

/// A link that counts the bytes sent and received.
struct Link {
    fields: [(u32, u32); 2],
    bytes: f64,
    column: usize,
    flow: Flow,
}

/// The state of one GPU between rows.
pub(super) struct BurstReader<'a> {
    gpm: Option<Gpm<'a>>,
    fields: FieldBatch,
    /// The links that the performance counters do not cover.
    links: Vec<Link>,
}

impl<'a> BurstReader<'a> {
    /// The state before the first row.
    pub(super) fn new() -> Self {
        let link = |fields, bytes, column| Link {
            fields,
            bytes,
            column,
            flow: Flow::default(),
        };
        let nvlink = link([(138, ALL_LINKS), (139, ALL_LINKS)], 1_024.0, burst::NVLINK);
        let pcie = link([(197, 0), (198, 0)], 1.0, burst::PCIE);
        let links = vec![nvlink, pcie];
        Self {
            gpm: None,
            fields: batch(&links),
            links,
        }
    }

    /// Reads one row.
    pub(super) fn read(&mut self, queries: &mut GpuQueries<'a>) -> Result<Row, GpuLost> {
        let mut row = [f32::NAN; burst::COLUMNS];
        self.read_fields(queries, &mut row)?;
        if self.gpm.is_none() {
            self.gpm = first_sample(queries)?;
        } else {
            self.read_counters(queries, &mut row)?;
        }
        Ok(row)
    }

    fn read_fields(&mut self, queries: &mut GpuQueries<'a>, row: &mut Row) -> Result<(), GpuLost> {
        let fields = &mut self.fields;
        if queries.query("fields", |gpu| fields.query(gpu))?.is_none() {
            return Ok(());
        }
        let now = Instant::now();
        let mut answers = self.fields.answers().map(Result::ok);
        let mut next = || answers.next().flatten();
        if let Some(milliwatts) = next() {
            row[burst::POWER] = (milliwatts / 1e3) as f32;
        }
        for link in &mut self.links {
            let counters = next().zip(next()).map(Pair::from);
            let counted = counters.map(|counters| counters.map(|count| count * link.bytes));
            if let Some(rates) = counted.and_then(|counted| link.flow.counted(now, counted)) {
                row[link.column] = rates[0] as f32;
                row[link.column + 1] = rates[1] as f32;
            }
        }
        Ok(())
    }

    fn read_counters(&mut self, queries: &mut GpuQueries<'a>, row: &mut Row) -> Result<(), GpuLost> {
        let Some(gpm) = &mut self.gpm else { return Ok(()) };
        let ids = COUNTERS.iter().map(|(id, _)| *id);
        if queries
            .query("gpm metrics", |_| gpm.query(ids))?
            .flatten()
            .is_none()
        {
            return Ok(());
        }
        let mut measured = [false; burst::COLUMNS];
        for ((_, column), answer) in COUNTERS.into_iter().zip(gpm.answers()) {
            let factor = if column < burst::POWER { 0.01 } else { MIB };
            if let Ok(value) = answer {
                row[column] = (value * factor) as f32;
                measured[column] = true;
            }
        }
        self.drop_covered_links(measured);
        Ok(())
    }

    /// Stops reading the byte counters of links that the performance counters cover. Reading them takes longer than anything else here.
    fn drop_covered_links(&mut self, measured: [bool; burst::COLUMNS]) {
        let before = self.links.len();
        self.links
            .retain(|link| !(measured[link.column] && measured[link.column + 1]));
        if self.links.len() < before {
            self.fields = batch(&self.links);
        }
    }
}

fn batch(links: &[Link]) -> FieldBatch {
    FieldBatch::new(std::iter::once(POWER).chain(links.iter().flat_map(|link| link.fields)))
}
