//! Functions that limit the length of a text.

/// Cuts a text longer than `bytes_max`. Keeps its beginning and appends a note that says how many bytes were removed. The result, with the
/// note, is at most `bytes_max` bytes long.
pub(crate) fn truncate_end(text: &mut String, bytes_max: usize) {
    if let Some((kept, note)) = cut(text, bytes_max) {
        text.truncate(text.floor_char_boundary(kept));
        text.push_str(&note);
    }
}

/// Like [`truncate_end`], but keeps the end of the text: the last lines of a traceback contain the error.
pub(crate) fn truncate_start(text: &mut String, bytes_max: usize) {
    if let Some((kept, note)) = cut(text, bytes_max) {
        let from = text.ceil_char_boundary(text.len() - kept);
        *text = format!("{note}{}", &text[from..]);
    }
}

/// Returns how many bytes to keep, and the note; `None` if the text is short enough.
fn cut(text: &str, bytes_max: usize) -> Option<(usize, String)> {
    if text.len() <= bytes_max {
        return None;
    }
    let note = |left_out: usize| format!("[… {left_out} bytes are left out]");
    let kept = bytes_max.saturating_sub(note(text.len()).len());
    Some((kept, note(text.len() - kept)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncated_text_says_how_much_was_removed() {
        let long = format!("begin{}end", "é".repeat(100));
        for (truncate, stays) in [
            (truncate_end as fn(&mut String, usize), "begin"),
            (truncate_start, "end"),
        ] {
            let mut text = long.clone();
            truncate(&mut text, 60);
            assert!(text.len() <= 60 && text.contains(stays), "{text}");
            assert!(text.contains("bytes are left out"), "{text}");
            let mut short = "short".to_owned();
            truncate(&mut short, 60);
            assert_eq!(short, "short");
        }
    }
}
