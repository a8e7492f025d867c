//! Every recipe with one release of PyTorch: the test in crates/lockstep/tests/first_light/recipes, and its tables in docs/recipes.md.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use crate::lab::Matrix;
use crate::layout::Layout;
use crate::measure::{machine, section};
use crate::progress::{exit_code, result, say};
use crate::toolchain::venv;

const INTRODUCTION: &str = "# Recipes

This page shows which recipes were tested with which release of PyTorch. It is for people who choose a recipe or a release.

`cargo xtask lab recipes [--torch RELEASE]` writes this page. It submits each recipe with `lockstep run submit --wait` to two agents with two ranks each, on
Gloo. Each tested release of PyTorch has a section. A release without a section has not been tested in this way.
crates/torch-probe/recipes/RECIPE/README.md describes each recipe.

- *loss*: the loss of the first and of the last step, of the first rank that has one. It falls if the mean of the later half of the
  steps is below that of the earlier half, on every rank.
- *checkpoints*: the number of complete checkpoints, the number of all, and the kind that must be among them. `ddp` has only a plain
  `torch.save`; `resume` has one in addition to the others.
- *series*: the number of required series that exist, and the number required.
- *seconds*: from the submission to the end, including the start of Python and the imports of PyTorch on all ranks.
";
const MATRIX: Matrix = Matrix {
    step: "lab-recipes",
    binary: "first_light",
    test: "recipes::table::all",
    begin: "=== table of recipes ===",
    // Minutes on two cores; a busy machine needs longer.
    limit: Duration::from_secs(2 * 60 * 60),
};

/// Which release and recipes to run.
#[derive(Args)]
pub(crate) struct Options {
    /// A release of PyTorch, such as 2.7; it gets its own environment. Default: the release that all tests use.
    #[arg(long, value_name = "RELEASE", value_parser = release)]
    torch: Option<String>,
    /// Only these recipes; the table is then only printed, and docs/recipes.md stays unchanged.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
}

/// Runs the recipes.
pub(crate) fn run(layout: &Layout, options: &Options) -> Result<ExitCode> {
    // Read now, because the checkout may change during the run.
    let revision = machine::revision(layout);
    let (release, venv) = match &options.torch {
        Some(release) => (release.clone(), venv::with_torch(layout, release)?),
        None => (venv::torch_release(layout)?, venv::ensure(layout)?),
    };
    say("recipes", &format!("PyTorch {release} is in {}", venv.display()));
    let (table, well) = MATRIX.run(
        layout,
        &venv,
        &[("LOCKSTEP_RECIPES_ONLY", options.only.join(","))],
    )?;
    result(&table);
    if options.only.is_empty() {
        keep(layout, options, &release, &revision, &table, well)?;
    } else {
        say(
            "recipes",
            "docs/recipes.md is unchanged: it contains only complete tables",
        );
    }
    Ok(exit_code(well))
}

fn keep(
    layout: &Layout,
    options: &Options,
    release: &str,
    revision: &str,
    table: &str,
    well: bool,
) -> Result<()> {
    let asked = options.torch.as_ref();
    let command = asked.map_or(String::new(), |release| format!(" --torch {release}"));
    let command = format!("cargo xtask lab recipes{command}");
    let text = format!("{}\n\n{table}", machine::origin(&command, revision));
    let verdict = if well { "passed" } else { "failed" };
    let heading = format!("PyTorch {}: {verdict}", minor(release));
    section::keep(
        &layout.root.join("docs/recipes.md"),
        INTRODUCTION,
        &heading,
        &text,
    )
}

/// Returns `2.15` for `2.15.0`: sections are per minor release, because patch releases only fix bugs.
fn minor(release: &str) -> String {
    release.splitn(3, '.').take(2).collect::<Vec<_>>().join(".")
}

fn release(text: &str) -> Result<String, String> {
    let parts: Vec<&str> = text.split('.').collect();
    let numbers = parts
        .iter()
        .all(|part| !part.is_empty() && part.len() <= 4 && part.bytes().all(|byte| byte.is_ascii_digit()));
    if numbers && (2..=3).contains(&parts.len()) {
        Ok(text.to_owned())
    } else {
        Err("give a release of PyTorch as 2.7 or 2.7.1".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_two_or_three_numbers_and_a_section_has_two() {
        for good in ["2.7", "2.15", "2.7.1"] {
            assert_eq!(release(good).as_deref(), Ok(good));
        }
        for bad in ["", "2", "2.", "2.7.*", "2.7.1.0", "../2.7", "2.x", "nightly"] {
            assert!(release(bad).is_err(), "{bad}");
        }
        assert_eq!(
            (minor("2.15.0"), minor("2.7")),
            ("2.15".to_owned(), "2.7".to_owned())
        );
    }
}
