//! The end of a log file, assembled from pieces.
//!
//! After a reconnect the collector sends the last bytes again. The offsets show which bytes are known, so no line appears twice.

use domain::api::runs::LogPiece;

/// Maximum number of bytes kept on the page.
const KEPT_BYTES: usize = 128 * 1024;

/// The text shown.
#[derive(Default)]
pub(super) struct Tail {
    text: String,
    /// The offset in the file after the text.
    end: u64,
    /// Lines that ended since the page follows the log.
    lines: usize,
}

impl Tail {
    /// Returns the text.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the number of lines that arrived, including removed ones.
    pub(super) fn lines(&self) -> usize {
        self.lines
    }

    /// Appends the new bytes of a piece. If there is a gap, the piece replaces the text.
    pub(super) fn take(&mut self, piece: &LogPiece) {
        let known = self
            .end
            .checked_sub(piece.offset)
            .filter(|_| piece.next_offset >= self.end);
        match known.map(usize::try_from) {
            // If invalid bytes were replaced, the text's length differs from the file's and `get` may return `None`: then the text is
            // replaced.
            Some(Ok(known)) if piece.text.is_char_boundary(known) => self.push(&piece.text[known..]),
            _ => {
                self.text.clear();
                self.push(&piece.text);
            }
        }
        self.end = piece.next_offset;
        self.forget_the_oldest();
    }

    fn push(&mut self, new: &str) {
        self.lines += new.bytes().filter(|byte| *byte == b'\n').count();
        self.text.push_str(new);
    }

    fn forget_the_oldest(&mut self) {
        let too_much = self.text.len().saturating_sub(KEPT_BYTES);
        if too_much > 0 {
            let line_end = self.text.as_bytes()[too_much..]
                .iter()
                .position(|byte| *byte == b'\n');
            let cut = line_end.map_or(self.text.len(), |at| too_much + at + 1);
            self.text.drain(..cut);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::api::runs::LogSource;
    use domain::ident::AttemptNo;

    fn piece(offset: u64, text: &str) -> LogPiece {
        let next_offset = offset + text.len() as u64;
        LogPiece {
            source: LogSource {
                attempt: AttemptNo(1),
                node: "n".into(),
                rank: None,
                stream: "stdout".into(),
            },
            offset,
            next_offset,
            length: next_offset,
            text: text.into(),
            missing: 0,
        }
    }

    fn check(pieces: &[(u64, &str)], expected: &str) {
        let mut tail = Tail::default();
        pieces
            .iter()
            .for_each(|(offset, text)| tail.take(&piece(*offset, text)));
        assert_eq!(tail.text(), expected);
    }

    #[test]
    fn pieces_are_joined_and_nothing_shows_twice() {
        check(&[(0, "ab"), (2, "cd")], "abcd");
        check(&[(10, "ab"), (12, "cd"), (11, "bcde")], "abcde");
        check(&[(10, "ab"), (10, "ab")], "ab");
        check(&[(0, "ab"), (100, "yz")], "yz");
        check(&[(100, "yz"), (0, "ab")], "ab");
    }

    #[test]
    fn lines_that_arrive_are_counted_once() {
        let mut tail = Tail::default();
        tail.take(&piece(0, "a\nb\n"));
        tail.take(&piece(2, "b\nc\nd"));
        assert_eq!((tail.text(), tail.lines()), ("a\nb\nc\nd", 3));
    }

    #[test]
    fn the_oldest_lines_go_first() {
        let line = "x".repeat(99) + "\n";
        let mut tail = Tail::default();
        tail.take(&piece(0, &line.repeat(2_000)));
        assert!(tail.text().len() <= KEPT_BYTES && tail.text().len() > KEPT_BYTES - 200);
        assert_eq!(tail.text().len() % 100, 0, "begins with a whole line");
    }
}
