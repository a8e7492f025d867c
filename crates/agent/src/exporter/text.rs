//! The two text formats: Prometheus 0.0.4 and OpenMetrics 1.0.0. They differ in the names of counters, in units, in escaping, and in the
//! last line.
//!
//! ```text
//! # HELP node_disk_io_seconds_total …          # HELP node_disk_io_seconds …
//! # TYPE node_disk_io_seconds_total counter    # TYPE node_disk_io_seconds counter
//!                                              # UNIT node_disk_io_seconds seconds
//! node_disk_io_seconds_total{…} 1.5            node_disk_io_seconds_total{…} 1.5
//!                                              # EOF
//! ```

use std::fmt::Write as _;

use domain::metric::{Kind, Unit};

/// The text format of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// The Prometheus text format 0.0.4.
    Text,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    /// Returns the format that an `Accept` header prefers. Returns OpenMetrics only if the header names it with at least the weight of
    /// plain text.
    pub(super) fn accepted(accept: Option<&str>) -> Self {
        let weight = |wanted: &str| {
            let ranges = accept.unwrap_or_default().split(',');
            let of_type = ranges.filter(|range| media_type(range).eq_ignore_ascii_case(wanted));
            of_type.map(quality).reduce(f64::max)
        };
        match (weight("application/openmetrics-text"), weight("text/plain")) {
            (Some(open), plain) if open > 0.0 && open >= plain.unwrap_or(0.0) => Self::OpenMetrics,
            _ => Self::Text,
        }
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

fn media_type(range: &str) -> &str {
    range.split(';').next().unwrap_or_default().trim()
}

fn quality(range: &str) -> f64 {
    let weight = range
        .split(';')
        .find_map(|parameter| parameter.trim().strip_prefix("q="));
    weight.map_or(1.0, |weight| weight.trim().parse().unwrap_or(0.0))
}

/// Writes a page, one family after another.
pub(super) struct Writer {
    text: String,
    format: Format,
    /// The metric name in the samples of the current family.
    name: String,
}

impl Writer {
    pub(super) fn new(format: Format) -> Self {
        Self {
            text: String::new(),
            format,
            name: String::new(),
        }
    }

    /// Starts a family.
    pub(super) fn family(&mut self, name: &str, kind: Kind, unit: Option<Unit>, help: &str) {
        name.clone_into(&mut self.name);
        let is_open = self.format == Format::OpenMetrics;
        let (family, kind) = match (is_open, name.strip_suffix("_total")) {
            (true, Some(family)) if kind == Kind::Counter => (family, kind.as_str()),
            // In OpenMetrics, the samples of a counter must end in `_total`.
            (true, None) if kind == Kind::Counter => (name, "unknown"),
            _ => (name, kind.as_str()),
        };
        self.put(&["# HELP ", family, " "]);
        self.escape(help, is_open);
        self.put(&["\n# TYPE ", family, " ", kind, "\n"]);
        // OpenMetrics allows a unit only if the name of the family ends with it.
        let unit = unit.and_then(Unit::open_metrics);
        if let Some(unit) = unit.filter(|unit| is_open && family.ends_with(unit)) {
            self.put(&["# UNIT ", family, " ", unit, "\n"]);
        }
    }

    /// Writes one sample of the family.
    pub(super) fn sample<'a>(&mut self, labels: impl Iterator<Item = (&'a str, &'a str)>, value: f64) {
        self.series(labels);
        // Rust writes infinities without a plus sign and in lower case.
        let written = match value {
            f64::INFINITY => write!(self.text, " +Inf"),
            f64::NEG_INFINITY => write!(self.text, " -Inf"),
            value => write!(self.text, " {value}"),
        };
        written.expect("writing to a string cannot fail");
        self.text.push('\n');
    }

    /// Writes one sample whose value is already formatted.
    pub(super) fn written<'a>(&mut self, labels: impl Iterator<Item = (&'a str, &'a str)>, value: &str) {
        self.series(labels);
        self.put(&[" ", value, "\n"]);
    }

    /// Returns the page.
    pub(super) fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    fn series<'a>(&mut self, labels: impl Iterator<Item = (&'a str, &'a str)>) {
        self.text.push_str(&self.name);
        for (n, (name, value)) in labels.enumerate() {
            self.put(&[if n == 0 { "{" } else { "," }, name, "=\""]);
            self.escape(value, true);
            self.text.push('"');
        }
        if self.text.ends_with('"') {
            self.text.push('}');
        }
    }

    fn put(&mut self, parts: &[&str]) {
        parts.iter().for_each(|part| self.text.push_str(part));
    }

    /// Escapes a text. HELP texts of the Prometheus format escape the same characters as label values, except quotes.
    fn escape(&mut self, text: &str, quotes: bool) {
        for c in text.chars() {
            match c {
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '"' if quotes => self.text.push_str("\\\""),
                c => self.text.push(c),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_as_the_reader_prefers() {
        let prometheus =
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        let browser = "text/html,application/xhtml+xml,*/*;q=0.8";
        let reluctant = "application/openmetrics-text;q=0.2, text/plain;q=0.3";
        assert_eq!(Format::accepted(Some(prometheus)), Format::OpenMetrics);
        for accept in [
            None,
            Some(""),
            Some(browser),
            Some(reluctant),
            Some("application/openmetrics-text;q=0"),
        ] {
            assert_eq!(Format::accepted(accept), Format::Text, "{accept:?}");
        }
    }

    #[test]
    fn values_and_labels_are_written_as_readers_expect() {
        let mut out = Writer::new(Format::Text);
        out.family("x", Kind::Gauge, None, "a \"b\" \\ c\nd");
        out.sample(std::iter::empty(), f64::INFINITY);
        out.sample([("l", "q\"\\\n"), ("m", "1")].into_iter(), -0.25);
        out.sample([("l", "e")].into_iter(), f64::NEG_INFINITY);
        let expected = "# HELP x a \"b\" \\\\ c\\nd\n# TYPE x gauge\nx +Inf\nx{l=\"q\\\"\\\\\\n\",m=\"1\"} -0.25\nx{l=\"e\"} -Inf\n";
        assert_eq!(out.finish(), expected);
    }

    #[test]
    fn a_unit_is_the_end_of_the_name_and_nothing_else() {
        let lines = |name: &str| {
            let mut out = Writer::new(Format::OpenMetrics);
            let metric = domain::metric::find(name).expect("is in the catalogue");
            out.family(name, metric.kind, Some(metric.unit), metric.help);
            let text = out.finish();
            let unit = text.lines().find_map(|line| line.strip_prefix("# UNIT "));
            unit.map(ToOwned::to_owned)
        };
        for unit in [
            "link_bandwidth_bytes_per_second bytes_per_second",
            "gpu_power_watts watts",
        ] {
            assert_eq!(
                lines(unit.split_once(' ').expect("two words").0).as_deref(),
                Some(unit)
            );
        }
        for name in ["train_samples_per_second", "gpu_up", "train_rpc_seconds_max"] {
            assert_eq!(lines(name), None, "{name}");
        }
    }
}
