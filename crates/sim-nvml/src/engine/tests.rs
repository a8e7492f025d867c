//! Scenarios as tables: what GPUs show at given moments, and what must hold at all of them.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::fault::Gate;
use super::fields::{self, ALL_LINKS, Value};
use super::gpm;
use super::gpu::{Clock, Direction, Gpu, reason};
use super::node::Node;
use super::samples;
use super::spec::Spec;
use super::status::Status;

fn node(spec: &str) -> Node {
    Node::new(&Spec::parse(spec).unwrap())
}

fn field(gpu: &Gpu, id: u32, scope: u32, t: f64) -> Result<u64, Status> {
    fields::read(gpu, id, scope, t).map(|value| match value {
        Value::Unsigned(value) => u64::from(value),
        Value::Unsigned64(value) => value,
        Value::Signed(value) => value as u64,
    })
}

const SPECS: [&str; 14] = [
    "h100x8",
    "h200x1",
    "b200x8",
    "a100x8",
    "rtx4090x2",
    "h100x8:idle",
    "rtx4090x2:idle",
    "h100x4:throttle,gpu=1,for=20s",
    "h100x4:memory-pressure,for=20s",
    "h100x4:ecc,for=20s",
    "h100x4:xid,for=20s",
    "h100x4:link-down,gpu=2,link=3,for=20s",
    "b200x4:link-down,gpu=2,link=3,for=20s",
    "a100x4:lost,for=20s",
];

#[test]
fn gauges_stay_within_the_model() {
    for spec in SPECS {
        for gpu in &node(spec).gpus {
            for step in 0..300 {
                let t = f64::from(step) * 0.37;
                check_gauges(spec, gpu, t);
            }
        }
    }
}

fn check_gauges(spec: &str, gpu: &Gpu, t: f64) {
    let at = format!("{spec} gpu {} at {t}", gpu.index);
    let profile = gpu.profile;
    let memory = gpu.memory(t);
    assert_eq!(memory.total, memory.reserved + memory.used + memory.free, "{at}");
    assert!(
        gpu.utilization(t) <= 100 && gpu.memory_utilization(t) <= 100,
        "{at}"
    );
    let watts = gpu.power_mw(t, 1.0) / 1_000;
    assert!(
        (profile.power_idle_w - 1..=profile.power_default_w).contains(&watts),
        "{at}: {watts} W"
    );
    let degrees = gpu.temperature(t);
    assert!(
        (25..profile.temperature_shutdown).contains(&degrees),
        "{at}: {degrees} °C"
    );
    for clock in [Clock::Graphics, Clock::Sm, Clock::Memory, Clock::Video] {
        let mhz = gpu.clock_mhz(clock, t);
        assert!(
            mhz > 0 && mhz <= gpu.clock_max_mhz(clock),
            "{at}: {clock:?} {mhz}"
        );
    }
}

#[test]
fn counters_never_run_backwards() {
    for spec in SPECS {
        for gpu in &node(spec).gpus {
            let mut last = counters(gpu, -1.0);
            for step in 0..4_000 {
                let t = f64::from(step) * 0.0137;
                let now = counters(gpu, t);
                assert!(
                    now.iter().zip(&last).all(|(now, last)| now >= last),
                    "{spec} gpu {} at {t}: {last:?} then {now:?}",
                    gpu.index
                );
                last = now;
            }
        }
    }
}

fn counters(gpu: &Gpu, t: f64) -> Vec<u64> {
    let ids = [
        (138, ALL_LINKS),
        (141, ALL_LINKS),
        (138, 3),
        (202, 3),
        (83, 0),
        (197, 0),
        (198, 0),
        (163, 3),
        (3, 0),
        (4, 0),
        (75, 0),
    ];
    ids.iter()
        .filter_map(|(id, scope)| field(gpu, *id, *scope, t).ok())
        .collect()
}

#[test]
fn healthy_node_is_inside_every_target_band() {
    for spec in ["h100x8", "h200x2", "b200x8"] {
        for gpu in &node(spec).gpus {
            for t in [0.0, 1.3, 77.7] {
                let memory = gpu.memory(t);
                let share = (memory.used + memory.reserved) as f64 / memory.total as f64;
                assert!((0.78..0.82).contains(&share), "{spec} memory {share}");
                assert!(gpu.utilization(t) >= 90);
            }
            assert!((85.0..=100.0).contains(&gpm::metric(gpu, 2, 0.0, 30.0).unwrap()));
            let nvlink = gpu.nvlink().unwrap();
            let bytes = (field(gpu, 138, ALL_LINKS, 30.0).unwrap() - field(gpu, 138, ALL_LINKS, 0.0).unwrap())
                as f64
                * 1024.0;
            let max = f64::from(nvlink.links * nvlink.megabytes_per_second) * 1e6 * 30.0;
            assert!(
                (0.6..0.8).contains(&(bytes / max)),
                "{spec} nvlink {}",
                bytes / max
            );
            assert_eq!(gpu.clock_reasons(5.0), 0);
            assert_eq!(gpu.ecc(1e6).corrected, 0);
        }
    }
}

#[test]
fn idle_node_does_nothing() {
    for gpu in &node("h100x2:idle").gpus {
        assert_eq!((gpu.utilization(9.0), gpu.processes(9.0).len()), (0, 0));
        assert_eq!(gpu.clock_reasons(9.0), reason::GPU_IDLE);
        assert_eq!(gpu.power_mw(9.0, 1.0) / 1_000, gpu.profile.power_idle_w);
        assert_eq!(field(gpu, 138, ALL_LINKS, 9.0), Ok(0));
        assert_eq!(samples::since(gpu, 1, 0.0, 60.0), Err(Status::NotFound));
    }
    assert_eq!(node("rtx4090x1:idle").gpus[0].performance_state(), 8);
}

#[test]
fn throttle_heats_one_gpu_and_slows_all() {
    let node = node("h100x8:throttle,gpu=3,after=30s,for=60s");
    let (hot, cool) = (&node.gpus[3], &node.gpus[4]);
    for (t, throttled) in [(29.0, false), (31.0, true), (89.0, true), (91.0, false)] {
        assert_eq!(
            hot.clock_reasons(t) & reason::HW_THERMAL != 0,
            throttled,
            "at {t}"
        );
        assert_eq!(hot.clock_mhz(Clock::Sm, t) < 1_200, throttled, "at {t}");
        assert_eq!(cool.clock_reasons(t), 0);
    }
    assert!(hot.temperature(60.0) >= 88 && cool.temperature(60.0) < 70);
    assert!(hot.temperature(120.0) < 70, "it cools again");
    for gpu in [hot, cool] {
        let rate = |from, to| gpm::metric(gpu, 60, from, to).unwrap();
        let slowed = rate(35.0, 85.0) / rate(0.0, 28.0);
        assert!((0.5..0.6).contains(&slowed), "{slowed}");
    }
    assert_eq!(field(hot, 75, 0, 40.0), Ok(10_000_000_000));
}

#[test]
fn memory_pressure_fills_memory() {
    let share = |gpu: &Gpu, t| 1.0 - gpu.memory(t).free as f64 / gpu.memory(t).total as f64;
    let node = node("h100x2:memory-pressure,after=5s");
    for gpu in &node.gpus {
        assert!(share(gpu, 4.0) < 0.82 && (0.975..0.985).contains(&share(gpu, 6.0)));
    }
}

#[test]
fn ecc_storm_ends_in_an_uncorrectable_error() {
    let node = node("h100x2:ecc,gpu=1,after=10s");
    let gpu = &node.gpus[1];
    for (t, corrected, uncorrected) in [(9.0, 0, 0), (15.0, 200, 0), (31.0, 840, 1)] {
        assert_eq!(
            (field(gpu, 3, 0, t), field(gpu, 4, 0, t)),
            (Ok(corrected), Ok(uncorrected)),
            "at {t}"
        );
        assert_eq!(
            (field(gpu, 143, 0, t), field(gpu, 230, 0, t)),
            (Ok(uncorrected), Ok(uncorrected)),
            "at {t}"
        );
        assert_eq!(field(&node.gpus[0], 3, 0, t), Ok(0));
    }
    let xids: Vec<u64> = node
        .events
        .iter()
        .filter(|event| event.data > 1)
        .map(|event| event.data)
        .collect();
    assert_eq!(xids, [48, 63, 94]);
}

#[test]
fn xid_79_takes_the_gpu_and_stops_the_job() {
    let node = node("h100x4:xid,gpu=2,after=10s");
    assert_eq!(node.gpus[2].gate(9.0), Gate::Open);
    assert_eq!(node.gpus[2].gate(10.0), Gate::Lost);
    assert_eq!(
        (node.events[0].gpu, node.events[0].data, node.events[0].at),
        (2, 79, 10.0)
    );
    let other = &node.gpus[0];
    assert_eq!(gpm::metric(other, 60, 15.0, 25.0), Ok(0.0));
    assert!(
        other.utilization(20.0) == 100 && other.power_mw(20.0, 1.0) < 200_000,
        "it spins"
    );
}

#[test]
fn link_down_stops_one_link_and_leaves_errors() {
    for (spec, errors) in [
        ("h100x4:link-down,gpu=1,link=5", 163),
        ("b200x4:link-down,gpu=1,link=5", 221),
    ] {
        let node = node(spec);
        let gpu = &node.gpus[1];
        assert_eq!(
            (
                gpu.link_is_up(5, 9.0),
                gpu.link_is_up(5, 11.0),
                gpu.link_is_up(4, 11.0)
            ),
            (Ok(true), Ok(false), Ok(true))
        );
        assert_eq!((gpu.links_up(9.0), gpu.links_up(11.0)), (18, 17));
        assert_eq!(
            field(gpu, 138, 5, 11.0),
            field(gpu, 138, 5, 60.0),
            "nothing passes"
        );
        assert!(field(gpu, 138, 4, 11.0).unwrap() < field(gpu, 138, 4, 60.0).unwrap());
        assert_eq!(field(gpu, errors, 5, 9.0), Ok(0));
        assert!(field(gpu, errors, 5, 11.0).unwrap() > 0);
        assert_eq!(field(gpu, 164, 5, 11.0), Ok(0));
        assert_eq!(node.gpus[0].links_up(11.0), 18);
    }
}

#[test]
fn models_have_what_they_have_in_life() {
    let (h100, b200, a100, rtx) = (node("h100x2"), node("b200x2"), node("a100x2"), node("rtx4090x2"));
    let cases = [
        // (gpu, links, link speed of link 0, replay field 161, packets field 201)
        (
            &h100.gpus[0],
            Ok(18),
            Ok(26_562),
            Ok(0),
            Err(Status::NotSupported),
        ),
        (
            &b200.gpus[0],
            Ok(18),
            Ok(53_125),
            Err(Status::NotSupported),
            Ok(()),
        ),
        (
            &a100.gpus[0],
            Ok(12),
            Ok(25_000),
            Ok(0),
            Err(Status::NotSupported),
        ),
        (
            &rtx.gpus[0],
            Err(Status::NotSupported),
            Err(Status::NotSupported),
            Err(Status::NotSupported),
            Err(Status::NotSupported),
        ),
    ];
    for (gpu, links, speed, replays, packets) in cases {
        let name = gpu.profile.name;
        assert_eq!(field(gpu, 91, 0, 1.0), links, "{name}");
        assert_eq!(field(gpu, 164, 0, 1.0), speed, "{name}");
        assert_eq!(field(gpu, 161, 0, 1.0), replays, "{name}");
        assert_eq!(field(gpu, 201, 0, 1.0).map(|_| ()), packets, "{name}");
        assert!(
            field(gpu, 198, 0, 2.0).unwrap() > field(gpu, 198, 0, 1.0).unwrap(),
            "{name}"
        );
    }
    assert_eq!(
        field(&h100.gpus[0], 138, 18, 1.0),
        Err(Status::InvalidArgument),
        "a link too far"
    );
    assert_eq!(field(&h100.gpus[0], 9_999, 0, 1.0), Err(Status::NotSupported));
    assert_eq!(
        field(&rtx.gpus[0], 3, 0, 1.0),
        Err(Status::NotSupported),
        "ECC is off"
    );
    assert!(rtx.gpus[0].fan_percent(1.0).is_some() && h100.gpus[0].fan_percent(1.0).is_none());
}

#[test]
fn one_gpu_alone_sends_nothing_over_nvlink() {
    assert_eq!(field(&node("h200x1").gpus[0], 138, ALL_LINKS, 100.0), Ok(0));
    assert!(field(&node("h200x1,nodes=2").gpus[0], 138, ALL_LINKS, 100.0).unwrap() > 0);
}

#[test]
fn sum_of_links_is_the_aggregate() {
    let node = node("h100x8");
    let gpu = &node.gpus[0];
    let links: u64 = (0..18).map(|link| field(gpu, 138, link, 5.0).unwrap()).sum();
    let all = field(gpu, 138, ALL_LINKS, 5.0).unwrap();
    assert!(all.abs_diff(links) <= 18, "{all} and {links}");
}

#[test]
fn gpm_averages_agree_with_counters() {
    let node = node("h100x8");
    let gpu = &node.gpus[0];
    let counted =
        (field(gpu, 139, ALL_LINKS, 8.0).unwrap() - field(gpu, 139, ALL_LINKS, 7.0).unwrap()) as f64 / 1024.0;
    let measured = gpm::metric(gpu, 60, 7.0, 8.0).unwrap();
    assert!(
        (counted / measured - 1.0).abs() < 1e-6,
        "{counted} and {measured}"
    );
    let pcie = (gpu.pcie_bytes(Direction::Receive, 8.0) - gpu.pcie_bytes(Direction::Receive, 7.0)) as f64
        / 1_048_576.0;
    assert!((pcie / gpm::metric(gpu, 21, 7.0, 8.0).unwrap() - 1.0).abs() < 1e-6);
}

#[test]
fn gpm_has_the_limits_of_the_hardware() {
    let node = node("h100x8");
    let gpu = &node.gpus[0];
    assert!(
        gpm::metric(gpu, 2, 5.0, 5.001).unwrap().is_nan(),
        "1 ms is not valid"
    );
    assert!(gpm::metric(gpu, 2, 5.0, 5.0).unwrap().is_nan());
    assert_eq!(gpm::metric(gpu, 2, 6.0, 5.0), Err(Status::InvalidArgument));
    assert_eq!(gpm::metric(gpu, 248, 5.0, 6.0), Err(Status::NotSupported));
    assert!(gpm::metric(gpu, 97, 5.0, 6.0).unwrap() > 0.0);
    for id in (1..=13).chain([20, 21]).chain(60..=97) {
        assert!(!gpm::label(id).short.is_empty(), "{id}");
    }
}

#[test]
fn sample_ring_gives_only_what_is_new() {
    let node = node("h100x8");
    let gpu = &node.gpus[0];
    let all = samples::since(gpu, 0, f64::NEG_INFINITY, 100.0).unwrap();
    assert_eq!(all.len(), samples::RING);
    assert!(all.windows(2).all(|pair| pair[0].t < pair[1].t));
    let newest = all[all.len() - 1].t;
    assert_eq!(samples::since(gpu, 0, newest, 100.0), Err(Status::NotFound));
    assert_eq!(samples::since(gpu, 0, newest, 101.0).unwrap().len(), 7);
    assert_eq!(samples::since(gpu, 99, 0.0, 100.0), Err(Status::InvalidArgument));
}

#[test]
fn nodes_and_seeds_make_other_machines_but_the_same_spec_the_same() {
    let uuid = |spec: &str| node(spec).gpus[0].identity.uuid.clone();
    assert_eq!(uuid("h100x8"), uuid("h100x8:throttle"));
    assert_ne!(uuid("h100x8,nodes=2,node=1"), uuid("h100x8,nodes=2,node=0"));
    assert_ne!(uuid("h100x8,seed=1"), uuid("h100x8"));
    let reading = |spec: &str| counters(&node(spec).gpus[1], 12.34);
    assert_eq!(reading("h100x8"), reading("h100x8"));
}

#[test]
fn gpus_are_found_by_every_name() {
    let node = node("h100x8");
    for gpu in &node.gpus {
        assert_eq!(node.with_uuid(&gpu.identity.uuid).unwrap().index, gpu.index);
        assert_eq!(node.at_bus_id(&gpu.identity.bus_id()).unwrap().index, gpu.index);
        assert_eq!(
            node.at_bus_id(&gpu.identity.bus_id_legacy().to_lowercase())
                .unwrap()
                .index,
            gpu.index
        );
    }
    assert!(node.with_uuid("GPU-0").is_none() && node.at_bus_id("0000:00:00.0").is_none());
    assert_eq!((node.socket(&node.gpus[3]), node.socket(&node.gpus[4])), (0, 1));
}
