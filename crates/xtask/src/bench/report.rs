//! The report of a benchmark: rows and notes. It is printed, and written as a section of docs/benchmarks.md.

use anyhow::Result;

use super::table::{self, Row};
use crate::layout::Layout;
use crate::measure::{machine, section};
use crate::progress::result;

const INTRODUCTION: &str = "# Benchmarks

Written by `cargo xtask bench`. Each run replaces its own section. The figures are from one machine and one run: compare the ratios.
";

/// Rows, and notes for readers.
#[derive(Default)]
pub(crate) struct Measured {
    pub(crate) rows: Vec<Row>,
    pub(crate) notes: Vec<String>,
}

impl Measured {
    /// Adds the results of another part.
    pub(crate) fn add(&mut self, other: Self) {
        self.rows.extend(other.rows);
        self.notes.extend(other.notes);
    }
}

/// A section of the document.
pub(crate) struct Report {
    pub(crate) heading: &'static str,
    /// Read before the run, because the checkout may change during the measurement.
    pub(crate) revision: String,
    /// One paragraph about what was measured.
    pub(crate) about: String,
}

impl Report {
    /// Prints the report. With `keep`, also replaces its section in the document.
    pub(crate) fn finish(&self, layout: &Layout, measured: &Measured, keep: bool) -> Result<()> {
        self.finish_table(layout, &table::render(&measured.rows), &measured.notes, keep)
    }

    /// The same with a table of other columns.
    pub(crate) fn finish_table(
        &self,
        layout: &Layout,
        table: &str,
        notes: &[String],
        keep: bool,
    ) -> Result<()> {
        let text = self.text(table, notes);
        result(&format!("\n{text}"));
        if keep {
            let file = layout.root.join("docs/benchmarks.md");
            section::keep(&file, INTRODUCTION, self.heading, &text)?;
        }
        Ok(())
    }

    fn text(&self, table: &str, notes: &[String]) -> String {
        let command: Vec<String> = std::env::args().skip(1).collect();
        let notes = notes.iter().map(|note| format!("- {note}\n"));
        format!(
            "{} · revision {} · `cargo xtask {}`\n\n{}\n\n{}\n\n{}\n{}",
            machine::today(),
            self.revision,
            command.join(" "),
            machine::describe(),
            self.about,
            table,
            notes.collect::<String>(),
        )
    }
}
