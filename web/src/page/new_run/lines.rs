//! Texts with one value per line. A value that is no plain line is a JSON string.

use super::document::quoted;

/// Returns the value of a name in lines of `NAME=VALUE`.
pub(super) fn value_in(text: &str, name: &str) -> Option<String> {
    let mut values = lines(text).filter_map(|line| line.split_once('='));
    values
        .find(|(known, _)| known.trim() == name)
        .map(|(_, value)| unquoted(value.trim()))
}

/// Returns the lines with another value for a name; without it if the value is empty.
pub(super) fn with_value(text: &str, name: &str, value: &str) -> String {
    let new = (!value.is_empty()).then(|| format!("{name}={}", line(value)));
    let is_of_name = |line: &&str| {
        line.split_once('=')
            .is_some_and(|(known, _)| known.trim() == name)
    };
    let mut is_new = new.is_some();
    let mut kept: Vec<&str> = Vec::new();
    for old in lines(text) {
        match &new {
            Some(new) if is_of_name(&old) && is_new => {
                kept.push(new);
                is_new = false;
            }
            _ if is_of_name(&old) => {}
            _ => kept.push(old),
        }
    }
    kept.extend(new.as_deref().filter(|_| is_new));
    kept.join("\n")
}

/// Returns the names in lines of names, each once. A line that also has a value is none.
pub(super) fn names_in(text: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in lines(text).filter(|line| !line.contains('=')) {
        if names.iter().all(|known| known != name) {
            names.push(name.to_owned());
        }
    }
    names
}

/// Returns the lines that are not empty, without spaces around them.
pub(super) fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty())
}

/// Returns a text as one line, in quotes if it would be read in another way.
pub(super) fn line(text: &str) -> String {
    let is_plain = !text.is_empty() && text.trim() == text && !text.contains(['\n', '\r']);
    if is_plain && !text.starts_with('"') {
        text.to_owned()
    } else {
        quoted(text)
    }
}

/// Returns the text of a line that may be a JSON string.
pub(super) fn unquoted(line: &str) -> String {
    let inside = line.strip_prefix('"').and_then(|line| line.strip_suffix('"'));
    inside.and_then(unescaped).unwrap_or_else(|| line.to_owned())
}

fn unescaped(text: &str) -> Option<String> {
    let mut out = String::new();
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => return None,
            '\\' => out.push(match letters.next()? {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'b' => '\u{8}',
                'f' => '\u{c}',
                'u' => {
                    let code = letters.as_str().get(..4)?;
                    letters.nth(3)?;
                    char::from_u32(u32::from_str_radix(code, 16).ok()?)?
                }
                other => other,
            }),
            other => out.push(other),
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_listed_once_and_never_with_a_value() {
        assert_eq!(names_in("A\n B \n\nA\nC=hf_0123456789"), ["A", "B"]);
    }

    #[test]
    fn one_value_changes_in_its_line() {
        let text = "steps=1\nlr=2";
        assert_eq!(value_in(text, "lr").as_deref(), Some("2"));
        assert_eq!(value_in(text, "width"), None);
        assert_eq!(with_value(text, "steps", "5"), "steps=5\nlr=2");
        assert_eq!(with_value(text, "steps", ""), "lr=2");
        assert_eq!(with_value(text, "width", "8"), "steps=1\nlr=2\nwidth=8");
        assert_eq!(with_value("a=1\na=2", "a", "3"), "a=3");
    }
}
