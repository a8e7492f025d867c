//! Prints plain tables to the terminal. Columns are as wide as their contents, and control characters are replaced.

/// Prints rows under a header.
pub(crate) fn print(header: &[&str], rows: &[Vec<String>]) {
    crate::say::write(&render(header, rows));
}

/// Returns the table as text.
pub(crate) fn render(header: &[&str], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> = std::iter::once(header.iter().map(|name| (*name).to_owned()).collect())
        .chain(
            rows.iter()
                .map(|row| row.iter().map(|cell| printable(cell)).collect()),
        )
        .collect();
    let widths: Vec<usize> = (0..header.len())
        .map(|column| {
            rows.iter()
                .filter_map(|row: &Vec<String>| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut out = String::new();
    for row in &rows {
        let cells = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Replaces control characters, so that text from elsewhere cannot control the terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_escapes_are_disarmed() {
        let rows = vec![
            vec!["a".to_owned(), "1".to_owned()],
            vec!["long\u{1b}[31m".to_owned(), "2".to_owned()],
        ];
        assert_eq!(
            render(&["NAME", "N"], &rows),
            "NAME       N\na          1\nlong\u{fffd}[31m  2\n"
        );
    }
}
