//! A test file in the format of `promtool test rules`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use domain::series::Labels;
use domain::time::parse_duration_ms;
use serde::Deserialize;

use super::series::{Points, labels, points};

const MINUTE_MS: i64 = 60_000;

/// A parsed and checked file.
pub(super) struct TestFile {
    pub(super) rule_files: Vec<String>,
    pub(super) interval_ms: i64,
    pub(super) group_order: Vec<String>,
    pub(super) fuzzy: bool,
    pub(super) tests: Vec<Test>,
}

/// Input series, and the expected results.
pub(super) struct Test {
    pub(super) name: String,
    pub(super) start_ms: i64,
    pub(super) interval_ms: i64,
    pub(super) input: Vec<(Labels, Points)>,
    pub(super) alerts: Vec<AlertCase>,
    pub(super) queries: Vec<QueryCase>,
    pub(super) external_labels: Labels,
    pub(super) external_url: String,
}

/// The alerts with one name that must be firing at a time after the start.
pub(super) struct AlertCase {
    pub(super) at_ms: i64,
    pub(super) name: String,
    /// Labels and annotations of each alert.
    pub(super) expected: Vec<(Labels, Labels)>,
}

/// The expected result of a query at a time after the start.
pub(super) struct QueryCase {
    pub(super) at_ms: i64,
    pub(super) expr: String,
    pub(super) expected: Vec<(Labels, f64)>,
}

type Texts = BTreeMap<String, String>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenFile {
    #[serde(default)]
    rule_files: Vec<String>,
    evaluation_interval: Option<String>,
    #[serde(default)]
    group_eval_order: Vec<String>,
    #[serde(default)]
    fuzzy_compare: bool,
    #[serde(default)]
    tests: Vec<WrittenTest>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenTest {
    #[serde(default)]
    name: String,
    interval: Option<String>,
    start_timestamp: Option<String>,
    #[serde(default)]
    input_series: Vec<WrittenSeries>,
    #[serde(default)]
    alert_rule_test: Vec<WrittenAlertCase>,
    #[serde(default)]
    promql_expr_test: Vec<WrittenQueryCase>,
    #[serde(default)]
    external_labels: Texts,
    #[serde(default)]
    external_url: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenSeries {
    series: String,
    values: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenAlertCase {
    #[serde(default)]
    eval_time: String,
    #[serde(default)]
    alertname: String,
    exp_alerts: Option<Vec<WrittenAlert>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenAlert {
    exp_labels: Option<Texts>,
    exp_annotations: Option<Texts>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenQueryCase {
    expr: String,
    #[serde(default)]
    eval_time: String,
    exp_samples: Option<Vec<WrittenSample>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenSample {
    #[serde(default)]
    labels: String,
    #[serde(default)]
    value: f64,
    histogram: Option<String>,
}

impl TestFile {
    /// Reads a file and checks all of it before any test runs.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).context("cannot read the file")?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self> {
        let written: WrittenFile = serde_norway::from_str(text).context("not a file of rule tests")?;
        let interval_ms = match duration(written.evaluation_interval.as_deref())? {
            0 => MINUTE_MS,
            ms => ms,
        };
        let tests = written.tests.into_iter().zip(1..).map(|(test, n)| {
            let place = format!("test {n}{}", quoted(&test.name));
            test.read(interval_ms).context(place)
        });
        let mut order = written.group_eval_order.clone();
        order.sort();
        if let Some(pair) = order.windows(2).find(|pair| pair[0] == pair[1]) {
            bail!("group_eval_order names {:?} twice", pair[0]);
        }
        Ok(Self {
            rule_files: written.rule_files,
            interval_ms,
            group_order: written.group_eval_order,
            fuzzy: written.fuzzy_compare,
            tests: tests.collect::<Result<_>>()?,
        })
    }

    /// Returns the paths of the rule files. Patterns are relative to the folder of the test file.
    pub(super) fn rule_paths(&self, path: &Path) -> Result<Vec<PathBuf>> {
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut paths = Vec::new();
        for pattern in &self.rule_files {
            let pattern = folder.join(pattern).display().to_string();
            let found = collector::diagnose::files::matching(&pattern).map_err(anyhow::Error::msg)?;
            if found.is_empty() {
                bail!("no rule file matches {pattern}");
            }
            paths.extend(found);
        }
        Ok(paths)
    }
}

/// Returns ` "name"`, or an empty string for an empty name.
pub(super) fn quoted(name: &str) -> String {
    match name {
        "" => String::new(),
        name => format!(" {name:?}"),
    }
}

impl WrittenTest {
    fn read(self, evaluation_ms: i64) -> Result<Test> {
        let interval_ms = match duration(self.interval.as_deref())? {
            0 => evaluation_ms,
            ms => ms,
        };
        let input = self.input_series.iter().map(|written| {
            let read = || -> Result<_> { Ok((labels(&written.series)?, points(&written.values)?)) };
            read().with_context(|| format!("the series {:?}", written.series))
        });
        let external = self.external_labels.iter();
        Ok(Test {
            name: self.name,
            start_ms: self.start_timestamp.as_deref().map_or(Ok(0), time)?,
            interval_ms,
            input: input.collect::<Result<_>>()?,
            alerts: self
                .alert_rule_test
                .into_iter()
                .map(WrittenAlertCase::read)
                .collect::<Result<_>>()?,
            queries: self
                .promql_expr_test
                .into_iter()
                .map(WrittenQueryCase::read)
                .collect::<Result<_>>()?,
            external_labels: Labels::new(external.map(|(name, value)| (name.as_str(), value.as_str())))?,
            external_url: self.external_url,
        })
    }
}

impl WrittenAlertCase {
    fn read(self) -> Result<AlertCase> {
        if self.alertname.is_empty() {
            bail!("an item under alert_rule_test lacks its alertname");
        }
        let name = self.alertname;
        let alert = |alert: WrittenAlert| {
            let (mut labels, annotations) = (
                alert.exp_labels.unwrap_or_default(),
                alert.exp_annotations.unwrap_or_default(),
            );
            labels.insert("alertname".to_owned(), name.clone());
            let annotations = annotations
                .into_iter()
                .map(|(name, text)| (name.into(), text.into()));
            Ok((Labels::new(labels)?, Labels::from_trusted(annotations)))
        };
        let expected = self.exp_alerts.unwrap_or_default().into_iter().map(alert);
        let expected = expected
            .collect::<Result<_>>()
            .with_context(|| format!("the alert {name:?}"))?;
        Ok(AlertCase {
            at_ms: duration(Some(&self.eval_time))?,
            expected,
            name,
        })
    }
}

impl WrittenQueryCase {
    fn read(self) -> Result<QueryCase> {
        let sample = |sample: WrittenSample| {
            if sample.histogram.is_some() {
                bail!("native histograms are not supported");
            }
            Ok((labels(&sample.labels)?, sample.value))
        };
        let expected = self.exp_samples.unwrap_or_default().into_iter().map(sample);
        let expected = expected
            .collect::<Result<_>>()
            .with_context(|| format!("the expression {:?}", self.expr))?;
        Ok(QueryCase {
            at_ms: duration(Some(&self.eval_time))?,
            expected,
            expr: self.expr,
        })
    }
}

fn duration(text: Option<&str>) -> Result<i64> {
    match text {
        None | Some("") => Ok(0),
        Some(text) => Ok(parse_duration_ms(text)?),
    }
}

/// Parses seconds since the epoch, or RFC 3339.
fn time(text: &str) -> Result<i64> {
    if let Ok(seconds) = text.parse::<f64>()
        && seconds.abs() < 1e12
    {
        return Ok((seconds * 1_000.0).round() as i64);
    }
    let time: jiff::Timestamp = text
        .parse()
        .with_context(|| format!("the start_timestamp {text:?} is neither seconds nor RFC 3339"))?;
    Ok(time.as_millisecond())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    const GOOD: &str = "
rule_files: [a.yaml]
group_eval_order: [b, a]
fuzzy_compare: true
tests:
  - name: one
    start_timestamp: 2020-01-01T00:00:00Z
    external_labels: { cluster: c }
    external_url: https://example.org
    input_series:
      - { series: 'x{a=\"1\"}', values: 1 }
    alert_rule_test:
      - { eval_time: 5m, alertname: Hot, exp_alerts: [{ exp_labels: { gpu: 0 }, exp_annotations: { summary: s } }] }
    promql_expr_test:
      - { expr: x, eval_time: 1m, exp_samples: [{ labels: 'x{a=\"1\"}', value: .5 }] }
";

    #[test]
    fn every_field_is_read() {
        let file = TestFile::parse(GOOD).unwrap();
        let test = &file.tests[0];
        assert_eq!(
            (file.interval_ms, file.fuzzy, test.interval_ms, test.start_ms),
            (60_000, true, 60_000, 1_577_836_800_000)
        );
        let (labels, annotations) = &test.alerts[0].expected[0];
        assert_eq!(labels.to_string(), r#"{alertname="Hot", gpu="0"}"#);
        assert_eq!(annotations.get("summary"), Some("s"));
        assert_eq!(test.queries[0].expected[0].1, 0.5);
    }

    #[test]
    fn what_is_not_the_format_is_refused() {
        for (from, to, expected) in [
            ("tests:", "testes:", "testes"),
            ("eval_time: 1m", "evaltime: 1m", "evaltime"),
            ("eval_time: 5m", "eval_time: soon", "soon"),
            ("alertname: Hot, ", "", "lacks its alertname"),
            ("values: 1", "values: 1y2", "1y2"),
            ("[b, a]", "[b, b]", "names \"b\" twice"),
            ("2020-01-01T00:00:00Z", "yesterday", "yesterday"),
        ] {
            let error = TestFile::parse(&GOOD.replace(from, to)).err().unwrap();
            assert!(format!("{error:#}").contains(expected), "{to}: {error:#}");
        }
    }
}
