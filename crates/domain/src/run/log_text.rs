//! The text of a log as it may be shown: a training script must not be able to control the terminal or the page of the reader.
//!
//! ```text
//! ESC [ 31 m    colours (SGR)                kept for a terminal, otherwise removed
//! ESC [ 2 J     cursor, screen, modes (CSI)  removed
//! ESC ] 52 ;…   clipboard, title, links      removed with their contents
//! ESC P … ESC \ device control strings       removed with their contents
//! \r            a progress bar is redrawn    the last drawing becomes the line
//! \b \a …, U+202E …                          removed
//! ```
//! The text may be fed in pieces: a sequence may begin in one piece and end in the next. Memory is bounded for any input.

/// Maximum size of a line that is held back because a carriage return may replace it, in bytes; a longer line is returned in parts.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Maximum length of an escape sequence, in characters. After that, the text is no longer treated as a sequence.
const SEQUENCE_CHARS_MAX: usize = 64;
/// Maximum length of an operating system command (OSC), in characters: enough for a clipboard.
const STRING_CHARS_MAX: usize = 64 << 10;

/// Which escape sequences are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Show {
    /// None.
    Plain,
    /// Colours and font weights. A line that has any ends with a reset.
    Colours,
}

/// Filters the text of a log and returns its lines.
#[derive(Debug, Clone)]
pub struct LogText {
    show: Show,
    state: State,
    /// The line so far, including colours.
    line: String,
    /// A carriage return was read: the next text replaces the line.
    returned: bool,
    /// Parts of this line were returned already and cannot be replaced any more.
    parts_out: bool,
    coloured: bool,
}

/// The position within an escape sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Text,
    /// After ESC.
    Escape,
    /// After ESC and a character that announces another one.
    EscapeMore,
    /// Within ESC [.
    Control(String),
    /// Within a string that ends with ST or, for some kinds, BEL; with its length so far.
    String(usize),
    /// The same, after an ESC that may end the string.
    StringEscape(usize),
}

/// Returns a whole text without escape sequences.
#[must_use]
pub fn plain(text: &str) -> String {
    let mut log = LogText::new(Show::Plain);
    let mut out = log.push(text);
    out.push_str(log.unfinished());
    out
}

impl LogText {
    /// Creates a filter for the start of a log, or for the start of any of its lines.
    #[must_use]
    pub fn new(show: Show) -> Self {
        Self {
            show,
            state: State::Text,
            line: String::new(),
            returned: false,
            parts_out: false,
            coloured: false,
        }
    }

    /// Reads the next piece and returns the lines that end in it, each with its `\n`. A line that is too long is returned in parts.
    pub fn push(&mut self, text: &str) -> String {
        let mut out = String::new();
        for c in text.chars() {
            self.take(c, &mut out);
        }
        out
    }

    /// Returns the line that has not ended yet, as far as it is known.
    #[must_use]
    pub fn unfinished(&self) -> &str {
        &self.line
    }

    /// Returns the line that has not ended yet; call it at the end of a log.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        if !self.line.is_empty() || self.parts_out {
            self.end_line(&mut out);
        }
        self.state = State::Text;
        out
    }

    fn take(&mut self, c: char, out: &mut String) {
        let state = std::mem::replace(&mut self.state, State::Text);
        self.state = match state {
            State::Text => self.text(c, out),
            State::Escape => self.escape(c, out),
            State::EscapeMore => self.escape_more(c, out),
            State::Control(parameters) => self.control(parameters, c, out),
            State::String(length) => self.string(length, c, out),
            // ESC \ ends a string; so does any other sequence.
            State::StringEscape(_) if c == '\\' => State::Text,
            State::StringEscape(_) => self.escape(c, out),
        };
    }

    fn text(&mut self, c: char, out: &mut String) -> State {
        match c {
            '\u{1b}' => return State::Escape,
            '\u{9b}' => return State::Control(String::new()),
            '\u{90}' | '\u{98}' | '\u{9d}' | '\u{9e}' | '\u{9f}' => return State::String(0),
            '\n' => self.end_line(out),
            '\r' => self.returned = true,
            '\t' => self.add(c, out),
            c if c.is_control() || is_direction(c) => {}
            c => self.add(c, out),
        }
        State::Text
    }

    fn escape(&mut self, c: char, out: &mut String) -> State {
        match c {
            '[' => State::Control(String::new()),
            ']' | 'P' | 'X' | '^' | '_' => State::String(0),
            ' '..='/' => State::EscapeMore,
            '\u{1b}' => State::Escape,
            // A sequence of two characters: save cursor, reset terminal, …
            '0'..='~' => State::Text,
            other => self.text(other, out),
        }
    }

    fn escape_more(&mut self, c: char, out: &mut String) -> State {
        match c {
            ' '..='/' => State::EscapeMore,
            '0'..='~' => State::Text,
            other => self.text(other, out),
        }
    }

    fn control(&mut self, mut parameters: String, c: char, out: &mut String) -> State {
        match c {
            ' '..='?' if parameters.len() < SEQUENCE_CHARS_MAX => {
                parameters.push(c);
                State::Control(parameters)
            }
            'm' if self.show == Show::Colours && is_colour(&parameters) => {
                self.replace_returned();
                self.coloured = true;
                self.line.push_str("\u{1b}[");
                self.line.push_str(&parameters);
                self.line.push('m');
                State::Text
            }
            '@'..='~' => State::Text,
            other => self.text(other, out),
        }
    }

    /// A line end also ends a string: a string without an end must not hide the rest of the log.
    fn string(&mut self, length: usize, c: char, out: &mut String) -> State {
        match c {
            '\u{7}' | '\u{9c}' | '\u{18}' | '\u{1a}' => State::Text,
            '\u{1b}' => State::StringEscape(length),
            '\n' => self.text(c, out),
            _ if length >= STRING_CHARS_MAX => State::Text,
            _ => State::String(length + 1),
        }
    }

    fn add(&mut self, c: char, out: &mut String) {
        self.replace_returned();
        self.line.push(c);
        if self.line.len() >= LINE_BYTES_MAX {
            out.push_str(&self.line);
            self.line.clear();
            self.parts_out = true;
        }
    }

    fn replace_returned(&mut self) {
        if std::mem::take(&mut self.returned) {
            self.line.clear();
            self.coloured = self.coloured && self.parts_out;
        }
    }

    fn end_line(&mut self, out: &mut String) {
        out.push_str(&self.line);
        if self.coloured {
            out.push_str("\u{1b}[0m");
        }
        out.push('\n');
        self.line.clear();
        (self.returned, self.parts_out, self.coloured) = (false, false, false);
    }
}

fn is_colour(parameters: &str) -> bool {
    parameters
        .bytes()
        .all(|b| b.is_ascii_digit() || b == b';' || b == b':')
}

/// Characters that change the direction of text, so that it looks like something else.
fn is_direction(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coloured(text: &str) -> String {
        let mut log = LogText::new(Show::Colours);
        let mut out = log.push(text);
        out.push_str(&log.finish());
        out
    }

    #[test]
    fn sequences_that_control_a_terminal_are_removed() {
        for (given, left) in [
            ("loss \u{1b}[31m3.1\u{1b}[0m\n", "loss 3.1\n"),
            ("\u{1b}]52;c;cm0gLXJmIC8=\u{7}ok\n", "ok\n"),
            ("\u{1b}]0;title\u{1b}\\ok\n", "ok\n"),
            (
                "\u{1b}]8;;http://evil\u{1b}\\click\u{1b}]8;;\u{1b}\\\n",
                "click\n",
            ),
            ("\u{1b}[2J\u{1b}[1;1H\u{1b}[?1049hgone\n", "gone\n"),
            (
                "\u{1b}P1$q\u{1b}\\\u{1b}c\u{1b}(0x\u{9b}31mY\u{9d}0;t\u{9c}Z\n",
                "xYZ\n",
            ),
            ("bell\u{7}\u{8}\u{0} \u{202e}txt\n", "bell txt\n"),
            ("never ended \u{1b}]52;c;AAAA\nnext\n", "never ended \nnext\n"),
            ("\u{1b}[31\u{1b}[1mx\n", "x\n"),
            ("tab\tstays\n", "tab\tstays\n"),
        ] {
            assert_eq!(plain(given), left, "{given:?}");
            let bare = coloured(given).replace("\u{1b}[0m", "").replace("\u{1b}[31m", "");
            assert_eq!(bare.replace("\u{1b}[1m", ""), left, "{given:?}");
        }
    }

    #[test]
    fn colours_stay_where_they_are_wanted_and_end_with_the_line() {
        assert_eq!(
            coloured("\u{1b}[1;31mE\nplain\n"),
            "\u{1b}[1;31mE\u{1b}[0m\nplain\n"
        );
        assert_eq!(coloured("\u{1b}[>4;2mE\n"), "E\n", "a mode, not a colour");
    }

    #[test]
    fn of_a_progress_bar_the_last_drawing_is_left() {
        let bar = "epoch 1\n\r 10%|#\r 50%|###\u{1b}[A\r100%|######|\nnext\r\n";
        assert_eq!(plain(bar), "epoch 1\n100%|######|\nnext\n");
        let mut log = LogText::new(Show::Plain);
        assert_eq!(log.push("\r 10%|#\r 50%|##"), "");
        assert_eq!(log.unfinished(), " 50%|##");
        assert_eq!(log.push("#\r"), "");
        assert_eq!(log.unfinished(), " 50%|###", "until it is drawn again");
        assert_eq!(log.finish(), " 50%|###\n");
    }

    #[test]
    fn pieces_give_what_the_whole_gives_wherever_they_are_cut() {
        let text = "a\u{1b}[31mb\u{1b}]52;c;x\u{1b}\\c\rd\u{1b}[0me\r\nf\u{9b}1mg";
        for at in (0..=text.len()).filter(|at| text.is_char_boundary(*at)) {
            let mut log = LogText::new(Show::Plain);
            let mut out = log.push(&text[..at]);
            out.push_str(&log.push(&text[at..]));
            out.push_str(log.unfinished());
            assert_eq!(out, plain(text), "cut at {at}");
        }
    }

    #[test]
    fn a_line_without_an_end_is_given_out_in_parts() {
        let mut log = LogText::new(Show::Plain);
        let mut out = 0;
        for _ in 0..100 {
            out += log.push(&"x".repeat(10_000)).len();
            assert!(log.unfinished().len() < LINE_BYTES_MAX);
        }
        assert_eq!(out + log.unfinished().len(), 1_000_000);
        let mut endless = LogText::new(Show::Plain);
        endless.push(&format!("\u{1b}]{}", "A".repeat(1_000_000)));
        assert!(endless.push("\nafter\n").ends_with("after\n"));
    }
}
