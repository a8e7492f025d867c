//! The position of a rank in the operations of its process groups: the Flight Recorder's dump, reduced to what identifies a culprit.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::ranks::RankSet;

/// Maximum size of the digest of one process group, in bytes of JSON.
pub const GROUP_DIGEST_BYTES_MAX: usize = 1 << 10;
/// Maximum number of process groups of one rank in a digest; those with unfinished operations come first.
pub const GROUPS_MAX: usize = 64;

/// What one rank's Flight Recorder contains about each of its process groups.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FlightDigest {
    /// Groups with an unfinished operation first, then those with operations, then those without any.
    pub groups: Vec<GroupDigest>,
    /// Number of process groups left out, beyond `GROUPS_MAX`.
    #[serde(skip_serializing_if = "is_zero")]
    pub groups_left_out: u32,
}

/// One process group as one rank sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GroupDigest {
    /// PyTorch's name of the group; the same on all its members.
    pub name: String,
    /// The description that the script gave it, such as `mesh_dp`; empty if none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// `nccl` or `gloo`; empty if the recorder does not say.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub backend: String,
    /// Its members, as global ranks. Empty if neither the recorder nor the probe knows them, or if they do not fit into
    /// `GROUP_DIGEST_BYTES_MAX`.
    pub members: RankSet,
    /// Sequence number of the last collective that this rank enqueued. Absent before the first one, and if the recorder does not contain it
    /// any more because operations of other groups replaced it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_enqueued: Option<u64>,
    /// Sequence number of the last collective that completed on this rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_completed: Option<u64>,
    /// The oldest operation that this rank enqueued and that has not completed. Gloo does not record sends and receives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_unfinished: Option<Operation>,
}

/// One collective or point-to-point transfer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Operation {
    /// Its number within the group; collectives and point-to-point transfers are counted separately.
    pub sequence: u64,
    /// True if it is a send or a receive.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_point_to_point: bool,
    /// Its name in the recorder: `gloo:all_reduce`, `nccl:recv 0<-1`.
    pub name: String,
    /// Sizes of its inputs, such as `[[64, 128]]`; truncated if long.
    pub sizes: String,
    /// Types of its inputs' elements, such as `Float`.
    pub dtypes: String,
    /// True if its kernel has started on the GPU. Absent if the recorder does not know: Gloo, or NCCL without timing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub has_started: Option<bool>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}
