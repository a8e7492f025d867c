//! Texts of bounded length.

/// Cuts a text that is longer than `bytes_max`: its beginning stays, and a note says how much is left out. With the note it is at most
/// `bytes_max` long.
pub(crate) fn clip(text: &mut String, bytes_max: usize) {
    if let Some((kept, note)) = cut(text, bytes_max) {
        text.truncate(text.floor_char_boundary(kept));
        text.push_str(&note);
    }
}

/// The same, but the end of the text stays: of a traceback it says most.
pub(crate) fn clip_start(text: &mut String, bytes_max: usize) {
    if let Some((kept, note)) = cut(text, bytes_max) {
        let from = text.ceil_char_boundary(text.len() - kept);
        *text = format!("{note}{}", &text[from..]);
    }
}

/// How many bytes stay beside the note; `None` for a text that is short enough.
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
    fn what_is_too_long_keeps_one_end_and_says_so() {
        let long = format!("begin{}end", "é".repeat(100));
        for (clip, stays) in [(clip as fn(&mut String, usize), "begin"), (clip_start, "end")] {
            let mut text = long.clone();
            clip(&mut text, 60);
            assert!(text.len() <= 60 && text.contains(stays), "{text}");
            assert!(text.contains("bytes are left out"), "{text}");
            let mut short = "short".to_owned();
            clip(&mut short, 60);
            assert_eq!(short, "short");
        }
    }
}
