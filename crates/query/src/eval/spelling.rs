//! How `count_values` writes a value into a label, where two spellings are two series.

use crate::format::float;

/// Of the shortest decimals that read as this number the nearest, and of two equally near ones the even, as in Go.
pub(super) fn spelled(value: f64) -> String {
    let shortest = float(value);
    let decimals = shortest.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    if decimals == 0 {
        return shortest;
    }
    let nearest = format!("{value:.decimals$}");
    if nearest.parse() == Ok(value) {
        nearest
    } else {
        shortest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_spellings_equally_near_the_even_one_is_taken() {
        for (value, text) in [
            (553_322.0 + 18.0 / 4_096.0, "553322.0043945312"),
            (836_405.0 + 34.0 / 4_096.0, "836405.0083007812"),
            (0.1, "0.1"),
            (-0.0, "-0"),
            (f64::NEG_INFINITY, "-Inf"),
        ] {
            assert_eq!(spelled(value), text);
        }
    }
}
