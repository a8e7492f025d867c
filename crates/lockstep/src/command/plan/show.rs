//! A plan on paper: components, the verdict, other strategies beside it, what would make it fit.

use domain::bytes::DisplayBytes;
use domain::plan::{Alternative, Basis, Change, Checkpointing, Fit, Plan, Settings, Verdict};
use serde_json::json;

use crate::failure::Failure;
use crate::table;

/// All that is told.
pub(super) struct Answer {
    pub(super) model: String,
    pub(super) settings: Settings,
    pub(super) plan: Plan,
    pub(super) gpu_memory: Option<u64>,
    pub(super) alternatives: Vec<Alternative>,
    pub(super) ways_to_fit: Vec<Change>,
}

impl Answer {
    fn fit(&self, peak: u64) -> Option<Fit> {
        self.gpu_memory.map(|memory| Fit::of(peak, memory))
    }
}

/// For programs.
pub(super) fn json(answer: &Answer) -> Result<(), Failure> {
    let alternatives: Vec<_> = answer
        .alternatives
        .iter()
        .map(|other| {
            let mut value = json!(other);
            value["fit"] = json!(answer.fit(other.peak_bytes));
            value
        })
        .collect();
    let text = serde_json::to_string_pretty(&json!({
        "model": answer.model,
        "settings": answer.settings,
        "plan": answer.plan,
        "fit": answer.fit(answer.plan.peak_bytes),
        "alternatives": alternatives,
        "ways_to_fit": answer.ways_to_fit,
    }))
    .map_err(|error| Failure::Failed(error.into()))?;
    say!("{text}");
    Ok(())
}

/// For people.
pub(super) fn table(answer: &Answer) {
    let parameters = answer.plan.model_parameters as f64 / 1e9;
    say!(
        "{}: {parameters:.3} billion parameters on {} GPUs. Bytes a GPU:\n",
        answer.model,
        answer.settings.gpus
    );
    components(&answer.plan);
    say!(
        "\nPeak {}, {}.",
        DisplayBytes(answer.plan.peak_bytes),
        answer.plan.peak_at.label()
    );
    if let Some(fit) = answer.fit(answer.plan.peak_bytes) {
        verdict(fit);
    }
    others(answer);
    ways(answer);
    for note in &answer.plan.notes {
        say!("\n{note}");
    }
}

fn components(plan: &Plan) {
    let rows: Vec<Vec<String>> = plan
        .components
        .iter()
        .map(|component| {
            let at_peak = match component.at_peak_bytes {
                0 => "-".to_owned(),
                bytes => DisplayBytes(bytes).to_string(),
            };
            let basis = match component.basis {
                Basis::Exact => "exact",
                Basis::Formula => "formula",
                Basis::Estimate => "estimate",
            };
            vec![
                component.part.label().to_owned(),
                DisplayBytes(component.bytes).to_string(),
                at_peak,
                basis.to_owned(),
            ]
        })
        .collect();
    table::print(&["COMPONENT", "AT MOST", "AT THE PEAK", ""], &rows);
}

fn verdict(fit: Fit) {
    let memory = DisplayBytes(fit.gpu_memory_bytes);
    let headroom = fit.headroom_bytes.unsigned_abs();
    let share = headroom as f64 / fit.gpu_memory_bytes as f64 * 100.0;
    let headroom = DisplayBytes(headroom);
    match fit.verdict {
        Verdict::Fits => say!("Fits {memory}: {headroom} ({share:.0} %) head-room."),
        Verdict::Tight => say!(
            "Tight in {memory}: only {headroom} ({share:.0} %) head-room, and that is about what the allocator's rounding and the \
             plan's own error are."
        ),
        Verdict::DoesNotFit => say!("Does not fit {memory}: {headroom} too much."),
    }
}

/// A row a strategy, a column a way of checkpointing.
fn others(answer: &Answer) {
    let mut columns: Vec<Checkpointing> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for other in &answer.alternatives {
        if !columns.contains(&other.checkpointing) {
            columns.push(other.checkpointing);
        }
        if !names.contains(&&*other.name) {
            names.push(&other.name);
        }
    }
    let cell = |name: &str, column: Checkpointing| {
        let found = answer
            .alternatives
            .iter()
            .find(|other| other.name == name && other.checkpointing == column);
        found.map_or_else(|| "-".to_owned(), |other| peak_cell(answer, other))
    };
    let rows: Vec<Vec<String>> = names
        .iter()
        .map(|name| {
            let cells = columns.iter().map(|column| cell(name, *column));
            std::iter::once((*name).to_owned()).chain(cells).collect()
        })
        .collect();
    let headers: Vec<String> = columns
        .iter()
        .map(|column| format!("CHECKPOINTING {column}").to_uppercase())
        .collect();
    let header: Vec<&str> = std::iter::once("PEAK BY STRATEGY")
        .chain(headers.iter().map(String::as_str))
        .collect();
    say!("");
    table::print(&header, &rows);
}

fn peak_cell(answer: &Answer, other: &Alternative) -> String {
    let fit = answer
        .fit(other.peak_bytes)
        .map(|fit| format!(", {}", fit.verdict.label()));
    let asked = if other.asked { " (asked)" } else { "" };
    format!(
        "{}{}{asked}",
        DisplayBytes(other.peak_bytes),
        fit.unwrap_or_default()
    )
}

fn ways(answer: &Answer) {
    let Some(fit) = answer.fit(answer.plan.peak_bytes) else {
        return;
    };
    if fit.verdict == Verdict::Fits {
        return;
    }
    if answer.ways_to_fit.is_empty() {
        say!(
            "\nNo change of strategy, checkpointing, micro-batch, tensor parallelism or number of GPUs (up to sixteen times as many) \
             makes it fit: take a shorter sequence, a smaller model or larger GPUs."
        );
        return;
    }
    say!("\nWhat would make it fit, cheapest first (the order is an estimate):");
    for (n, way) in answer.ways_to_fit.iter().enumerate() {
        say!(
            "  {}. {}: {}, {} head-room",
            n + 1,
            way.steps.join(" + "),
            DisplayBytes(way.peak_bytes),
            DisplayBytes(way.fit.headroom_bytes.unsigned_abs())
        );
    }
}
