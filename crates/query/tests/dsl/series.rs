//! Parser of lines with series, and of expectations.

use domain::series::{ABSENT, Labels, METRIC_NAME, STALE};

use super::time_ms;

/// `name{label="value"} 1 2x3 _ stale`
pub(crate) struct Line {
    /// `None` if the line names no series: a scalar, or syntax of another kind (start timestamps).
    pub(crate) labels: Option<Labels>,
    pub(crate) values: Vec<f64>,
    /// True if a value is a native histogram, which this engine does not support. In `values` it is a missing value.
    pub(crate) has_histograms: bool,
    pub(crate) text: String,
}

/// The expected result of an evaluation.
#[derive(Default)]
pub(crate) struct Expected {
    pub(crate) fail: Option<Message>,
    pub(crate) warn: Option<Message>,
    pub(crate) info: Option<Message>,
    pub(crate) no_warn: bool,
    pub(crate) no_info: bool,
    pub(crate) ordered: bool,
    pub(crate) string: Option<String>,
    /// Start, end and step of an expected range vector.
    pub(crate) range: Option<(i64, i64, i64)>,
    pub(crate) lines: Vec<Line>,
}

/// How a message must read.
pub(crate) enum Message {
    Any,
    Is(String),
    Matches(String),
}

impl Expected {
    pub(crate) fn read(kind: &str, lines: &[&str]) -> Self {
        let mut expected = Self::default();
        match kind {
            "fail" => expected.fail = Some(Message::Any),
            "warn" => expected.warn = Some(Message::Any),
            "info" => expected.info = Some(Message::Any),
            "ordered" => expected.ordered = true,
            _ => {}
        }
        for line in lines {
            if let Some(rest) = line.strip_prefix("expect ") {
                expected.condition(rest.trim());
            } else if let Some(message) = line.strip_prefix("expected_fail_message ") {
                expected.fail = Some(Message::Is(message.trim().to_owned()));
            } else if let Some(pattern) = line.strip_prefix("expected_fail_regexp ") {
                expected.fail = Some(Message::Matches(pattern.trim().to_owned()));
            } else {
                expected.lines.push(self::line(line));
            }
        }
        expected
    }

    fn condition(&mut self, text: &str) {
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let message = || {
            let rest = rest.trim();
            if let Some(text) = rest.strip_prefix("msg:") {
                Message::Is(text.trim().to_owned())
            } else if let Some(pattern) = rest.strip_prefix("regex:") {
                Message::Matches(pattern.trim().to_owned())
            } else {
                Message::Any
            }
        };
        match word {
            "fail" => self.fail = Some(message()),
            "warn" => self.warn = Some(message()),
            "info" => self.info = Some(message()),
            "no_warn" => self.no_warn = true,
            "no_info" => self.no_info = true,
            "ordered" => self.ordered = true,
            "string" => self.string = Some(unquoted(rest.trim())),
            "range" => self.range = range(rest),
            other => panic!("an expectation this reader does not know: {other}"),
        }
    }
}

/// Parses `vector from 10s to 1m step 10s`.
fn range(text: &str) -> Option<(i64, i64, i64)> {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[..] {
        ["vector", "from", start, "to", end, "step", step] => {
            Some((time_ms(start)?, time_ms(end)?, time_ms(step)?))
        }
        _ => None,
    }
}

pub(crate) fn line(text: &str) -> Line {
    let (labels, values) = match descriptor(text) {
        Some((labels, rest)) => (labels, rest),
        None => (None, text),
    };
    let (values, has_histograms) = self::values(values);
    Line {
        labels,
        values,
        has_histograms,
        text: text.to_owned(),
    }
}

// === labels ===

/// Returns the series at the start of a line, and the rest. Returns `Some((None, _))` for descriptors of another kind.
fn descriptor(text: &str) -> Option<(Option<Labels>, &str)> {
    let name_length = text
        .bytes()
        .take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b':'))
        .count();
    let (name, mut rest) = text.split_at(name_length);
    let starts_number =
        name.starts_with(|c: char| c.is_ascii_digit()) || matches!(name, "NaN" | "Inf" | "stale" | "_");
    if starts_number || (name.is_empty() && !rest.starts_with('{')) {
        return None;
    }
    let mut pairs = vec![(METRIC_NAME.to_owned(), name.to_owned())];
    if let Some(mut inside) = rest.strip_prefix('{') {
        loop {
            inside = inside.trim_start_matches([' ', ',', '\t']);
            if let Some(after) = inside.strip_prefix('}') {
                rest = after;
                break;
            }
            let (key, after) = word(inside)?;
            match after.trim_start().strip_prefix('=') {
                Some(after) => {
                    let (value, after) = word(after.trim_start())?;
                    pairs.push((key, value));
                    inside = after;
                }
                // A quoted name alone is the metric's name.
                None => {
                    pairs[0].1 = key;
                    inside = after;
                }
            }
        }
    }
    if rest.starts_with('@') {
        return Some((None, ""));
    }
    let pairs = pairs.into_iter().map(|(name, value)| (name.into(), value.into()));
    Some((Some(Labels::from_trusted(pairs)), rest))
}

/// Returns a bare or quoted word, and the rest.
fn word(text: &str) -> Option<(String, &str)> {
    let quote = text.chars().next()?;
    if !matches!(quote, '"' | '\'' | '`') {
        let end = text.find(|c: char| !(c.is_alphanumeric() || "_:.".contains(c)))?;
        return Some((text[..end].to_owned(), &text[end..]));
    }
    let mut end = 1;
    while !text[end..].starts_with(quote) {
        let is_escape = text[end..].starts_with('\\') && quote != '`';
        end += if is_escape {
            2
        } else {
            text[end..].chars().next()?.len_utf8()
        };
    }
    Some((unquoted(&text[..=end]), &text[end + 1..]))
}

/// Returns a string without its quotes and with the usual escapes resolved.
fn unquoted(text: &str) -> String {
    let inside = text.get(1..text.len().saturating_sub(1)).unwrap_or("");
    if text.starts_with('`') {
        return inside.to_owned();
    }
    let mut result = String::new();
    let mut chars = inside.chars();
    while let Some(c) = chars.next() {
        match (c, c == '\\') {
            (_, true) => match chars.next() {
                Some('n') => result.push('\n'),
                Some('t') => result.push('\t'),
                Some(other) => result.push(other),
                None => {}
            },
            (c, false) => result.push(c),
        }
    }
    result
}

// === values ===

/// Expands `1 2x3 1+2x3 _ _x3 stale`. Histograms become missing values.
fn values(text: &str) -> (Vec<f64>, bool) {
    let mut values = Vec::new();
    let mut has_histograms = false;
    for item in items(text) {
        if item.contains("{{") {
            has_histograms = true;
            let after = item.rsplit("}}").next().unwrap_or("");
            let times = after
                .strip_prefix('x')
                .and_then(|times| times.parse::<usize>().ok())
                .map_or(1, |n| n + 1);
            values.extend(std::iter::repeat_n(ABSENT, times));
        } else {
            expand(&item, &mut values).unwrap_or_else(|| panic!("{item:?} in {text:?} is not a value"));
        }
    }
    (values, has_histograms)
}

/// Splits at white space, but not within a histogram.
fn items(text: &str) -> Vec<String> {
    let mut items: Vec<String> = Vec::new();
    let mut is_open = false;
    for word in text.split_whitespace() {
        match items.last_mut() {
            Some(last) if is_open => {
                last.push(' ');
                last.push_str(word);
            }
            _ => items.push(word.to_owned()),
        }
        let last = items.last().map_or("", |item| item.as_str());
        is_open = last.matches("{{").count() > last.matches("}}").count();
    }
    items
}

fn expand(item: &str, values: &mut Vec<f64>) -> Option<()> {
    let (item, times) = match item.rsplit_once('x') {
        Some((value, times)) if !times.is_empty() => (value, Some(times.parse().ok()?)),
        _ => (item, None),
    };
    if item == "_" {
        values.extend(std::iter::repeat_n(ABSENT, times.unwrap_or(1)));
        return Some(());
    }
    let (start, change) = start_and_change(item)?;
    // `1x3` is one value and three more.
    for n in 0..=times.unwrap_or(0) {
        values.push(if change == 0.0 {
            start
        } else {
            start + change * n as f64
        });
    }
    Some(())
}

/// Parses `1`, `1+2`, `1-2`, `-1e-3+2` or `stale`.
fn start_and_change(item: &str) -> Option<(f64, f64)> {
    if item == "stale" {
        return Some((STALE, 0.0));
    }
    if let Some(value) = number(item) {
        return Some((value, 0.0));
    }
    let signs = item
        .char_indices()
        .skip(1)
        .filter(|(_, c)| matches!(c, '+' | '-'));
    signs
        .into_iter()
        .find_map(|(at, _)| Some((number(&item[..at])?, number(&item[at..])?)))
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok()
}
