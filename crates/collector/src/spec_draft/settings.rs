//! The settings and knobs that a program has, for the form.

use domain::api::runs::SettingView;
use domain::run::knob::{KNOBS, Knob, Values, place};
use domain::run::recipe::{Recipe, Setting};
use domain::run::spec::Spec;

/// Returns the settings of a recipe, then the knobs of the recipe or script. A setting that is a knob is listed as the knob.
pub(super) fn of_program(spec: &Spec) -> Vec<SettingView> {
    let recipe = spec.recipe.as_deref().and_then(Recipe::named);
    let own = recipe.map_or(&[][..], Recipe::settings);
    let is_knob = |setting: &&Setting| recipe.is_some_and(|recipe| is_knob(recipe, setting));
    let settings = own.iter().filter(|setting| !is_knob(setting)).map(view);
    // A knob that this run cannot set, for example with Gloo, is left out.
    let knobs = KNOBS.iter().filter(|knob| place(spec, knob.name).is_ok());
    let knobs = knobs.map(|knob| {
        let default = own.iter().find(|setting| {
            let flag = recipe.and_then(|recipe| recipe.flag(knob.name));
            flag.is_some_and(|flag| is_flag_of(flag, setting))
        });
        view_of_knob(knob, default.and_then(|setting| setting.default))
    });
    settings.chain(knobs).collect()
}

fn is_knob(recipe: &Recipe, setting: &Setting) -> bool {
    recipe.knobs.iter().any(|(_, flag)| is_flag_of(flag, setting))
}

fn is_flag_of(flag: &str, setting: &Setting) -> bool {
    flag.trim_start_matches('-') == setting.name
}

fn view(setting: &Setting) -> SettingView {
    SettingView {
        name: setting.name.to_owned(),
        help: setting.help.to_owned(),
        is_knob: false,
        default: setting.default.map(str::to_owned),
        choices: setting.values.iter().map(|&value| value.to_owned()).collect(),
        values: String::new(),
    }
}

fn view_of_knob(knob: &Knob, default: Option<&str>) -> SettingView {
    let words = match knob.values {
        Values::Words(words) => words,
        _ => &[],
    };
    SettingView {
        name: knob.name.to_owned(),
        help: knob.what.to_owned(),
        is_knob: true,
        default: default.map(str::to_owned),
        choices: words.iter().map(|&word| word.to_owned()).collect(),
        values: knob.values.words(),
    }
}
