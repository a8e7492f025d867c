//! Decides what is drawn of a chart's lines: each line, or a band of most lines and the bold lines.

use super::lines::Line;
use super::naming::Naming;
use crate::language::{marked, tr};
use crate::ui::quantile;

/// The names of the lines that summarise other lines. The legend shows only the median.
const MEDIAN: &str = marked("median of the others");
const LOW: &str = "10th percentile";
const HIGH: &str = "90th percentile";
const LOWEST: &str = "lowest";
const HIGHEST: &str = "highest";
/// Minimum number of lines for a band.
const BAND_OF_AT_LEAST: usize = 3;

/// Maximum number of lines whose extremes are drawn for each line. More of them would cover each other.
const EXTREMES_MOST: usize = 4;
/// Maximum number of lines that have their extremes in the legend: each line then has three columns.
const LISTED_MOST: usize = 128;

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
    /// As [`Role::Least`], drawn only while the line is shown alone.
    HiddenLeast,
    /// As [`Role::Greatest`], drawn only while the line is shown alone; always follows [`Role::HiddenLeast`].
    HiddenGreatest,
    /// The least value of several lines within each step.
    Lowest,
    /// The greatest value of several lines within each step; always follows [`Role::Lowest`].
    Highest,
    /// The ranks of the line with the same name: never drawn, only listed.
    Ranks,
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
            Self::HiddenLeast => "hidden least",
            Self::HiddenGreatest => "hidden greatest",
            Self::Lowest => "lowest",
            Self::Highest => "highest",
            Self::Ranks => "hidden ranks",
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

/// Returns what is drawn of these lines. If there are more than `most`: the bold lines, and a band for the others. Lines that are too many
/// for a range of their own have a common one, so that no value between two points is lost.
pub(super) fn drawn(naming: &Naming, lines: Vec<Line>, most: usize) -> Vec<Drawn> {
    let is_band = !naming.is_stacked && lines.len() > most.max(BAND_OF_AT_LEAST);
    let bold_lines = lines.iter().filter(|line| line.is_bold).count();
    let usual_lines = lines.len() - bold_lines;
    let has_envelope = !naming.is_stacked && (is_band || usual_lines > EXTREMES_MOST);
    let common = if has_envelope {
        envelope(&lines)
    } else {
        [vec![], vec![]]
    };
    let (mut shown, mut bold, mut edges) = (Vec::with_capacity(lines.len()), Vec::new(), Vec::new());
    let mut others = Vec::new();
    add_edges(
        &mut edges,
        [Role::Lowest, Role::Highest],
        [LOWEST, HIGHEST],
        common,
    );
    for Line {
        name,
        is_bold,
        values,
        extremes,
        ranks,
    } in lines
    {
        let is_over = !ranks.is_empty();
        let role = match (naming.is_stacked && !is_over, is_bold || is_over) {
            (true, _) => Role::Area,
            (false, true) => Role::Bold,
            (false, false) => Role::Line,
        };
        if is_band && role == Role::Line {
            others.push(values);
            continue;
        }
        let peers = if is_bold { bold_lines } else { usual_lines };
        if role != Role::Area && peers <= LISTED_MOST {
            let roles = if peers <= EXTREMES_MOST {
                [Role::Least, Role::Greatest]
            } else {
                [Role::HiddenLeast, Role::HiddenGreatest]
            };
            add_edges(&mut edges, roles, [&name, &name], extremes);
        }
        if is_over {
            edges.push(Drawn {
                name: name.clone(),
                role: Role::Ranks,
                values: ranks,
            });
        }
        let list = if role == Role::Bold { &mut bold } else { &mut shown };
        list.push(Drawn { name, role, values });
    }
    // Bold lines are drawn last, above the others.
    let mut all = if is_band { band(&others) } else { vec![] };
    all.append(&mut shown);
    all.append(&mut bold);
    // After all lines, so that the colours of lines do not depend on them.
    all.append(&mut edges);
    all
}

/// Adds the edges of the band between two extremes, if they are known.
fn add_edges(edges: &mut Vec<Drawn>, roles: [Role; 2], names: [&str; 2], values: [Vec<f64>; 2]) {
    if values.iter().any(Vec::is_empty) {
        return;
    }
    for ((role, name), values) in roles.into_iter().zip(names).zip(values) {
        let name = name.to_owned();
        edges.push(Drawn { name, role, values });
    }
}

/// Returns the least of the least and the greatest of the greatest values at each time, of the lines that are not bold.
fn envelope(lines: &[Line]) -> [Vec<f64>; 2] {
    let over = |part: usize, pick: fn(f64, f64) -> f64| {
        let mut all: Vec<f64> = Vec::new();
        for line in lines.iter().filter(|line| !line.is_bold) {
            let values = &line.extremes[part];
            all.resize(all.len().max(values.len()), f64::NAN);
            for (one, value) in all.iter_mut().zip(values) {
                // A comparison with NaN returns the number.
                *one = pick(*one, *value);
            }
        }
        all
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
            ranks: vec![],
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

    /// Returns the two edges of the envelope as text, so that gaps compare as equal.
    fn envelope_of(drawn: &[Drawn]) -> Vec<String> {
        let is_edge = |line: &&Drawn| matches!(line.role, Role::Lowest | Role::Highest);
        let edges = drawn.iter().filter(is_edge);
        edges.map(|line| format!("{:?}", line.values)).collect()
    }

    #[test]
    fn few_lines_have_their_extremes() {
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
        let unknown = drawn(&Naming::by("rank"), ranks(2, usize::MAX), 16);
        assert!(unknown.iter().all(|line| line.role == Role::Line));
    }

    #[test]
    fn several_lines_have_common_extremes_and_list_their_own() {
        let several = drawn(&Naming::by("rank"), with_extremes(8), 16);
        assert_eq!(several.len(), 8 + 2 + 2 * 8);
        assert_eq!(envelope_of(&several), ["[-1.0, NaN]", "[8.0, NaN]"]);
        let last = roles(&several[24..]);
        assert_eq!(
            last,
            [("rank 7", Role::HiddenLeast), ("rank 7", Role::HiddenGreatest)]
        );
        let all = drawn(&Naming::by("rank"), with_extremes(LISTED_MOST + 1), usize::MAX);
        assert_eq!(all.len(), LISTED_MOST + 1 + 2, "too many to list");
        assert_eq!(envelope_of(&all).len(), 2);
    }

    #[test]
    fn a_band_has_the_extremes_of_its_lines_and_what_stands_out_has_its_own() {
        let mut lines = with_extremes(20);
        lines[19].is_bold = true;
        let many = drawn(&Naming::by("rank"), lines, 16);
        assert_eq!(envelope_of(&many), ["[-1.0, NaN]", "[19.0, NaN]"]);
        let last = roles(&many[6..]);
        assert_eq!(last, [("rank 19", Role::Least), ("rank 19", Role::Greatest)]);
    }

    #[test]
    fn a_line_over_a_stack_is_bold_and_has_its_ranks() {
        let mut lines = ranks(3, usize::MAX);
        lines[1].ranks = vec![7.0, f64::NAN];
        let drawn = drawn(&Naming::by("part").stacked(), lines, 16);
        let expected = [
            ("rank 0", Role::Area),
            ("rank 2", Role::Area),
            ("rank 1", Role::Bold),
            ("rank 1", Role::Ranks),
        ];
        assert_eq!(roles(&drawn), expected);
    }

    #[test]
    fn parts_of_a_whole_are_never_a_band() {
        for lines in [ranks(20, 0), with_extremes(20)] {
            let drawn = drawn(&Naming::by("part").stacked(), lines, 16);
            assert!(drawn.len() == 20 && drawn.iter().all(|line| line.role == Role::Area));
        }
    }
}
