//! Prints logs to a terminal, where an unfinished line is redrawn, or to another output, where it is not.

use std::collections::BTreeMap;
use std::io::IsTerminal;

use domain::run::log_text::{LogText, Show};

use super::LogWriter;

/// Width in columns if the terminal does not report it.
const COLUMNS_DEFAULT: usize = 80;

/// The output.
pub(super) struct LogPrinter {
    show: Show,
    /// Several logs share the output: only whole lines are printed, each with its rank in front.
    prefixed: bool,
    /// The unfinished line that is on the terminal and can be redrawn; only if there is one log.
    drawn: Option<String>,
    logs: BTreeMap<LogWriter, LogText>,
}

impl LogPrinter {
    pub(super) fn new(prefixed: bool) -> Self {
        let is_terminal = std::io::stdout().is_terminal();
        Self {
            show: if is_terminal { Show::Colours } else { Show::Plain },
            prefixed,
            drawn: None,
            logs: BTreeMap::new(),
        }
    }

    pub(super) fn write(&mut self, writer: LogWriter, text: &str) {
        let show = self.show;
        let lines = self
            .logs
            .entry(writer)
            .or_insert_with(|| LogText::new(show))
            .push(text);
        self.print(writer, &lines);
        self.draw(writer);
    }

    /// Prints the unfinished lines. Later text starts with new logs.
    pub(super) fn finish(&mut self) {
        for (writer, mut log) in std::mem::take(&mut self.logs) {
            self.print(writer, &log.finish());
        }
    }

    fn print(&mut self, writer: LogWriter, lines: &str) {
        if lines.is_empty() {
            return;
        }
        if self.drawn.take().is_some() {
            crate::say::write("\r\u{1b}[K");
        }
        crate::say::write(&prefixed(self.prefixed.then_some(writer), lines));
    }

    fn draw(&mut self, writer: LogWriter) {
        let Some(log) = self
            .logs
            .get(&writer)
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

fn prefixed(writer: Option<LogWriter>, lines: &str) -> String {
    let Some(writer) = writer else {
        return lines.to_owned();
    };
    let writer = writer.map_or("[launcher]".to_owned(), |rank| format!("[rank {rank}]"));
    lines
        .split_inclusive('\n')
        .map(|line| format!("{writer} {}\n", line.trim_end_matches('\n')))
        .collect()
}

/// Shortens a line to one row of the terminal, so that it can be redrawn. A shortened line loses its colours.
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
    fn each_line_begins_with_its_rank() {
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
