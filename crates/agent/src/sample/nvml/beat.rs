//! One GPU, ten times a second: few readings, in three calls at most.

use std::time::Instant;

use super::asker::{Asker, GpuLost};
use super::burst::{self, Row};
use super::counters::{MIB, first_sample};
use super::links::{Flow, Pair};
use super::raw::{ALL_LINKS, FieldBatch, Gpm};

/// The time between two beats, a little above what the counters of the hardware need.
pub(super) const BEAT: std::time::Duration =
    super::raw::GPM_INTERVAL_MIN.saturating_add(std::time::Duration::from_millis(1));

/// Performance counters and where they go: percent, but MiB a second for the links.
const COUNTERS: [(u32, usize); 7] = [
    (2, burst::SM),
    (5, burst::TENSOR),
    (10, burst::DRAM),
    (61, burst::NVLINK),
    (60, burst::NVLINK + 1),
    (20, burst::PCIE),
    (21, burst::PCIE + 1),
];

/// Power as it is this moment, in milliwatts.
const POWER: (u32, u32) = (186, 0);

/// A link that counts what it sent and received.
struct Link {
    fields: [(u32, u32); 2],
    bytes: f64,
    column: usize,
    flow: Flow,
}

/// What one GPU's beats go on from.
pub(super) struct Beat<'a> {
    gpm: Option<Gpm<'a>>,
    fields: FieldBatch,
    /// Those that the performance counters do not tell of.
    links: Vec<Link>,
}

impl<'a> Beat<'a> {
    /// Before the first beat.
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

    /// Reads a row.
    pub(super) fn read(&mut self, asker: &mut Asker<'a>) -> Result<Row, GpuLost> {
        let mut row = [f32::NAN; burst::COLUMNS];
        self.read_fields(asker, &mut row)?;
        if self.gpm.is_none() {
            self.gpm = first_sample(asker)?;
        } else {
            self.read_counters(asker, &mut row)?;
        }
        Ok(row)
    }

    fn read_fields(&mut self, asker: &mut Asker<'a>, row: &mut Row) -> Result<(), GpuLost> {
        let fields = &mut self.fields;
        if asker.ask("fields", |gpu| fields.ask(gpu))?.is_none() {
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

    fn read_counters(&mut self, asker: &mut Asker<'a>, row: &mut Row) -> Result<(), GpuLost> {
        let Some(gpm) = &mut self.gpm else { return Ok(()) };
        let ids = COUNTERS.iter().map(|(id, _)| *id);
        if asker.ask("gpm metrics", |_| gpm.ask(ids))?.flatten().is_none() {
            return Ok(());
        }
        let mut told = [false; burst::COLUMNS];
        for ((_, column), answer) in COUNTERS.into_iter().zip(gpm.answers()) {
            let factor = if column < burst::POWER { 0.01 } else { MIB };
            if let Ok(value) = answer {
                row[column] = (value * factor) as f32;
                told[column] = true;
            }
        }
        self.leave_out(told);
        Ok(())
    }

    /// A link that the performance counters tell of is not asked twice: a reading takes longer than anything else here.
    fn leave_out(&mut self, told: [bool; burst::COLUMNS]) {
        let before = self.links.len();
        self.links
            .retain(|link| !(told[link.column] && told[link.column + 1]));
        if self.links.len() < before {
            self.fields = batch(&self.links);
        }
    }
}

fn batch(links: &[Link]) -> FieldBatch {
    FieldBatch::new(std::iter::once(POWER).chain(links.iter().flat_map(|link| link.fields)))
}
