//! Recipes: training programs that ship with Lockstep. `recipe.toml` in a recipe's folder says what it is; `build.rs` makes this table of it.

/// One recipe.
#[derive(Debug, Clone, Copy)]
pub struct Recipe {
    /// Its name, which is that of its folder in `torch-probe/recipes`.
    pub name: &'static str,
    /// What it does, in one line.
    pub summary: &'static str,
    /// The knobs that are its own arguments, and the flag of each.
    pub knobs: &'static [(&'static str, &'static str)],
}

/// Every recipe, in the order of lists.
pub const RECIPES: &[Recipe] = include!(concat!(env!("OUT_DIR"), "/recipes.rs"));

impl Recipe {
    /// The recipe of this name, if there is one.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        RECIPES.iter().find(|recipe| recipe.name == name)
    }

    /// The argument that sets a knob, if the recipe has one.
    pub(crate) fn flag(&self, knob: &str) -> Option<&'static str> {
        let mut knobs = self.knobs.iter();
        knobs.find(|(name, _)| *name == knob).map(|(_, flag)| *flag)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::run::knob::KNOBS;

    const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../torch-probe/recipes");

    #[test]
    fn every_folder_with_a_program_is_a_recipe() {
        let folders = fs::read_dir(FOLDER).unwrap().map(Result::unwrap);
        let programs = folders.filter(|folder| folder.path().join("main.py").exists());
        let shipped: BTreeSet<String> = programs
            .map(|folder| folder.file_name().into_string().unwrap())
            .collect();
        let listed: BTreeSet<String> = RECIPES.iter().map(|recipe| recipe.name.to_owned()).collect();
        assert_eq!(listed, shipped, "crates/domain/build.rs lists the recipes");
    }

    /// A recipe's argument that has a knob's name is that knob: else setting it by name would go to the probe beside it.
    #[test]
    fn recipes_declare_the_knobs_that_are_their_arguments() {
        for recipe in RECIPES {
            let folder = Path::new(FOLDER);
            let mut program = fs::read_to_string(folder.join(recipe.name).join("main.py")).unwrap();
            if program.contains("arguments.parser(") {
                program += &fs::read_to_string(folder.join("foundation/arguments.py")).unwrap();
            }
            for knob in KNOBS {
                let flag = format!("\"--{}\"", knob.name.replace('_', "-"));
                if program.contains(&flag) {
                    assert!(recipe.flag(knob.name).is_some(), "{}: {flag}", recipe.name);
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
}
