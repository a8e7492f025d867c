//! Texts about a diagnosis.

use domain::api::alerts::Diagnosis;
use domain::incident::{Basis, Confidence, ConfidenceLevel, CulpritKind, NamedCulprit, WitnessKind};
use domain::time::{DisplayDuration, TimestampMs};

use crate::language::{marked, tr, tr_with};

/// Returns the culprit with its location, or that it is unknown.
pub(super) fn culprit(who: &NamedCulprit) -> String {
    let mut words: Vec<String> = Vec::new();
    match (&who.rank, &who.ranks) {
        (Some(rank), _) => words.push(tr_with("rank {rank}", &[("rank", rank)])),
        (None, Some(ranks)) => words.push(tr_with("ranks {ranks}", &[("ranks", ranks)])),
        (None, None) => {}
    }
    let (node, link, mountpoint) = (who.node.as_ref(), who.link.as_ref(), who.mountpoint.as_ref());
    words.extend(node.map(|node| tr_with("node {node}", &[("node", node)])));
    words.extend(who.gpu.map(|gpu| format!("GPU {gpu}")));
    words.extend(link.map(|link| tr_with("link {link}", &[("link", link)])));
    words.extend(mountpoint.map(|volume| tr_with("volume {volume}", &[("volume", volume)])));
    if words.is_empty() || who.kind == CulpritKind::Unknown {
        return tr("Culprit unknown.").to_owned();
    }
    words.join(", ")
}

/// Returns the confidence and its basis.
pub(super) fn confidence(confidence: &Confidence) -> String {
    let kinds: Vec<&str> = confidence.kinds.iter().map(kind).collect();
    let by = if kinds.is_empty() {
        String::new()
    } else {
        format!(" ({})", kinds.join(", "))
    };
    let sentence = match (confidence.basis, confidence.witnesses) {
        (_, 0 | 1) if confidence.is_suspect => {
            marked("{level}: only one witness{by}. No notification is sent.")
        }
        (Basis::Analysis, 1) => marked("{level}: the ranks were compared; one source measured it{by}."),
        (Basis::Analysis, _) => {
            marked("{level}: the ranks were compared; {count} independent sources agree{by}.")
        }
        (Basis::Threshold, 0 | 1) => marked("{level}: a measurement is beyond its threshold{by}."),
        (Basis::Threshold, _) => {
            marked("{level}: measurements of {count} kinds of sources are beyond the threshold{by}.")
        }
    };
    tr_with(
        sentence,
        &[
            ("level", &level(confidence.level)),
            ("count", &confidence.witnesses),
            ("by", &by),
        ],
    )
}

fn level(level: ConfidenceLevel) -> &'static str {
    match level {
        ConfidenceLevel::Low => tr("Low"),
        ConfidenceLevel::Medium => tr("Medium"),
        ConfidenceLevel::High => tr("High"),
    }
}

fn kind(kind: &WitnessKind) -> &str {
    match kind {
        WitnessKind::Rank => tr("training process"),
        WitnessKind::Peers => tr("its peers"),
        WitnessKind::Kernel => tr("kernel"),
        WitnessKind::Driver => tr("GPU driver"),
        WitnessKind::Nic => tr("network interfaces"),
        WitnessKind::Agent => tr("agent"),
        WitnessKind::Collector => tr("collector"),
        WitnessKind::Other(word) => word,
    }
}

/// Returns when the diagnosis began to fire.
pub(super) fn since_ms(diagnosis: &Diagnosis) -> TimestampMs {
    diagnosis.alert.fired_ms.unwrap_or(diagnosis.alert.active_ms)
}

/// Returns the time between two times, in whole seconds.
pub(super) fn duration(start_ms: TimestampMs, end_ms: TimestampMs) -> String {
    DisplayDuration((end_ms - start_ms).max(0) / 1_000 * 1_000).to_string()
}

/// Returns the verb for an entry of the timeline.
pub(super) fn timeline_verb(kind: &str) -> &str {
    match kind {
        "acknowledged" => tr("acknowledged it"),
        "released" => tr("unacknowledged it"),
        "note" => tr("commented"),
        "not_a_problem" => tr("marked it as not a problem"),
        "silenced" => tr("silenced it"),
        "acted" => tr("carried out"),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::ident::Rank;

    #[test]
    fn a_culprit_is_named_with_its_place() {
        let gpu = NamedCulprit {
            kind: CulpritKind::Gpu,
            node: Some("node-07".into()),
            gpu: Some(3),
            ..NamedCulprit::default()
        };
        assert_eq!(culprit(&gpu), "node node-07, GPU 3");
        let rank = NamedCulprit {
            kind: CulpritKind::Rank,
            rank: Some(Rank(17)),
            node: Some("node-07".into()),
            ..NamedCulprit::default()
        };
        assert_eq!(culprit(&rank), "rank 17, node node-07");
        assert_eq!(culprit(&NamedCulprit::default()), "Culprit unknown.");
    }

    #[test]
    fn the_confidence_names_its_basis() {
        let analysed = Confidence {
            level: ConfidenceLevel::High,
            basis: Basis::Analysis,
            witnesses: 2,
            kinds: vec![WitnessKind::Peers, WitnessKind::Driver],
            is_suspect: false,
        };
        assert_eq!(
            confidence(&analysed),
            "High: the ranks were compared; 2 independent sources agree (its peers, GPU driver)."
        );
        let suspect = Confidence {
            level: ConfidenceLevel::Low,
            witnesses: 1,
            kinds: vec![WitnessKind::Rank],
            is_suspect: true,
            ..analysed
        };
        assert_eq!(
            confidence(&suspect),
            "Low: only one witness (training process). No notification is sent."
        );
        assert_eq!(
            confidence(&Confidence::default()),
            "Medium: a measurement is beyond its threshold."
        );
    }
}
