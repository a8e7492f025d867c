//! Converts program output to plain text: removes escape sequences, which could colour or damage a terminal.

/// Returns the text without escape sequences and control characters. A line that was overwritten with carriage returns (a progress bar)
/// shows its last state.
pub(super) fn plain(raw: &str) -> String {
    let mut text = String::with_capacity(raw.len());
    let mut line_begin = 0;
    let mut rest = raw.chars().peekable();
    while let Some(one) = rest.next() {
        match one {
            '\u{1b}' => skip_sequence(&mut rest),
            '\u{9b}' => skip_to_final(&mut rest),
            '\r' if rest.peek().is_some_and(|next| *next != '\n') => text.truncate(line_begin),
            '\n' => {
                text.push('\n');
                line_begin = text.len();
            }
            '\t' => text.push('\t'),
            _ if one.is_control() => {}
            _ => text.push(one),
        }
    }
    text
}

type Rest<'a> = std::iter::Peekable<std::str::Chars<'a>>;

/// Skips what follows an ESC: `[…` up to a letter, `]…` and similar up to a BEL or ESC \, else one character.
fn skip_sequence(rest: &mut Rest<'_>) {
    match rest.next() {
        Some('[') => skip_to_final(rest),
        Some(']' | 'P' | 'X' | '^' | '_') => {
            while let Some(one) = rest.next() {
                if one == '\u{7}' || (one == '\u{1b}' && rest.next_if_eq(&'\\').is_some()) {
                    return;
                }
                // An unterminated sequence removes its line, not the rest of the log.
                if rest.peek() == Some(&'\n') {
                    return;
                }
            }
        }
        // A character set: one more character follows.
        Some('(' | ')' | '#' | '%' | ' ') => _ = rest.next(),
        _ => {}
    }
}

fn skip_to_final(rest: &mut Rest<'_>) {
    while rest.next_if(|one| matches!(one, '\u{20}'..='\u{3f}')).is_some() {}
    rest.next_if(|one| matches!(one, '\u{40}'..='\u{7e}'));
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn escape_sequences_leave_nothing_behind() {
        for (raw, expected) in [
            ("\u{1b}[1;31merror\u{1b}[0m: no", "error: no"),
            ("\u{1b}]0;title\u{7}x \u{1b}]8;;http://a\u{1b}\\link", "x link"),
            ("\u{1b}(Bplain\u{1b}c", "plain"),
            ("a\u{1b}[2Kb\u{9b}31mc\u{8}\u{0}d", "abcd"),
            ("\u{1b}]0;never ends\nnext", "\nnext"),
            (" 10%\r 50%\r100%\r\ndone\tok\n", "100%\ndone\tok\n"),
            ("cut\u{1b}[3", "cut"),
            ("cut\u{1b}", "cut"),
            ("größe ✓ <b>", "größe ✓ <b>"),
        ] {
            assert_eq!(plain(raw), expected, "{raw:?}");
        }
    }
}
