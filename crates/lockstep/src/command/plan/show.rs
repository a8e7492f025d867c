//! Prints a plan: components, whether it fits, other strategies, and what would make it fit.

use domain::bytes::DisplayBytes;
use domain::plan::{Alternative, Basis, Change, Checkpointing, Fit, Plan, Settings, Verdict};
use serde_json::json;

use crate::failure::Failure;
use crate::table;

/// The plan and everything to print about it.
pub(super) struct MemoryReport {
    pub(super) model: String,
    pub(super) settings: Settings,
    pub(super) plan: Plan,
    pub(super) gpu_memory: Option<u64>,
    pub(super) alternatives: Vec<Alternative>,
    pub(super) ways_to_fit: Vec<Change>,
}

impl MemoryReport {
    fn fit(&self, peak: u64) -> Option<Fit> {
        self.gpu_memory.map(|memory| Fit::of(peak, memory))
    }
}

/// Prints JSON, for programs.
pub(super) fn json(report: &MemoryReport) -> Result<(), Failure> {
    let alternatives: Vec<_> = report
        .alternatives
        .iter()
        .map(|other| {
            let mut value = json!(other);
            value["fit"] = json!(report.fit(other.peak_bytes));
            value
        })
        .collect();
    crate::say::json(&json!({
        "model": report.model,
        "settings": report.settings,
        "plan": report.plan,
        "fit": report.fit(report.plan.peak_bytes),
        "alternatives": alternatives,
        "ways_to_fit": report.ways_to_fit,
    }))
}

/// Prints tables, for users.
pub(super) fn table(report: &MemoryReport) {
    let parameters = report.plan.model_parameters as f64 / 1e9;
    say!(
        "{}: {parameters:.3} billion parameters on {} GPUs. Memory per GPU:\n",
        report.model,
        report.settings.gpus
    );
    components(&report.plan);
    say!(
        "\nPeak {}, {}.",
        DisplayBytes(report.plan.peak_bytes),
        report.plan.peak_at.label()
    );
    if let Some(fit) = report.fit(report.plan.peak_bytes) {
        verdict(fit);
    }
    others(report);
    ways(report);
    for note in &report.plan.notes {
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
        Verdict::Fits => say!("Fits {memory}: {headroom} ({share:.0} %) headroom."),
        Verdict::Tight => say!(
            "Tight in {memory}: only {headroom} ({share:.0} %) headroom, about as much as the allocator's rounding and the \
             error of the plan."
        ),
        Verdict::DoesNotFit => say!("Does not fit {memory}: {headroom} too much."),
    }
}

/// Prints the peak of each strategy (rows) with each kind of checkpointing (columns).
fn others(report: &MemoryReport) {
    let mut columns: Vec<Checkpointing> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for other in &report.alternatives {
        if !columns.contains(&other.checkpointing) {
            columns.push(other.checkpointing);
        }
        if !names.contains(&&*other.name) {
            names.push(&other.name);
        }
    }
    let cell = |name: &str, column: Checkpointing| {
        let found = report
            .alternatives
            .iter()
            .find(|other| other.name == name && other.checkpointing == column);
        found.map_or_else(|| "-".to_owned(), |other| peak_cell(report, other))
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

fn peak_cell(report: &MemoryReport, other: &Alternative) -> String {
    let fit = report
        .fit(other.peak_bytes)
        .map(|fit| format!(", {}", fit.verdict.label()));
    let asked = if other.asked { " (requested)" } else { "" };
    format!(
        "{}{}{asked}",
        DisplayBytes(other.peak_bytes),
        fit.unwrap_or_default()
    )
}

fn ways(report: &MemoryReport) {
    let Some(fit) = report.fit(report.plan.peak_bytes) else {
        return;
    };
    if fit.verdict == Verdict::Fits {
        return;
    }
    if report.ways_to_fit.is_empty() {
        say!(
            "\nNo change of strategy, checkpointing, micro-batch, tensor parallelism or number of GPUs (up to sixteen times as many) \
             makes it fit. Use a shorter sequence, a smaller model or larger GPUs."
        );
        return;
    }
    say!("\nWhat would make it fit, cheapest first (the order is an estimate):");
    for (n, way) in report.ways_to_fit.iter().enumerate() {
        say!(
            "  {}. {}: {}, {} headroom",
            n + 1,
            way.steps.join(" + "),
            DisplayBytes(way.peak_bytes),
            DisplayBytes(way.fit.headroom_bytes.unsigned_abs())
        );
    }
}
