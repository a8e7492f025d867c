//! Arithmetic and comparison between two vectors.
//!
//! Labels are the same at all steps, so series are matched once. At each step it only remains to find out which of them have a value.

use std::collections::HashMap;

use domain::series::{Labels, METRIC_NAME, is_absent};

use super::binary::presence;
use super::column::{Column, SAME_LABELS, absent_values, merged};
use super::matching::{MatchGroup, braced, match_groups};
use super::{Evaluator, Result, math, without_name};
use crate::error::EvalError;
use crate::expr::{Binary, Cardinality, MatchLabels, Matching};
use crate::plan::Grid;

const ONE_TO_ONE_AMBIGUOUS: &str =
    "multiple matches for labels: many-to-one matching must be explicit (group_left/group_right)";
const GROUPED_AMBIGUOUS: &str = "multiple matches for labels: grouping labels must ensure unique matches";

impl Evaluator<'_> {
    pub(super) fn paired(
        &self,
        binary: &Binary,
        left: &[Column],
        right: &[Column],
        grid: Grid,
    ) -> Result<Vec<Column>> {
        let is_swapped = binary.matching.cardinality == Cardinality::OneToMany;
        let (many, one) = if is_swapped { (right, left) } else { (left, right) };
        let groups = match_groups(&binary.matching.labels, many, one);
        let sides = Sides {
            evaluator: self,
            grid,
            binary,
            op: math::arithmetic(binary.op),
            many,
            one,
            is_swapped,
        };
        sides.combined(&groups)
    }
}

/// The two vectors, arranged so that each series of `many` is paired with at most one series of `one` at a step.
struct Sides<'a> {
    evaluator: &'a Evaluator<'a>,
    grid: Grid,
    binary: &'a Binary,
    op: fn(f64, f64) -> f64,
    many: &'a [Column],
    one: &'a [Column],
    /// True for `group_right`: the many side is the right one.
    is_swapped: bool,
}

/// The pair at one step: the series of the many side (`None` if its value is filled in) and of the one side.
type Pair = (Option<usize>, Option<usize>);

/// Result columns of a group, by pair.
#[derive(Default)]
struct Rows {
    places: HashMap<Pair, usize>,
    columns: Vec<Column>,
}

impl Sides<'_> {
    fn combined(&self, groups: &[MatchGroup]) -> Result<Vec<Column>> {
        let mut results = Vec::new();
        let all = |columns: &[Column]| presence(columns, &(0..columns.len()).collect::<Vec<_>>(), self.grid);
        let (any_many, any_one) = (all(self.many), all(self.one));
        // If one side has no values at all at a step, there is nothing to match and no error to report.
        let matters: Vec<bool> = any_many
            .iter()
            .zip(&any_one)
            .map(|(many, one)| self.has_fill() || (*many && *one))
            .collect();
        for group in groups {
            self.evaluator.budget.check_cancelled()?;
            if self.is_simple(group) {
                self.combine_simple(group, &mut results)?;
            } else {
                self.combine_stepwise(group, &matters, &mut results)?;
            }
        }
        let words = match self.matching().cardinality {
            Cardinality::OneToOne => SAME_LABELS,
            Cardinality::ManyToOne | Cardinality::OneToMany => GROUPED_AMBIGUOUS,
        };
        merged(results, words)
    }

    fn matching(&self) -> &Matching {
        &self.binary.matching
    }

    fn has_fill(&self) -> bool {
        self.matching().fill_left.is_some() || self.matching().fill_right.is_some()
    }

    // === the usual case: each series has one partner at all steps ===

    /// Returns true if at no step two series can be candidates for the same pair, and no value is filled in.
    fn is_simple(&self, group: &MatchGroup) -> bool {
        let is_grouped = self.matching().cardinality != Cardinality::OneToOne;
        group.right.len() <= 1 && (is_grouped || group.left.len() <= 1) && !self.has_fill()
    }

    fn combine_simple(&self, group: &MatchGroup, results: &mut Vec<Column>) -> Result<()> {
        let Some(one) = group.right.first().copied() else {
            return Ok(());
        };
        for many in group.left.iter().copied() {
            self.evaluator.take_cells_from_budget(1, self.grid)?;
            let mut column = self.empty_row(group, (Some(many), Some(one)));
            let operands = self.many[many].values.iter().zip(&self.one[one].values);
            for (result, (many, one)) in column.values.iter_mut().zip(operands) {
                if !is_absent(*many) && !is_absent(*one) {
                    *result = self.operate(*many, *one).unwrap_or(*result);
                }
            }
            if !column.is_empty() {
                results.push(column);
            }
        }
        Ok(())
    }

    // === step by step ===

    fn combine_stepwise(
        &self,
        group: &MatchGroup,
        matters: &[bool],
        results: &mut Vec<Column>,
    ) -> Result<()> {
        // For `group_right` one would expect them swapped. Prometheus does not swap them either.
        let (fill_many, fill_one) = (self.matching().fill_left, self.matching().fill_right);
        let mut rows = Rows::default();
        for step in (0..self.grid.count).filter(|step| matters[*step]) {
            let one = self.only_one(group, step)?;
            let partner = one.map(|at| self.one[at].values[step]).or(fill_one);
            let mut met = 0;
            for at in group.left.iter().copied() {
                let many = self.many[at].values[step];
                if let (false, Some(partner)) = (is_absent(many), partner) {
                    self.meet(group, (Some(at), one), step, (many, partner), &mut rows)?;
                }
                met += usize::from(!is_absent(many));
            }
            if met > 1 && partner.is_some() && self.matching().cardinality == Cardinality::OneToOne {
                return Err(EvalError::execution(ONE_TO_ONE_AMBIGUOUS));
            }
            if let (0, Some(one), Some(fill)) = (met, one, fill_many) {
                self.meet(
                    group,
                    (None, Some(one)),
                    step,
                    (fill, self.one[one].values[step]),
                    &mut rows,
                )?;
            }
        }
        results.append(&mut rows.columns);
        Ok(())
    }

    fn meet(
        &self,
        group: &MatchGroup,
        pair: Pair,
        step: usize,
        (many, one): (f64, f64),
        rows: &mut Rows,
    ) -> Result<()> {
        let Some(value) = self.operate(many, one) else {
            return Ok(());
        };
        // Pairs with the same key have the same labels: the one side matters only if it provides labels.
        let lends = pair.0.is_none() || !self.matching().include.is_empty();
        let key = if lends { pair } else { (pair.0, None) };
        let row = match rows.places.get(&key) {
            Some(row) => *row,
            None => {
                self.evaluator.take_cells_from_budget(1, self.grid)?;
                rows.columns.push(self.empty_row(group, pair));
                rows.places.insert(key, rows.columns.len() - 1);
                rows.columns.len() - 1
            }
        };
        rows.columns[row].values[step] = value;
        Ok(())
    }

    /// Returns the only series of the one side that has a value at this step.
    fn only_one(&self, group: &MatchGroup, step: usize) -> Result<Option<usize>> {
        let is_there = |at: &usize| !is_absent(self.one[*at].values[step]);
        let mut there = group.right.iter().copied().filter(is_there);
        let first = there.next();
        let (Some(first), Some(second)) = (first, there.next()) else {
            return Ok(first);
        };
        Err(EvalError::execution(format!(
            "found duplicate series for the match group {} on the {} hand-side of the operation: [{}, {}];\
             many-to-many matching not allowed: matching labels must be unique on one side",
            braced(&group.signature),
            if self.is_swapped { "left" } else { "right" },
            braced(&self.one[first].labels),
            braced(&self.one[second].labels),
        )))
    }

    /// Returns the value of a pair; `None` if a comparison filters it out.
    fn operate(&self, many: f64, one: f64) -> Option<f64> {
        let (left, right) = if self.is_swapped { (one, many) } else { (many, one) };
        let result = (self.op)(left, right);
        if self.binary.op.is_comparison() && !self.binary.returns_bool {
            return (result != 0.0).then_some(left);
        }
        Some(result)
    }

    fn empty_row(&self, group: &MatchGroup, (many, one): Pair) -> Column {
        let matching = self.matching();
        let column = many.map(|at| &self.many[at]);
        let mut labels = column.map_or_else(|| group.signature.clone(), |column| column.labels.clone());
        if !self.binary.op.is_comparison() {
            labels = without_name(&labels);
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
            values: absent_values(self.grid.count),
        }
    }
}

/// Returns the labels of a one-to-one result: those that were compared; with `ignoring`, without the metric's name.
fn matched_labels(matching: &MatchLabels, labels: &Labels) -> Labels {
    match matching {
        MatchLabels::On(names) => labels.filtered(|name| names.iter().any(|on| on == name)),
        MatchLabels::Ignoring(names) => {
            labels.filtered(|name| name == METRIC_NAME || !names.iter().any(|ignored| ignored == name))
        }
    }
}
