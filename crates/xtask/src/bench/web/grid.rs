//! The grid of 10,000 GPUs on the overview, updated each second.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use super::browser::{Browser, Script, number};
use super::figures::{Figure, Measured};
use super::fleet;
use super::trace::Frames;
use crate::bench::database::{Database, Retention};
use crate::layout::Layout;
use crate::measure::generator::Fleet;
use crate::measure::http::Address;

const FLEET: Fleet = Fleet::of_nodes(1_250);
const TRACED_S: u64 = 60;
/// The page shows values of each second; one in ten may arrive just before and the next one just after a comparison.
const CHANGED_SHARE_MIN: f64 = 0.9;
/// Loading, tracing, and writing the trace.
const LIMIT: Duration = Duration::from_secs(TRACED_S + 300);

/// What is traced.
#[derive(Debug, Clone, Copy)]
pub(super) enum Subject {
    /// The grid of the overview, with this number of GPUs.
    Grid(u64),
    /// The charts of a run's page.
    Charts,
}

impl Subject {
    fn name(self) -> &'static str {
        match self {
            Self::Grid(_) => "grid",
            Self::Charts => "charts",
        }
    }

    fn gpus(self) -> Option<u64> {
        match self {
            Self::Grid(gpus) => Some(gpus),
            Self::Charts => None,
        }
    }
}

pub(super) fn measure(layout: &Layout, browser: &Browser) -> Result<Measured> {
    let mut collector = Database::Lockstep.start_program(layout, Retention::Default, "web-grid", None)?;
    let mut fleet = fleet::start(layout, &mut collector.server, FLEET)?;
    fleet::ensure_described(&collector.server, FLEET)?;
    let gpus = FLEET.nodes * FLEET.gpus;
    let what = format!("overview with {gpus} GPUs");
    let address = collector.server.address();
    let measured = frames(layout, browser, address, "/", Subject::Grid(gpus), &what)?;
    fleet.check()?;
    collector.server.check()?;
    Ok(measured)
}

/// Traces a page for a minute. Compares a strip of its pixels each second, because a page that draws nothing is not fast.
pub(super) fn frames(
    layout: &Layout,
    browser: &Browser,
    collector: &Address,
    path: &str,
    subject: Subject,
    what: &str,
) -> Result<Measured> {
    let step = format!("bench-web-{}-browser", subject.name());
    let trace = layout.logs().join(format!("{step}.jsonl"));
    let settings = json!({
        "subject": subject.name(),
        "gpus": subject.gpus(),
        "path": path,
        "seconds": TRACED_S,
        "trace": trace,
    });
    let outcome = browser.run(Script::Frames, &step, collector, settings, LIMIT)?;
    let (compared, changed) = (number(&outcome, "/compared")?, number(&outcome, "/changed")?);
    let frames = Frames::take(&trace)?;
    let mut figures = frames.figures(what);
    figures.push(
        Figure::new(
            "… share of seconds in which its pixels changed",
            changed / compared,
        )
        .at_least(CHANGED_SHARE_MIN),
    );
    Ok(Measured {
        figures,
        notes: vec![frames.note(what)],
    })
}
