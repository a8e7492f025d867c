//! `lockstep run compare A B`: compares two runs or two attempts.

use clap::Args;
use domain::bytes::DisplayBytes;
use domain::run::knob::{ComparedAttempt, Comparison, MemoryKind, PerformanceSummary, Ratio, percent_change};

use crate::client::Client;
use crate::failure::Failure;
use crate::table::{self, printable};

/// Arguments of `compare`.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep run compare ddp-x7k2 ddp-m3p9
  lockstep run compare ddp-x7k2@1 ddp-x7k2@2")]
pub(super) struct Compare {
    /// A run, or one of its attempts as RUN@ATTEMPT.
    a: String,
    /// The run or attempt to compare it with.
    b: String,
}

impl Compare {
    pub(super) async fn execute(self, client: &Client) -> Result<(), Failure> {
        let query = [("a", self.a), ("b", self.b)];
        print(&client.get("/api/runs/compare", &query).await?);
        Ok(())
    }
}

fn print(found: &Comparison) {
    let (a, b) = (name(&found.a), name(&found.b));
    let rows: Vec<_> = found
        .differences
        .iter()
        .map(|one| {
            let value = |text: &Option<String>| text.as_deref().map_or("-".into(), printable);
            vec![printable(&one.what), value(&one.a), value(&one.b)]
        })
        .collect();
    if rows.is_empty() {
        say!("no differences between {a} and {b} in specification, knobs, environment or packages");
    } else {
        table::print(&["DIFFERENCE", &a, &b], &rows);
    }
    if found.truncated {
        say!("more differences are not shown");
    }
    say!("");
    let (before, after) = (&found.figures.before, &found.figures.after);
    let mut rows = vec![vec![
        "outcome".to_owned(),
        found.a.outcome.clone(),
        found.b.outcome.clone(),
        String::new(),
    ]];
    let median = |of: fn(&PerformanceSummary) -> Option<domain::run::knob::Median>, figures| {
        of(figures).map_or("-".to_owned(), |median| {
            format!("{:.5} ({:.5} to {:.5})", median.value, median.low, median.high)
        })
    };
    for (what, of, ratio) in [
        ("step seconds", STEP, found.figures.step_time),
        ("samples per second per rank", RATE, found.figures.throughput),
    ] {
        rows.push(vec![
            what.to_owned(),
            median(of, before),
            median(of, after),
            percent(ratio),
        ]);
    }
    rows.push(vec![
        memory_name(before, after),
        memory(before),
        memory(after),
        found.figures.memory.map_or(String::new(), percent_change),
    ]);
    rows.push(vec![
        "final loss".to_owned(),
        loss(before),
        loss(after),
        String::new(),
    ]);
    table::print(&["VALUE", &a, &b, "CHANGE"], &rows);
    say!("{}", printable(&found.figures.summary));
}

type Of = fn(&PerformanceSummary) -> Option<domain::run::knob::Median>;
const STEP: Of = |figures| figures.step_seconds;
const RATE: Of = |figures| figures.samples_per_second;

fn name(side: &ComparedAttempt) -> String {
    format!("{}@{}", side.run, side.attempt)
}

fn percent(ratio: Option<Ratio>) -> String {
    ratio.map_or(String::new(), |ratio| percent_change(ratio.value))
}

fn memory_name(before: &PerformanceSummary, after: &PerformanceSummary) -> String {
    let kind = before.memory.or(after.memory).map(|memory| memory.kind);
    kind.map_or("memory", MemoryKind::words).to_owned()
}

fn memory(figures: &PerformanceSummary) -> String {
    figures.memory.map_or("-".to_owned(), |memory| {
        // A saturating cast of a count.
        DisplayBytes(memory.bytes as u64).to_string()
    })
}

fn loss(figures: &PerformanceSummary) -> String {
    figures
        .last_loss
        .map_or("-".to_owned(), |(step, loss)| format!("{loss:.6} at step {step}"))
}
