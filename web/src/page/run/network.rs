//! The network between the nodes of the newest attempt that measured it: one cell per direction between two nodes.

use domain::api::runs::{BandwidthFigure, BandwidthView};
use domain::run::bandwidth::SLOW_SHARE;
use leptos::prelude::*;

use super::run_signal::RunSignal;
use crate::language::{marked, tr, tr_with};
use crate::ui::{Heading, dynamic_view, empty_view, fixed, sorted};

/// Maximum number of nodes in the table; more cannot be read.
const NODES_MAX: usize = 64;
/// For more nodes, the number of slowest directions listed.
const SLOWEST: usize = 20;
/// GB per MiB: the API uses MiB, network hardware is specified in GB.
const GB_A_MIB: f64 = 1_048_576e-9;

/// The section; nothing if nothing was measured.
#[component]
pub(super) fn Network(
    /// The run.
    run: RunSignal,
) -> impl IntoView {
    let measured = Memo::new(move |_| {
        run.with(|run| {
            let newest = run.as_ref().map(|run| run.more.attempts.iter().rev());
            newest.and_then(|mut attempts| attempts.find_map(|attempt| attempt.bandwidth.clone()))
        })
    });
    dynamic_view(move || {
        let view = measured.get();
        view.filter(|view| !view.figures.is_empty())
            .map_or_else(empty_view, |view| shown(&view))
    })
}

fn shown(view: &BandwidthView) -> AnyView {
    let nodes = nodes(&view.figures);
    let body = if nodes.len() <= NODES_MAX {
        matrix(&nodes, view)
    } else {
        slowest(view)
    };
    view! {
        <section class="min-w-0" data-testid="bandwidth">
            <Heading text=tr("Network between nodes") hint=tr("GB/s from one node (row) to another (column), measured before the attempt began. A stronger colour means more bandwidth.") />
            <p class="text-sm mb-2" data-testid="bandwidth-rule">{rule(view)}</p>
            {body}
        </section>
    }
    .into_any()
}

/// Returns the limit below which a direction is slow, and the progress of the check.
fn rule(view: &BandwidthView) -> String {
    let limit = view.slow_below_mib_s.map(|limit| {
        let limit = rate(limit);
        match (view.slow_as_asked, view.usual_mib_s) {
            (true, _) => tr_with(
                "Slow is less than {limit}, the minimum that the run requires.",
                &[("limit", &limit)],
            ),
            (false, Some(usual)) => tr_with(
                "Slow is less than {limit}, {share} % of the {usual} between the fastest nodes.",
                &[
                    ("limit", &limit),
                    ("share", &fixed(SLOW_SHARE * 100.0, 0)),
                    ("usual", &rate(usual)),
                ],
            ),
            (false, None) => tr_with("Slow is less than {limit}.", &[("limit", &limit)]),
        }
    });
    let slow = match view.figures.iter().filter(|figure| figure.slow).count() {
        0 => tr("No pair is slow.").to_owned(),
        1 => tr("One pair is slow.").to_owned(),
        many => tr_with("{count} pairs are slow.", &[("count", &many)]),
    };
    let rounds = (view.rounds_done < view.rounds).then(|| {
        tr_with(
            "{done} of {all} rounds are measured.",
            &[("done", &view.rounds_done), ("all", &view.rounds)],
        )
    });
    let sentences: Vec<String> = [limit, Some(slow), rounds].into_iter().flatten().collect();
    sentences.join(" ")
}

fn matrix(nodes: &[&str], view: &BandwidthView) -> AnyView {
    let fastest = view
        .figures
        .iter()
        .filter_map(|figure| figure.mib_s)
        .fold(0.0, f64::max);
    let cell = |from: &str, to: &str| {
        let figure = view
            .figures
            .iter()
            .find(|figure| figure.from == from && figure.to == to);
        match figure {
            Some(figure) => way(figure, fastest),
            None if from == to => {
                view! { <td class="text-center opacity-40" aria-label=tr("itself")>"·"</td> }.into_any()
            }
            None => view! { <td class="text-center opacity-70" title=tr("not measured")>"–"</td> }.into_any(),
        }
    };
    let heads: Vec<AnyView> = nodes.iter().map(|node| column(node)).collect();
    let rows: Vec<AnyView> = nodes
        .iter()
        .map(|from| {
            let cells: Vec<AnyView> = nodes.iter().map(|to| cell(from, to)).collect();
            view! { <tr><th scope="row" class="font-mono font-normal text-left">{(*from).to_owned()}</th>{cells}</tr> }.into_any()
        })
        .collect();
    table(
        view! { <tr><th scope="col" class="font-normal text-left">{tr("from ↓ to →")}</th>{heads}</tr> }
            .into_any(),
        rows,
    )
}

fn slowest(view: &BandwidthView) -> AnyView {
    let figures: Vec<&BandwidthFigure> = view.figures.iter().collect();
    let figures = sorted(figures, |a, b| {
        a.mib_s.unwrap_or(-1.0).total_cmp(&b.mib_s.unwrap_or(-1.0))
    });
    let fastest = figures.last().and_then(|figure| figure.mib_s).unwrap_or(0.0);
    let rows: Vec<AnyView> = figures
        .iter()
        .take(SLOWEST)
        .map(|figure| {
            let (from, to) = (figure.from.clone(), figure.to.clone());
            view! { <tr><td class="font-mono">{from}</td><td class="font-mono">{to}</td>{way(figure, fastest)}</tr> }.into_any()
        })
        .collect();
    let heads = [tr("Slowest pairs, from"), tr("to"), "GB/s"];
    let heads: Vec<AnyView> = heads.iter().map(|head| column(head)).collect();
    table(view! { <tr>{heads}</tr> }.into_any(), rows)
}

fn column(name: &str) -> AnyView {
    view! { <th scope="col" class="font-mono font-normal text-center">{name.to_owned()}</th> }.into_any()
}

fn table(head: AnyView, rows: Vec<AnyView>) -> AnyView {
    // A scrollable element must be reachable with the keyboard.
    view! {
        <div class="overflow-x-auto" tabindex="0" role="group" aria-label=tr("Bandwidth between nodes")>
            <table class="table table-xs w-auto border-separate border-spacing-0.5">
                <thead>{head}</thead>
                <tbody>{rows}</tbody>
            </table>
        </div>
    }
    .into_any()
}

/// One direction. The colour shows its share of the fastest one; a slow one also has a frame and a word.
fn way(figure: &BandwidthFigure, fastest: f64) -> AnyView {
    let (share, words) = match figure.mib_s {
        Some(mib_s) => (mib_s / fastest.max(1e-9), fixed(mib_s * GB_A_MIB, digits(mib_s))),
        None => (0.0, "?".to_owned()),
    };
    // Pale enough that the page's text colour is readable on it.
    let style = format!(
        "background-color: color-mix(in oklab, var(--color-success) {}%, transparent)",
        fixed(share.clamp(0.0, 1.0) * 40.0, 0)
    );
    let class = if figure.slow {
        "text-center rounded font-semibold outline-2 -outline-offset-2 outline-error wrong"
    } else {
        "text-center rounded"
    };
    let (title, value) = match (figure.mib_s, figure.slow) {
        (Some(mib_s), false) => (marked("from {from} to {to}: {value}"), rate(mib_s)),
        (Some(mib_s), true) => (marked("from {from} to {to}: {value}, slow"), rate(mib_s)),
        (None, _) => (
            marked("from {from} to {to}: not measured: {value}"),
            figure.problem.clone(),
        ),
    };
    let title = tr_with(
        title,
        &[("from", &figure.from), ("to", &figure.to), ("value", &value)],
    );
    view! {
        <td class=class style=style title=title data-testid="way" data-slow=figure.slow.to_string()>
            {words} {figure.slow.then(|| view! { <span class="block text-[0.65rem] leading-none">{tr("slow")}</span> })}
        </td>
    }
    .into_any()
}

fn rate(mib_s: f64) -> String {
    format!("{} GB/s", fixed(mib_s * GB_A_MIB, digits(mib_s)))
}

/// Returns the number of decimals: none for fast networks, two for slow ones.
fn digits(mib_s: f64) -> u32 {
    if mib_s * GB_A_MIB < 10.0 { 2 } else { 1 }
}

fn nodes(figures: &[BandwidthFigure]) -> Vec<&str> {
    let ends = figures
        .iter()
        .flat_map(|figure| [figure.from.as_str(), figure.to.as_str()]);
    let mut nodes = sorted(ends.collect::<Vec<&str>>(), Ord::cmp);
    nodes.dedup();
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_says_what_slow_is_and_where_that_comes_from() {
        let figure = |mib_s: f64| BandwidthFigure {
            mib_s: Some(mib_s),
            slow: mib_s < 250.0,
            ..BandwidthFigure::default()
        };
        let mut view = BandwidthView {
            rounds: 3,
            rounds_done: 3,
            usual_mib_s: Some(1_000.0),
            slow_below_mib_s: Some(250.0),
            slow_as_asked: false,
            figures: [1_000.0, 100.0].map(figure).to_vec(),
        };
        assert_eq!(
            rule(&view),
            "Slow is less than 0.26 GB/s, 25 % of the 1.05 GB/s between the fastest nodes. One pair is slow."
        );
        (view.slow_as_asked, view.rounds_done) = (true, 2);
        view.figures.truncate(1);
        assert_eq!(
            rule(&view),
            "Slow is less than 0.26 GB/s, the minimum that the run requires. No pair is slow. 2 of 3 rounds are measured."
        );
    }
}
