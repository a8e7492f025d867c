//! Reduces the Flight Recorder's dump of one rank to a digest.
//!
//! PyTorch has two recorders: one for NCCL and one for all other backends. This code reads the following parts of their JSON:
//!
//! ```text
//! entries[]      the last operations, the oldest first
//!   process_group        [name, description]
//!   profiling_name       gloo:all_reduce, nccl:recv 0<-1
//!   collective_seq_id    counts the collectives of the group; equal on all members
//!   p2p_seq_id, is_p2p   the same for sends and receives; Gloo does not record those
//!   retired, state       retired, or completed: the operation has ended on this rank
//!   time_discovered_started_ns    > 0 if NCCL times its kernels and this one has started
//! pg_config      name ─▶ {desc, ranks: "[0, 1]"}; of Gloo's groups only the last one, without its name
//! pg_status      not read: Gloo counts sends and receives in it, which differ between members
//! ```
//! The JSON is not trusted: parts of another form are ignored.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use super::flight::{FlightDigest, GROUP_DIGEST_BYTES_MAX, GROUPS_MAX, GroupDigest, Operation};
use crate::ident::Rank;
use crate::run::ranks::RankSet;

/// Maximum sizes of texts that are kept of an operation and of a group, in bytes.
const NAME_BYTES_MAX: usize = 128;
const SIZES_BYTES_MAX: usize = 96;
const DTYPES_BYTES_MAX: usize = 48;

/// The contents of one recorder of a rank.
#[derive(Debug, Clone, PartialEq)]
pub struct RecorderDump {
    /// Its backend if it records only one: `nccl`. Empty for the recorder of all other backends.
    pub backend: &'static str,
    /// Its JSON.
    pub json: Value,
}

/// Combines the recorders of one rank. `members` are the groups that the rank's probe knows, for groups whose members the recorder does not
/// name.
#[must_use]
pub fn digest(dumps: &[RecorderDump], members: &BTreeMap<String, RankSet>) -> FlightDigest {
    let mut groups = Groups::default();
    for dump in dumps {
        groups.take_entries(dump);
        groups.take_config(dump);
    }
    for (name, ranks) in members {
        groups.take_members(name, ranks);
    }
    let mut all: Vec<GroupDigest> = groups.all.into_iter().map(|seen| seen.digest).collect();
    // The sort is stable: equal groups stay in the recorder's order.
    all.sort_by_key(|group| (group.oldest_unfinished.is_none(), group.last_enqueued.is_none()));
    let left_out = all.len().saturating_sub(GROUPS_MAX);
    all.truncate(GROUPS_MAX);
    all.iter_mut().for_each(fit);
    FlightDigest {
        groups: all,
        groups_left_out: u32::try_from(left_out).unwrap_or(u32::MAX),
    }
}

/// Groups in the order in which they were first seen.
#[derive(Debug, Default)]
struct Groups {
    all: Vec<Seen>,
    /// By name and backend: a group may have one backend for CPUs and another for GPUs, which count separately.
    places: HashMap<(String, String), usize>,
}

#[derive(Debug)]
struct Seen {
    digest: GroupDigest,
    /// True if the recorder sees when kernels start.
    is_timed: bool,
}

impl Groups {
    fn take_entries(&mut self, dump: &RecorderDump) {
        let entries = dump.json["entries"].as_array().map_or(&[][..], Vec::as_slice);
        for entry in entries {
            let Some(name) = entry["process_group"][0].as_str() else {
                continue;
            };
            let operation = entry["profiling_name"].as_str().unwrap_or_default();
            let backend = match dump.backend {
                "" => operation.split_once(':').map_or("", |(backend, _)| backend),
                own => own,
            };
            let seen = self.group(name, backend);
            if seen.digest.description.is_empty() {
                let text = entry["process_group"][1].as_str().unwrap_or_default();
                seen.digest.description = head(text, NAME_BYTES_MAX);
            }
            seen.take(entry);
        }
        let of_dump = |seen: &&mut Seen| dump.backend.is_empty() || seen.digest.backend == dump.backend;
        for seen in self.all.iter_mut().filter(of_dump) {
            let oldest = seen.digest.oldest_unfinished.as_mut();
            if let Some(oldest) = oldest.filter(|_| seen.is_timed) {
                oldest.has_started.get_or_insert(false);
            }
        }
    }

    fn take_config(&mut self, dump: &RecorderDump) {
        for (name, config) in dump.json["pg_config"].as_object().into_iter().flatten() {
            // All of Gloo's groups have an empty name there, so each one replaces the one before.
            if name.is_empty() {
                continue;
            }
            let ranks = config["ranks"].as_str().unwrap_or_default();
            let members: Option<Vec<u32>> = serde_json::from_str(ranks).ok();
            let seen = self.group(name, dump.backend);
            seen.digest.members = members.into_iter().flatten().map(Rank).collect();
            if seen.digest.description.is_empty() {
                seen.digest.description = head(config["desc"].as_str().unwrap_or_default(), NAME_BYTES_MAX);
            }
        }
    }

    fn take_members(&mut self, name: &str, ranks: &RankSet) {
        let name = head(name, NAME_BYTES_MAX);
        let mut known = false;
        for seen in self.all.iter_mut().filter(|seen| seen.digest.name == name) {
            known = true;
            if seen.digest.members.is_empty() {
                seen.digest.members = ranks.clone();
            }
        }
        if !known {
            self.group(&name, "").digest.members = ranks.clone();
        }
    }

    fn group(&mut self, name: &str, backend: &str) -> &mut Seen {
        let key = (head(name, NAME_BYTES_MAX), head(backend, NAME_BYTES_MAX));
        let place = *self.places.entry(key).or_insert_with_key(|(name, backend)| {
            let digest = GroupDigest {
                name: name.clone(),
                backend: backend.clone(),
                ..GroupDigest::default()
            };
            self.all.push(Seen {
                digest,
                is_timed: false,
            });
            self.all.len() - 1
        });
        &mut self.all[place]
    }
}

impl Seen {
    /// The entries of a group are in the order in which they were enqueued.
    fn take(&mut self, entry: &Value) {
        let has_started = entry["time_discovered_started_ns"]
            .as_u64()
            .is_some_and(|at| at > 0);
        let state = entry["state"].as_str().unwrap_or_default();
        let is_finished = entry["retired"].as_bool().unwrap_or(false) || state == "completed";
        self.is_timed |= has_started;
        let is_point_to_point = entry["is_p2p"].as_bool().unwrap_or(false);
        let number = if is_point_to_point {
            "p2p_seq_id"
        } else {
            "collective_seq_id"
        };
        let Some(sequence) = entry[number].as_u64() else {
            return;
        };
        if !is_point_to_point {
            self.digest.last_enqueued = self.digest.last_enqueued.max(Some(sequence));
            if is_finished {
                self.digest.last_completed = self.digest.last_completed.max(Some(sequence));
            }
        }
        if !is_finished && self.digest.oldest_unfinished.is_none() {
            self.digest.oldest_unfinished = Some(Operation {
                sequence,
                is_point_to_point,
                name: head(
                    entry["profiling_name"].as_str().unwrap_or_default(),
                    NAME_BYTES_MAX,
                ),
                sizes: match &entry["input_sizes"] {
                    Value::Null => String::new(),
                    sizes => head(&sizes.to_string(), SIZES_BYTES_MAX),
                },
                dtypes: dtypes(&entry["input_dtypes"]),
                has_started: (has_started || state == "started").then_some(true),
            });
        }
    }
}

/// Returns the types as text: `Float`, `Float,Long`.
fn dtypes(types: &Value) -> String {
    let types: Vec<&str> = match types {
        Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
        Value::String(only) => vec![only],
        _ => Vec::new(),
    };
    head(&types.join(","), DTYPES_BYTES_MAX)
}

/// Removes less important parts until the group fits. Names stay: they are bounded, but JSON may write one byte as six.
fn fit(group: &mut GroupDigest) {
    let is_long = |group: &GroupDigest| {
        serde_json::to_vec(group).map_or(true, |json| json.len() > GROUP_DIGEST_BYTES_MAX)
    };
    let cuts: [fn(&mut GroupDigest); 4] = [
        |group| group.members = RankSet::default(),
        |group| group.description.clear(),
        |group| {
            if let Some(oldest) = &mut group.oldest_unfinished {
                (oldest.sizes, oldest.dtypes) = (String::new(), String::new());
            }
        },
        |group| {
            if let Some(oldest) = &mut group.oldest_unfinished {
                oldest.name.clear();
            }
        },
    ];
    for cut in cuts {
        if !is_long(group) {
            return;
        }
        cut(group);
    }
}

/// Returns the start of a text, cut between two characters.
fn head(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let end = (0..=bytes_max - '…'.len_utf8()).rev();
    let end = end
        .into_iter()
        .find(|end| text.is_char_boundary(*end))
        .unwrap_or(0);
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// An entry as torch 2.15 writes it.
    fn entry(group: (&str, &str), operation: &str, sequence: u64, retired: bool) -> Value {
        json!({
            "collective_seq_id": sequence, "input_dtypes": ["Float"], "input_sizes": [[2, sequence]], "is_p2p": false,
            "op_id": sequence + 1, "p2p_seq_id": 0, "pg_id": 0, "process_group": [group.0, group.1],
            "profiling_name": operation, "retired": retired, "state": "scheduled", "time_created_ns": 1,
            "time_discovered_completed_ns": 0, "time_discovered_started_ns": 0, "timeout_ms": 1_800_000,
        })
    }

    fn gloo(entries: Vec<Value>) -> RecorderDump {
        let config = json!({"": {"desc": "", "name": "", "ranks": "[0, 1]"}});
        let status = json!({"0": {"last_enqueued_collective": "11", "last_completed_collective": "9"}});
        RecorderDump {
            backend: "",
            json: json!({"version": "2.10", "pg_config": config, "pg_status": status, "entries": entries}),
        }
    }

    fn nccl(entries: Vec<Value>) -> RecorderDump {
        let config = json!({
            "0": {"desc": "default_pg", "name": "0", "ranks": "[0, 1, 2, 3]"},
            "1": {"desc": "mesh_tp", "name": "1", "ranks": "[0, 2]"},
        });
        RecorderDump {
            backend: "nccl",
            json: json!({"version": "2.10", "pg_config": config, "entries": entries}),
        }
    }

    fn ranks(text: &str) -> RankSet {
        RankSet::try_from(text.to_owned()).expect("ranks")
    }

    #[test]
    fn a_rank_that_waits_shows_what_it_waits_for_and_one_that_has_not_come_does_not() {
        let (world, pair) = (("0", "default_pg"), ("1", "pair"));
        let before = || {
            vec![
                entry(world, "gloo:broadcast", 8, true),
                entry(pair, "gloo:all_reduce", 1, true),
                entry(world, "gloo:all_reduce", 9, true),
            ]
        };
        let mut waiting = before();
        waiting.push(entry(world, "gloo:all_reduce", 10, false));
        let members = [("0", "0-3"), ("1", "0-1"), ("2", "0,2")];
        let members = members.map(|(name, text)| (name.to_owned(), ranks(text))).into();
        let all = digest(&[gloo(waiting), nccl_without_groups()], &members);
        assert_eq!(
            serde_json::to_value(&all).expect("JSON"),
            json!({"groups": [
                {"name": "0", "description": "default_pg", "backend": "gloo", "members": "0-3", "last_enqueued": 10, "last_completed": 9,
                 "oldest_unfinished": {"sequence": 10, "name": "gloo:all_reduce", "sizes": "[[2,10]]", "dtypes": "Float"}},
                {"name": "1", "description": "pair", "backend": "gloo", "members": "0-1", "last_enqueued": 1, "last_completed": 1},
                {"name": "2", "members": "0,2"},
            ]})
        );
        let other = digest(&[gloo(before())], &members);
        let world = &other.groups[0];
        assert_eq!(
            (
                world.last_enqueued,
                world.last_completed,
                &world.oldest_unfinished
            ),
            (Some(9), Some(9), &None)
        );
    }

    fn nccl_without_groups() -> RecorderDump {
        RecorderDump {
            backend: "nccl",
            json: json!({"comm_lib_version": "", "nccl_comm_state": {}, "pg_config": {}, "pg_status": {}, "version": "2.10"}),
        }
    }

    #[test]
    fn a_kernel_that_has_not_started_is_recognised_only_if_kernels_are_timed() {
        let world = ("0", "default_pg");
        let started = |mut entry: Value, at: u64, state: &str| {
            entry["time_discovered_started_ns"] = at.into();
            entry["state"] = state.into();
            entry
        };
        for (first, second, expected) in [
            ((0, "completed"), (0, "scheduled"), None),
            ((5, "completed"), (0, "scheduled"), Some(false)),
            ((5, "completed"), (6, "started"), Some(true)),
        ] {
            let digest = digest(
                &[nccl(vec![
                    started(entry(world, "nccl:all_reduce", 7, false), first.0, first.1),
                    started(entry(world, "nccl:all_reduce", 8, false), second.0, second.1),
                ])],
                &BTreeMap::new(),
            );
            let group = &digest.groups[0];
            let oldest = group.oldest_unfinished.as_ref().expect("it has not ended");
            assert_eq!((oldest.sequence, oldest.has_started), (8, expected));
            assert_eq!((group.last_enqueued, group.last_completed), (Some(8), Some(7)));
            assert_eq!(group.members, ranks("0-3"));
            assert_eq!(
                (&*digest.groups[1].name, &*digest.groups[1].description),
                ("1", "mesh_tp")
            );
            assert_eq!(digest.groups[1].last_enqueued, None);
        }
    }

    #[test]
    fn transfers_count_apart_and_one_group_may_have_two_backends() {
        let mut receive = entry(("0", "default_pg"), "nccl:recv 0<-1", 4, false);
        receive["is_p2p"] = true.into();
        receive["p2p_seq_id"] = 3.into();
        let both = digest(
            &[
                gloo(vec![entry(("0", "default_pg"), "gloo:barrier", 2, true)]),
                nccl(vec![
                    entry(("0", "default_pg"), "nccl:all_reduce", 4, true),
                    receive,
                ]),
            ],
            &BTreeMap::new(),
        );
        let named: Vec<_> = both
            .groups
            .iter()
            .map(|group| (&*group.name, &*group.backend))
            .collect();
        assert_eq!(named, [("0", "nccl"), ("0", "gloo"), ("1", "nccl")]);
        let oldest = both.groups[0].oldest_unfinished.as_ref().expect("the receive");
        assert_eq!((oldest.sequence, oldest.is_point_to_point), (3, true));
        assert_eq!(
            (both.groups[0].last_enqueued, both.groups[1].last_enqueued),
            (Some(4), Some(2))
        );
    }

    #[test]
    fn a_digest_keeps_its_bounds_with_any_record() {
        let long = "\u{1}é".repeat(4_000);
        let mut entries: Vec<Value> = (0..200)
            .map(|n| entry((&n.to_string(), &long), &format!("gloo:{long}"), 1, n != 150))
            .collect();
        entries[150]["input_sizes"] = json!(vec![[1_000; 8]; 500]);
        entries[150]["input_dtypes"] = json!(vec![&long; 50]);
        let odd: RankSet = (0..1_000).map(|n| Rank(2 * n + 1)).collect();
        let members: BTreeMap<String, RankSet> = (0..300).map(|n| (n.to_string(), odd.clone())).collect();
        let all = digest(&[gloo(entries)], &members);
        assert_eq!((all.groups.len(), all.groups_left_out), (GROUPS_MAX, 300 - 64));
        assert_eq!(
            all.groups[0].name, "150",
            "the one with an unfinished operation comes first"
        );
        for group in &all.groups {
            let json = serde_json::to_string(group).expect("JSON");
            assert!(json.len() <= GROUP_DIGEST_BYTES_MAX, "{} bytes", json.len());
            assert!(group.members.is_empty());
        }
        for other in [
            json!(null),
            json!([1]),
            json!({"entries": 7, "pg_config": []}),
            json!({"entries": [1, {}, {"process_group": 1}, {"process_group": []}]}),
        ] {
            let dump = RecorderDump {
                backend: "",
                json: other,
            };
            assert_eq!(digest(&[dump], &BTreeMap::new()), FlightDigest::default());
        }
    }
}
