//! Where logs are printed: a terminal, where a line may be drawn again, or anything else, where it may not.

use std::collections::BTreeMap;
use std::io::IsTerminal;

use domain::run::log_text::{LogText, Show};

use super::Who;

/// Columns of a terminal that does not say how many it has.
const COLUMNS_DEFAULT: usize = 80;

/// The output.
pub(super) struct Paper {
    show: Show,
    /// Several logs share the output: whole lines only, each behind its rank.
    prefixed: bool,
    /// The unfinished line of the only log is on the terminal, to be drawn again.
    drawn: Option<String>,
    logs: BTreeMap<Who, LogText>,
}

impl Paper {
    pub(super) fn new(prefixed: bool) -> Self {
        let is_terminal = std::io::stdout().is_terminal();
        Self {
            show: if is_terminal { Show::Colours } else { Show::Plain },
            prefixed,
            drawn: None,
            logs: BTreeMap::new(),
        }
    }

    pub(super) fn write(&mut self, who: Who, text: &str) {
        let show = self.show;
        let lines = self
            .logs
            .entry(who)
            .or_insert_with(|| LogText::new(show))
            .push(text);
        self.print(who, &lines);
        self.draw(who);
    }

    /// Prints what has no line end yet; the logs begin anew behind it.
    pub(super) fn finish(&mut self) {
        for (who, mut log) in std::mem::take(&mut self.logs) {
            self.print(who, &log.finish());
        }
    }

    fn print(&mut self, who: Who, lines: &str) {
        if lines.is_empty() {
            return;
        }
        if self.drawn.take().is_some() {
            crate::say::write("\r\u{1b}[K");
        }
        crate::say::write(&prefixed(self.prefixed.then_some(who), lines));
    }

    fn draw(&mut self, who: Who) {
        let Some(log) = self
            .logs
            .get(&who)
            .filter(|_| self.show == Show::Colours && !self.prefixed)
        else {
            return;
        };
        let line = shortened(log.unfinished(), columns());
        if !line.is_empty() && self.drawn.as_ref() != Some(&line) {
            crate::say::write(&format!("\r\u{1b}[K{line}\u{1b}[0m"));
            self.drawn = Some(line);
        }
    }
}

fn prefixed(who: Option<Who>, lines: &str) -> String {
    let Some(who) = who else { return lines.to_owned() };
    let who = who.map_or("[launcher]".to_owned(), |rank| format!("[rank {rank}]"));
    lines
        .split_inclusive('\n')
        .map(|line| format!("{who} {}\n", line.trim_end_matches('\n')))
        .collect()
}

/// A line that fits into one row, so that it can be drawn again; colours are left out of what is cut.
fn shortened(line: &str, columns: usize) -> String {
    if line.chars().count() < columns {
        return line.to_owned();
    }
    domain::run::log_text::plain(line)
        .chars()
        .take(columns.saturating_sub(1))
        .collect()
}

fn columns() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stdout());
    size.map_or(COLUMNS_DEFAULT, |size| usize::from(size.ws_col))
        .max(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_stands_behind_its_rank() {
        assert_eq!(prefixed(Some(Some(3)), "a\nb\n"), "[rank 3] a\n[rank 3] b\n");
        assert_eq!(prefixed(Some(None), "a\n"), "[launcher] a\n");
        assert_eq!(prefixed(None, "a\nb\n"), "a\nb\n");
    }

    #[test]
    fn a_line_to_be_drawn_again_fits_into_a_row() {
        assert_eq!(shortened("50%", 10), "50%");
        assert_eq!(shortened("\u{1b}[31m0123456789", 5), "0123");
    }
}
