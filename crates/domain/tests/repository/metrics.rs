//! `docs/metrics.md`.

use std::fmt::Write as _;

use domain::metric::{CATALOGUE, Metric, Unit};

/// First word of metric names, and the title of its section.
const SECTIONS: [(&str, &str); 11] = [
    ("gpu", "GPUs"),
    ("nvswitch", "NVSwitches"),
    ("link", "Links of GPUs"),
    ("node", "Nodes"),
    ("rdma", "RDMA ports"),
    ("train", "Training"),
    ("run", "Runs"),
    ("diagnosis", "Diagnosis"),
    ("nccl", "Collectives"),
    ("agent", "Agents"),
    ("lockstep", "Lockstep itself"),
];
const INTRODUCTION: &str = "# Metrics

`cargo xtask generate` writes this page from the [catalogue](../crates/domain/src/metric/catalogue.rs). Change metrics there. Every metric of an agent
has the label `node` in addition to those in the table. [signals.md](signals.md) describes the sources of the values of GPUs.

Units: *0 or 1* is 1 if true; *always 1* has its information in the labels; a *code* is a number with the meaning given here; *–* is a number without a unit.
";

#[test]
fn the_page_on_metrics_is_made_from_the_catalogue() {
    let mut page = INTRODUCTION.to_owned();
    let mut left: Vec<&Metric> = CATALOGUE.iter().collect();
    for (word, title) in SECTIONS {
        let (here, others) = left.into_iter().partition(|metric| first_word(metric) == word);
        left = others;
        section(&mut page, title, &here);
    }
    let names: Vec<&str> = left.iter().map(|metric| metric.name).collect();
    assert!(names.is_empty(), "in no section: {names:?}");
    super::keep("docs/metrics.md", &page);
}

fn first_word(metric: &Metric) -> &str {
    metric.name.split('_').next().unwrap()
}

fn section(page: &mut String, title: &str, metrics: &Vec<&Metric>) {
    write!(
        page,
        "\n## {title}\n\n| metric | kind | unit | labels | meaning |\n|---|---|---|---|---|\n"
    )
    .unwrap();
    for metric in metrics {
        let labels = metric.labels.iter().map(|label| format!("`{label}`"));
        let labels = labels.collect::<Vec<_>>().join(", ");
        let (name, kind, unit) = (metric.name, metric.kind.as_str(), words(metric.unit));
        writeln!(
            page,
            "| `{name}` | {kind} | {unit} | {labels} | {} |",
            metric.help
        )
        .unwrap();
    }
}

fn words(unit: Unit) -> &'static str {
    match unit {
        Unit::BytesPerSecond => "bytes per second",
        Unit::Ratio => "ratio, 0 to 1",
        Unit::Celsius => "°C",
        Unit::PerSecond => "per second",
        Unit::Count => "count",
        Unit::Code => "code",
        Unit::Flag => "0 or 1",
        Unit::Info => "always 1",
        Unit::Number => "–",
        Unit::Bytes | Unit::Seconds | Unit::Joules | Unit::Watts | Unit::Hertz => unit.suffix().unwrap(),
    }
}
