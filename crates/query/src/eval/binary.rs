//! Binary operators between scalars and vectors.
//!
//! Labels do not change from step to step, so series are matched once; what is decided at each step is only which of them
//! are there.

use std::collections::HashMap;

use domain::series::{ABSENT, Labels, METRIC_NAME, is_absent};

use super::column::{Column, Columns, SAME_LABELS, holes, merged};
use super::matching::{MatchGroup, braced, match_groups};
use super::{Evaluator, Result, math};
use crate::error::EvalError;
use crate::expr::{Binary, BinaryOp, Cardinality, MatchLabels};
use crate::plan::Grid;

const ONE_TO_ONE_AMBIGUOUS: &str =
    "multiple matches for labels: many-to-one matching must be explicit (group_left/group_right)";
const GROUPED_AMBIGUOUS: &str = "multiple matches for labels: grouping labels must ensure unique matches";

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
                let sides = Sides::new(binary, &left, &right);
                self.pay_for_cells(sides.many.len(), grid)?;
                Columns::Vector(sides.combined(grid)?)
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
        let present = column
            .values
            .iter_mut()
            .zip(scalars)
            .filter(|(value, _)| !is_absent(**value));
        for (value, scalar) in present {
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

/// At which steps any of the columns has a value.
fn presence(columns: &[Column], members: &[usize], grid: Grid) -> Vec<bool> {
    let mut there = vec![false; grid.count];
    for member in members {
        there
            .iter_mut()
            .zip(&columns[*member].values)
            .for_each(|(there, value)| *there |= !is_absent(*value));
    }
    there
}

// === two vectors ===

/// The two vectors, turned so that each series of `many` meets at most one of `one`.
struct Sides<'a> {
    binary: &'a Binary,
    many: &'a [Column],
    one: &'a [Column],
    /// `group_right`: the many side is the right one.
    is_swapped: bool,
    groups: Vec<MatchGroup>,
    fill_many: Option<f64>,
    fill_one: Option<f64>,
}

/// What meets at one step: the series of the many side (none when its value is filled in), and of the one side.
type Pair = (Option<usize>, Option<usize>);

impl<'a> Sides<'a> {
    fn new(binary: &'a Binary, left: &'a [Column], right: &'a [Column]) -> Self {
        let matching = &binary.matching;
        let is_swapped = matching.cardinality == Cardinality::OneToMany;
        let (many, one) = if is_swapped { (right, left) } else { (left, right) };
        // Also for `group_right`, where one would swap them: so does Prometheus.
        let (fill_many, fill_one) = (matching.fill_left, matching.fill_right);
        let groups = match_groups(&matching.labels, many, one);
        Self {
            binary,
            many,
            one,
            is_swapped,
            groups,
            fill_many,
            fill_one,
        }
    }

    fn combined(&self, grid: Grid) -> Result<Vec<Column>> {
        let all = |columns: &[Column]| presence(columns, &(0..columns.len()).collect::<Vec<_>>(), grid);
        let (any_many, any_one) = (all(self.many), all(self.one));
        let fills = self.fill_many.is_some() || self.fill_one.is_some();
        // Where one side has nothing at all there is nothing to match, and nothing to complain of.
        let matters = |step: usize| fills || (any_many[step] && any_one[step]);
        let mut results = Vec::new();
        for group in &self.groups {
            self.combine_group(group, grid, &matters, &mut results)?;
        }
        let words = match self.binary.matching.cardinality {
            Cardinality::OneToOne => SAME_LABELS,
            _ => GROUPED_AMBIGUOUS,
        };
        merged(results, words)
    }

    fn combine_group(
        &self,
        group: &MatchGroup,
        grid: Grid,
        matters: &impl Fn(usize) -> bool,
        results: &mut Vec<Column>,
    ) -> Result<()> {
        let mut rows: HashMap<Pair, usize> = HashMap::new();
        for step in (0..grid.count).filter(|step| matters(*step)) {
            let one = self.only_one(group, step)?;
            let mut meet = |pair: Pair, many: f64, one: f64| {
                let Some(value) = self.operate(many, one) else {
                    return;
                };
                let row = *rows.entry(self.row_key(pair)).or_insert_with(|| {
                    results.push(self.empty_row(group, pair, grid));
                    results.len() - 1
                });
                results[row].values[step] = value;
            };
            let mut met = 0;
            for at in group
                .left
                .iter()
                .copied()
                .filter(|at| !is_absent(self.many[*at].values[step]))
            {
                met += 1;
                let many = self.many[at].values[step];
                match (one, self.fill_one) {
                    (Some(one), _) => meet((Some(at), Some(one)), many, self.one[one].values[step]),
                    (None, Some(fill)) => meet((Some(at), None), many, fill),
                    (None, None) => {}
                }
            }
            let has_partner = one.is_some() || self.fill_one.is_some();
            if met > 1 && has_partner && self.binary.matching.cardinality == Cardinality::OneToOne {
                return Err(EvalError::execution(ONE_TO_ONE_AMBIGUOUS));
            }
            if let (false, Some(one), Some(fill)) = (met > 0, one, self.fill_many) {
                meet((None, Some(one)), fill, self.one[one].values[step]);
            }
        }
        Ok(())
    }

    /// The one series of the one side that is there.
    fn only_one(&self, group: &MatchGroup, step: usize) -> Result<Option<usize>> {
        let mut there = group
            .right
            .iter()
            .copied()
            .filter(|at| !is_absent(self.one[*at].values[step]));
        let first = there.next();
        if let (Some(first), Some(second)) = (first, there.next()) {
            return Err(EvalError::execution(format!(
                "found duplicate series for the match group {} on the {} hand-side of the operation: [{}, {}];\
                 many-to-many matching not allowed: matching labels must be unique on one side",
                braced(&group.signature),
                if self.is_swapped { "left" } else { "right" },
                braced(&self.one[first].labels),
                braced(&self.one[second].labels),
            )));
        }
        Ok(first)
    }

    /// The value of a pair, `None` where a comparison filters it out.
    fn operate(&self, many: f64, one: f64) -> Option<f64> {
        let (left, right) = if self.is_swapped { (one, many) } else { (many, one) };
        let result = math::arithmetic(self.binary.op)(left, right);
        if self.binary.op.is_comparison() && !self.binary.returns_bool {
            return (result != 0.0).then_some(left);
        }
        Some(result)
    }

    /// Pairs with one key have the same labels: the one side matters only for the labels it lends.
    fn row_key(&self, (many, one): Pair) -> Pair {
        if many.is_some() && self.binary.matching.include.is_empty() {
            (many, None)
        } else {
            (many, one)
        }
    }

    fn empty_row(&self, group: &MatchGroup, (many, one): Pair, grid: Grid) -> Column {
        let matching = &self.binary.matching;
        let column = many.map(|at| &self.many[at]);
        let mut labels = column.map_or_else(|| group.signature.clone(), |column| column.labels.clone());
        if !self.binary.op.is_comparison() {
            labels = super::nameless(&labels);
        }
        if matching.cardinality == Cardinality::OneToOne {
            labels = matched_labels(&matching.labels, &labels);
        }
        let lender = one.map_or(&group.signature, |at| &self.one[at].labels);
        for name in &matching.include {
            labels = labels.with(name, lender.get(name).unwrap_or(""));
        }
        let drop_name = self.binary.returns_bool || column.is_some_and(|column| column.drop_name);
        Column {
            labels,
            drop_name,
            values: holes(grid.count),
        }
    }
}

/// The labels of a one-to-one result: those that were compared, and with `ignoring` the name.
fn matched_labels(matching: &MatchLabels, labels: &Labels) -> Labels {
    match matching {
        MatchLabels::On(names) => labels.filtered(|name| names.iter().any(|on| on == name)),
        MatchLabels::Ignoring(names) => {
            labels.filtered(|name| name == METRIC_NAME || !names.iter().any(|ignored| ignored == name))
        }
    }
}
