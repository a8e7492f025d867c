//! Generates the table of recipes (`run::recipe`) from the `recipe.toml` in the folder of each recipe.
//!
//! Cargo does not watch the folder as a whole, because a change to a recipe's Python code would recompile every crate. Therefore a new
//! recipe must be added to the list here.

#![expect(
    clippy::disallowed_methods,
    reason = "runs while the crate is compiled, not in it"
)]

use std::fmt::Write as _;
use std::path::Path;

/// Recipes in the order of the list that users see. The dashboard's form selects the first one.
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
        let total_steps = recipe.get("total_steps").and_then(toml::Value::as_str);
        let knobs = recipe.get("knobs").and_then(toml::Value::as_table);
        let knobs = knobs.into_iter().flatten();
        let knobs: Vec<(&String, &str)> = knobs
            .filter_map(|(knob, flag)| Some((knob, flag.as_str()?)))
            .collect();
        write!(
            table,
            "Recipe {{ name: {name:?}, summary: {summary:?}, total_steps: {total_steps:?}, knobs: &{knobs:?} }},"
        )?;
    }
    table.push(']');
    let out = std::env::var("OUT_DIR")?;
    Ok(std::fs::write(Path::new(&out).join("recipes.rs"), table)?)
}
