//! Parses an agent's `/metrics` page: the part of Prometheus' text format that agents write.

use domain::series::{Labels, METRIC_NAME};

/// Returns every sample of a page. Skips lines that cannot be parsed.
pub(super) fn samples(page: &str) -> Vec<(Labels, f64)> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(sample).collect()
}

/// `name{label="value",…} value`
fn sample(line: &str) -> Option<(Labels, f64)> {
    let name_end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(name_end);
    let mut pairs = vec![(METRIC_NAME.into(), name.into())];
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, quoted) = rest.trim_start_matches(',').split_once("=\"")?;
            let (value, behind) = unquote(quoted)?;
            pairs.push((label.into(), value.into()));
            rest = behind;
        }
        rest = &rest[1..];
    }
    let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    Some((Labels::from_trusted(pairs), value))
}

/// Splits a quoted value at its closing quote. Returns the unescaped value and the text after the quote.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match chars.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            c => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_with_all_that_labels_may_hold() {
        let page = "# HELP a b\na 1\nb{x=\"1\"} NaN\nc{x=\"q\\\"}\\\\\\n,\",y=\"z\"} +Inf\nbroken{x=\"1\nd{} 2e3 17000\n";
        let shown: Vec<_> = samples(page)
            .into_iter()
            .map(|(labels, value)| format!("{labels} {value}"))
            .collect();
        assert_eq!(shown.len(), 4, "{shown:?}");
        let (labels, value) = samples(page).remove(2);
        assert_eq!(
            (labels.get("x"), labels.get("y"), value),
            (Some("q\"}\\\n,"), Some("z"), f64::INFINITY)
        );
        assert_eq!(shown[3], "d 2000");
    }
}
