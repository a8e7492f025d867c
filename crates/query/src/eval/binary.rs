//! Binary operators: choice by the types of the operands, arithmetic with scalars, and set operators. The module `pairs` implements
//! arithmetic between two vectors.

use domain::series::{ABSENT, is_absent};

use super::column::{Column, Columns, SAME_LABELS, merged};
use super::matching::match_groups;
use super::{Evaluator, Result, math};
use crate::error::EvalError;
use crate::expr::{Binary, BinaryOp};
use crate::plan::Grid;

impl Evaluator<'_> {
    pub(super) fn binary(&self, binary: &Binary, grid: Grid) -> Result<Columns> {
        let (left, right) = (self.eval(&binary.lhs, grid)?, self.eval(&binary.rhs, grid)?);
        let op = math::arithmetic(binary.op);
        Ok(match (left, right) {
            (Columns::Scalar(left), Columns::Scalar(right)) => {
                Columns::Scalar(left.into_iter().zip(right).map(|(a, b)| op(a, b)).collect())
            }
            (Columns::Vector(left), Columns::Scalar(right)) => {
                Columns::Vector(with_scalar(binary, left, &right, |vector, scalar| {
                    op(vector, scalar)
                }))
            }
            (Columns::Scalar(left), Columns::Vector(right)) => {
                Columns::Vector(with_scalar(binary, right, &left, |vector, scalar| {
                    op(scalar, vector)
                }))
            }
            (Columns::Vector(left), Columns::Vector(right)) if binary.op.is_set() => {
                Columns::Vector(set_operation(binary, &left, &right, grid)?)
            }
            (Columns::Vector(left), Columns::Vector(right)) => {
                Columns::Vector(self.paired(binary, &left, &right, grid)?)
            }
            _ => {
                return Err(EvalError::execution(
                    "binary expression must contain only scalar and instant vector types",
                ));
            }
        })
    }
}

// === a vector and a scalar ===

fn with_scalar(
    binary: &Binary,
    mut columns: Vec<Column>,
    scalars: &[f64],
    op: impl Fn(f64, f64) -> f64,
) -> Vec<Column> {
    let filters = binary.op.is_comparison() && !binary.returns_bool;
    for column in &mut columns {
        column.drop_name |= !filters;
        for (value, scalar) in column.present_with(scalars) {
            let result = op(*value, *scalar);
            *value = match (filters, result != 0.0) {
                (false, _) => result,
                (true, true) => *value,
                (true, false) => ABSENT,
            };
        }
    }
    columns.retain(|column| !column.is_empty());
    columns
}

// === set operators ===

fn set_operation(binary: &Binary, left: &[Column], right: &[Column], grid: Grid) -> Result<Vec<Column>> {
    let mut results = Vec::new();
    let mut added = Vec::new();
    for group in match_groups(&binary.matching.labels, left, right) {
        let keep = |columns: &[Column], at: usize, where_present: bool, other: &[bool]| {
            let mut column = columns[at].clone();
            let hidden = column
                .values
                .iter_mut()
                .zip(other)
                .filter(|(_, present)| **present != where_present);
            hidden.for_each(|(value, _)| *value = ABSENT);
            column
        };
        let (left_there, right_there) = (
            presence(left, &group.left, grid),
            presence(right, &group.right, grid),
        );
        match binary.op {
            BinaryOp::And => results.extend(group.left.iter().map(|at| keep(left, *at, true, &right_there))),
            BinaryOp::Unless => {
                results.extend(group.left.iter().map(|at| keep(left, *at, false, &right_there)))
            }
            _ => {
                results.extend(group.left.iter().map(|at| left[*at].clone()));
                added.extend(group.right.iter().map(|at| keep(right, *at, false, &left_there)));
            }
        }
    }
    results.append(&mut added);
    results.retain(|column| !column.is_empty());
    merged(results, SAME_LABELS)
}

/// Returns for each step whether any of the columns has a value.
pub(super) fn presence(columns: &[Column], members: &[usize], grid: Grid) -> Vec<bool> {
    let mut there = vec![false; grid.count];
    for member in members {
        there
            .iter_mut()
            .zip(&columns[*member].values)
            .for_each(|(there, value)| *there |= !is_absent(*value));
    }
    there
}
