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
const COUNTERS: [(u32, usize); 5] = [
    (2, burst::SM),
    (5, burst::TENSOR),
    (10, burst::DRAM),
    (20, burst::PCIE),
    (21, burst::PCIE + 1),
];

/// Power as it is this moment, then sent and received over all NVLinks in KiB and over PCIe in bytes.
const FIELDS: [(u32, u32); 5] = [(186, 0), (138, ALL_LINKS), (139, ALL_LINKS), (197, 0), (198, 0)];

/// What one GPU's beats go on from.
pub(super) struct Beat<'a> {
    gpm: Option<Gpm<'a>>,
    fields: FieldBatch,
    nvlink: Flow,
    pcie: Flow,
}

impl<'a> Beat<'a> {
    /// Before the first beat.
    pub(super) fn new() -> Self {
        Self {
            gpm: None,
            fields: FieldBatch::new(FIELDS),
            nvlink: Flow::default(),
            pcie: Flow::default(),
        }
    }

    /// Reads a row.
    pub(super) fn read(&mut self, asker: &mut Asker<'a>) -> Result<Row, GpuLost> {
        let mut row = [f32::NAN; burst::COLUMNS];
        self.read_fields(asker, &mut row)?;
        let Some(gpm) = &mut self.gpm else {
            self.gpm = first_sample(asker)?;
            return Ok(row);
        };
        let ids = COUNTERS.iter().map(|(id, _)| *id);
        if asker.ask("gpm metrics", |_| gpm.ask(ids))?.flatten().is_some() {
            for ((_, column), answer) in COUNTERS.into_iter().zip(gpm.answers()) {
                let factor = if column < burst::PCIE { 0.01 } else { MIB };
                if let Ok(value) = answer {
                    row[column] = (value * factor) as f32;
                }
            }
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
        let (nvlink, pcie) = (next().zip(next()), next().zip(next()));
        let mut put = |flow: &mut Flow, counters: Option<(f64, f64)>, factor: f64, column: usize| {
            let counters = counters.map(|counters| Pair::from(counters).map(|count| count * factor));
            if let Some(rates) = counters.and_then(|counters| flow.counted(now, counters)) {
                row[column] = rates[0] as f32;
                row[column + 1] = rates[1] as f32;
            }
        };
        put(&mut self.nvlink, nvlink, 1_024.0, burst::NVLINK);
        put(&mut self.pcie, pcie, 1.0, burst::PCIE);
        Ok(())
    }
}
