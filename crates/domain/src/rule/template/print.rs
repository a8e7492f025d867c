//! Prints values like Go's `print` and `printf`.

use super::number;
use super::value::Value;
use super::{TEXT_BYTES_MAX, function, time};

/// Prints a value as `{{ … }}` does.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::Nil => "<no value>".to_owned(),
        Value::Bool(is) => is.to_string(),
        Value::Int(int) => int.to_string(),
        Value::Float(float) => number::general(*float, None),
        Value::Text(text) => text.to_string(),
        Value::Labels(labels) => {
            let labels: Vec<String> = labels
                .iter()
                .map(|label| format!("{}:{}", label.name, label.value))
                .collect();
            format!("map[{}]", labels.join(" "))
        }
        Value::Sample(labels, value) => {
            let labels = plain(&Value::Labels(labels.clone()));
            format!("{{{labels} {}}}", number::general(*value, None))
        }
        Value::Samples(samples) => {
            let samples: Vec<String> = samples
                .iter()
                .map(|(labels, value)| plain(&Value::Sample(labels.clone(), *value)))
                .collect();
            format!("[{}]", samples.join(" "))
        }
        Value::Args(args) => {
            let args: Vec<String> = function::named(args)
                .map(|(name, value)| format!("{name}:{}", plain(value)))
                .collect();
            format!("map[{}]", args.join(" "))
        }
        Value::Time(ms) => time::written(*ms),
        Value::Duration(seconds) => time::duration(*seconds),
        Value::Data => "{…}".to_owned(),
    }
}

/// Go's `Sprint`: adds a space between two values if neither is a text.
pub(super) fn print(values: &[Value]) -> String {
    let mut out = String::new();
    for (n, value) in values.iter().enumerate() {
        let is_text = |value: &Value| matches!(value, Value::Text(_));
        if n > 0 && !is_text(value) && !is_text(&values[n - 1]) {
            out.push(' ');
        }
        out.push_str(&printed(value));
    }
    out
}

/// Go's `Sprintln`.
pub(super) fn println(values: &[Value]) -> String {
    let texts: Vec<String> = values.iter().map(printed).collect();
    texts.join(" ") + "\n"
}

/// `%v`: differs from the output of `{{ … }}` only for nil.
fn printed(value: &Value) -> String {
    match value {
        Value::Nil => "<nil>".to_owned(),
        value => plain(value),
    }
}

/// Go's `Sprintf`. A value that does not match its verb is printed as in Go: `%!d(float64=1.5)`.
pub(super) fn printf(format: &str, values: &[Value]) -> Result<String, String> {
    let mut out = String::new();
    let mut values = values.iter();
    let mut rest = format;
    while let Some((before, directive)) = rest.split_once('%') {
        out.push_str(before);
        let (spec, tail) = Spec::read(directive, &mut values)?;
        rest = tail;
        match spec.verb {
            '%' => out.push('%'),
            '\0' => out.push_str("%!(NOVERB)"),
            verb => match values.next() {
                Some(value) => out.push_str(&spec.write(value)),
                None => out.push_str(&format!("%!{verb}(MISSING)")),
            },
        }
        if out.len() > TEXT_BYTES_MAX {
            return Err("the text is too long".to_owned());
        }
    }
    out.push_str(rest);
    let left: Vec<String> = values
        .map(|value| format!("{}={}", value.type_name(), printed(value)))
        .collect();
    if !left.is_empty() {
        out.push_str(&format!("%!(EXTRA {})", left.join(", ")));
    }
    Ok(out)
}

/// A parsed verb like `%-8.2f`.
#[derive(Default)]
struct Spec {
    left: bool,
    plus: bool,
    space: bool,
    zero: bool,
    sharp: bool,
    width: usize,
    precision: Option<usize>,
    verb: char,
}

impl Spec {
    fn read<'a, 'v>(
        text: &'a str,
        values: &mut impl Iterator<Item = &'v Value>,
    ) -> Result<(Self, &'a str), String> {
        let mut spec = Self::default();
        let flags = text.find(|c| !"-+ 0#".contains(c)).unwrap_or(text.len());
        for flag in text[..flags].chars() {
            match flag {
                '-' => spec.left = true,
                '+' => spec.plus = true,
                ' ' => spec.space = true,
                '#' => spec.sharp = true,
                _ => spec.zero = true,
            }
        }
        let mut rest = &text[flags..];
        if let Some(width) = count(&mut rest, values)? {
            spec.width = width;
        }
        if let Some(tail) = rest.strip_prefix('.') {
            rest = tail;
            spec.precision = Some(count(&mut rest, values)?.unwrap_or_default());
        }
        let mut chars = rest.chars();
        spec.verb = chars.next().unwrap_or('\0');
        Ok((spec, chars.as_str()))
    }

    fn write(&self, value: &Value) -> String {
        let text = match (self.verb, value) {
            ('v', value) if self.precision.is_none() => printed(value),
            ('s', Value::Text(_) | Value::Time(_) | Value::Duration(_) | Value::Labels(_)) => {
                self.cut(printed(value))
            }
            ('q', Value::Text(text)) => quoted(text),
            ('t', Value::Bool(is)) => is.to_string(),
            ('d', Value::Int(int)) => self.signed(int.to_string()),
            ('x', Value::Int(int)) => format!("{int:x}"),
            ('X', Value::Int(int)) => format!("{int:X}"),
            ('o', Value::Int(int)) => format!("{int:o}"),
            ('b', Value::Int(int)) => format!("{int:b}"),
            ('c', Value::Int(int)) => u32::try_from(*int)
                .ok()
                .and_then(char::from_u32)
                .unwrap_or(char::REPLACEMENT_CHARACTER)
                .to_string(),
            ('x', Value::Text(text)) => text.bytes().map(|byte| format!("{byte:02x}")).collect(),
            ('f' | 'F', Value::Float(value)) => {
                self.signed(number::fixed(*value, self.precision.unwrap_or(6)))
            }
            ('e', Value::Float(value)) => {
                self.signed(number::exponential(*value, self.precision.unwrap_or(6)))
            }
            ('E', Value::Float(value)) => self
                .signed(number::exponential(*value, self.precision.unwrap_or(6)))
                .to_uppercase(),
            ('g' | 'v', Value::Float(value)) => self.signed(number::general(*value, self.precision)),
            ('G', Value::Float(value)) => self
                .signed(number::general(*value, self.precision))
                .replace('e', "E"),
            ('v', value) => self.cut(printed(value)),
            (verb, value) => {
                return format!("%!{verb}({}={})", value.type_name(), printed(value));
            }
        };
        self.padded(text)
    }

    fn cut(&self, text: String) -> String {
        match self.precision {
            Some(precision) => text.chars().take(precision).collect(),
            None => text,
        }
    }

    fn signed(&self, text: String) -> String {
        // Go formats infinity with its sign, and removes the sign unless the verb has `+`.
        match text.strip_prefix('+') {
            Some(bare) if !self.plus => bare.to_owned(),
            Some(_) => text,
            None if text.starts_with('-') => text,
            None if self.plus => format!("+{text}"),
            None if self.space => format!(" {text}"),
            None => text,
        }
    }

    fn padded(&self, text: String) -> String {
        let length = text.chars().count();
        let missing = self.width.saturating_sub(length);
        if missing == 0 {
            return text;
        }
        if self.left {
            return text + &" ".repeat(missing);
        }
        let is_number = matches!(
            self.verb,
            'd' | 'f' | 'F' | 'e' | 'E' | 'g' | 'G' | 'x' | 'X' | 'o' | 'b'
        );
        if !(self.zero && is_number) {
            return " ".repeat(missing) + &text;
        }
        let sign = usize::from(text.starts_with(['-', '+', ' ']));
        format!("{}{}{}", &text[..sign], "0".repeat(missing), &text[sign..])
    }
}

/// Parses a width or precision: digits, or `*` for the next value. It is limited, because it determines how much padding is printed.
fn count<'v>(rest: &mut &str, values: &mut impl Iterator<Item = &'v Value>) -> Result<Option<usize>, String> {
    const COUNT_MAX: usize = 1_000;
    let found = if let Some(tail) = rest.strip_prefix('*') {
        *rest = tail;
        match values.next() {
            Some(Value::Int(int)) => usize::try_from(*int).ok(),
            _ => return Err("a * in printf needs a whole number".to_owned()),
        }
    } else {
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (digits, tail) = rest.split_at(end);
        *rest = tail;
        if digits.is_empty() {
            return Ok(None);
        }
        digits.parse().ok()
    };
    match found {
        Some(count) if count <= COUNT_MAX => Ok(Some(count)),
        _ => Err(format!("printf pads to at most {COUNT_MAX}")),
    }
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out + "\""
}
