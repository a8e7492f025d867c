//! The log of a real run that has printed 1,000,000 lines.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::api;
use super::browser::{Browser, Script, number};
use super::figures::{Figure, Measured};
use super::node::{ManagedRun, Node};
use super::trace::Frames;
use crate::bench::database::{Database, Retention};
use crate::layout::Layout;
use crate::measure::http::Address;
use crate::progress::say;

const STEP: &str = "bench-web-log";
const LINES: u64 = 1_000_000;
/// Prints numbered lines, and this word in the middle one.
const SCRIPT: &str = "e2e/bench/lines.py";
const WORD: &str = "needle";
/// The script waits so long for the browser, then it ends by itself.
const HOLD_S: u64 = 1_200;
/// The agent sends the output while the collector stores it.
const PRINTED_WITHIN: Duration = Duration::from_secs(300);
const LIMIT: Duration = Duration::from_secs(300);
/// More than the last line.
const TAIL_BYTES: u64 = 1_000;
/// Longer than this, a user waits.
const ANSWER_MS_MAX: f64 = 1_000.0;
/// The document must not grow with the log.
const LINES_SHOWN_MAX: f64 = 10_000.0;

pub(super) fn measure(layout: &Layout, browser: &Browser) -> Result<Measured> {
    let collector = Database::Lockstep.start_program(layout, Retention::Default, "web-log", None)?;
    let address = collector.server.address();
    let _node = Node::start(layout, &collector.server, &format!("{STEP}-agent"))?;
    let run = ManagedRun::submit(address, &spec(layout))?;
    say(STEP, &format!("the run {} prints {LINES} lines", run.id));
    let last = format!("line {LINES:07}");
    api::wait_until("the collector has the last line", PRINTED_WITHIN, || {
        run.check()?;
        ends_with(address, &run.id, &last)
    })?;
    let step = format!("{STEP}-browser");
    let trace = layout.logs().join(format!("{step}.jsonl"));
    let settings = json!({"run": run.id, "last": last, "word": WORD, "trace": trace});
    let outcome = browser.run(Script::Log, &step, address, settings, LIMIT)?;
    let scrolled = Frames::take(&trace)?;
    Ok(Measured {
        figures: figures(&outcome, &scrolled)?,
        notes: vec![
            format!(
                "Log: one rank has printed {LINES} lines, {:.0} MB. Times are from the click until the frame with the text was drawn.",
                number(&outcome, "/bytes")? / 1e6
            ),
            scrolled.note("Log, scrolled up and down"),
        ],
    })
}

fn figures(outcome: &Value, scrolled: &Frames) -> Result<Vec<Figure>> {
    let answers = [
        (format!("log of {LINES} lines: open at its end, ms"), "/open_ms"),
        ("… find a word in the middle, ms".to_owned(), "/find_ms"),
        ("… show the line that was found, ms".to_owned(), "/show_ms"),
        ("… jump back to the end, ms".to_owned(), "/end_ms"),
    ];
    let mut figures = Vec::new();
    for (what, pointer) in answers {
        figures.push(Figure::new(what, number(outcome, pointer)?).at_most(ANSWER_MS_MAX));
    }
    let shown = number(outcome, "/lines_shown")?;
    figures.push(Figure::new("… lines in the document, most", shown).at_most(LINES_SHOWN_MAX));
    let reached = number(outcome, "/lines_reached")?;
    figures.push(Figure::new(
        "… lines that scrolling up from the end reaches",
        reached,
    ));
    figures.extend(scrolled.figures("… scrolled"));
    Ok(figures)
}

fn spec(layout: &Layout) -> Value {
    json!({
        "name": "lines",
        "script": layout.root.join(SCRIPT),
        "args": [format!("--lines={LINES}"), format!("--word={WORD}"), format!("--hold-s={HOLD_S}")],
        "nodes": 1,
        "nproc_per_node": 1,
        "backend": "gloo",
        "stall_timeout_s": 0,
    })
}

/// Returns true if the last line of the rank's output contains a text. A rank that has not started yet has no log.
fn ends_with(collector: &Address, run: &str, text: &str) -> Result<bool> {
    let path = format!("/api/runs/{run}/logs?rank=0");
    let start = collector.get(&format!("{path}&limit=1"))?;
    if start.status == 404 {
        return Ok(false);
    }
    let start = start.json(&path)?;
    let length = start["length"].as_u64().unwrap_or_default();
    let from = length.saturating_sub(TAIL_BYTES);
    let end = api::get(collector, &format!("{path}&offset={from}"))?;
    let last = end["text"].as_str().and_then(|text| text.lines().last());
    Ok(last.is_some_and(|last| last.contains(text)))
}
