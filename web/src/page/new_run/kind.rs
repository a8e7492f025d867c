//! How the values of fields are typed: the text of each kind, and the value that it stands for.

use super::document::{Node, written};
use super::lines::{line, lines, names_in, unquoted};
use crate::language::{tr, tr_with};
use crate::ui::number;
use domain::run::secret::REDACTED;

/// Larger numbers are none of a specification, and their digits would be lost.
const DECIMAL_MAX: f64 = 1e9;

/// The kind of a field. An empty text means that the field is not set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A text of one line.
    Text,
    /// A whole number.
    Whole,
    /// A number.
    Decimal,
    /// A check box; its text is `true` if it is checked.
    Flag,
    /// Yes, no, or not set: `true`, `false` or empty.
    Answer,
    /// One of these words. The first is the default, which is not written.
    Choice(&'static [&'static str]),
    /// A list of texts, one per line.
    Lines,
    /// A table of texts, one `NAME=VALUE` per line.
    Pairs,
    /// The names of secrets, one per line.
    Names,
}

impl Kind {
    /// Returns the value of a text; `None` if the field is not set.
    ///
    /// # Errors
    /// Returns why the text has no value of this kind.
    pub(super) fn value(self, text: &str) -> Result<Option<Node>, String> {
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return Ok(None);
        }
        Ok(match self {
            Self::Text => Some(Node::Text(trimmed.to_owned())),
            Self::Whole => match trimmed.parse::<u64>() {
                Ok(whole) => Some(Node::Number(whole.to_string())),
                Err(_) => return Err(tr("enter a whole number").to_owned()),
            },
            Self::Decimal => match decimal(trimmed) {
                Some(number) => Some(Node::Number(written(number))),
                None => return Err(tr("enter a number").to_owned()),
            },
            Self::Flag | Self::Answer => Some(Node::Flag(trimmed == "true")),
            Self::Choice(words) => Some(Node::Text(trimmed.to_owned())).filter(|_| trimmed != words[0]),
            Self::Lines => Some(Node::List(
                lines(text).map(|line| Node::Text(unquoted(line))).collect(),
            )),
            Self::Pairs => {
                let mut table = Node::table();
                for line in lines(text) {
                    let Some((name, value)) = line.split_once('=') else {
                        return Err(tr_with("“{line}” is not NAME=VALUE", &[("line", &line)]));
                    };
                    let value = Node::Text(unquoted(value.trim()));
                    push(&mut table, name.trim(), value);
                }
                Some(table)
            }
            Self::Names => {
                // The names are sent with each check, and shown in the text.
                if text.contains('=') {
                    return Err(tr("enter only names; the values have fields of their own").to_owned());
                }
                let mut table = Node::table();
                let placeholder = || Node::Text(REDACTED.to_owned());
                names_in(text)
                    .iter()
                    .for_each(|name| push(&mut table, name, placeholder()));
                Some(table)
            }
        })
    }

    /// Takes the text of a field out of a document. What this kind of field cannot show stays there.
    pub(super) fn take(self, document: &mut Node, path: &str) -> String {
        let Some(value) = document.take(path) else {
            return self.default().to_owned();
        };
        let (text, rest) = self.text(value);
        if let Some(rest) = rest {
            document.put(path, rest);
        }
        text
    }

    /// Returns the text of a field that is not set.
    pub(super) fn default(self) -> &'static str {
        match self {
            Self::Choice(words) => words[0],
            _ => "",
        }
    }

    /// Returns the text of a value, and what the text does not contain.
    fn text(self, value: Node) -> (String, Option<Node>) {
        match (self, value) {
            (Self::Flag | Self::Answer, Node::Flag(flag)) => (flag.to_string(), None),
            (Self::Lines, Node::List(items)) if !items.is_empty() && items.iter().all(is_text) => {
                let lines: Vec<String> = items.iter().filter_map(Node::text).map(line).collect();
                (lines.join("\n"), None)
            }
            (Self::Pairs | Self::Names, Node::Table(entries)) => {
                let (shown, rest): (Vec<_>, Vec<_>) = entries
                    .into_iter()
                    .partition(|(name, value)| is_plain(name) && value.text().is_some());
                let lines: Vec<String> = shown
                    .iter()
                    .map(|(name, value)| match self {
                        Self::Names => name.clone(),
                        _ => format!("{name}={}", line(value.text().unwrap_or_default())),
                    })
                    .collect();
                (
                    lines.join("\n"),
                    Some(Node::Table(rest)).filter(|rest| *rest != Node::table()),
                )
            }
            (
                Self::Text | Self::Whole | Self::Decimal | Self::Choice(_),
                Node::Text(text) | Node::Number(text),
            ) if !text.contains('\n') => (text, None),
            (_, Node::Null) => (self.default().to_owned(), None),
            (_, other) => (self.default().to_owned(), Some(other)),
        }
    }
}

/// The browser's parser ignores what follows a number.
fn decimal(text: &str) -> Option<f64> {
    let is_number = |letter: char| letter.is_ascii_digit() || "+-.eE".contains(letter);
    let number = number(text).filter(|_| text.chars().all(is_number))?;
    (number.abs() < DECIMAL_MAX).then_some(number)
}

/// A name may contain a dot, so it is not a path.
fn push(table: &mut Node, name: &str, value: Node) {
    if let Node::Table(entries) = table {
        entries.retain(|(known, _)| known != name);
        entries.push((name.to_owned(), value));
    }
}

fn is_text(node: &Node) -> bool {
    matches!(node, Node::Text(_))
}

/// Returns true if a line can begin with the name.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.trim() == name && !name.contains(['=', '\n', '\r'])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a text has a value, and that the value has the text.
    fn check(kind: Kind, text: &str, json: &str) {
        let value = kind.value(text).expect("a value");
        assert_eq!(
            value.as_ref().map_or(String::new(), Node::json),
            json,
            "{kind:?} {text:?}"
        );
        let mut document = Node::table();
        if let Some(value) = value {
            document.put("field", value);
        }
        assert_eq!(kind.take(&mut document, "field"), text, "{kind:?} {json}");
        assert_eq!(document, Node::table());
    }

    #[test]
    fn each_kind_is_read_as_it_is_shown() {
        check(Kind::Text, "a b", r#""a b""#);
        check(Kind::Text, "", "");
        check(Kind::Whole, "12", "12");
        check(Kind::Decimal, "0.5", "0.5");
        check(Kind::Flag, "true", "true");
        check(Kind::Answer, "false", "false");
        check(Kind::Choice(&["auto", "nccl"]), "nccl", r#""nccl""#);
        check(Kind::Choice(&["auto", "nccl"]), "auto", "");
        check(
            Kind::Lines,
            "--lr\n\"\"\n\"two\\nlines\"\nc:\\new",
            r#"["--lr","","two\nlines","c:\\new"]"#,
        );
        check(
            Kind::Pairs,
            "a=1\nb.c=x=y\nd=\" \"",
            r#"{"a":"1","b.c":"x=y","d":" "}"#,
        );
        check(Kind::Names, "HF_TOKEN", r#"{"HF_TOKEN":"[redacted]"}"#);
    }

    #[test]
    fn wrong_text_says_why() {
        for (kind, text) in [
            (Kind::Whole, "two"),
            (Kind::Whole, "-1"),
            (Kind::Decimal, "x"),
            (Kind::Pairs, "steps"),
            (Kind::Names, "HF_TOKEN=hf_0123456789"),
        ] {
            assert!(kind.value(text).is_err(), "{kind:?} {text}");
        }
    }

    #[test]
    fn what_a_field_cannot_show_stays_in_the_document() {
        let read = |text: &str| -> Node { serde_json::from_str(text).expect("JSON") };
        for (kind, json) in [
            (Kind::Whole, r#"{"field":[1]}"#),
            (Kind::Text, r#"{"field":"two\nlines"}"#),
            (Kind::Lines, r#"{"field":[]}"#),
            (Kind::Lines, r#"{"field":["a",1]}"#),
            (Kind::Pairs, r#"{"field":{"a=b":"1"}}"#),
        ] {
            let mut document = read(json);
            assert_eq!(kind.take(&mut document, "field"), "", "{json}");
            assert_eq!(document.json(), json);
        }
        let mut knobs = read(r#"{"knobs":{"num_workers":{"env":"WORKERS"}}}"#);
        assert_eq!(Kind::Pairs.take(&mut knobs, "knobs"), "num_workers=WORKERS");
    }
}
