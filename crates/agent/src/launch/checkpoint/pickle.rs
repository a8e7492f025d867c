//! Searches the bytes of a pickle without executing it: strings are stored in it unencoded.

/// Keys of the state of an optimizer or a scheduler.
const OPTIMIZER_KEYS: [&str; 3] = ["optim", "opt", "scheduler"];

/// Keys of a training's progress. Short strings have a length of one byte, others of four. Protocol 2 (`torch.save`) uses only the latter.
const KEYS: [&str; 5] = ["step", "epoch", "iteration", "iter", "global_step"];

/// Returns true if it contains the state of a training and not only a model: an optimizer, a step, or an epoch.
pub(super) fn names_training(bytes: &[u8]) -> bool {
    names_optimizer(bytes) || KEYS.iter().any(|key| names(bytes, key))
}

/// Returns true if it contains the state of an optimizer.
pub(super) fn names_optimizer(bytes: &[u8]) -> bool {
    contains(bytes, b"param_groups")
        || contains(bytes, b"optimizer")
        || contains(bytes, b"optim.")
        || OPTIMIZER_KEYS.iter().any(|key| names(bytes, key))
}

fn names(bytes: &[u8], key: &str) -> bool {
    let length = u8::try_from(key.len()).unwrap_or(u8::MAX);
    let long = [b"X".as_slice(), &[length, 0, 0, 0], key.as_bytes()].concat();
    let short = [b"\x8c".as_slice(), &[length], key.as_bytes()].concat();
    contains(bytes, &long) || contains(bytes, &short)
}

/// Returns the shards that a `.metadata` names: `__RANK_N.distcp`.
pub(super) fn shards(bytes: &[u8]) -> impl Iterator<Item = &str> {
    positions(bytes, SHARD_END).filter_map(|end| {
        let begin = bytes[..end]
            .iter()
            .rposition(|byte| !(byte.is_ascii_digit() || *byte == b'_'))
            .map_or(0, |at| at + 1);
        let name = std::str::from_utf8(&bytes[begin..end + SHARD_END.len()]).ok()?;
        is_shard(name).then_some(name)
    })
}

const SHARD_END: &[u8] = b".distcp";

/// Returns true for `__3_0.distcp`, but not for names that the helper or a person chose.
pub(super) fn is_shard(name: &str) -> bool {
    let ranks = name
        .strip_prefix("__")
        .and_then(|rest| rest.strip_suffix(".distcp"));
    let numbers = |text: &str| {
        !text.is_empty()
            && text
                .split('_')
                .all(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    ranks.is_some_and(numbers)
}

fn contains(bytes: &[u8], what: &[u8]) -> bool {
    positions(bytes, what).next().is_some()
}

/// Returns every position of a byte string. This is fast if its first byte is rare enough.
fn positions<'a>(bytes: &'a [u8], what: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    let mut from = 0;
    std::iter::from_fn(move || {
        while let Some(rest) = bytes.get(from..) {
            let at = from + rest.iter().position(|byte| Some(byte) == what.first())?;
            from = at + 1;
            if bytes[at..].starts_with(what) {
                return Some(at);
            }
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_read_from_the_bytes_between_anything() {
        let bytes = b"\x8c\x0c__0_0.distcp\x94\x00__12_3.distcpX__x_0.distcp __.distcp junk.distcp .distcp __1_0.distc";
        assert_eq!(
            shards(bytes).collect::<Vec<_>>(),
            ["__0_0.distcp", "__12_3.distcp"]
        );
    }

    #[test]
    fn a_model_alone_differs_from_a_training() {
        assert!(names_training(b"..X\x04\x00\x00\x00stepq"));
        assert!(names_training(b"\x8c\x05epoch"));
        assert!(names_training(b"optimizer.state.0.exp_avg"));
        assert!(!names_training(
            b"X\x0d\x00\x00\x00timestep.bias X\x06\x00\x00\x00weight"
        ));
    }
}
