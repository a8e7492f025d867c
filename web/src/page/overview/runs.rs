//! The most relevant runs: those that need attention, active runs, and the newest others.

mod spark;

use domain::api::runs::RunSummary;
use domain::event::Severity;
use domain::metric::Unit;
use domain::run::state::RunState;
use leptos::prelude::*;

use crate::language::{tr, tr_with};
use crate::live::{Live, Row, each};
use crate::page::run_figures::{ByRun, STEP, STEP_TIME, figure, newest_by_run};
use crate::ui::{Ago, StateBadge, When, dynamic_view, empty_view, fixed, show, text};
use spark::{Sparks, spark};

/// Number of rows shown at first; one click shows the rest.
const ROWS: usize = 20;

const SYNC_SHARE: &str =
    "quantile by (run) (0.5, train_sync_seconds / train_step_seconds unless on (node) node_up == 0)";
const MFU: &str = "quantile by (run) (0.5, train_mfu_ratio unless on (node) node_up == 0)";

/// The values measured for all runs. Cheap to copy.
#[derive(Clone, Copy)]
struct Figures {
    step: RwSignal<ByRun>,
    step_time: RwSignal<ByRun>,
    sync_share: RwSignal<ByRun>,
    mfu: RwSignal<ByRun>,
    sparks: RwSignal<Sparks>,
}

/// The table of runs.
#[component]
pub(super) fn Runs() -> impl IntoView {
    let live = expect_context::<Live>();
    let all = live.runs;
    let figures = Figures {
        step: newest_by_run(STEP),
        step_time: newest_by_run(STEP_TIME),
        sync_share: newest_by_run(SYNC_SHARE),
        mfu: newest_by_run(MFU),
        sparks: Sparks::watched(STEP_TIME),
    };
    let needing = Memo::new(move |_| {
        let mut runs: Vec<String> = Vec::new();
        for row in live.diagnoses.rows() {
            row.peek(|diagnosis| {
                let run = diagnosis.alert.labels.get("run");
                runs.extend(
                    run.filter(|_| diagnosis.alert.severity >= Severity::Warning)
                        .map(str::to_owned),
                );
            });
        }
        runs
    });
    let shows_all = RwSignal::new(false);
    let count = Memo::new(move |_| all.rows().len());
    let sorted = move || {
        let (all, needing) = (all.rows(), needing.get());
        let mut rows = Vec::with_capacity(all.len());
        for wanted in RUN_ORDER {
            let here =
                |row: &&Row<RunSummary>| run_order(needing.contains(&row.key), row.get().state) == wanted;
            rows.extend(all.iter().filter(here).cloned());
        }
        if !shows_all.get() {
            rows.truncate(ROWS);
        }
        rows
    };
    view! {
        <section class="min-w-0" id="runs" aria-label=tr("Runs")>
            <div class="flex flex-wrap gap-3 items-center mb-1">
                <h2 class="font-bold">{tr("Runs")}</h2>
                <a href="/runs/new" class="off-wall btn btn-sm ml-auto">{tr("New run")}</a>
            </div>
            <When on=move || !all.is_known()><p class="text-muted">{tr("Loading…")}</p></When>
            <When on=move || all.is_empty()><p class="text-muted">{tr("No runs yet.")}</p></When>
            <When on=move || all.is_known() && !all.is_empty()>
                <table class="rows" data-testid="runs">
                    <thead>
                        <tr>
                            <th>{tr("State")}</th>
                            <th>{tr("Run")}</th>
                            <th class="number hidden sm:table-cell">{tr("Step")}</th>
                            <th class="number">{tr("Step time")}</th>
                            <th class="hidden md:table-cell">{tr("Last 10 minutes")}</th>
                            <th class="number hidden sm:table-cell" title=tr("Exposed wait for gradient synchronisation, median over ranks")>{tr("Sync")}</th>
                            <th class="number hidden lg:table-cell" title=tr("Model FLOPs utilization, median over ranks. Needs batches of tokens, a GPU whose peak is known, and no tensor parallelism.")>{tr("MFU")}</th>
                            <th class="hidden lg:table-cell" title=tr("Only runs that were submitted to Lockstep have an owner")>{tr("Owner")}</th>
                            <th class="number hidden xl:table-cell">{tr("Ranks")}</th>
                            <th class="hidden 2xl:table-cell">{tr("Nodes")}</th>
                            <th class="number hidden md:table-cell">{tr("Attempt")}</th>
                            <th class="hidden sm:table-cell">{tr("Submitted")}</th>
                        </tr>
                    </thead>
                    <tbody>{each(sorted, move |row| view! { <RunRow row figures needing /> }.into_any())}</tbody>
                </table>
            </When>
            <When on=move || { count.get() > ROWS && !shows_all.get() }>
                <button class="off-wall btn btn-ghost btn-sm" on:click=move |_| shows_all.set(true)>{text(move || tr_with("Show all {count} runs", &[("count", &count.get())]))}</button>
            </When>
        </section>
    }
}

/// The order of runs; runs of the same position keep their order, newest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunOrder {
    NeedsYou,
    Active,
    Ended,
}

const RUN_ORDER: [RunOrder; 3] = [RunOrder::NeedsYou, RunOrder::Active, RunOrder::Ended];

fn run_order(needs_you: bool, state: RunState) -> RunOrder {
    match (state.is_final(), needs_you) {
        (true, _) => RunOrder::Ended,
        (false, true) => RunOrder::NeedsYou,
        (false, false) => RunOrder::Active,
    }
}

#[component]
fn RunRow(row: Row<RunSummary>, figures: Figures, needing: Memo<Vec<String>>) -> impl IntoView {
    let run = row.signal();
    let id = StoredValue::new(row.key.clone());
    let state = Signal::derive(move || run.with(|run| run.state));
    let submitted_ms = Signal::derive(move || run.with(|run| run.submitted_ms));
    let needs_you = Memo::new(move |_| {
        needing.with(|runs| id.with_value(|id| runs.contains(id))) && !state.get().is_final()
    });
    let why = text(move || {
        let message = run.with(|run| run.outcome.as_ref().map(|outcome| outcome.message.to_string()));
        message.unwrap_or_default()
    });
    let ranks = text(move || match run.with(|run| run.world_size) {
        0 => "–".to_owned(),
        known => known.to_string(),
    });
    let owner = text(move || {
        run.with(|run| run.owner.clone())
            .unwrap_or_else(|| "–".to_owned())
    });
    let line = dynamic_view(move || {
        figures
            .sparks
            .with(|sparks| id.with_value(|id| sparks.get(id).map_or_else(empty_view, spark)))
    });
    let path = format!("/runs/{}", row.key);
    view! {
        <tr data-run=row.key.clone()>
            <td>
                <When on=move || needs_you.get()><span class="state state-warning" title=tr("A diagnosis names this run")><span class="sr-only">{tr("needs attention")}</span></span> " "</When>
                <StateBadge state />
            </td>
            <td class="max-w-56 xl:max-w-96">
                <a href=path class="link font-mono break-all">{row.key.clone()}</a>
                <span class="block text-xs text-muted truncate empty:hidden" title=why>{why}</span>
            </td>
            <td class="number hidden sm:table-cell">{figure(id, figures.step, |step| fixed(step, 0))}</td>
            <td class="number">{figure(id, figures.step_time, |time| show(time, Unit::Seconds))}</td>
            <td class="hidden md:table-cell w-28">{line}</td>
            <td class="number hidden sm:table-cell">{figure(id, figures.sync_share, |share| show(share, Unit::Ratio))}</td>
            <td class="number hidden lg:table-cell">{figure(id, figures.mfu, |share| show(share, Unit::Ratio))}</td>
            <td class="hidden lg:table-cell max-w-32 truncate" title=owner data-testid="run-owner">{owner}</td>
            <td class="number hidden xl:table-cell">{ranks}</td>
            <td class="hidden 2xl:table-cell max-w-72 truncate">{text(move || run.with(|run| run.nodes.join(", ")))}</td>
            <td class="number hidden md:table-cell" data-testid="run-attempts">{text(move || run.with(|run| run.attempt.to_string()))}</td>
            <td class="hidden sm:table-cell"><Ago at_ms=submitted_ms /></td>
        </tr>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_node_that_is_down_have_no_figures() {
        for query in [STEP, STEP_TIME, SYNC_SHARE, MFU] {
            assert!(query.ends_with(" unless on (node) node_up == 0)"), "{query}");
        }
    }

    #[test]
    fn runs_that_need_attention_are_first_and_ended_ones_last() {
        assert_eq!(run_order(true, RunState::Running), RunOrder::NeedsYou);
        assert_eq!(run_order(false, RunState::Queued), RunOrder::Active);
        assert_eq!(run_order(true, RunState::Failed), RunOrder::Ended);
    }
}
