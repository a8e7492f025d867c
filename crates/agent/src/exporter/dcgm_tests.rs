//! Tests that one GPU with all values is written as dcgm-exporter writes it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::exporter::text::Format;
use crate::sample::Samples;
use crate::sample::series::series;

const GOLDEN: &str = include_str!("dcgm_golden.txt");
const INFO: [(&str, &str); 5] = [
    ("gpu", "0"),
    ("uuid", "GPU-5fd4f087-86f3-7a43-b711-4771313afc50"),
    ("name", "NVIDIA H100 80GB HBM3"),
    ("pci_bus_id", "00000000:1B:00.0"),
    ("driver_version", "570.124.06"),
];
const VALUES: [(&str, f64); 17] = [
    ("gpu_sm_clock_hertz", 1_980e6),
    ("gpu_memory_clock_hertz", 2_619e6),
    ("gpu_memory_temperature_celsius", 44.0),
    ("gpu_temperature_celsius", 38.0),
    ("gpu_power_watts", 412.317),
    ("gpu_energy_joules_total", 1_234_567.891),
    ("gpu_pcie_replays_total", 3.0),
    ("gpu_utilization_ratio", 0.29),
    ("gpu_memory_utilization_ratio", 0.57),
    ("gpu_encoder_utilization_ratio", 0.0),
    ("gpu_decoder_utilization_ratio", 0.01),
    ("gpu_memory_total_bytes", 81_559.0 * MIB),
    ("gpu_memory_used_bytes", 60_000.5 * MIB),
    ("gpu_memory_reserved_bytes", 551.0 * MIB),
    ("gpu_graphics_active_ratio", 0.987_654_321),
    ("gpu_tensor_active_ratio", 0.25),
    ("gpu_dram_active_ratio", 0.5),
];
const REMAPPED: [(&str, f64); 3] = [("uncorrected", 1.0), ("corrected", 2.0), ("failed", 0.0)];

/// Adds a sample whose metric need not be in the catalogue.
fn put(samples: &Samples, metric: &str, labels: &[(&str, &str)], at_ms: TimestampMs, value: f64) {
    let name = std::iter::once(("__name__", metric));
    let labels = domain::series::Labels::new(name.chain(labels.iter().copied())).unwrap();
    samples.push(&labels, at_ms, value);
}

fn node(samples: &Samples, at_ms: TimestampMs, bytes: f64) {
    samples.push(&series("gpu_info", &INFO), at_ms, 1.0);
    for (metric, value) in VALUES {
        put(samples, metric, &[("gpu", "0")], at_ms, value);
    }
    for (kind, value) in REMAPPED {
        put(
            samples,
            "gpu_remapped_rows",
            &[("gpu", "0"), ("type", kind)],
            at_ms,
            value,
        );
    }
    for (link, factor) in [("nvlink", 1_024.0), ("pcie", 1.0)] {
        let labels = [("gpu", "0"), ("link", link)];
        put(
            samples,
            "link_transmit_bytes_total",
            &labels,
            at_ms,
            bytes * factor,
        );
        put(
            samples,
            "link_receive_bytes_total",
            &labels,
            at_ms,
            2.0 * bytes * factor,
        );
    }
}

fn page(dcgm: &Dcgm, samples: &Samples) -> String {
    let mut out = Writer::new(Format::Text);
    dcgm.write(&mut out, &samples.latest());
    out.finish()
}

fn dcgm(label: HostLabel) -> Dcgm {
    Dcgm::new(label, &NodeName::new("gpu-node-7").unwrap())
}

#[test]
fn all_25_are_as_dcgm_exporter_writes_them() {
    let (samples, dcgm) = (Samples::new(), dcgm(HostLabel::Lower));
    node(&samples, 10_000, 5e6);
    put(
        &samples,
        "gpu_xid_errors_total",
        &[("gpu", "0"), ("xid", "94")],
        10_000,
        1.0,
    );
    assert!(page(&dcgm, &samples).contains("DCGM_FI_PROF_PCIE_TX_BYTES{"));
    node(&samples, 12_000, 9e6);
    assert_eq!(page(&dcgm, &samples), GOLDEN);
    assert_eq!(
        page(&dcgm, &samples),
        GOLDEN,
        "the same readings give the same page"
    );
    assert_eq!(GOLDEN.matches("# TYPE ").count(), FIELDS.len());
}

#[test]
fn the_host_has_its_old_label_on_request() {
    let samples = Samples::new();
    let new = dcgm(HostLabel::Lower);
    let old = dcgm(HostLabel::Upper);
    for at_ms in [10_000, 12_000] {
        node(&samples, at_ms, at_ms as f64);
        let (new, old) = (page(&new, &samples), page(&old, &samples));
        assert_eq!(
            new.replace(",hostname=\"gpu-node-7\"", ",Hostname=\"gpu-node-7\""),
            old
        );
    }
}

#[test]
fn values_that_were_not_read_are_omitted_and_no_xid_is_no_error() {
    let samples = Samples::new();
    samples.push(&series("gpu_info", &INFO), 1, 1.0);
    put(&samples, "gpu_up", &[("gpu", "1")], 1, 0.0);
    let page = page(&dcgm(HostLabel::Lower), &samples);
    assert!(
        page.contains(",err_code=\"0\",err_msg=\"No Error\"} 0\n"),
        "{page}"
    );
    assert_eq!(
        page.matches("# TYPE").count(),
        2,
        "the Xid and the licence: {page}"
    );
    assert!(!page.contains("gpu=\"1\""), "{page}");
}

#[test]
fn a_counter_reset_gives_no_negative_rate() {
    let link = Link {
        at_ms: 1_000,
        bytes: [500.0, 100.0],
        rate: [1.0, 1.0],
    };
    let later = link.after(3_000, [0.0, 300.0]);
    assert_eq!(later.rate, [0.0, 100.0]);
}
