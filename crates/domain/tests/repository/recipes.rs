//! The recipes' folders and the table of recipes must match.

use std::collections::BTreeSet;
use std::fs;

use domain::run::knob::KNOBS;
use domain::run::recipe::{RECIPES, Recipe};

const FOLDER: &str = "crates/torch-probe/recipes";

#[test]
fn every_folder_with_a_program_is_a_recipe() {
    let folders = fs::read_dir(super::path(FOLDER)).unwrap().map(Result::unwrap);
    let programs = folders.filter(|folder| folder.path().join("main.py").exists());
    let shipped: BTreeSet<String> = programs
        .map(|folder| folder.file_name().into_string().unwrap())
        .collect();
    let listed: BTreeSet<String> = RECIPES.iter().map(|recipe| recipe.name.to_owned()).collect();
    assert_eq!(listed, shipped, "crates/domain/build.rs lists the recipes");
}

/// An argument of a recipe with the name of a knob must be declared as that knob. Otherwise the probe would set the knob in addition to the
/// argument.
#[test]
fn recipes_declare_the_knobs_that_are_their_arguments() {
    for recipe in RECIPES {
        let program = source(recipe);
        for knob in KNOBS {
            let flag = format!("\"--{}\"", knob.name.replace('_', "-"));
            if program.contains(&flag) {
                assert!(
                    recipe.knobs.iter().any(|(name, _)| *name == knob.name),
                    "{}: {flag}",
                    recipe.name
                );
            }
        }
        for (knob, flag) in recipe.knobs {
            assert!(
                KNOBS.iter().any(|known| known.name == *knob),
                "{}: {knob}",
                recipe.name
            );
            assert!(
                program.contains(&format!("\"{flag}\"")),
                "{} has no {flag} for {knob}",
                recipe.name
            );
        }
    }
}

#[test]
fn the_setting_with_the_last_step_is_an_argument_of_the_recipe() {
    for recipe in RECIPES {
        if let Some(setting) = recipe.total_steps {
            let flag = format!("\"--{setting}\"");
            assert!(source(recipe).contains(&flag), "{} has no {flag}", recipe.name);
        }
    }
}

/// The form of the dashboard shows these defaults, and the memory plan uses them.
#[test]
fn settings_are_arguments_of_the_recipe_with_their_defaults() {
    for recipe in RECIPES {
        let program = source(recipe);
        let changed = program.split("set_defaults(").nth(1).unwrap_or_default();
        let changed = changed.split(')').next().unwrap_or_default();
        assert!(!recipe.settings().is_empty(), "{}", recipe.name);
        for setting in recipe.settings() {
            let flag = format!("\"--{}\"", setting.name);
            let argument = program
                .split(&flag)
                .nth(1)
                .and_then(|rest| rest.split("add_argument(").next());
            let argument = argument.unwrap_or_else(|| panic!("{} has no {flag}", recipe.name));
            let value = setting.default.unwrap_or("None");
            let defaults = [
                format!("default={value},"),
                format!("default={value})"),
                format!("default=\"{value}\""),
                format!("default=granularity.{}", value.to_uppercase()),
            ];
            let is_changed = changed.contains(&format!("{}={value}", setting.name.replace('-', "_")));
            assert!(
                is_changed || defaults.iter().any(|text| argument.contains(text)),
                "{}: the default of {flag} is not {value}",
                recipe.name
            );
        }
    }
}

/// Returns the source that declares the arguments of a recipe.
fn source(recipe: &Recipe) -> String {
    let folder = super::path(FOLDER);
    let mut source = fs::read_to_string(folder.join(recipe.name).join("main.py")).unwrap();
    if source.contains("arguments.parser(") {
        source += &fs::read_to_string(folder.join("foundation/arguments.py")).unwrap();
    }
    if source.contains("sharding.add_arguments(") {
        source += &fs::read_to_string(folder.join("foundation/sharding.py")).unwrap();
    }
    source
}
