//! Compares expected and actual results, and describes the differences in words.

use domain::api::prometheus::float;
use domain::series::Labels;

/// Returns the differences between alerts: in their labels, then in the annotations of alerts with the same labels.
pub(super) fn alerts(expected: &[(Labels, Labels)], got: &[(Labels, Labels)]) -> Vec<String> {
    let mut left: Vec<&(Labels, Labels)> = got.iter().collect();
    let mut missing = Vec::new();
    // Remove exact matches first. Two alerts may have the same labels, and each must be compared with its own counterpart.
    for alert in expected {
        match left.iter().position(|got| *got == alert) {
            Some(at) => drop(left.remove(at)),
            None => missing.push(alert),
        }
    }
    let mut differences = Vec::new();
    for (labels, annotations) in missing {
        match left.iter().position(|(got, _)| got == labels) {
            Some(at) => differences.extend(
                annotation_differences(annotations, &left.remove(at).1)
                    .into_iter()
                    .map(|difference| format!("{labels}: {difference}")),
            ),
            None => differences.push(format!("expected, but does not fire: {labels}")),
        }
    }
    differences.extend(
        left.into_iter()
            .map(|(labels, _)| format!("fires, but is not expected: {labels}")),
    );
    differences
}

fn annotation_differences(expected: &Labels, got: &Labels) -> Vec<String> {
    let mut differences = Vec::new();
    for label in expected.iter() {
        let (name, wanted) = (&label.name, &label.value);
        match got.get(name) {
            Some(text) if text == &**wanted => {}
            Some(text) => differences.push(format!(
                "the annotation {name} is\n      {text:?}, expected\n      {wanted:?}"
            )),
            None => differences.push(format!("the annotation {name} is missing, expected {wanted:?}")),
        }
    }
    for label in got.iter().filter(|label| expected.get(&label.name).is_none()) {
        differences.push(format!(
            "the annotation {} is not expected: {:?}",
            label.name, label.value
        ));
    }
    differences
}

/// Returns the differences between samples.
pub(super) fn samples(expected: &[(Labels, f64)], got: &[(Labels, f64)], fuzzy: bool) -> Vec<String> {
    let mut left: Vec<&(Labels, f64)> = got.iter().collect();
    let mut differences = Vec::new();
    for (labels, wanted) in expected {
        let Some(at) = left.iter().position(|(got, _)| got == labels) else {
            differences.push(format!("expected, but not there: {labels} {}", float(*wanted)));
            continue;
        };
        let (_, value) = left.remove(at);
        if !is_equal(*wanted, *value, fuzzy) {
            differences.push(format!(
                "{labels} is {}, expected {}",
                float(*value),
                float(*wanted)
            ));
        }
    }
    differences.extend(
        left.into_iter()
            .map(|(labels, value)| format!("there, but not expected: {labels} {}", float(*value))),
    );
    differences
}

/// Returns true if the values are equal. If `fuzzy`, values that differ only in the last bit are equal too.
fn is_equal(a: f64, b: f64, fuzzy: bool) -> bool {
    a == b || (a.is_nan() && b.is_nan()) || (fuzzy && (a.next_up() == b || a.next_down() == b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        Labels::new(pairs.iter().copied()).expect("well formed")
    }

    #[test]
    fn differences_of_alerts_are_reported() {
        let alert = |gpu, text| (labels(&[("gpu", gpu)]), labels(&[("summary", text)]));
        let expected = [alert("0", "a"), alert("1", "b"), alert("2", "c")];
        assert_eq!(alerts(&expected, &expected), Vec::<String>::new());
        let got = [alert("0", "a"), alert("1", "x"), alert("3", "c")];
        assert_eq!(
            alerts(&expected, &got),
            [
                "{gpu=\"1\"}: the annotation summary is\n      \"x\", expected\n      \"b\"",
                "expected, but does not fire: {gpu=\"2\"}",
                "fires, but is not expected: {gpu=\"3\"}",
            ]
        );
    }

    #[test]
    fn differences_of_samples_are_reported() {
        let (a, b, c) = (
            labels(&[("a", "1")]),
            labels(&[("b", "1")]),
            labels(&[("c", "1")]),
        );
        let expected = [(a.clone(), 1.0), (b.clone(), 2.0)];
        assert_eq!(
            samples(&expected, &[(a.clone(), 1.5), (c, 3.0)], false),
            [
                r#"{a="1"} is 1.5, expected 1"#,
                r#"expected, but not there: {b="1"} 2"#,
                r#"there, but not expected: {c="1"} 3"#,
            ]
        );
        let near = [(a.clone(), 0.1 + 0.2)];
        assert_eq!(samples(&near, &[(a.clone(), 0.3)], true), Vec::<String>::new());
        assert_eq!(samples(&near, &[(a, 0.3)], false).len(), 1);
        let nan = [(b, f64::NAN)];
        assert_eq!(samples(&nan, &nan, false), Vec::<String>::new());
    }
}
