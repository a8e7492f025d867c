//! A trace of Chromium, and the work of the page's main thread in each frame.
//!
//! ```text
//! file     one event per line, as DevTools sends them: {"ph":"X","name":"RunTask","ts":µs,"dur":µs,"pid":…,"tid":…}
//! tasks    ▓▓    ▓▓▓▓  ▓▓▓▓▓▓        ▓▓▓      what the main thread did: the union of all complete events
//! frames          │      │             │     BeginMainThreadFrame; the frame ends with the task around it
//!          ───────┴──────┴─────────────┴──
//! ```
//! The busy time of a frame is all work since the frame before: reading messages, changing the page, layout and painting. A page that has
//! nothing to draw has no frames, so idle seconds do not improve the result.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::figures::Figure;
use crate::bench::distribution::Distribution;

/// The name of the main thread in a process that renders pages.
const MAIN_THREAD: &str = "CrRendererMain";
/// The event at the start of a frame.
const FRAME: &str = "BeginMainThreadFrame";
/// A display with 60 frames per second leaves 16.7 ms for each.
const FRAME_MS_MAX: f64 = 16.0;

/// The frames of a trace.
#[derive(Debug)]
pub(super) struct Frames {
    busy_ms: Distribution,
    longest_task_ms: f64,
    /// The busy share of the time from the first to the last task.
    busy_share: f64,
}

/// What a thread did.
#[derive(Debug, Default)]
struct Thread {
    is_main: bool,
    tasks: Vec<Interval>,
    frames_us: Vec<f64>,
}

/// A time in which a thread was busy, in microseconds of Chromium's clock.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Interval {
    begin_us: f64,
    end_us: f64,
}

/// The threads by process and thread id.
#[derive(Debug, Default)]
struct Threads(BTreeMap<(i64, i64), Thread>);

impl Frames {
    /// Reads a trace, and removes the file. Returns an error if the page drew nothing.
    pub(super) fn take(file: &Path) -> Result<Self> {
        let trace = File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
        let mut threads = Threads::default();
        for line in BufReader::new(trace).lines() {
            let line = line.with_context(|| format!("cannot read {}", file.display()))?;
            threads.add(&line)?;
        }
        let frames = Self::of(threads)?;
        fs::remove_file(file).with_context(|| format!("cannot remove {}", file.display()))?;
        Ok(frames)
    }

    /// Several processes may render; the page is in the busiest.
    fn of(threads: Threads) -> Result<Self> {
        let main = threads.0.into_values().filter(|thread| thread.is_main);
        let main = main.map(|thread| (merged(thread.tasks), thread.frames_us));
        let busiest = main.max_by(|(a, _), (b, _)| total_us(a).total_cmp(&total_us(b)));
        let (tasks, frames_us) = busiest.with_context(|| format!("the trace has no thread {MAIN_THREAD}"))?;
        let ends = frame_ends(&tasks, &frames_us);
        ensure!(
            ends.len() > 1,
            "the trace has fewer than two frames: the page drew nothing"
        );
        let busy = ends
            .windows(2)
            .map(|pair| busy_us(&tasks, pair[0], pair[1]) / 1e3);
        let longest_us = tasks.iter().map(Interval::length_us).fold(0.0, f64::max);
        let span_us = match (tasks.first(), tasks.last()) {
            (Some(first), Some(last)) => last.end_us - first.begin_us,
            _ => 0.0,
        };
        Ok(Self {
            busy_ms: Distribution::new(busy.collect()),
            longest_task_ms: longest_us / 1e3,
            busy_share: total_us(&tasks) / span_us,
        })
    }

    /// Returns the rows of the table; `what` names the page.
    pub(super) fn figures(&self, what: &str) -> Vec<Figure> {
        vec![
            Figure::new(
                format!("{what}: main thread per frame, p50 ms"),
                self.busy_ms.median(),
            ),
            Figure::new("… p95 ms", self.busy_ms.quantile(0.95)).at_most(FRAME_MS_MAX),
            Figure::new("… longest frame, ms", self.busy_ms.max()),
            Figure::new("… longest task, ms", self.longest_task_ms),
        ]
    }

    /// Returns a note for readers.
    pub(super) fn note(&self, what: &str) -> String {
        format!(
            "{what}: {} frames; the main thread was busy for {:.1} % of the time.",
            self.busy_ms.count(),
            self.busy_share * 100.0
        )
    }
}

impl Threads {
    fn add(&mut self, line: &str) -> Result<()> {
        let event: Value = serde_json::from_str(line).context("a line of the trace is not JSON")?;
        let Some(id) = event["pid"].as_i64().zip(event["tid"].as_i64()) else {
            return Ok(());
        };
        let thread = self.0.entry(id).or_default();
        let (phase, name) = (event["ph"].as_str(), event["name"].as_str());
        match (phase, name) {
            (Some("M"), Some("thread_name")) => thread.is_main = event["args"]["name"] == MAIN_THREAD,
            (_, Some(FRAME)) => thread.frames_us.extend(event["ts"].as_f64()),
            (Some("X"), _) => thread.tasks.extend(Interval::of(&event)),
            _ => {}
        }
        Ok(())
    }
}

impl Interval {
    fn of(event: &Value) -> Option<Self> {
        let (begin_us, length_us) = (event["ts"].as_f64()?, event["dur"].as_f64()?);
        Some(Self {
            begin_us,
            end_us: begin_us + length_us,
        })
    }

    fn length_us(&self) -> f64 {
        self.end_us - self.begin_us
    }
}

/// Merges events into disjoint intervals in order. The events of a thread are nested in its tasks.
fn merged(mut events: Vec<Interval>) -> Vec<Interval> {
    events.sort_by(|a, b| a.begin_us.total_cmp(&b.begin_us));
    let mut tasks: Vec<Interval> = Vec::new();
    for event in events {
        match tasks.last_mut() {
            Some(last) if event.begin_us < last.end_us => last.end_us = last.end_us.max(event.end_us),
            _ => tasks.push(event),
        }
    }
    tasks
}

/// Returns the end of each frame, in order: the end of the task in which it began.
fn frame_ends(tasks: &[Interval], frames_us: &[f64]) -> Vec<f64> {
    let end = |at_us: &f64| {
        let around = tasks.get(tasks.partition_point(|task| task.end_us < *at_us));
        around
            .filter(|task| task.begin_us <= *at_us)
            .map_or(*at_us, |task| task.end_us)
    };
    let mut ends: Vec<f64> = frames_us.iter().map(end).collect();
    ends.sort_by(f64::total_cmp);
    ends.dedup();
    ends
}

/// Returns the length of the tasks that ended after `after_us`, until `until_us`.
fn busy_us(tasks: &[Interval], after_us: f64, until_us: f64) -> f64 {
    let ended_by = |us: f64| tasks.partition_point(|task| task.end_us <= us);
    total_us(&tasks[ended_by(after_us)..ended_by(until_us)])
}

fn total_us(tasks: &[Interval]) -> f64 {
    tasks.iter().map(Interval::length_us).sum()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    /// Two processes that render, with the events of three frames: at 10 ms in a task of 4 ms, at 30 ms in one of 20 ms (after 5 ms for a
    /// message), and at 70 ms between tasks (after 2 ms for a timer).
    const TRACE: &str = r#"{"args":{"name":"CrRendererMain"},"cat":"__metadata","name":"thread_name","ph":"M","pid":41,"tid":41,"ts":0}
{"args":{"name":"Compositor"},"cat":"__metadata","name":"thread_name","ph":"M","pid":41,"tid":44,"ts":0}
{"args":{},"cat":"disabled-by-default-lighthouse","dur":4000,"name":"RunTask","ph":"X","pid":41,"tid":41,"ts":8000}
{"args":{},"cat":"devtools.timeline","dur":3500,"name":"Layout","ph":"X","pid":41,"tid":41,"ts":8200}
{"args":{"data":{"frameId":1},"layerTreeId":1},"cat":"disabled-by-default-devtools.timeline.frame","name":"BeginMainThreadFrame","ph":"I","pid":41,"s":"t","tid":41,"ts":10000}
{"args":{},"cat":"disabled-by-default-lighthouse","dur":5000,"name":"RunTask","ph":"X","pid":41,"tid":41,"ts":20000}
{"args":{},"cat":"devtools.timeline","dur":17000,"name":"FunctionCall","ph":"X","pid":41,"tid":41,"ts":31000}
{"args":{},"cat":"disabled-by-default-lighthouse","dur":20000,"name":"RunTask","ph":"X","pid":41,"tid":41,"ts":29000}
{"args":{"data":{"frameId":2},"layerTreeId":1},"cat":"disabled-by-default-devtools.timeline.frame","name":"BeginMainThreadFrame","ph":"I","pid":41,"s":"t","tid":41,"ts":30000}
{"args":{},"cat":"disabled-by-default-lighthouse","dur":90000,"name":"RunTask","ph":"X","pid":41,"tid":44,"ts":30000}
{"args":{},"cat":"disabled-by-default-lighthouse","dur":2000,"name":"RunTask","ph":"X","pid":41,"tid":41,"ts":60000}
{"args":{"data":{"frameId":3},"layerTreeId":1},"cat":"disabled-by-default-devtools.timeline.frame","name":"BeginMainThreadFrame","ph":"I","pid":41,"s":"t","tid":41,"ts":70000}
{"args":{},"cat":"disabled-by-default-lighthouse","dur":100,"name":"RunTask","ph":"X","pid":52,"tid":52,"ts":8000}
{"args":{"name":"CrRendererMain"},"cat":"__metadata","name":"thread_name","ph":"M","pid":52,"tid":52,"ts":0}
{"args":{"snapshot":1},"cat":"x","id":"0x1","name":"LayerTreeHostImpl","ph":"O","pid":41,"tid":41,"ts":9000}"#;

    fn frames(trace: &str) -> Result<Frames> {
        let mut threads = Threads::default();
        trace.lines().for_each(|line| threads.add(line).unwrap());
        Frames::of(threads)
    }

    #[test]
    fn a_frame_is_all_work_of_the_main_thread_since_the_frame_before() {
        let frames = frames(TRACE).unwrap();
        let busy = [0.0, 1.0].map(|p| frames.busy_ms.quantile(p));
        assert_eq!((frames.busy_ms.count(), busy), (2, [2.0, 25.0]));
        assert_eq!(frames.longest_task_ms, 20.0);
        // 31 ms of the 54 ms from the first task to the last.
        assert!((frames.busy_share - 31.0 / 54.0).abs() < 1e-9, "{frames:?}");
    }

    #[test]
    fn the_target_is_for_the_95th_percentile() {
        let met: Vec<bool> = frames(TRACE)
            .unwrap()
            .figures("grid")
            .iter()
            .map(Figure::is_met)
            .collect();
        assert_eq!(met, [true, false, true, true]);
    }

    #[test]
    fn a_trace_without_frames_is_no_result() {
        let without: Vec<&str> = TRACE.lines().filter(|line| !line.contains(FRAME)).collect();
        let error = frames(&without.join("\n")).unwrap_err().to_string();
        assert!(error.contains("drew nothing"), "{error}");
        assert!(frames("").unwrap_err().to_string().contains(MAIN_THREAD));
    }

    #[test]
    fn a_trace_is_removed_once_it_was_read() {
        let file = std::env::temp_dir().join(format!("xtask-trace-{}.jsonl", std::process::id()));
        fs::write(&file, format!("{TRACE}\n")).unwrap();
        assert_eq!(Frames::take(&file).unwrap().busy_ms.count(), 2);
        assert!(!file.exists() && Frames::take(&file).is_err());
    }
}
