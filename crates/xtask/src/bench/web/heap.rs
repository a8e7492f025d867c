//! The heap of the overview and of a run's page over half an hour.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::browser::{Browser, Script, numbers};
use super::demo::{Demo, RANKS};
use super::figures::{Figure, Measured};
use crate::layout::Layout;

const STEP: &str = "bench-web-heap";
/// Interval of the readings.
const EVERY_S: u64 = 30;
/// Charts show ten minutes. Before they are full, a page must grow.
const WARM_UP_S: u64 = 660;
/// Growth of the fitted line over the whole time, as a share of its start. One lost message per second is many times as much.
const GROWTH_SHARE_MAX: f64 = 0.05;
const MIB: f64 = (1 << 20) as f64;

/// The heap of one page.
#[derive(Debug)]
struct Heap {
    /// Seconds since the first reading, and MiB after a garbage collection.
    readings: Vec<(f64, f64)>,
    /// Nodes of the document at the first and at the last reading.
    nodes: (f64, f64),
}

/// A line through readings.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Line {
    /// MiB at 0 s.
    start: f64,
    /// MiB per second.
    slope: f64,
}

pub(super) fn measure(layout: &Layout, browser: &Browser, minutes: u64) -> Result<Measured> {
    let (demo, run) = Demo::with_large_run(layout, STEP)?;
    let pages = [
        ("overview".to_owned(), "/".to_owned()),
        (
            format!("page of a run with {RANKS} ranks"),
            format!("/runs/{run}"),
        ),
    ];
    let paths: Vec<_> = pages.iter().map(|(_, path)| path).collect();
    let settings = json!({
        "paths": paths,
        "warm_up_s": WARM_UP_S,
        "seconds": minutes * 60,
        "every_s": EVERY_S,
    });
    let limit = Duration::from_secs(WARM_UP_S + minutes * 60 + 300);
    let step = format!("{STEP}-browser");
    let outcome = browser.run(Script::Heap, &step, &demo.address, settings, limit)?;
    let mut measured = Measured::default();
    for (n, (name, _)) in pages.iter().enumerate() {
        let heap = Heap::read(&outcome, n)?;
        measured.figures.extend(heap.figures(name, minutes));
        measured.notes.push(heap.note(name));
    }
    Ok(measured)
}

impl Heap {
    fn read(outcome: &Value, page: usize) -> Result<Self> {
        let list = |name: &str| numbers(outcome, &format!("/pages/{page}/{name}"));
        let (times_s, bytes, nodes) = (list("times_s")?, list("bytes")?, list("nodes")?);
        ensure!(
            times_s.len() > 2,
            "the heap was read {} times only",
            times_s.len()
        );
        let first_s = times_s[0];
        let mib = bytes.iter().map(|bytes| bytes / MIB);
        let last = nodes.last().context("the nodes were not counted")?;
        Ok(Self {
            readings: times_s.iter().map(|at_s| at_s - first_s).zip(mib).collect(),
            nodes: (nodes[0], *last),
        })
    }

    fn figures(&self, name: &str, minutes: u64) -> Vec<Figure> {
        let line = Line::through(&self.readings);
        let growth = line.slope * minutes as f64 * 60.0 / line.start;
        vec![
            Figure::new(
                format!("heap of the {name}, MiB at the start"),
                self.readings[0].1,
            ),
            Figure::new(
                format!("… {minutes} minutes later, MiB"),
                self.readings[self.readings.len() - 1].1,
            ),
            Figure::new("… growth of the fitted line, share of its start", growth).at_most(GROWTH_SHARE_MAX),
        ]
    }

    fn note(&self, name: &str) -> String {
        let (first, last) = self.nodes;
        format!(
            "Heap of the {name}: {} readings, each after a garbage collection, {} minutes after the page opened; scripts, WebAssembly and \
             document. {:+.1} KiB per minute; {first} nodes in the document at the start, {last} at the end.",
            self.readings.len(),
            WARM_UP_S / 60,
            Line::through(&self.readings).slope * 60.0 * 1_024.0
        )
    }
}

impl Line {
    /// Returns the line with the least squares.
    fn through(points: &[(f64, f64)]) -> Self {
        let count = points.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (x, y) = (mean(|point| point.0), mean(|point| point.1));
        let covariance: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
        let variance: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
        let slope = covariance / variance;
        Self {
            start: y - slope * x,
            slope,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    /// Readings each minute of half an hour, which grow by `growth_mib` in total, with noise.
    fn heap(growth_mib: f64) -> Heap {
        let at = |minute: u32| {
            let noise = f64::from(minute % 3) * 0.2;
            (
                f64::from(minute) * 60.0,
                40.0 + growth_mib * f64::from(minute) / 30.0 + noise,
            )
        };
        Heap {
            readings: (0..=30).map(at).collect(),
            nodes: (900.0, 905.0),
        }
    }

    #[test]
    fn a_line_is_found_again() {
        let line = Line::through(&[(0.0, 5.0), (10.0, 25.0), (20.0, 45.0)]);
        assert_eq!(
            line,
            Line {
                start: 5.0,
                slope: 2.0
            }
        );
    }

    #[test]
    fn noise_is_no_growth_and_a_tenth_is() {
        let met = |growth_mib| heap(growth_mib).figures("overview", 30)[2].is_met();
        assert!(met(0.0) && met(1.0) && met(-10.0));
        assert!(!met(4.0));
    }

    #[test]
    fn an_outcome_has_a_list_per_quantity_and_page() {
        let page = json!({"times_s": [660.0, 690.0, 720.0], "bytes": [1_048_576, 2_097_152, 3_145_728], "nodes": [7, 8, 9]});
        let outcome = json!({"pages": [page]});
        let heap = Heap::read(&outcome, 0).unwrap();
        assert_eq!(heap.readings, [(0.0, 1.0), (30.0, 2.0), (60.0, 3.0)]);
        assert_eq!(heap.nodes, (7.0, 9.0));
        assert!(Heap::read(&outcome, 1).is_err());
    }
}
