//! Times reads by shape: those of a dashboard, and of a person who inspects one GPU.
//!
//! Each repetition reads another metric or GPU, so that no cache has the answer. The samples of all answers are counted, so
//! that two servers are compared only if they returned the same amount.

use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::Value;

use crate::Fleet;
use crate::fleet::TICK_MS;
use crate::http::Server;
use crate::latency::{Latencies, Summary};

/// The longest range, in seconds.
const RANGE_S_MAX: u64 = 3_600;
/// Ends of ranges are multiples of this. It is also the step of a dashboard.
const STEP_S: i64 = 15;

/// The shape of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shape {
    /// One metric of all GPUs at a 15 s step.
    Metric,
    /// All metrics of one GPU at a 15 s step.
    Gpu,
    /// One series at a 1 s step.
    Series,
    /// All samples of one series, as they were sent.
    RawSeries,
    /// All samples of one GPU's series, as they were sent.
    RawGpu,
}

/// What was sent before, and what to read.
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// Shape of the reads.
    #[arg(long, value_enum)]
    pub shape: Shape,
    /// Time of tick 0, as the sender printed it, in milliseconds since the epoch.
    #[arg(long)]
    pub start_ms: i64,
    /// Number of ticks that were sent.
    #[arg(long)]
    pub ticks: u64,
    /// Number of reads.
    #[arg(long, default_value_t = 50)]
    pub repeats: u32,
}

/// The result.
#[derive(Debug, Default, Serialize)]
pub struct Outcome {
    /// The length of the range, in seconds.
    pub range_s: u64,
    /// Series of all answers.
    pub series: u64,
    /// Samples of all answers.
    pub samples: u64,
    /// Bytes of all answers.
    pub bytes: u64,
    /// The time from a request to the last byte of its answer.
    pub latency: Summary,
}

/// Sends each query once, in a fixed order.
///
/// # Errors
/// Fails if a query fails, or the series have other names than those of an exporter.
pub async fn run(server: &Server, fleet: Fleet, plan: &Plan) -> Result<Outcome> {
    fleet.check_exporter()?;
    let (mut outcome, mut latencies) = (
        Outcome {
            range_s: range_s(plan),
            ..Outcome::default()
        },
        Latencies::default(),
    );
    for repeat in 0..plan.repeats {
        let (path, form) = question(fleet, plan, repeat);
        let begin = Instant::now();
        let answer = server
            .post(path)?
            .form(&form)
            .send()
            .await
            .context("cannot ask")?;
        let status = answer.status();
        let body = answer.bytes().await.context("the answer ended early")?;
        latencies.add(begin.elapsed());
        if !status.is_success() {
            bail!(
                "{}: {status}: {}",
                form[0].1,
                String::from_utf8_lossy(&body[..body.len().min(300)])
            );
        }
        let answer: Value = serde_json::from_slice(&body).context("the answer is not JSON")?;
        let result = answer["data"]["result"]
            .as_array()
            .context("the answer has no result")?;
        outcome.series += result.len() as u64;
        outcome.samples += result
            .iter()
            .filter_map(|series| series["values"].as_array())
            .map(|v| v.len() as u64)
            .sum::<u64>();
        outcome.bytes += body.len() as u64;
    }
    outcome.latency = latencies.summary();
    Ok(outcome)
}

/// Returns the length of the range between the first and the last tick, in whole steps.
fn range_s(plan: &Plan) -> u64 {
    let whole = plan
        .ticks
        .saturating_sub(4 * STEP_S.unsigned_abs())
        .max(STEP_S.unsigned_abs());
    RANGE_S_MAX.min(whole / STEP_S.unsigned_abs() * STEP_S.unsigned_abs())
}

fn question(fleet: Fleet, plan: &Plan, repeat: u32) -> (&'static str, Vec<(&'static str, String)>) {
    let (metric, gpu) = (repeat * 7 % fleet.metrics, repeat * 3 % fleet.gpus);
    let name = fleet.metric_name(metric);
    let place = format!(
        r#"node="{}",gpu="{gpu}""#,
        fleet.node_name(repeat * 5 % fleet.nodes)
    );
    let range_s = range_s(plan);
    let end_s = (plan.start_ms / 1_000 + plan.ticks as i64 * TICK_MS / 1_000 - 1).div_euclid(STEP_S) * STEP_S;
    let range = |query: String, step_s: i64| {
        let times = [
            ("start", end_s - range_s as i64),
            ("end", end_s),
            ("step", step_s),
        ];
        let times = times
            .into_iter()
            .map(|(name, seconds)| (name, seconds.to_string()));
        (
            "/api/v1/query_range",
            [("query", query)].into_iter().chain(times).collect(),
        )
    };
    let raw = |query: String| {
        (
            "/api/v1/query",
            vec![
                ("query", format!("{query}[{range_s}s]")),
                ("time", end_s.to_string()),
            ],
        )
    };
    match plan.shape {
        Shape::Metric => range(name, STEP_S),
        Shape::Gpu => range(format!("{{{place}}}"), STEP_S),
        Shape::Series => range(format!("{name}{{{place}}}"), 1),
        Shape::RawSeries => raw(format!("{name}{{{place}}}")),
        Shape::RawGpu => raw(format!("{{{place}}}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::Names;

    #[test]
    fn a_question_stays_within_what_was_sent() {
        let fleet = Fleet {
            nodes: 4,
            gpus: 2,
            metrics: 30,
            seed: 1,
            names: Names::Dcgm,
            runs: 1,
        };
        for ticks in [90, 300, 3_600, 4_100] {
            let plan = Plan {
                shape: Shape::Metric,
                start_ms: 1_790_000_000_123,
                ticks,
                repeats: 1,
            };
            let (path, form) = question(fleet, &plan, 3);
            assert_eq!(path, "/api/v1/query_range");
            let seconds = |name| {
                form.iter()
                    .find(|(n, _)| *n == name)
                    .map(|(_, v)| v.parse::<i64>().expect("a number"))
            };
            let (start, end) = (
                seconds("start").expect("a start"),
                seconds("end").expect("an end"),
            );
            assert!(
                start > 1_790_000_001 && end <= 1_790_000_000 + ticks as i64,
                "{start} {end}"
            );
            assert_eq!((end - start) as u64, range_s(&plan));
        }
    }

    #[test]
    fn a_raw_question_selects_a_range() {
        let fleet = Fleet {
            nodes: 4,
            gpus: 2,
            metrics: 30,
            seed: 1,
            names: Names::Dcgm,
            runs: 1,
        };
        let plan = Plan {
            shape: Shape::RawSeries,
            start_ms: 1_790_000_000_000,
            ticks: 3_700,
            repeats: 1,
        };
        let (path, form) = question(fleet, &plan, 0);
        assert_eq!(path, "/api/v1/query");
        assert_eq!(
            form[0].1,
            r#"DCGM_FI_DEV_GPU_TEMP{node="gpu-node-00000",gpu="0"}[3600s]"#
        );
    }
}
