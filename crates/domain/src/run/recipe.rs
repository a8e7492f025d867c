//! Recipes: training programs that ship with Lockstep. Each recipe's folder contains a `recipe.toml` that describes it; `build.rs`
//! generates this table from those files.

/// A recipe.
#[derive(Debug, Clone, Copy)]
pub struct Recipe {
    /// The recipe's name, which is also the name of its folder in `torch-probe/recipes`.
    pub name: &'static str,
    /// What the recipe does, in one line.
    pub summary: &'static str,
    /// The setting with the last step of each rank; `None` if the recipe has none.
    pub total_steps: Option<&'static str>,
    /// The knobs that the recipe has its own arguments for, each with its flag.
    pub knobs: &'static [(&'static str, &'static str)],
}

/// A setting of a recipe: an argument of its program.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Name of the setting, without the dashes of the argument.
    pub name: &'static str,
    /// The value that the program uses if the setting is not given; `None` if it depends on the nodes.
    pub default: Option<&'static str>,
    /// What it means and its unit, as text for users.
    pub help: &'static str,
    /// The only valid values; empty if there are too many to list.
    pub values: &'static [&'static str],
}

/// All recipes, in display order.
pub const RECIPES: &[Recipe] = include!(concat!(env!("OUT_DIR"), "/recipes.rs"));

/// The settings of each recipe. Separate from [`RECIPES`], so that the dashboard does not contain these texts.
const SETTINGS: &[(&str, &[Setting])] = include!(concat!(env!("OUT_DIR"), "/settings.rs"));

impl Recipe {
    /// Returns the recipe with this name; `None` if there is no such recipe.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        RECIPES.iter().find(|recipe| recipe.name == name)
    }

    /// Returns the settings that the recipe's `recipe.toml` describes.
    #[must_use]
    pub fn settings(&self) -> &'static [Setting] {
        let mut all = SETTINGS.iter();
        all.find(|(name, _)| *name == self.name)
            .map_or(&[][..], |(_, settings)| *settings)
    }

    /// Returns the recipe's flag for a knob; `None` if it has none.
    #[must_use]
    pub fn flag(&self, knob: &str) -> Option<&'static str> {
        let mut knobs = self.knobs.iter();
        knobs.find(|(name, _)| *name == knob).map(|(_, flag)| *flag)
    }
}
