//! A specification as a tree: the form and the text are two views of it. It keeps what the form does not show.
//!
//! [`domain::run::spec::Spec`] would refuse a field of a newer collector and a value of a wrong type. The collector checks the document.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::ui::fixed;

/// Digits behind the point that are kept of a number.
const DIGITS: u32 = 6;

/// A value of the document.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) enum Node {
    /// `null`.
    #[default]
    Null,
    /// `true` or `false`.
    Flag(bool),
    /// A number, as JSON writes it.
    Number(String),
    /// A string.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// A table, in the order of its text.
    Table(Vec<(String, Node)>),
}

impl Node {
    /// Returns an empty table.
    pub(super) fn table() -> Self {
        Self::Table(Vec::new())
    }

    /// Returns the value at a path such as `git.revision`.
    pub(super) fn get(&self, path: &str) -> Option<&Self> {
        let (name, rest) = split(path);
        let Self::Table(entries) = self else { return None };
        let (_, value) = entries.iter().find(|(known, _)| known == name)?;
        rest.map_or(Some(value), |rest| value.get(rest))
    }

    /// Removes the value at a path, and its table if that is then empty.
    pub(super) fn take(&mut self, path: &str) -> Option<Self> {
        let (name, rest) = split(path);
        let Self::Table(entries) = self else { return None };
        let at = entries.iter().position(|(known, _)| known == name)?;
        let Some(rest) = rest else {
            return Some(entries.remove(at).1);
        };
        let taken = entries[at].1.take(rest);
        if taken.is_some() && entries[at].1 == Self::table() {
            entries.remove(at);
        }
        taken
    }

    /// Sets the value at a path. Creates the tables that lead there.
    pub(super) fn put(&mut self, path: &str, value: Self) {
        let (name, rest) = split(path);
        if !matches!(self, Self::Table(_)) {
            *self = Self::table();
        }
        let Self::Table(entries) = self else { return };
        let at = entries.iter().position(|(known, _)| known == name);
        let at = at.unwrap_or_else(|| {
            entries.push((name.to_owned(), Self::Null));
            entries.len() - 1
        });
        match rest {
            Some(rest) => entries[at].1.put(rest, value),
            None => entries[at].1 = value,
        }
    }

    /// Adds what this document does not have of another one.
    pub(super) fn fill(&mut self, other: &Self) {
        let (Self::Table(entries), Self::Table(others)) = (self, other) else {
            return;
        };
        for (name, value) in others {
            match entries.iter_mut().find(|(known, _)| known == name) {
                Some((_, entry)) => entry.fill(value),
                None => entries.push((name.clone(), value.clone())),
            }
        }
    }

    /// Returns a text, or the only text of a table, such as the variable of a knob.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Number(text) => Some(text),
            Self::Table(entries) if entries.len() == 1 => entries[0].1.text(),
            _ => None,
        }
    }

    /// Returns the document as JSON.
    pub(super) fn json(&self) -> String {
        let mut text = String::new();
        self.write(&mut text);
        text
    }

    fn write(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Flag(true) => out.push_str("true"),
            Self::Flag(false) => out.push_str("false"),
            Self::Number(number) => out.push_str(number),
            Self::Text(text) => out.push_str(&quoted(text)),
            Self::List(items) => {
                let mut open = '[';
                for item in items {
                    out.push(open);
                    item.write(out);
                    open = ',';
                }
                out.push_str(if open == '[' { "[]" } else { "]" });
            }
            Self::Table(entries) => {
                let mut open = '{';
                for (name, value) in entries {
                    out.push(open);
                    out.push_str(&quoted(name));
                    out.push(':');
                    value.write(out);
                    open = ',';
                }
                out.push_str(if open == '{' { "{}" } else { "}" });
            }
        }
    }
}

/// Returns a text as JSON writes it.
pub(super) fn quoted(text: &str) -> String {
    // Writing a string as JSON cannot fail.
    serde_json::to_string(text).unwrap_or_default()
}

/// Returns a number as JSON writes it, without superfluous zeros.
pub(super) fn written(number: f64) -> String {
    let text = fixed(number, DIGITS);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn split(path: &str) -> (&str, Option<&str>) {
    match path.split_once('.') {
        Some((name, rest)) => (name, Some(rest)),
        None => (path, None),
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyNode)
    }
}

struct AnyNode;

impl<'de> Visitor<'de> for AnyNode {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Node, E> {
        Ok(Node::Flag(flag))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Node, E> {
        Ok(Node::Number(number.to_string()))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Node, E> {
        Ok(Node::Number(written(number)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut table = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            table.push(entry);
        }
        Ok(Node::Table(table))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"name":"a \"b\"\n","nodes":2,"git":{"revision":"main"},"preflight_bandwidth":{"seconds":0.5},"args":["x",""],"kineto":true,"env":{},"set":null}"#;

    fn read(text: &str) -> Node {
        serde_json::from_str(text).expect("JSON")
    }

    #[test]
    fn a_document_is_written_as_it_was_read() {
        assert_eq!(read(TEXT).json(), TEXT);
        assert_eq!(read("{}").json(), "{}");
    }

    #[test]
    fn values_are_found_taken_and_put_at_their_paths() {
        let mut document = read(TEXT);
        assert_eq!(document.get("git.revision"), Some(&Node::Text("main".to_owned())));
        assert_eq!(document.take("git.revision"), Some(Node::Text("main".to_owned())));
        assert_eq!(document.get("git"), None, "an empty table is removed");
        assert_eq!(document.take("git.revision"), None);
        document.put("container.image", Node::Text("a".to_owned()));
        document.put("container.user", Node::Text("b".to_owned()));
        let container = document.get("container").map(Node::json);
        assert_eq!(container.as_deref(), Some(r#"{"image":"a","user":"b"}"#));
    }

    #[test]
    fn what_is_missing_is_filled_in() {
        let mut document = read(r#"{"nodes":1,"git":{"revision":"a"}}"#);
        document.fill(&read(
            r#"{"nodes":2,"git":{"revision":"b","depth":1},"new":true}"#,
        ));
        assert_eq!(
            document.json(),
            r#"{"nodes":1,"git":{"revision":"a","depth":1},"new":true}"#
        );
    }
}
