//! First paint: loads of the overview with an empty cache and a slowed CPU.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;

use super::browser::{Browser, Script, number, numbers};
use super::demo::{Demo, RUNS_OF_DEMO};
use super::figures::{Figure, Measured};
use crate::bench::distribution::Distribution;
use crate::layout::Layout;

const STEP: &str = "bench-web-first-paint";
const LOADS: u32 = 10;
/// How much slower the page's process is than this machine.
const CPU_SLOWDOWN: f64 = 4.0;
/// The throttling must have at least this share of its effect.
const SLOWDOWN_SHARE_MIN: f64 = 0.6;
/// The rows of the table of runs that must be visible.
const ROWS: u32 = 10;
/// Runs that are submitted besides those of the demo.
const RUNS: u32 = 12;
const NODES: u32 = 8;
const VISIBLE_MS_MAX: f64 = 1_000.0;
const LIMIT: Duration = Duration::from_secs(600);

pub(super) fn measure(layout: &Layout, browser: &Browser) -> Result<Measured> {
    let mut demo = Demo::start(layout, STEP, NODES)?;
    for _ in 0..RUNS {
        demo.submit("small", 1)?;
    }
    demo.wait_for_value("count(max by (run) (train_step{run=~\"small.*\"}))", RUNS)?;
    let settings = json!({"loads": LOADS, "rows": ROWS, "slowdown": CPU_SLOWDOWN});
    let step = format!("{STEP}-browser");
    let outcome = browser.run(Script::Paint, &step, &demo.address, settings, LIMIT)?;
    let visible_ms = Distribution::new(numbers(&outcome, "/visible_ms")?);
    let slowdown = number(&outcome, "/slowdown")?;
    ensure!(
        slowdown >= SLOWDOWN_SHARE_MIN * CPU_SLOWDOWN,
        "the page was slowed down by {slowdown:.1} only, so the times say nothing about {CPU_SLOWDOWN}× CPU throttle"
    );
    let median = format!(
        "first paint, {LOADS} loads at {CPU_SLOWDOWN}× CPU throttle: sentence and {ROWS} rows, median ms"
    );
    Ok(Measured {
        figures: vec![
            Figure::new(median, visible_ms.median()).at_most(VISIBLE_MS_MAX),
            Figure::new("… slowest load, ms", visible_ms.max()).at_most(VISIBLE_MS_MAX),
        ],
        notes: vec![format!(
            "First paint: {NODES} nodes with {} runs; from the start of the navigation, with an empty cache, until the frame with the \
             sentence and the first {ROWS} rows was drawn. A loop in the page took {slowdown:.1} times as long as without the throttle.",
            RUNS + RUNS_OF_DEMO
        )],
    })
}
