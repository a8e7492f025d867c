//! Decides what is drawn of a chart's lines: each line, or a band of most lines and the bold lines.

use super::lines::Line;
use super::naming::Naming;
use crate::language::{marked, tr};
use crate::ui::quantile;

/// The names of the lines that summarise other lines. The legend shows only the median.
const MEDIAN: &str = marked("median of the others");
const LOW: &str = "10th percentile";
const HIGH: &str = "90th percentile";
/// Minimum number of lines for a band.
const BAND_OF_AT_LEAST: usize = 3;

/// Maximum number of lines whose extremes are drawn. More of them would cover each other.
const EXTREMES_MOST: usize = 4;

/// How a line is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// One of several lines.
    Line,
    /// A bold line.
    Bold,
    /// The lower edge of the band.
    Low,
    /// The upper edge of the band.
    High,
    /// The median in the band.
    Median,
    /// A part of a whole, stacked on the part before it.
    Area,
    /// The least value within each step of the line with the same name.
    Least,
    /// The greatest value within each step of that line; always follows [`Role::Least`].
    Greatest,
}

impl Role {
    /// The role's name in `chart.js`.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Line => "line",
            Self::Bold => "bold",
            Self::Low => "low",
            Self::High => "high",
            Self::Median => "median",
            Self::Area => "area",
            Self::Least => "least",
            Self::Greatest => "greatest",
        }
    }
}

/// A line to draw.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Drawn {
    /// The name of the line.
    pub(super) name: String,
    /// How the line is drawn.
    pub(super) role: Role,
    /// One value per time, NaN if there is none.
    pub(super) values: Vec<f64>,
}

/// Returns what is drawn of these lines. If there are more than `most`: the bold lines, and a band for the others.
pub(super) fn drawn(naming: &Naming, lines: Vec<Line>, most: usize) -> Vec<Drawn> {
    let is_band = !naming.is_stacked && lines.len() > most.max(BAND_OF_AT_LEAST);
    let has_extremes = !naming.is_stacked && lines.len() <= EXTREMES_MOST;
    let (mut shown, mut bold, mut edges) = (Vec::with_capacity(lines.len()), Vec::new(), Vec::new());
    let (mut others, mut other_extremes) = (Vec::new(), Vec::new());
    for Line {
        name,
        is_bold,
        values,
        extremes,
    } in lines
    {
        let role = match (naming.is_stacked, is_bold) {
            (true, _) => Role::Area,
            (false, true) => Role::Bold,
            (false, false) => Role::Line,
        };
        if is_band && role == Role::Line {
            others.push(values);
            other_extremes.push(extremes);
            continue;
        }
        if has_extremes {
            add_edges(&mut edges, &name, extremes);
        }
        let list = if role == Role::Bold { &mut bold } else { &mut shown };
        list.push(Drawn { name, role, values });
    }
    // Bold lines are drawn last, above the others.
    let mut all = if is_band { band(&others) } else { vec![] };
    add_edges(&mut edges, tr(MEDIAN), envelope(&other_extremes));
    all.append(&mut shown);
    all.append(&mut bold);
    // After all lines, so that the colours of lines do not depend on them.
    all.append(&mut edges);
    all
}

/// Adds the edges of the band between the extremes, if they are known.
fn add_edges(edges: &mut Vec<Drawn>, name: &str, [least, greatest]: [Vec<f64>; 2]) {
    if least.is_empty() || greatest.is_empty() {
        return;
    }
    for (role, values) in [(Role::Least, least), (Role::Greatest, greatest)] {
        let name = name.to_owned();
        edges.push(Drawn { name, role, values });
    }
}

/// Returns the least of the least and the greatest of the greatest values at each time.
fn envelope(extremes: &[[Vec<f64>; 2]]) -> [Vec<f64>; 2] {
    let times = extremes.iter().map(|[least, _]| least.len()).max().unwrap_or(0);
    let over = |part: usize, pick: fn(f64, f64) -> f64| {
        let at = |at: usize| {
            extremes
                .iter()
                .filter_map(move |line| line[part].get(at).copied())
        };
        // A comparison with NaN returns the number.
        (0..times).map(|time| at(time).fold(f64::NAN, pick)).collect()
    };
    [over(0, f64::min), over(1, f64::max)]
}

/// Returns the 10th percentile, the 90th percentile and the median at each time.
fn band(lines: &[Vec<f64>]) -> Vec<Drawn> {
    let times = lines.iter().map(Vec::len).max().unwrap_or(0);
    let [mut low, mut high, mut median] = [LOW, HIGH, MEDIAN].map(|_| Vec::with_capacity(times));
    let mut values = Vec::with_capacity(lines.len());
    for at in 0..times {
        values.clear();
        values.extend(lines.iter().filter_map(|line| line.get(at)).copied());
        low.push(quantile(&values, 0.1));
        high.push(quantile(&values, 0.9));
        median.push(quantile(&values, 0.5));
    }
    let one = |name: &str, role, values| Drawn {
        name: name.to_owned(),
        role,
        values,
    };
    vec![
        one(LOW, Role::Low, low),
        one(HIGH, Role::High, high),
        one(tr(MEDIAN), Role::Median, median),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roles(drawn: &[Drawn]) -> Vec<(&str, Role)> {
        drawn.iter().map(|line| (line.name.as_str(), line.role)).collect()
    }

    fn ranks(count: usize, bold: usize) -> Vec<Line> {
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let line = |rank: usize| Line {
            name: format!("rank {rank}"),
            is_bold: rank == bold,
            values: vec![rank as f64, f64::NAN],
            extremes: [vec![], vec![]],
        };
        (0..count).map(line).collect()
    }

    #[test]
    fn few_lines_are_drawn_each_and_what_stands_out_above_them() {
        let drawn = drawn(&Naming::by("rank"), ranks(3, 0), 16);
        let expected = [
            ("rank 1", Role::Line),
            ("rank 2", Role::Line),
            ("rank 0", Role::Bold),
        ];
        assert_eq!(roles(&drawn), expected);
    }

    #[test]
    fn many_lines_are_a_band_and_those_that_stand_out() {
        let drawn = drawn(&Naming::by("rank"), ranks(102, 101), 16);
        let expected = [
            (LOW, Role::Low),
            (HIGH, Role::High),
            (MEDIAN, Role::Median),
            ("rank 101", Role::Bold),
        ];
        assert_eq!(roles(&drawn), expected);
        assert_eq!(drawn[0].values[0].to_bits(), 10.0_f64.to_bits());
        assert_eq!(drawn[1].values[0].to_bits(), 90.0_f64.to_bits());
        assert_eq!(drawn[2].values[0].to_bits(), 50.0_f64.to_bits());
        assert!(
            drawn[2].values[1].is_nan(),
            "a time at which no line has a value is a gap"
        );
    }

    fn with_extremes(count: usize) -> Vec<Line> {
        let mut lines = ranks(count, usize::MAX);
        for line in &mut lines {
            let value = line.values[0];
            line.extremes = [vec![value - 1.0, f64::NAN], vec![value + 1.0, f64::NAN]];
        }
        lines
    }

    #[test]
    fn few_lines_have_their_extremes_and_a_band_has_those_of_all() {
        let few = drawn(&Naming::by("rank"), with_extremes(2), 16);
        let expected = [
            ("rank 0", Role::Line),
            ("rank 1", Role::Line),
            ("rank 0", Role::Least),
            ("rank 0", Role::Greatest),
            ("rank 1", Role::Least),
            ("rank 1", Role::Greatest),
        ];
        assert_eq!(roles(&few), expected);
        let several = drawn(&Naming::by("rank"), with_extremes(5), 16);
        assert!(
            several.iter().all(|line| line.role == Role::Line),
            "they would cover each other"
        );
        let many = drawn(&Naming::by("rank"), with_extremes(20), 16);
        let [least, greatest] = &many[3..] else {
            panic!("two edges: {many:?}")
        };
        assert_eq!((least.role, greatest.role), (Role::Least, Role::Greatest));
        assert_eq!(
            format!("{:?} {:?}", least.values, greatest.values),
            "[-1.0, NaN] [20.0, NaN]"
        );
    }

    #[test]
    fn parts_of_a_whole_are_never_a_band() {
        let drawn = drawn(&Naming::by("part").stacked(), ranks(20, 0), 16);
        assert!(drawn.len() == 20 && drawn.iter().all(|line| line.role == Role::Area));
    }
}
