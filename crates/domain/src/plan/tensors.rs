//! The parameters of a model as tensors, in PyTorch's shapes, for computing what sharding and tensor parallelism split.

use super::architecture::{Architecture, Model, Norm};

/// Tensors of one shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tensor {
    pub(super) rows: u64,
    /// `None` for a vector.
    pub(super) columns: Option<u64>,
    /// Number of tensors.
    pub(super) count: u64,
    pub(super) unit: Unit,
    split: Split,
    /// True for the weight of a linear layer, which autocast casts.
    pub(super) linear: bool,
}

/// Unit that `fully_shard` gathers at once, if it is applied to each block and then to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// One block.
    Block,
    /// Embedding, last norm and output layer: tensors that belong to no block.
    Root,
}

/// How tensor parallelism splits a tensor (`ColwiseParallel` and `RowwiseParallel` of `torch.distributed.tensor.parallel`; the rows of a
/// linear weight are its outputs).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Split {
    Rows,
    Columns,
    Whole,
}

impl Tensor {
    /// Returns the elements on one of `tensor_parallel` GPUs, for all `count` tensors together.
    pub(super) fn elements(&self, tensor_parallel: u64) -> u128 {
        self.sharded(tensor_parallel, 1)
    }

    /// Returns the elements of rank 0's shard. `fully_shard` splits the first dimension like `torch.chunk`, so rank 0 has the largest part.
    /// Source: torch.distributed.fsdp.fully_shard ("chunks each parameter on dim-0").
    pub(super) fn sharded(&self, tensor_parallel: u64, shards: u64) -> u128 {
        let (rows, columns) = self.shape(tensor_parallel);
        u128::from(rows.div_ceil(shards)) * u128::from(columns) * u128::from(self.count)
    }

    /// Returns rows and columns on one of `tensor_parallel` GPUs.
    pub(super) fn shape(&self, tensor_parallel: u64) -> (u64, u64) {
        let columns = self.columns.unwrap_or(1);
        match self.split {
            Split::Rows => (self.rows.div_ceil(tensor_parallel), columns),
            Split::Columns => (self.rows, columns.div_ceil(tensor_parallel)),
            Split::Whole => (self.rows, columns),
        }
    }
}

/// Returns all parameters of a model.
pub(super) fn of(model: &Model) -> Vec<Tensor> {
    match model {
        Model::Shape(shape) => [block(shape), root(shape)].concat(),
        Model::Count { parameters } => vec![vector(*parameters, 1, Unit::Root, Split::Rows)],
    }
}

fn block(m: &Architecture) -> Vec<Tensor> {
    let keys = m.kv_heads * m.head();
    let inner = if m.gated { 2 } else { 1 };
    let weight = |rows, columns, count, split| Tensor {
        count: count * m.layers,
        ..matrix(rows, columns, Unit::Block, split)
    };
    let mut tensors = norms(m, 2 * m.layers, Unit::Block);
    tensors.extend([
        weight(m.hidden, m.hidden, 1, Split::Rows),
        weight(keys, m.hidden, 2, Split::Rows),
        weight(m.hidden, m.hidden, 1, Split::Columns),
        weight(m.mlp, m.hidden, inner, Split::Rows),
        weight(m.hidden, m.mlp, 1, Split::Columns),
    ]);
    if m.fused_qkv {
        // One matrix: its rows are queries, keys and values, in this order.
        tensors.splice(
            tensors.len() - 5..tensors.len() - 3,
            [weight(m.hidden + 2 * keys, m.hidden, 1, Split::Rows)],
        );
    }
    if m.bias {
        let biases: Vec<Tensor> = tensors.iter().filter(|tensor| tensor.linear).map(bias).collect();
        tensors.extend(biases);
    }
    tensors
}

fn root(m: &Architecture) -> Vec<Tensor> {
    let embedding = Tensor {
        linear: false,
        ..matrix(m.vocabulary, m.hidden, Unit::Root, Split::Rows)
    };
    let mut tensors = norms(m, 1, Unit::Root);
    tensors.push(Tensor {
        linear: m.tied,
        ..embedding
    });
    if m.positions > 0 {
        tensors.push(Tensor {
            rows: m.positions,
            split: Split::Whole,
            ..embedding
        });
    }
    if !m.tied {
        tensors.push(matrix(m.vocabulary, m.hidden, Unit::Root, Split::Rows));
    }
    tensors
}

fn norms(m: &Architecture, count: u64, unit: Unit) -> Vec<Tensor> {
    let vectors = if m.norm == Norm::Layer && m.bias { 2 } else { 1 };
    vec![vector(m.hidden, vectors * count, unit, Split::Whole)]
}

fn bias(weight: &Tensor) -> Tensor {
    let split = if weight.split == Split::Rows {
        Split::Rows
    } else {
        Split::Whole
    };
    vector(weight.rows, weight.count, weight.unit, split)
}

fn matrix(rows: u64, columns: u64, unit: Unit, split: Split) -> Tensor {
    Tensor {
        rows,
        columns: Some(columns),
        count: 1,
        unit,
        split,
        linear: true,
    }
}

fn vector(rows: u64, count: u64, unit: Unit, split: Split) -> Tensor {
    Tensor {
        rows,
        columns: None,
        count,
        unit,
        split,
        linear: false,
    }
}
