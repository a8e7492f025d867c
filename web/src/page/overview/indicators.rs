//! The five indicators against their healthy bands.

use domain::api::stream::{Push, Request};
use leptos::prelude::*;

use crate::live::Live;
use crate::ui::{Unit, show};

struct Indicator {
    title: &'static str,
    /// The band, in words.
    band: &'static str,
    /// The band, in numbers.
    healthy: (f64, f64),
    /// The first with an answer is shown; `(where it comes from, query)`.
    sources: &'static [(&'static str, &'static str)],
}

/// As DESIGN 1.1: each averaged over what reports it.
const INDICATORS: [Indicator; 5] = [
    Indicator {
        title: "GPU memory",
        band: "70–90 %",
        healthy: (0.7, 0.9),
        sources: &[(
            "average of all GPUs",
            "avg(gpu_memory_used_bytes / gpu_memory_total_bytes)",
        )],
    },
    Indicator {
        title: "Compute share",
        band: "over 85 %",
        healthy: (0.85, 1.0),
        sources: &[
            ("of a training step", "avg(train_compute_ratio)"),
            ("SM activity (GPM)", "avg(gpu_sm_active_ratio)"),
            ("coarse GPU utilization", "avg(gpu_utilization_ratio)"),
        ],
    },
    Indicator {
        title: "Bandwidth",
        band: "60–80 % while communicating",
        healthy: (0.6, 0.8),
        sources: &[
            ("NVLink", "avg(link_utilization_ratio{link=\"nvlink\"})"),
            ("PCIe", "avg(link_utilization_ratio{link=\"pcie\"})"),
        ],
    },
    Indicator {
        title: "Throughput",
        band: "near the run's own best",
        healthy: (0.8, 10.0),
        sources: &[(
            "against the best of ten minutes",
            "sum(train_samples_per_second) / sum(quantile_over_time(0.9, train_samples_per_second[10m]))",
        )],
    },
    Indicator {
        title: "Gradient sync",
        band: "under 5 % of a step",
        healthy: (0.0, 0.05),
        sources: &[(
            "exposed wait in a step",
            "avg(train_sync_seconds / train_step_seconds)",
        )],
    },
];

/// One tile for each.
#[component]
pub(super) fn Indicators() -> impl IntoView {
    view! {
        <section class="grid gap-3 grid-cols-2 md:grid-cols-5" aria-label="Indicators">
            {INDICATORS.iter().map(|indicator| view! { <Tile indicator /> }).collect_view()}
        </section>
    }
}

#[component]
fn Tile(indicator: &'static Indicator) -> impl IntoView {
    let live = expect_context::<Live>();
    let values = RwSignal::new(vec![None::<f64>; indicator.sources.len()]);
    for (n, (_, query)) in indicator.sources.iter().enumerate() {
        live.watch(
            |id| Request::WatchInstant {
                id,
                query: (*query).to_owned(),
            },
            move |push| {
                if let Push::Frame { series, .. } = push {
                    let value = series
                        .first()
                        .and_then(|column| column.values.last().copied().flatten());
                    values.update(|values| values[n] = value);
                }
            },
        );
    }
    let shown = Memo::new(move |_| {
        values.with(|values| {
            values
                .iter()
                .position(Option::is_some)
                .and_then(|n| Some((n, values[n]?)))
        })
    });
    let in_band = move || {
        shown
            .get()
            .is_none_or(|(_, value)| (indicator.healthy.0..=indicator.healthy.1).contains(&value))
    };
    view! {
        <article class="card bg-base-200 p-3" data-testid="indicator" data-title=indicator.title>
            <h2 class="text-sm opacity-80">{indicator.title}</h2>
            <p class=move || if in_band() { "text-2xl font-bold" } else { "text-2xl font-bold text-warning" }>
                {move || shown.get().map_or("–".to_owned(), |(_, value)| show(value, Unit::Ratio))}
            </p>
            <p class="text-xs opacity-70">{move || shown.get().map_or("nothing reports it", |(n, _)| indicator.sources[n].0)}</p>
            <p class="text-xs opacity-70">
                "healthy: " {indicator.band} {move || if in_band() { "" } else { " · out of band" }}
            </p>
        </article>
    }
}
