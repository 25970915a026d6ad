//! Parameters one behind the other in one piece of memory, so that one op steps all of them and one
//! sum over ranks has all that a minibatch gives.
use candle::{DType, Device, Result, Tensor};

/// Every tensor begins at a multiple of so many entries: 256 bytes, what products like best.
const ALIGNMENT: usize = 64;

/// Hands out places in a piece of memory.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Places(usize);

impl Places {
    /// Where the next tensor of `n` entries begins.
    pub fn take(&mut self, n: usize) -> usize {
        let start = self.0;
        self.0 = (start + n).next_multiple_of(ALIGNMENT);
        start
    }

    /// Entries that were handed out.
    pub fn len(self) -> usize {
        self.0
    }
}

/// A tensor of `shape` whose first entry is at `start` of `flat`, `[n]`.
pub(crate) fn view(flat: &Tensor, start: usize, shape: &[usize]) -> Result<Tensor> {
    flat.narrow(0, start, shape.iter().product())?.reshape(shape)
}

/// Weights, their velocities and other sums over rows, f32:
///
/// ```text
/// [ weights | velocities | sums ]
///            └── summed over ranks ──┘
/// ```
///
/// Each rank adds what its own rows give to the velocities, the first one to those of the step
/// before times the momentum, and the others to 0.
#[derive(Debug, Clone)]
pub(crate) struct Flat {
    all: Tensor,
    n_weights: usize,
}

impl Flat {
    /// Zeros for so many weights and sums.
    pub fn new(n_weights: usize, n_sums: usize, device: &Device) -> Result<Self> {
        let all = Tensor::zeros(2 * n_weights + n_sums, DType::F32, device)?;
        Ok(Self { all, n_weights })
    }

    /// Weights and velocities, `[2, n_weights]`.
    pub fn params(&self) -> Result<Tensor> {
        view(&self.all, 0, &[2, self.n_weights])
    }

    /// The weight at a place, and its velocity.
    pub fn matrix(&self, start: usize, shape: &[usize]) -> Result<[Tensor; 2]> {
        Ok([view(&self.all, start, shape)?, view(&self.all, self.n_weights + start, shape)?])
    }

    /// `[n_sums]`
    pub fn sums(&self) -> Result<Tensor> {
        let start = 2 * self.n_weights;
        self.all.narrow(0, start, self.all.elem_count() - start)
    }

    /// All that is summed over ranks.
    pub fn summed(&self) -> Result<Tensor> {
        self.all.narrow(0, self.n_weights, self.all.elem_count() - self.n_weights)
    }
}
