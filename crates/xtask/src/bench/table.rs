//! The table of results: one row per quantity, one column per server, and the target ratio.

use std::collections::BTreeMap;

use super::database::Database;

/// One quantity of several servers.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    /// What was measured, with its unit.
    pub(crate) what: String,
    pub(crate) values: BTreeMap<Database, f64>,
    /// The maximum of Lockstep's value, as a ratio to VictoriaMetrics' value.
    pub(crate) target: Option<f64>,
    /// Whether the values are of different work, so that no target applies.
    void: bool,
}

impl Row {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            values: BTreeMap::new(),
            target: None,
            void: false,
        }
    }

    pub(crate) fn target(mut self, target: f64) -> Self {
        self.target = Some(target);
        self
    }

    pub(crate) fn value(mut self, database: Database, value: f64) -> Self {
        self.values.insert(database, value);
        self
    }

    /// Sets whether the servers' answers differed.
    pub(crate) fn void(mut self, void: bool) -> Self {
        self.void = void;
        self
    }

    /// Returns the ratio of Lockstep's value to another server's.
    fn ratio(&self, to: Database) -> Option<f64> {
        let (own, other) = (self.values.get(&Database::Lockstep)?, self.values.get(&to)?);
        (*other > 0.0).then(|| own / other)
    }

    fn verdict(&self) -> String {
        match (self.target, self.ratio(Database::VictoriaMetrics)) {
            (Some(target), Some(_)) if self.void => format!("≤ {target}: answers differ"),
            (Some(target), Some(ratio)) if ratio <= target => format!("≤ {target}: yes"),
            (Some(target), Some(_)) => format!("≤ {target}: NO"),
            (Some(target), None) => format!("≤ {target}: not measured"),
            (None, _) => String::new(),
        }
    }

    fn cells(&self) -> [String; 7] {
        let of = |database| {
            self.values
                .get(&database)
                .map_or("–".to_owned(), |value| figure(*value))
        };
        let ratio = |database| self.ratio(database).map_or("–".to_owned(), figure);
        [
            self.what.clone(),
            of(Database::Prometheus),
            of(Database::VictoriaMetrics),
            of(Database::Lockstep),
            ratio(Database::Prometheus),
            ratio(Database::VictoriaMetrics),
            self.verdict(),
        ]
    }
}

const HEAD: [&str; 7] = [
    "",
    "Prometheus",
    "VictoriaMetrics",
    "Lockstep",
    "÷ Prometheus",
    "÷ VictoriaMetrics",
    "aim",
];

/// Renders the rows as a table.
pub(crate) fn render(rows: &[Row]) -> String {
    grid(
        &HEAD,
        &rows.iter().map(|row| row.cells().to_vec()).collect::<Vec<_>>(),
    )
}

/// Renders a table that is readable as text and as Markdown: words in the first and the last column, numbers between.
pub(crate) fn grid(head: &[&str], rows: &[Vec<String>]) -> String {
    let last = head.len() - 1;
    let width = |column: usize| {
        let own = rows.iter().map(|row| row[column].chars().count());
        own.chain([head[column].chars().count()])
            .max()
            .unwrap_or_default()
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |row: &[String]| {
        let cells = row.iter().zip(&widths).enumerate();
        let padded = cells.map(|(column, (cell, width))| pad(cell, *width, column == 0 || column == last));
        format!("| {} |\n", padded.collect::<Vec<_>>().join(" | "))
    };
    let rule = widths.iter().enumerate().map(|(column, width)| {
        if column == 0 || column == last {
            "-".repeat(width + 2)
        } else {
            format!("{}:", "-".repeat(width + 1))
        }
    });
    let rule = format!("|{}|\n", rule.collect::<Vec<_>>().join("|"));
    let head: Vec<String> = head.iter().map(ToString::to_string).collect();
    [line(&head), rule]
        .into_iter()
        .chain(rows.iter().map(|row| line(row)))
        .collect()
}

fn pad(text: &str, width: usize, left: bool) -> String {
    let gap = " ".repeat(width.saturating_sub(text.chars().count()));
    if left {
        format!("{text}{gap}")
    } else {
        format!("{gap}{text}")
    }
}

/// Formats three digits, which is the precision of such a measurement.
pub(crate) fn figure(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(own: f64, target: f64) -> Row {
        Row::new("x")
            .value(Database::VictoriaMetrics, 2.0)
            .value(Database::Lockstep, own)
            .target(target)
    }

    #[test]
    fn an_aim_is_met_or_not_by_the_ratio() {
        assert!(row(0.6, 0.33).verdict().ends_with("yes"));
        assert!(row(0.7, 0.33).verdict().ends_with("NO"));
        assert!(row(0.6, 0.33).void(true).verdict().ends_with("differ"));
        assert!(Row::new("x").target(0.1).verdict().ends_with("not measured"));
    }

    #[test]
    fn all_lines_are_as_wide() {
        let text = render(&[row(0.5, 0.33), Row::new("a longer name, µs")]);
        let widths: Vec<_> = text.lines().map(|line| line.chars().count()).collect();
        assert_eq!(widths.len(), 4);
        assert!(widths.windows(2).all(|pair| pair[0] == pair[1]), "{text}");
    }

    #[test]
    fn figures_have_three_digits() {
        let figures = [1234.5, 12.345, 1.2345, 0.12345, 0.0].map(figure);
        assert_eq!(figures, ["1234", "12.3", "1.23", "0.123", "0"]);
    }
}
