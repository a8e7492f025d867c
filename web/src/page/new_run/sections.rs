//! The sections of the form.

use domain::run::recipe::RECIPES;
use leptos::prelude::*;

use super::editor::Editor;
use super::field::{Mistakes, More, fields_of, input, select};
use super::fields::{ARGS, Field, RECIPE, SCRIPT, SECTIONS, Section};
use super::secrets::SecretValues;
use super::settings::SettingFields;
use crate::language::tr;
use crate::ui::When;

/// All sections.
#[component]
pub(super) fn Sections(editor: Editor) -> impl IntoView {
    let one = |(section, heading): (Section, &'static str)| {
        let id = format!("section-{section:?}");
        view! {
            <section class="grid grid-cols-1 gap-2" aria-labelledby=id.clone()>
                <h2 id=id.clone() class="text-lg font-bold">{tr(heading)}</h2>
                {content(editor, section)}
                <More editor section />
            </section>
        }
        .into_any()
    };
    SECTIONS.into_iter().map(one).collect::<Vec<AnyView>>()
}

fn content(editor: Editor, section: Section) -> AnyView {
    let all = move |of: fn(&Field) -> bool| -> Vec<AnyView> {
        let fields = fields_of(section, false).filter(|field| of(field));
        fields.map(|field| input(editor, field)).collect()
    };
    let of_path = move |path: &str| -> Vec<AnyView> {
        let fields = fields_of(section, false).filter(|field| field.path == path);
        fields.map(|field| input(editor, field)).collect()
    };
    match section {
        Section::Program => {
            let is_script = move || editor.form.is_own_script();
            let has_args = move || is_script() || editor.form.text(ARGS).with(|args| !args.is_empty());
            view! {
                <Recipe editor />
                <When on=is_script>{of_path(SCRIPT)}</When>
                <When on=has_args>{of_path(ARGS)}</When>
                {all(|field| ![RECIPE, SCRIPT, ARGS].contains(&field.path))}
            }
            .into_any()
        }
        Section::Settings => view! {
            <SettingFields editor knobs=false />
            <details data-testid="knobs">
                <summary class="cursor-pointer py-1">{tr("Knobs: what Lockstep can also change later")}</summary>
                <div class="mt-2"><SettingFields editor knobs=true /></div>
            </details>
            {all(|_| true)}
        }
        .into_any(),
        Section::Environment => view! {
            {all(|_| true)}
            <SecretValues form=editor.form secrets=editor.secrets />
        }
        .into_any(),
        Section::Labels => all(|_| true).into_any(),
        Section::Place | Section::Checkpoints | Section::Checks => view! {
            <div class="grid grid-cols-1 sm:grid-cols-2 gap-x-3 gap-y-2 fields">{all(|_| true)}</div>
        }
        .into_any(),
    }
}

/// The choice between a recipe and a script.
#[component]
fn Recipe(editor: Editor) -> impl IntoView {
    let recipe = editor.form.text(RECIPE);
    let recipes = RECIPES.iter().map(|recipe| {
        (
            recipe.name.to_owned(),
            format!("{}: {}", recipe.name, recipe.summary),
        )
    });
    let script = (String::new(), tr("your own script").to_owned());
    let words: Vec<(String, String)> = recipes.chain([script]).collect();
    let choose = Box::new(move |program| editor.choose_program(program));
    let label = view! { <label class="label" for=RECIPE>{tr("Program")}</label> }.into_any();
    view! {
        <div class="fieldset">
            {select(label, RECIPE, recipe.into(), words, choose)}
            <Mistakes editor field=RECIPE />
        </div>
    }
}
