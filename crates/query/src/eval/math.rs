//! Functions of one value, and arithmetic and comparison for binary operators.

use crate::expr::BinaryOp;
use crate::function::Function;

/// Returns the function that computes the result for one number.
pub(super) fn unary(function: Function) -> Option<fn(f64) -> f64> {
    Some(match function {
        Function::Abs => f64::abs,
        Function::Ceil => f64::ceil,
        Function::Floor => f64::floor,
        Function::Exp => f64::exp,
        Function::Ln => f64::ln,
        Function::Log2 => f64::log2,
        Function::Log10 => f64::log10,
        Function::Sqrt => f64::sqrt,
        Function::Sgn => sign,
        Function::Sin => f64::sin,
        Function::Cos => f64::cos,
        Function::Tan => f64::tan,
        Function::Asin => f64::asin,
        Function::Acos => f64::acos,
        Function::Atan => f64::atan,
        Function::Sinh => f64::sinh,
        Function::Cosh => f64::cosh,
        Function::Tanh => f64::tanh,
        Function::Asinh => f64::asinh,
        Function::Acosh => f64::acosh,
        Function::Atanh => f64::atanh,
        Function::Deg => f64::to_degrees,
        Function::Rad => f64::to_radians,
        _ => return None,
    })
}

/// Returns -1 or 1; zero and NaN are returned unchanged.
fn sign(value: f64) -> f64 {
    if value > 0.0 {
        1.0
    } else if value < 0.0 {
        -1.0
    } else {
        value
    }
}

/// `round`: rounds to the nearest multiple, halves up.
pub(super) fn round(value: f64, nearest: f64) -> f64 {
    // Prometheus multiplies by the inverse. Doing the same gives identical bits.
    let inverse = 1.0 / nearest;
    (value * inverse + 0.5).floor() / inverse
}

/// Returns the function for an operator on two numbers. Comparisons return 1 or 0.
pub(super) fn arithmetic(op: BinaryOp) -> fn(f64, f64) -> f64 {
    match op {
        BinaryOp::Add => |a, b| a + b,
        BinaryOp::Sub => |a, b| a - b,
        BinaryOp::Mul => |a, b| a * b,
        BinaryOp::Div => |a, b| a / b,
        BinaryOp::Mod => |a, b| a % b,
        BinaryOp::Pow => f64::powf,
        BinaryOp::Atan2 => f64::atan2,
        BinaryOp::Equal => |a, b| f64::from(a == b),
        BinaryOp::NotEqual => |a, b| f64::from(a != b),
        BinaryOp::Less => |a, b| f64::from(a < b),
        BinaryOp::LessEqual => |a, b| f64::from(a <= b),
        BinaryOp::Greater => |a, b| f64::from(a > b),
        BinaryOp::GreaterEqual => |a, b| f64::from(a >= b),
        // Set operators use labels and never values.
        BinaryOp::And | BinaryOp::Or | BinaryOp::Unless => |a, _| a,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_to_multiples_with_halves_up() {
        assert_eq!(round(2.5, 1.0), 3.0);
        assert_eq!(round(-2.5, 1.0), -2.0);
        assert_eq!(round(7.3, 5.0), 5.0);
    }

    #[test]
    fn a_sign_keeps_zero_and_nan() {
        assert_eq!((sign(-0.1), sign(7.0), sign(0.0)), (-1.0, 1.0, 0.0));
        assert!(sign(f64::NAN).is_nan());
    }
}
