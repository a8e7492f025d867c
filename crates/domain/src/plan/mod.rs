//! Computes how much memory a training needs on one GPU, before it is started.
//!
//! ```text
//! Settings ──check──▶ tensors ──▶ states          parameters, gradients, optimizer states, master copies
//!                        │        communication   DDP's buckets, FSDP's gathered units
//!                        └──────▶ activations     what autograd keeps, what checkpointing recomputes, the loss
//!                                      │
//!                        memory ◀──────┘          components, and which of them exist at the same moment: the peak
//!                           └──▶ alternatives     the same model with other strategies; what would make it fit
//! ```
//!
//! The module only computes, in 128 bits. `Settings::check` limits every number so that nothing can overflow. Sizes of states follow from
//! shapes and are exact. Activations follow a formula that is exact for the model that the tests measure and close for others. Everything
//! else is called an estimate. `docs/plan.md` contains all formulas with their sources.

mod activations;
mod alternatives;
mod architecture;
mod checkpointing;
mod communication;
mod fit;
mod memory;
mod preset;
mod recipe;
mod settings;
mod states;
mod tensors;

pub use alternatives::{Alternative, Change, alternatives, ways_to_fit};
pub use architecture::{Architecture, Model, Norm};
pub use checkpointing::{Checkpointing, UnknownCheckpointing};
pub use fit::{Fit, Verdict};
pub use memory::{Basis, Component, Moment, Part, Plan, plan, saved_for_backward};
pub use preset::{PRESETS, Preset};
pub use settings::{Attention, InvalidSettings, Optimizer, Precision, Settings, Strategy};

#[cfg(test)]
mod tests;
