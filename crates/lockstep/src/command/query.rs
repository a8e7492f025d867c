//! `lockstep query 'PROMQL'`: evaluates a query and prints the result.

use anyhow::Context;
use clap::{Args, ValueEnum};
use domain::api::prometheus::{Answer, Point, QueryResult};
use domain::series::Labels;

use super::collector::positive_duration;
use crate::client::Target;
use crate::failure::Failure;
use crate::table;

/// Evaluate a PromQL query, at one time or over a range that ends at that time.
#[derive(Args)]
#[command(after_help = "Examples:
  lockstep query gpu_utilization_ratio
  lockstep query 'avg by (node) (gpu_power_watts)' --range 1h --step 1m --format csv
  lockstep query train_step --at 2026-01-31T12:00:00Z")]
pub(crate) struct Query {
    /// The query, for example 'train_step_seconds' or 'avg by (node) (gpu_utilization_ratio)'.
    promql: String,
    /// Time of the evaluation: RFC 3339, or seconds since the epoch. Default: now.
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// Length of the range before --at, for example 1h. Makes this a range query.
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    range: Option<i64>,
    /// Resolution of a range query, for example 15s.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = positive_duration, requires = "range")]
    step: i64,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    #[command(flatten)]
    target: Target,
}

/// Query parameters of a request.
type Parameters = Vec<(&'static str, String)>;

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// A table.
    Table,
    /// The unchanged response of the API.
    Json,
    /// Lines of series,time,value
    Csv,
}

impl Query {
    pub(crate) async fn execute(self) -> Result<(), Failure> {
        let (path, parameters) = self.request()?;
        let answer: serde_json::Value = self.target.client()?.get(path, &parameters).await?;
        if let Format::Json = self.format {
            say!("{answer}");
            return Ok(());
        }
        let answer: Answer<QueryResult> =
            serde_json::from_value(answer).context("the response has an unknown format")?;
        for warning in &answer.warnings {
            eprintln!("warning: {warning}");
        }
        let rows = answer.data.map(rows).unwrap_or_default();
        match self.format {
            Format::Csv => print_csv(&rows),
            _ if rows.is_empty() => eprintln!("no series match"),
            _ => table::print(&["SERIES", "TIME", "VALUE"], &rows),
        }
        Ok(())
    }

    /// Returns the endpoint and its parameters.
    fn request(&self) -> Result<(&'static str, Parameters), Failure> {
        let query = ("query", self.promql.clone());
        let Some(range_ms) = self.range else {
            let at = self.at.clone().map(|at| ("time", at));
            return Ok(("/api/v1/query", std::iter::once(query).chain(at).collect()));
        };
        let end_ms = match &self.at {
            Some(text) => read_time(text)?,
            None => jiff::Timestamp::now().as_millisecond(),
        };
        let seconds = |ms: i64| format!("{}.{:03}", ms.div_euclid(1_000), ms.rem_euclid(1_000));
        let bounds = [
            ("start", seconds(end_ms - range_ms)),
            ("end", seconds(end_ms)),
            ("step", seconds(self.step)),
        ];
        Ok((
            "/api/v1/query_range",
            std::iter::once(query).chain(bounds).collect(),
        ))
    }
}

fn read_time(text: &str) -> Result<i64, Failure> {
    if let Ok(seconds) = text.parse::<f64>() {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a saturating cast; absurd times give an empty answer"
        )]
        return Ok((seconds * 1_000.0) as i64);
    }
    text.parse::<jiff::Timestamp>()
        .map(jiff::Timestamp::as_millisecond)
        .map_err(|error| {
            Failure::Usage(format!(
                "--at {text:?}: {error}; use RFC 3339 (2026-01-31T12:00:00Z) or seconds since the epoch"
            ))
        })
}

fn rows(result: QueryResult) -> Vec<Vec<String>> {
    let row = |labels: &Labels, (time, value): Point| vec![labels.to_string(), show_time(time), value];
    match result {
        QueryResult::Vector(samples) => samples.into_iter().map(|s| row(&s.metric, s.value)).collect(),
        QueryResult::Matrix(series) => series
            .into_iter()
            .flat_map(|s| s.values.into_iter().map(move |point| row(&s.metric, point)))
            .collect(),
        QueryResult::Scalar(point) | QueryResult::String(point) => vec![row(&Labels::empty(), point)],
    }
}

fn show_time(seconds: f64) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "times of samples fit")]
    let timestamp = jiff::Timestamp::from_millisecond((seconds * 1_000.0).round() as i64);
    timestamp.map_or_else(|_| seconds.to_string(), |timestamp| timestamp.to_string())
}

fn print_csv(rows: &[Vec<String>]) {
    say!("series,time,value");
    for row in rows {
        say!("\"{}\",{},{}", row[0].replace('"', "\"\""), row[1], row[2]);
    }
}
