//! Generates the tables of recipes and of their settings (`run::recipe`) from the `recipe.toml` in the folder of each recipe.
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
    let mut settings = String::from("&[");
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
        write!(settings, "({name:?}, &[{}]),", settings_of(&recipe)?)?;
    }
    table.push(']');
    settings.push(']');
    let out = std::env::var("OUT_DIR")?;
    std::fs::write(Path::new(&out).join("recipes.rs"), table)?;
    Ok(std::fs::write(Path::new(&out).join("settings.rs"), settings)?)
}

/// Returns the settings of a recipe, as expressions of `Setting`.
fn settings_of(recipe: &toml::Table) -> Result<String, Box<dyn std::error::Error>> {
    let mut code = String::new();
    let settings = recipe.get("settings").and_then(toml::Value::as_array);
    for setting in settings.into_iter().flatten() {
        let name = setting["name"].as_str().ok_or("name is a text")?;
        let help = setting["help"].as_str().ok_or("help is a text")?;
        let default = setting.get("default").and_then(toml::Value::as_str);
        let values = setting.get("values").and_then(toml::Value::as_array);
        let values = values.into_iter().flatten().filter_map(toml::Value::as_str);
        let values: Vec<&str> = values.collect();
        write!(
            code,
            "Setting {{ name: {name:?}, default: {default:?}, help: {help:?}, values: &{values:?} }},"
        )?;
    }
    Ok(code)
}
