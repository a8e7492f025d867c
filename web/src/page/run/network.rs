//! The network between the nodes of the newest attempt that had it measured: a cell for each way from one node to another.

use domain::api::runs::{BandwidthFigure, BandwidthView};
use domain::run::bandwidth::SLOW_SHARE;
use leptos::prelude::*;

use super::known::Known;
use crate::ui::{Heading, changing, fixed, nothing, sorted};

/// A table of more nodes would be no picture any more.
const NODES_MAX: usize = 64;
/// Of those, so many ways are worth a look.
const SLOWEST: usize = 20;
/// The API counts in MiB, the field in gigabytes.
const GB_A_MIB: f64 = 1_048_576e-9;

/// Nothing where nothing was measured.
#[component]
pub(super) fn Network(
    /// The run.
    run: Known,
) -> impl IntoView {
    let measured = Memo::new(move |_| {
        run.with(|run| {
            let newest = run.as_ref().map(|run| run.more.attempts.iter().rev());
            newest.and_then(|mut attempts| attempts.find_map(|attempt| attempt.bandwidth.clone()))
        })
    });
    changing(move || {
        let view = measured.get();
        view.filter(|view| !view.figures.is_empty())
            .map_or_else(nothing, |view| shown(&view))
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
            <Heading text="Network between nodes" hint="Gigabytes a second from one node (row) to another (column), as measured before the attempt began: the stronger the colour, the more goes through." />
            <p class="text-sm mb-2" data-testid="bandwidth-rule">{rule(view)}</p>
            {body}
        </section>
    }
    .into_any()
}

/// What slow means here, and how far the check has come.
fn rule(view: &BandwidthView) -> String {
    let limit = view.slow_below_mib_s.map_or(String::new(), |limit| {
        let reason = match (view.slow_as_asked, view.usual_mib_s) {
            (true, _) => "which is what the run asks for at least".to_owned(),
            (false, Some(usual)) => format!(
                "{} % of the {} that nodes here reach at their best",
                fixed(SLOW_SHARE * 100.0, 0),
                rate(usual)
            ),
            (false, None) => String::new(),
        };
        format!("Slow is less than {}, {reason}.", rate(limit))
    });
    let slow = match view.figures.iter().filter(|figure| figure.slow).count() {
        0 => " No way is slow.".to_owned(),
        1 => " One way is slow.".to_owned(),
        many => format!(" {many} ways are slow."),
    };
    let rounds = if view.rounds_done < view.rounds {
        format!(" {} of {} rounds are measured.", view.rounds_done, view.rounds)
    } else {
        String::new()
    };
    limit + &slow + &rounds
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
                view! { <td class="text-center opacity-40" aria-label="itself">"·"</td> }.into_any()
            }
            None => view! { <td class="text-center opacity-70" title="not measured">"–"</td> }.into_any(),
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
        view! { <tr><th scope="col" class="font-normal text-left">"from ↓ to →"</th>{heads}</tr> }.into_any(),
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
    let heads = ["The slowest from", "to", "GB/s"];
    let heads: Vec<AnyView> = heads.iter().map(|head| column(head)).collect();
    table(view! { <tr>{heads}</tr> }.into_any(), rows)
}

fn column(name: &str) -> AnyView {
    view! { <th scope="col" class="font-mono font-normal text-center">{name.to_owned()}</th> }.into_any()
}

fn table(head: AnyView, rows: Vec<AnyView>) -> AnyView {
    // What can be scrolled must be reachable without a mouse.
    view! {
        <div class="overflow-x-auto" tabindex="0" role="group" aria-label="Bandwidth between nodes">
            <table class="table table-xs w-auto border-separate border-spacing-0.5">
                <thead>{head}</thead>
                <tbody>{rows}</tbody>
            </table>
        </div>
    }
    .into_any()
}

/// One way. Its colour says how much of the fastest goes through; a slow one has a frame and a word.
fn way(figure: &BandwidthFigure, fastest: f64) -> AnyView {
    let (share, words) = match figure.mib_s {
        Some(mib_s) => (mib_s / fastest.max(1e-9), fixed(mib_s * GB_A_MIB, digits(mib_s))),
        None => (0.0, "?".to_owned()),
    };
    // Pale enough at its strongest that the page's own text colour can be read on it.
    let style = format!(
        "background-color: color-mix(in oklab, var(--color-success) {}%, transparent)",
        fixed(share.clamp(0.0, 1.0) * 40.0, 0)
    );
    let class = if figure.slow {
        "text-center rounded font-semibold outline-2 -outline-offset-2 outline-error wrong"
    } else {
        "text-center rounded"
    };
    let slow = if figure.slow { ", slow" } else { "" };
    let title = match figure.mib_s {
        Some(mib_s) => format!("from {} to {}: {}{slow}", figure.from, figure.to, rate(mib_s)),
        None => format!(
            "from {} to {}: not measured: {}",
            figure.from, figure.to, figure.problem
        ),
    };
    view! {
        <td class=class style=style title=title data-testid="way" data-slow=figure.slow.to_string()>
            {words} {figure.slow.then(|| view! { <span class="block text-[0.65rem] leading-none">"slow"</span> })}
        </td>
    }
    .into_any()
}

fn rate(mib_s: f64) -> String {
    format!("{} GB/s", fixed(mib_s * GB_A_MIB, digits(mib_s)))
}

/// Fast networks need none behind the point, slow ones two.
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
            "Slow is less than 0.26 GB/s, 25 % of the 1.05 GB/s that nodes here reach at their best. One way is slow."
        );
        (view.slow_as_asked, view.rounds_done) = (true, 2);
        view.figures.truncate(1);
        assert_eq!(
            rule(&view),
            "Slow is less than 0.26 GB/s, which is what the run asks for at least. No way is slow. 2 of 3 rounds are measured."
        );
    }
}
