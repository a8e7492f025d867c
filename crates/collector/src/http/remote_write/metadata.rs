//! TYPE and HELP in requests.

use std::collections::BTreeMap;

use domain::series::labels::is_metric_name;
use store::series::Metadata;

use super::message::MetricMetadata;

/// Maximum number of metrics described in one request. Prometheus sends 500 at a time, and no site has this many.
const METRICS_MAX: usize = 20_000;
/// Maximum length of a stored HELP text, in characters.
const HELP_CHARS_MAX: usize = 1_024;

/// The names of `MetricType`, the same in both versions.
const KINDS: [&str; 8] = [
    "unknown",
    "counter",
    "gauge",
    "histogram",
    "gaugehistogram",
    "summary",
    "info",
    "stateset",
];

/// Stores an entry of version 1.
pub(super) fn take(all: &mut BTreeMap<String, Metadata>, entry: MetricMetadata<'_>) {
    note(all, entry.name, entry.kind, entry.help);
}

/// Stores TYPE and HELP of a metric, unless its name is invalid. Text that is not UTF-8 is ignored, because it is no reason to reject the
/// samples.
pub(super) fn note(all: &mut BTreeMap<String, Metadata>, name: &[u8], kind: u64, help: &[u8]) {
    let (Ok(name), Ok(help)) = (std::str::from_utf8(name), std::str::from_utf8(help)) else {
        return;
    };
    if !is_metric_name(name) || (all.len() >= METRICS_MAX && !all.contains_key(name)) {
        return;
    }
    let kind = usize::try_from(kind).ok().and_then(|kind| KINDS.get(kind));
    let metadata = Metadata {
        kind: (*kind.unwrap_or(&KINDS[0])).to_owned(),
        help: help.chars().take(HELP_CHARS_MAX).collect(),
    };
    all.insert(name.to_owned(), metadata);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_describes_a_metric_is_kept() {
        let mut all = BTreeMap::new();
        let long = "é".repeat(HELP_CHARS_MAX + 1);
        for (name, kind, help) in [
            (&b"up"[..], 2, &b"Whether it is up."[..]),
            (b"odd_total", u64::MAX, long.as_bytes()),
            (b"1bad", 1, b"no name"),
            (b"\xff", 1, b"no text"),
            (b"bad_help", 1, b"\xff"),
        ] {
            note(&mut all, name, kind, help);
        }
        assert_eq!(all.keys().collect::<Vec<_>>(), ["odd_total", "up"]);
        assert_eq!(all["up"].kind, "gauge");
        assert_eq!(all["odd_total"].kind, "unknown");
        assert_eq!(all["odd_total"].help.chars().count(), HELP_CHARS_MAX);
    }

    #[test]
    fn a_flood_of_metrics_is_cut() {
        let mut all = BTreeMap::new();
        for n in 0..METRICS_MAX + 10 {
            note(&mut all, format!("m{n}").as_bytes(), 1, b"");
        }
        note(&mut all, b"m0", 2, b"still kept up to date");
        assert_eq!((all.len(), all["m0"].kind.as_str()), (METRICS_MAX, "gauge"));
    }
}
