//! The values that a knob accepts. Input is converted to one canonical text, so that two requests for the same value are recognised as
//! equal.

/// Maximum size of a value in bytes: several interfaces, or several allocator settings.
const VALUE_BYTES_MAX: usize = 256;
/// Maximum length of an interface name in Linux.
const INTERFACE_BYTES_MAX: usize = 15;
/// Maximum number of segments or layers: more than any model has.
const EVERY_MAX: u32 = 1_000;

/// The values of a knob.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Values {
    /// One of these words.
    Words(&'static [&'static str]),
    /// `constant`, `cosine:STEPS`, `linear:STEPS`.
    Schedule,
    /// A number in a range.
    Number {
        /// The lower bound, exclusive.
        above: f64,
        /// The upper bound, inclusive.
        most: f64,
    },
    /// A whole number in a range.
    Whole {
        /// The smallest value.
        least: u32,
        /// The largest value.
        most: u32,
    },
    /// `none`, `block`, `stage`, `every=N`, `sequential=N`.
    Checkpointing,
    /// Names of network interfaces separated by commas, with `^` or `=` before the first one as in NCCL.
    Interfaces,
    /// `key:value` pairs separated by commas.
    AllocatorSettings,
}

impl Values {
    /// Returns the value in its canonical text.
    ///
    /// # Errors
    /// Returns a message that says which values are valid.
    pub fn parse(self, text: &str) -> Result<String, String> {
        let text = text.trim();
        if text.len() > VALUE_BYTES_MAX || text.chars().any(char::is_control) {
            return Err(format!("give one line of at most {VALUE_BYTES_MAX} bytes"));
        }
        let parsed = match self {
            Self::Words(words) => words.contains(&text).then(|| text.to_owned()),
            Self::Schedule => is_schedule(text).then(|| text.to_owned()),
            Self::Number { above, most } => number(text, above, most),
            Self::Whole { least, most } => whole(text, least, most).map(|value| value.to_string()),
            Self::Checkpointing => checkpointing(text),
            Self::Interfaces => are_interfaces(text).then(|| text.to_owned()),
            Self::AllocatorSettings => text.split(',').all(is_setting).then(|| text.to_owned()),
        };
        parsed.ok_or_else(|| format!("{text:?} is not a valid value: give {}", self.words()))
    }

    /// Returns the valid values, as text for users.
    #[must_use]
    pub fn words(self) -> String {
        match self {
            Self::Words(words) => words.join(", "),
            Self::Schedule => "constant, cosine:STEPS or linear:STEPS".into(),
            Self::Number { above, most } => format!("a number above {above}, at most {most}"),
            Self::Whole { least, most } => format!("a whole number from {least} to {most}"),
            Self::Checkpointing => {
                format!("none, block, stage, every=N or sequential=N with N from 1 to {EVERY_MAX}")
            }
            Self::Interfaces => {
                "interface names separated by commas, for example eth0,eth1, or ^docker0 for all others"
                    .into()
            }
            Self::AllocatorSettings => "key:value with commas, like expandable_segments:True".into(),
        }
    }

    /// Returns all valid values if they are a few words, otherwise none.
    #[must_use]
    pub fn choices(self) -> &'static [&'static str] {
        match self {
            Self::Words(words) => words,
            _ => &[],
        }
    }

    /// Returns a warning about a value that is allowed but rarely useful.
    #[must_use]
    pub fn warning(self, value: &str) -> Option<&'static str> {
        match (self, value) {
            (Self::Checkpointing, "every=1") => Some(
                "each repeated part on its own, as `block` does it; where those are single layers it saves little and computes \
                 everything twice",
            ),
            (Self::Checkpointing, "sequential=1") => Some(
                "the whole model is one segment: all its activations are there again in the backward pass, so that almost nothing is \
                 saved for a whole forward pass more",
            ),
            _ => None,
        }
    }
}

fn number(text: &str, above: f64, most: f64) -> Option<String> {
    // `inf`, `nan` and `+1` are refused: only digits mean the same number to every script's own parser.
    let plain = text.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    let value = text.parse::<f64>().ok().filter(|_| plain)?;
    (value > above && value <= most).then(|| value.to_string())
}

fn whole(text: &str, least: u32, most: u32) -> Option<u32> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let value = text.parse::<u32>().ok().filter(|_| plain)?;
    (least..=most).contains(&value).then_some(value)
}

fn checkpointing(text: &str) -> Option<String> {
    if ["none", "block", "stage"].contains(&text) {
        return Some(text.to_owned());
    }
    let (kind, count) = text.split_once('=')?;
    let count = whole(count, 1, EVERY_MAX)?;
    ["every", "sequential"]
        .contains(&kind)
        .then(|| format!("{kind}={count}"))
}

fn is_schedule(text: &str) -> bool {
    text == "constant"
        || text.split_once(':').is_some_and(|(shape, steps)| {
            ["cosine", "linear"].contains(&shape) && whole(steps, 1, u32::MAX).is_some()
        })
}

fn are_interfaces(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_-.:@".contains(c);
    let names = text.strip_prefix('^').unwrap_or(text);
    let names = names.strip_prefix('=').unwrap_or(names);
    names
        .split(',')
        .all(|name| (1..=INTERFACE_BYTES_MAX).contains(&name.len()) && name.chars().all(allowed))
}

fn is_setting(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_.[]:".contains(c);
    text.split_once(':')
        .is_some_and(|(key, value)| !key.is_empty() && !value.is_empty() && text.chars().all(allowed))
}

#[cfg(test)]
mod tests {
    use crate::run::knob::{KNOBS, known};

    #[test]
    fn values_are_what_they_say_and_nothing_else() {
        for (knob, text, expected) in [
            ("activation_checkpointing", " block ", Some("block")),
            ("activation_checkpointing", "every=02", Some("every=2")),
            ("activation_checkpointing", "sequential=4", Some("sequential=4")),
            ("activation_checkpointing", "every=0", None),
            ("activation_checkpointing", "every", None),
            ("activation_checkpointing", "blocks", None),
            ("fsdp_sharding", "full_shard", Some("full_shard")),
            ("fsdp_sharding", "FULL", None),
            ("reshard_after_forward", "false", Some("false")),
            ("reshard_after_forward", "no", None),
            ("grad_clip_norm", "1.0", Some("1")),
            ("grad_clip_norm", "1e-3", Some("0.001")),
            ("grad_clip_norm", "0", None),
            ("grad_clip_norm", "-1", None),
            ("grad_clip_norm", "nan", None),
            ("grad_clip_norm", "inf", None),
            ("lr_scale", "0.50", Some("0.5")),
            ("lr_scale", "1001", None),
            ("lr_schedule", "cosine:900", Some("cosine:900")),
            ("lr_schedule", "constant", Some("constant")),
            ("lr_schedule", "cosine", None),
            ("lr_schedule", "step:3", None),
            ("process_group_timeout_s", "1200", Some("1200")),
            ("process_group_timeout_s", "0", None),
            ("nccl_ib_timeout", "22", Some("22")),
            ("nccl_ib_timeout", "23", None),
            ("nccl_ib_retry_count", "8", None),
            ("nccl_socket_ifname", "^docker0,lo", Some("^docker0,lo")),
            ("nccl_socket_ifname", "eth0; rm", None),
            ("nccl_socket_ifname", "", None),
            (
                "cuda_alloc_conf",
                "expandable_segments:True,max_split_size_mb:128",
                Some("expandable_segments:True,max_split_size_mb:128"),
            ),
            ("cuda_alloc_conf", "expandable_segments", None),
            ("num_workers", "4", Some("4")),
            ("num_workers", "+4", None),
            ("num_workers", "4.0", None),
            ("amp", "bf16", Some("bf16")),
            ("micro_batch", "0", None),
        ] {
            let values = known(knob).expect("a knob").values;
            let parsed = values.parse(text);
            assert_eq!(parsed.as_deref().ok(), expected, "{knob}={text}: {parsed:?}");
            if let Some(value) = expected {
                assert_eq!(values.parse(value).as_deref(), Ok(value), "parsed again");
            }
        }
        assert!(known("learning_rate").is_err_and(|message| message.contains("lr_scale")));
    }

    #[test]
    fn each_knob_has_a_name_of_its_own_and_words() {
        for (at, knob) in KNOBS.iter().enumerate() {
            assert!(KNOBS[..at].iter().all(|other| other.name != knob.name));
            assert!(!knob.what.is_empty() && !knob.values.words().is_empty());
        }
    }

    #[test]
    fn checkpointing_by_layer_and_of_the_whole_is_allowed_with_a_warning() {
        let values = known("activation_checkpointing").expect("a knob").values;
        for (value, warned) in [
            ("every=1", true),
            ("sequential=1", true),
            ("block", false),
            ("every=2", false),
        ] {
            assert_eq!(values.warning(value).is_some(), warned, "{value}");
        }
    }
}
