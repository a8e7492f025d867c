//! Prints a value for a label of `count_values`. Two different texts for the same value would be two series.

use crate::format::float;

/// Of the shortest decimals that parse to this number, returns the nearest; if two are equally near, the one with an even last digit, as in
/// Go.
pub(super) fn value_label(value: f64) -> String {
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
    fn of_two_equally_near_texts_the_even_one_is_used() {
        for (value, text) in [
            (553_322.0 + 18.0 / 4_096.0, "553322.0043945312"),
            (836_405.0 + 34.0 / 4_096.0, "836405.0083007812"),
            (0.1, "0.1"),
            (-0.0, "-0"),
            (f64::NEG_INFINITY, "-Inf"),
        ] {
            assert_eq!(value_label(value), text);
        }
    }
}
