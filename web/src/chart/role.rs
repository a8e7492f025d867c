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
    let (mut shown, mut bold) = (Vec::with_capacity(lines.len()), Vec::new());
    let mut others = Vec::new();
    for Line {
        name,
        is_bold,
        values,
    } in lines
    {
        let role = match (naming.is_stacked, is_bold) {
            (true, _) => Role::Area,
            (false, true) => Role::Bold,
            (false, false) => Role::Line,
        };
        if is_band && role == Role::Line {
            others.push(values);
            continue;
        }
        let list = if role == Role::Bold { &mut bold } else { &mut shown };
        list.push(Drawn { name, role, values });
    }
    // Bold lines are drawn last, above the others.
    let mut all = if is_band { band(&others) } else { vec![] };
    all.append(&mut shown);
    all.append(&mut bold);
    all
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

    #[test]
    fn parts_of_a_whole_are_never_a_band() {
        let drawn = drawn(&Naming::by("part").stacked(), ranks(20, 0), 16);
        assert!(drawn.len() == 20 && drawn.iter().all(|line| line.role == Role::Area));
    }
}
