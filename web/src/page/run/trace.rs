//! Records a trace of PyTorch's profiler in running ranks, and offers its files and lanes.

use domain::api::inspect::AskTrace;
use domain::ident::{AttemptNo, Rank};
use domain::run::inspect::TraceFile;
use domain::run::spec::FieldError;
use leptos::prelude::*;
use serde::Deserialize;

use super::field_request::FieldRequest;
use super::lanes::lanes_of;
use super::run_signal::RunSignal;
use crate::language::{tr, tr_parts, tr_with};
use crate::live::Live;
use crate::ui::{Dialog, ErrorMessage, Modal, When, bytes, choice, dynamic_view, empty_view, text};

/// The names of the fields, as in the request.
const RANK: &str = "rank";
const STEPS: &str = "steps";
const SECONDS: &str = "seconds";
/// A page that opens such files.
const VIEWER: &str = "https://ui.perfetto.dev";
/// The initial length of a trace, in steps.
const STEPS_DEFAULT: &str = "3";

/// The fields of [`RanksView`](domain::api::inspect::RanksView) that are read.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Recorded {
    attempt: AttemptNo,
    ranks: Vec<RankTrace>,
}

/// The trace of one rank, or why there is none.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
struct RankTrace {
    rank: Rank,
    node: String,
    trace: Option<TraceFile>,
    problem: String,
}

/// The button and the dialog. The result stays until the next recording.
#[component]
pub(super) fn TraceButton(
    /// The run's id.
    id: String,
    /// The run.
    run: RunSignal,
) -> impl IntoView {
    let dialog = Dialog::new();
    let request = FieldRequest::new();
    let recorded = RwSignal::new(None::<Recorded>);
    let (rank, length) = (
        RwSignal::new("0".to_owned()),
        RwSignal::new(STEPS_DEFAULT.to_owned()),
    );
    let unit = RwSignal::new(STEPS.to_owned());
    let now_ms = expect_context::<Live>().now_ms;
    let started_ms = RwSignal::new(now_ms.get_untracked());
    let id = StoredValue::new(id);
    let send = move |event: leptos::ev::SubmitEvent| {
        event.prevent_default();
        let body = asked(
            &rank.read_untracked(),
            &length.read_untracked(),
            &unit.read_untracked(),
        );
        match body {
            Ok(body) => {
                recorded.set(None);
                started_ms.set(now_ms.get_untracked());
                let path = id.with_value(|id| format!("/api/runs/{id}/trace"));
                request.send(path, &body, move |answer: Recorded| recorded.set(Some(answer)));
            }
            Err(mistake) => {
                request.forget();
                request.mistakes.set(vec![mistake]);
            }
        }
    };
    let is_ready = move || run.with(|run| run.as_ref().is_some_and(|run| run.more.spec.kineto));
    let cost = text(move || run.with(|run| cost(run.as_ref().map(|run| run.summary.attempt), &rank.read())));
    let elapsed = text(move || {
        let seconds = (now_ms.get() - started_ms.get()).max(0) / 1_000;
        tr_with("{seconds} s", &[("seconds", &seconds)])
    });
    let found = move || {
        dynamic_view(move || {
            recorded.with(|recorded| {
                let recorded = recorded.as_ref();
                recorded.map_or_else(empty_view, |recorded| id.with_value(|id| files(id, recorded)))
            })
        })
    };
    let units = move || {
        vec![
            choice(
                "trace-unit",
                STEPS.to_owned(),
                unit,
                true,
                tr("optimizer steps").into_any(),
            ),
            choice(
                "trace-unit",
                SECONDS.to_owned(),
                unit,
                true,
                tr("seconds").into_any(),
            ),
        ]
    };
    view! {
        <button class="btn btn-sm" data-testid="trace" on:click=move |_| dialog.open()>{tr("Trace…")}</button>
        <Modal dialog title=tr("Record a trace?") leave=tr("Close")>
            <When on=move || !is_ready()><p class="py-2" data-testid="no-trace">{tr("This run was started without the profiler. Start it again with kineto = true in its specification (--kineto) to record traces.")}</p></When>
            <When on=is_ready>
                <form class="grid gap-2 py-2" method="post" novalidate on:submit=send>
                    <label class="flex flex-wrap gap-2 items-center">{tr("Rank")} <input class="input input-sm w-24" inputmode="numeric" autocomplete="off" name="trace-rank" placeholder=tr("all") aria-describedby="trace-rank-mistake" bind:value=rank /> <span class="text-sm opacity-80">{tr("empty: all ranks")}</span></label>
                    {mistake(request, "trace-rank-mistake", &[RANK])}
                    <label class="flex flex-wrap gap-2 items-center">{tr("Length")} <input class="input input-sm w-24" inputmode="numeric" autocomplete="off" name="trace-length" aria-describedby="trace-length-mistake" bind:value=length /></label>
                    <div class="flex flex-wrap gap-x-4" role="radiogroup" aria-label=tr("Unit of the length")>{units()}</div>
                    {mistake(request, "trace-length-mistake", &[STEPS, SECONDS])}
                    <p class="text-sm break-words" data-testid="trace-cost">{cost}</p>
                    <div class="text-right"><button type="submit" class="btn btn-primary" disabled=request.busy data-testid="confirm-trace">{tr("Record")}</button></div>
                </form>
            </When>
            <ErrorMessage what=request.problem />
            <div class="grid gap-2" role="status" data-testid="trace-result">
                <When on=request.busy><p>{tr("Recording. The ranks receive the request within 5 seconds; recording and writing the files take up to a minute.")}</p></When>
                {found()}
            </div>
            <When on=request.busy><p class="text-sm opacity-80" aria-hidden="true">{elapsed}</p></When>
        </Modal>
    }
}

/// Returns the request, or the field that is wrong. The collector checks the bounds.
fn asked(rank: &str, length: &str, unit: &str) -> Result<AskTrace, FieldError> {
    let number = |field: &str, text: &str| {
        text.trim().parse::<u32>().map_err(|_| FieldError {
            field: field.to_owned(),
            message: tr("Enter a whole number.").to_owned(),
        })
    };
    let rank = match rank.trim() {
        "" => None,
        one => Some(Rank(number(RANK, one)?)),
    };
    let length = Some(number(unit, length)?);
    let (seconds, steps) = if unit == SECONDS {
        (length, None)
    } else {
        (None, length)
    };
    Ok(AskTrace { rank, seconds, steps })
}

/// Returns what a recording does, and what it costs.
fn cost(attempt: Option<AttemptNo>, rank: &str) -> String {
    let attempt = attempt.map_or_else(String::new, |attempt| attempt.to_string());
    let whom = match rank.trim() {
        "" => tr_with("all ranks of attempt {attempt}", &[("attempt", &attempt)]),
        rank => tr_with(
            "rank {rank} of attempt {attempt}",
            &[("rank", &rank), ("attempt", &attempt)],
        ),
    };
    tr_with(
        "PyTorch's profiler records {ranks}. The run continues, slightly slower during that time: no step is lost, and there is nothing to undo. Each rank writes one file of at most 256 MiB on its node.",
        &[("ranks", &whom)],
    )
}

/// Shows the error of a field, which may have one of several names in the request.
fn mistake(request: FieldRequest, id: &'static str, names: &'static [&'static str]) -> AnyView {
    let words = text(move || {
        let found = names.iter().find_map(|name| request.mistake(name));
        found.unwrap_or_default()
    });
    view! { <div id=id aria-live="polite"><p class="wrong text-sm break-words empty:hidden" data-testid="mistake">{words}</p></div> }
        .into_any()
}

/// Renders the files, and how to open them.
fn files(run: &str, recorded: &Recorded) -> AnyView {
    let line = |of: &RankTrace| {
        let place = tr_with("Rank {rank} on {node}", &[("rank", &of.rank), ("node", &of.node)]);
        let file = of.trace.as_ref().map(|trace| {
            let href = href(run, recorded.attempt, &of.node, &trace.file);
            let path = lanes_path(run, recorded.attempt, &of.node, &trace.file);
            let lanes = lanes_of(path, &trace.file);
            view! { <a class="link break-all" href=href download=trace.file.clone() data-testid="trace-file">{trace.file.clone()}</a> " (" {bytes(trace.bytes)} ") " {lanes} }.into_any()
        });
        view! { <li class="break-words">{place} ": " {file} " " <span lang="en">{of.problem.clone()}</span></li> }.into_any()
    };
    let lines: Vec<AnyView> = recorded.ranks.iter().map(line).collect();
    let [before, after] = tr_parts("Download a file and open it in {viewer} or in chrome://tracing.");
    let viewer = view! { <a class="link" href=VIEWER target="_blank" rel="noreferrer">{VIEWER}</a> };
    view! {
        <ul class="text-sm list-disc ml-5 max-h-80 overflow-y-auto">{lines}</ul>
        <p class="text-sm">{before} {viewer} {after}</p>
    }
    .into_any()
}

/// Returns the address of a trace file.
fn href(run: &str, attempt: AttemptNo, node: &str, file: &str) -> String {
    format!("/api/runs/{run}/trace?{}", query(attempt, node, file))
}

/// Returns the address of the lanes of a trace file.
fn lanes_path(run: &str, attempt: AttemptNo, node: &str, file: &str) -> String {
    format!("/api/runs/{run}/trace/lanes?{}", query(attempt, node, file))
}

fn query(attempt: AttemptNo, node: &str, file: &str) -> String {
    format!("node={}&file={}&attempt={attempt}", encoded(node), encoded(file))
}

#[cfg(target_arch = "wasm32")]
fn encoded(text: &str) -> String {
    js_sys::encode_uri_component(text).into()
}

/// The tests run without a browser, and with names that need no encoding.
#[cfg(not(target_arch = "wasm32"))]
fn encoded(text: &str) -> String {
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_one_length_and_one_rank_or_all() {
        let of = |rank: Option<u32>, seconds, steps| AskTrace {
            rank: rank.map(Rank),
            seconds,
            steps,
        };
        assert_eq!(asked("0", " 3", STEPS), Ok(of(Some(0), None, Some(3))));
        assert_eq!(asked("", "2", SECONDS), Ok(of(None, Some(2), None)));
        for (rank, length, wrong) in [("x", "3", RANK), ("0", "", STEPS), ("-1", "3", RANK)] {
            let mistake = asked(rank, length, STEPS).expect_err("it is no number");
            assert_eq!(mistake.field, wrong);
        }
    }

    #[test]
    fn a_file_is_named_with_its_node_and_attempt() {
        assert_eq!(
            href("r-1", AttemptNo(2), "node-a", "trace-0.json"),
            "/api/runs/r-1/trace?node=node-a&file=trace-0.json&attempt=2"
        );
        assert_eq!(
            lanes_path("r-1", AttemptNo(2), "node-a", "trace-0.json"),
            "/api/runs/r-1/trace/lanes?node=node-a&file=trace-0.json&attempt=2"
        );
    }
}
