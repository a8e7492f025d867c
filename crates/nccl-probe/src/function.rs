//! The functions of NCCL, and the load that each puts on a link.

/// The number of [`Function`]s.
pub(crate) const FUNCTIONS: usize = 12;

/// A function of NCCL. The first eight have the numbers that NCCL uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Function {
    Broadcast,
    Reduce,
    AllGather,
    ReduceScatter,
    AllReduce,
    SendRecv,
    Send,
    Recv,
    AlltoAll,
    Gather,
    Scatter,
    /// A function that this probe does not have.
    Other,
}

const ALL: [(Function, &str); FUNCTIONS] = [
    (Function::Broadcast, "Broadcast"),
    (Function::Reduce, "Reduce"),
    (Function::AllGather, "AllGather"),
    (Function::ReduceScatter, "ReduceScatter"),
    (Function::AllReduce, "AllReduce"),
    (Function::SendRecv, "SendRecv"),
    (Function::Send, "Send"),
    (Function::Recv, "Recv"),
    (Function::AlltoAll, "AlltoAll"),
    (Function::Gather, "Gather"),
    (Function::Scatter, "Scatter"),
    (Function::Other, "Other"),
];

impl Function {
    /// Returns the function with this name, as in versions 2 and later.
    pub(crate) fn named(name: &[u8]) -> Self {
        let known = ALL.iter().find(|(_, known)| known.as_bytes() == name);
        known.map_or(Self::Other, |(function, _)| *function)
    }

    /// Returns the function with this number of version 1, whose last one is `Recv`.
    pub(crate) fn numbered(number: u8) -> Self {
        match number {
            0..=7 => Self::at(usize::from(number)),
            _ => Self::Other,
        }
    }

    /// Returns the function with this index in a table of [`FUNCTIONS`].
    pub(crate) fn at(place: usize) -> Self {
        ALL.get(place).map_or(Self::Other, |(function, _)| *function)
    }

    pub(crate) fn name(self) -> &'static str {
        ALL[self as usize].1
    }

    /// Returns the bytes that the busiest link must carry for a call of this many bytes, as NCCL's own tests and its Inspector count them.
    /// Divided by the time they are the bus bandwidth, which can be compared with the link's own. Returns `None` if NCCL defines no value.
    pub(crate) fn bus_bytes(self, bytes: u64, ranks: u32) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "an estimate does not need 53 bits")]
        let (bytes, ranks) = (bytes as f64, f64::from(ranks));
        let others = ranks - 1.0;
        match self {
            _ if ranks < 1.0 => None,
            Self::AllReduce => Some(bytes * 2.0 * others / ranks),
            // The count of the call is one rank's part of the whole.
            Self::AllGather | Self::ReduceScatter => Some(bytes * others),
            Self::Broadcast | Self::Reduce | Self::SendRecv | Self::Send | Self::Recv => Some(bytes),
            Self::AlltoAll | Self::Gather | Self::Scatter | Self::Other => None,
        }
    }
}

/// Returns the size of an element by the number of version 1; 0 if it is not known.
pub(crate) fn datatype_bytes(number: u8) -> u64 {
    match number {
        0 | 1 => 1,
        6 | 9 => 2,
        2 | 3 | 7 => 4,
        4 | 5 | 8 => 8,
        _ => 0,
    }
}

/// Returns the size of an element by the name of versions 2 and later. The first number in the name is the number of bits, as in
/// `ncclBfloat16` or `ncclFloat8e4m3`. Returns 0 if there is none.
pub(crate) fn datatype_bytes_by_name(name: &[u8]) -> u64 {
    let digits = name.iter().skip_while(|byte| !byte.is_ascii_digit());
    let bits = digits
        .take_while(|byte| byte.is_ascii_digit())
        .take(3)
        .fold(0, |bits, digit| bits * 10 + u64::from(digit - b'0'));
    bits / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_numbers() {
        for (place, (function, name)) in ALL.into_iter().enumerate() {
            assert_eq!(function as usize, place);
            assert_eq!(Function::named(name.as_bytes()), function);
        }
        assert_eq!(Function::numbered(4), Function::AllReduce);
        assert_eq!(Function::numbered(8), Function::Other);
    }

    #[test]
    fn elements_have_the_sizes_their_names_say() {
        let sizes = [
            ("ncclInt8", 1),
            ("ncclUint64", 8),
            ("ncclFloat16", 2),
            ("ncclBfloat16", 2),
            ("ncclFloat8e4m3", 1),
            ("Unknown", 0),
        ];
        for (name, bytes) in sizes {
            assert_eq!(datatype_bytes_by_name(name.as_bytes()), bytes, "{name}");
        }
    }

    #[test]
    fn bus_bytes_are_those_of_the_inspector() {
        let cases = [
            (Function::AllReduce, Some(1_750.0)),
            (Function::AllGather, Some(7_000.0)),
            (Function::ReduceScatter, Some(7_000.0)),
            (Function::Broadcast, Some(1_000.0)),
            (Function::Send, Some(1_000.0)),
            (Function::AlltoAll, None),
        ];
        for (function, bus_bytes) in cases {
            assert_eq!(function.bus_bytes(1_000, 8), bus_bytes, "{function:?}");
        }
        assert_eq!(Function::AllReduce.bus_bytes(1_000, 0), None);
    }
}
