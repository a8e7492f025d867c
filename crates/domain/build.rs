//! Makes the table of recipes (`run::recipe`) of the `recipe.toml` in each recipe's folder.
//!
//! The folder as a whole is not watched: a change to a recipe's Python would compile every crate again. So a new recipe is named here.

#![expect(
    clippy::disallowed_methods,
    reason = "runs while the crate is compiled, not in it"
)]

use std::fmt::Write as _;
use std::path::Path;

/// Recipes in the order in which they are listed; the dashboard's form begins with the first.
const RECIPES: [&str; 9] = [
    "ddp",
    "rpc-parameter-server",
    "model-parallel",
    "resume",
    "fsdp",
    "hsdp",
    "device-mesh",
    "amp",
    "activation-checkpointing",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let mut table = String::from("&[");
    for name in RECIPES {
        let file = format!("../torch-probe/recipes/{name}/recipe.toml");
        println!("cargo::rerun-if-changed={file}");
        let recipe: toml::Table = std::fs::read_to_string(&file)?.parse()?;
        let summary = recipe["summary"].as_str().ok_or("summary is a text")?;
        let knobs = recipe.get("knobs").and_then(toml::Value::as_table);
        let knobs = knobs.into_iter().flatten();
        let knobs: Vec<(&String, &str)> = knobs
            .filter_map(|(knob, flag)| Some((knob, flag.as_str()?)))
            .collect();
        write!(
            table,
            "Recipe {{ name: {name:?}, summary: {summary:?}, knobs: &{knobs:?} }},"
        )?;
    }
    table.push(']');
    let out = std::env::var("OUT_DIR")?;
    Ok(std::fs::write(Path::new(&out).join("recipes.rs"), table)?)
}
