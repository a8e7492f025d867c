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
