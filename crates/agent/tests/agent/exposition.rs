//! A small reader of Prometheus text: enough to check every line of it.

use std::collections::HashMap;

use domain::metric::catalogue;

/// Every sample line by its series as written, checked against the catalogue.
pub(crate) fn parse(text: &str) -> HashMap<String, f64> {
    let mut samples = HashMap::new();
    let (mut helped, mut typed) = (String::new(), String::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert_eq!(catalogue::find(name).unwrap().help, help);
            helped = name.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(catalogue::find(name).unwrap().kind.as_str(), kind);
            typed = name.to_owned();
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap();
            assert_eq!((name, name), (helped.as_str(), typed.as_str()), "{line}");
            check_labels(name, labels.strip_suffix('}').unwrap());
            assert!(
                samples
                    .insert(series.to_owned(), value.parse().unwrap())
                    .is_none(),
                "{series} twice"
            );
        }
    }
    samples
}

/// All labels are ones the catalogue knows, and `node` is there. (No label value of these tests holds a comma.)
fn check_labels(metric: &str, labels: &str) {
    let names: Vec<&str> = labels
        .split(',')
        .map(|label| label.split_once('=').unwrap().0)
        .collect();
    let known = catalogue::find(metric).unwrap().labels;
    assert!(names.contains(&"node"), "{metric}{{{labels}}}");
    assert!(
        names.iter().all(|name| *name == "node" || known.contains(name)),
        "{metric}{{{labels}}}"
    );
}
