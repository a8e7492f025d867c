//! The colour numbers of cells on a canvas. `grid.js` knows the colours.

/// The colour number of a cell without a value.
pub(crate) const UNMEASURED: u8 = 0;
/// The number of steps between the first and the last colour. 255 is not a colour of the scale.
const STEPS: f64 = 253.0;

/// Returns the colour number for a share of the scale; unmeasured if it is NaN.
pub(crate) fn shade(share: f64) -> u8 {
    if share.is_nan() {
        return UNMEASURED;
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 1 and 254"
    )]
    let number = (share.clamp(0.0, 1.0) * STEPS).round() as u8 + 1;
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_beyond_the_scale_have_its_end_colours() {
        let shades = [-0.5, 0.0, 0.5, 1.0, 2.0, f64::NAN].map(shade);
        assert_eq!(shades, [1, 1, 128, 254, 254, UNMEASURED]);
    }
}
