//! The lexer: splits a template into texts and actions (`{{ … }}`), and actions into words. `{{-` and `-}}` trim the adjacent space.

use super::TemplateError;

/// A part of a template.
#[derive(Debug, PartialEq)]
pub(super) enum Piece {
    Text(String),
    Action(Vec<Token>),
}

/// A word of an action.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Token {
    pub(super) word: Word,
    /// True if there is no space between this word and the one before.
    pub(super) joined: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Word {
    Dot,
    /// `.name`
    Field(String),
    /// `$name`
    Variable(String),
    /// Name of a function or keyword.
    Name(String),
    Text(String),
    Int(i64),
    Float(f64),
    Pipe,
    Open,
    Close,
    Comma,
    /// `:=`
    Declare,
    /// `=`
    Assign,
}

type Result<T> = std::result::Result<T, TemplateError>;

fn syntax<T>(message: impl Into<String>) -> Result<T> {
    Err(TemplateError::Syntax(message.into()))
}

/// Splits a template into its parts.
pub(super) fn pieces(text: &str) -> Result<Vec<Piece>> {
    let mut pieces = Vec::new();
    let (mut rest, mut trims) = (text, false);
    loop {
        let begin = rest.find("{{");
        let mut before = &rest[..begin.unwrap_or(rest.len())];
        if trims {
            before = before.trim_start();
        }
        let Some(begin) = begin else {
            push_text(&mut pieces, before);
            return Ok(pieces);
        };
        let mut inside = &rest[begin + 2..];
        if let Some(trimmed) = inside
            .strip_prefix('-')
            .filter(|trimmed| trimmed.starts_with(char::is_whitespace))
        {
            (before, inside) = (before.trim_end(), trimmed);
        }
        push_text(&mut pieces, before);
        let (tokens, tail, trims_next) = action(inside)?;
        pieces.extend(tokens.map(Piece::Action));
        (rest, trims) = (tail, trims_next);
    }
}

fn push_text(pieces: &mut Vec<Piece>, text: &str) {
    if !text.is_empty() {
        pieces.push(Piece::Text(text.to_owned()));
    }
}

/// Returns the words up to `}}` (`None` for a comment), the rest of the text, and whether to trim the space at its start.
fn action(inside: &str) -> Result<(Option<Vec<Token>>, &str, bool)> {
    if let Some(comment) = inside.trim_start().strip_prefix("/*") {
        let Some((_, tail)) = comment.split_once("*/") else {
            return syntax("unclosed comment");
        };
        return match end(tail) {
            Some((tail, trims)) => Ok((None, tail, trims)),
            None => syntax("comment ends before closing delimiter"),
        };
    }
    let (mut tokens, mut rest) = (Vec::new(), inside);
    loop {
        if let Some((tail, trims)) = end(rest) {
            return Ok((Some(tokens), tail, trims));
        }
        let trimmed = rest.trim_start();
        let joined = trimmed.len() == rest.len();
        if trimmed.is_empty() {
            return syntax("unclosed action");
        }
        let (word, tail) = word(trimmed)?;
        tokens.push(Token { word, joined });
        rest = tail;
    }
}

/// If the text starts with the end of an action, returns the text after it and whether to trim space.
fn end(rest: &str) -> Option<(&str, bool)> {
    let trimmed = rest.trim_start();
    if let Some(tail) = trimmed.strip_prefix("}}") {
        return Some((tail, false));
    }
    let had_space = trimmed.len() < rest.len();
    trimmed
        .strip_prefix("-}}")
        .filter(|_| had_space)
        .map(|tail| (tail, true))
}

fn word(text: &str) -> Result<(Word, &str)> {
    let first = text.chars().next().unwrap_or_default();
    let after = |bytes: usize| &text[bytes..];
    Ok(match first {
        '|' => (Word::Pipe, after(1)),
        '(' => (Word::Open, after(1)),
        ')' => (Word::Close, after(1)),
        ',' => (Word::Comma, after(1)),
        ':' if text.starts_with(":=") => (Word::Declare, after(2)),
        '=' => (Word::Assign, after(1)),
        '"' => return quoted(text),
        '`' => match text[1..].split_once('`') {
            Some((raw, tail)) => (Word::Text(raw.to_owned()), tail),
            None => return syntax("unterminated raw quoted string"),
        },
        '\'' => return character(text),
        '$' => {
            let length = 1 + name_length(after(1));
            (Word::Variable(text[..length].to_owned()), after(length))
        }
        '.' if !after(1).starts_with(|c: char| c.is_ascii_digit()) => match name_length(after(1)) {
            0 => (Word::Dot, after(1)),
            length => (Word::Field(text[1..=length].to_owned()), after(1 + length)),
        },
        '+' | '-' | '.' | '0'..='9' => return number(text),
        c if is_name(c) => {
            let length = name_length(text);
            (Word::Name(text[..length].to_owned()), after(length))
        }
        c => return syntax(format!("unexpected {c:?} in an action")),
    })
}

fn is_name(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

fn name_length(text: &str) -> usize {
    text.find(|c| !is_name(c)).unwrap_or(text.len())
}

fn number(text: &str) -> Result<(Word, &str)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '+' | '-');
    let mut length = 0;
    let mut last = ' ';
    for c in text.chars() {
        // A sign is allowed only at the start and after the letter of an exponent.
        let is_sign = matches!(c, '+' | '-');
        if !is_part(c) || (is_sign && length > 0 && !matches!(last, 'e' | 'E' | 'p' | 'P')) {
            break;
        }
        length += c.len_utf8();
        last = c;
    }
    let (written, tail) = text.split_at(length);
    let plain = written.replace('_', "");
    let (sign, digits) = match plain.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, plain.strip_prefix('+').unwrap_or(&plain)),
    };
    let hexadecimal = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    if let Some(int) = hexadecimal.and_then(|digits| i64::from_str_radix(digits, 16).ok()) {
        return Ok((Word::Int(sign * int), tail));
    }
    if let Ok(int) = plain.parse::<i64>() {
        return Ok((Word::Int(int), tail));
    }
    match plain.parse::<f64>() {
        Ok(float) if digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') => {
            Ok((Word::Float(float), tail))
        }
        _ => syntax(format!("bad number syntax: {written:?}")),
    }
}

fn quoted(text: &str) -> Result<(Word, &str)> {
    let mut out = String::new();
    let mut chars = text[1..].chars();
    loop {
        match chars.next() {
            Some('"') => return Ok((Word::Text(out), chars.as_str())),
            Some('\\') => out.push(escaped(&mut chars)?),
            None | Some('\n') => return syntax("unterminated quoted string"),
            Some(c) => out.push(c),
        }
    }
}

fn character(text: &str) -> Result<(Word, &str)> {
    let mut chars = text[1..].chars();
    let found = match chars.next() {
        Some('\\') => Some(escaped(&mut chars)?),
        found => found,
    };
    match (found, chars.next()) {
        (Some(c), Some('\'')) => Ok((Word::Int(i64::from(u32::from(c))), chars.as_str())),
        _ => syntax("malformed character constant"),
    }
}

fn escaped(chars: &mut std::str::Chars<'_>) -> Result<char> {
    let escape = chars.next().unwrap_or_default();
    let digits = match escape {
        'n' => return Ok('\n'),
        't' => return Ok('\t'),
        'r' => return Ok('\r'),
        'a' => return Ok('\u{7}'),
        'b' => return Ok('\u{8}'),
        'f' => return Ok('\u{c}'),
        'v' => return Ok('\u{b}'),
        '\\' | '"' | '\'' => return Ok(escape),
        'x' => 2,
        'u' => 4,
        'U' => 8,
        _ => return syntax(format!("unknown escape \\{escape}")),
    };
    let code: String = chars.by_ref().take(digits).collect();
    u32::from_str_radix(&code, 16)
        .ok()
        .and_then(char::from_u32)
        .ok_or_else(|| TemplateError::Syntax(format!("\\{escape}{code} is not a character")))
}
