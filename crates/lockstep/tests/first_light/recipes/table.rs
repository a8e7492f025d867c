//! Trains all recipes, and prints a table of the results, which `cargo xtask lab recipes` writes into docs/recipes.md.
//!
//! `LOCKSTEP_RECIPES_ONLY` (names, separated by commas) selects recipes; `LOCKSTEP_TEST_VENV` selects the PyTorch installation.

#![allow(clippy::print_stdout, reason = "the table is the result")]

use std::fmt::Write as _;

use crate::product::selection::selection;

use super::{EVERY, Recipe, Trained, all_recipes, two_nodes};

/// The lines before and after the table.
const BEGIN: &str = "=== table of recipes ===";
const END: &str = "=== end of the table ===";

#[test]
#[ignore = "takes minutes: cargo xtask lab recipes"]
fn all() {
    let recipes = all_recipes();
    let names: Vec<&str> = recipes.iter().map(|recipe| recipe.name).collect();
    let is_selected = selection("LOCKSTEP_RECIPES_ONLY", "recipe", &names);
    let cluster = two_nodes();
    let mut rows = Vec::new();
    for recipe in recipes.iter().filter(|recipe| is_selected(recipe.name)) {
        let trained = recipe.train(&cluster);
        // Print at once, because the table is printed minutes later.
        println!(
            "{}: {} after {:.0} s",
            recipe.name, trained.state, trained.seconds
        );
        for problem in &trained.problems {
            println!("  {problem}");
        }
        rows.push((recipe, trained));
    }
    println!("{BEGIN}\n{}{END}", table(&rows));
    let wrong: Vec<&str> = rows
        .iter()
        .filter(|(_, trained)| !trained.problems.is_empty())
        .map(|(recipe, _)| recipe.name)
        .collect();
    assert!(
        wrong.is_empty(),
        "not as they must be: {}; see the table above",
        wrong.join(", ")
    );
}

fn table(rows: &[(&Recipe, Trained)]) -> String {
    let mut text = String::from(
        "| recipe | torch | state | first loss | last loss | checkpoints | series | seconds |\n\
         |---|---|---|---:|---:|---|---|---:|\n",
    );
    for (recipe, trained) in rows {
        let loss = |of: fn((f64, f64)) -> f64| {
            trained
                .losses
                .map_or("–".to_owned(), |both| format!("{:.4}", of(both)))
        };
        let (whole, checkpoints) = trained.checkpoints;
        writeln!(
            text,
            "| {} | {} | {} | {} | {} | {whole} of {checkpoints} {} | {} of {} | {:.0} |",
            recipe.name,
            trained.torch,
            trained.state,
            loss(|both| both.0),
            loss(|both| both.1),
            recipe.format,
            trained.series,
            EVERY.len() + recipe.series.len(),
            trained.seconds,
        )
        .unwrap();
    }
    text.push('\n');
    for (recipe, trained) in rows {
        for problem in &trained.problems {
            writeln!(text, "- **{}**: {}", recipe.name, problem.replace('\n', " / ")).unwrap();
        }
    }
    text
}
