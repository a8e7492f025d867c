//! Prints the measured bandwidth between the nodes of an attempt: a matrix if it fits the terminal, otherwise the slowest pairs.

use domain::api::runs::{BandwidthFigure, BandwidthView};

use crate::table;

/// The most columns that fit a terminal of 120 characters.
const MATRIX_NODES_MAX: usize = 12;
/// Number of pairs shown if there are too many nodes for a matrix.
const SLOWEST: usize = 10;

/// Returns the text, with a title line.
pub(super) fn shown(view: &BandwidthView) -> String {
    let mut nodes: Vec<&str> = view
        .figures
        .iter()
        .flat_map(|figure| [figure.from.as_str(), figure.to.as_str()])
        .collect();
    nodes.sort_unstable();
    nodes.dedup();
    let usual = view
        .usual_mib_s
        .map_or(String::new(), |usual| format!(", usually {usual:.0} MiB/s"));
    let slow = view
        .slow_below_mib_s
        .map_or(String::new(), |limit| format!(", slow (!) below {limit:.0}"));
    let head = format!(
        "  bandwidth between nodes, {} of {} rounds{usual}{slow}:\n",
        view.rounds_done, view.rounds
    );
    let body = if nodes.len() <= MATRIX_NODES_MAX {
        matrix(&nodes, &view.figures)
    } else {
        slowest(&view.figures)
    };
    head + &body
}

fn matrix(nodes: &[&str], figures: &[BandwidthFigure]) -> String {
    let mut header = vec!["  MiB/s from \\ to"];
    header.extend(nodes);
    let cell = |from: &str, to: &str| {
        let figure = figures
            .iter()
            .find(|figure| figure.from == from && figure.to == to);
        figure.map_or("-".to_owned(), rate)
    };
    let rows: Vec<Vec<String>> = nodes
        .iter()
        .map(|from| {
            let cells = nodes.iter().map(|to| cell(from, to));
            std::iter::once(format!("  {from}")).chain(cells).collect()
        })
        .collect();
    table::render(&header, &rows)
}

fn slowest(figures: &[BandwidthFigure]) -> String {
    let mut figures: Vec<&BandwidthFigure> = figures.iter().collect();
    figures.sort_by(|a, b| a.mib_s.unwrap_or(-1.0).total_cmp(&b.mib_s.unwrap_or(-1.0)));
    let rows: Vec<Vec<String>> = figures
        .iter()
        .take(SLOWEST)
        .map(|figure| vec![format!("  {}", figure.from), figure.to.clone(), rate(figure)])
        .collect();
    table::render(&["  SLOWEST FROM", "TO", "MiB/s"], &rows)
}

fn rate(figure: &BandwidthFigure) -> String {
    match figure.mib_s {
        Some(mib_s) if figure.slow => format!("{mib_s:.0}!"),
        Some(mib_s) => format!("{mib_s:.0}"),
        None => "?".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(nodes: usize) -> BandwidthView {
        let pairs = (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to)));
        BandwidthView {
            rounds: 3,
            rounds_done: 2,
            usual_mib_s: Some(1_000.4),
            slow_below_mib_s: Some(250.1),
            slow_as_asked: false,
            figures: pairs
                .filter(|(from, to)| from != to)
                .map(|(from, to)| BandwidthFigure {
                    from: format!("n{from}"),
                    to: format!("n{to}"),
                    slow: from == 2,
                    mib_s: (from + to != 1).then_some(if from == 2 { 9.6 } else { 1_000.4 }),
                    ..BandwidthFigure::default()
                })
                .collect(),
        }
    }

    #[test]
    fn a_few_nodes_are_a_matrix_and_many_are_their_slowest_pairs() {
        assert_eq!(
            shown(&view(3)),
            "  bandwidth between nodes, 2 of 3 rounds, usually 1000 MiB/s, slow (!) below 250:\n\
             \x20 MiB/s from \\ to  n0   n1   n2\n\
             \x20 n0               -    ?    1000\n\
             \x20 n1               ?    -    1000\n\
             \x20 n2               10!  10!  -\n"
        );
        let many = shown(&view(13));
        assert_eq!(many.lines().count(), 2 + SLOWEST);
        assert!(many.contains("n2            n3  10!\n"), "{many}");
    }
}
