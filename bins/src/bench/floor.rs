//! What the hardware allows: operations over the peak of the unit that does them, bytes over the
//! memory's peak.
use chandlery::rbm::{RbmConfig, WeightStorage};
use chandlery_ops::Precision;

/// Ceilings of a GPU, as measured or as its maker states them.
#[derive(Debug, Clone, Copy)]
pub struct Gpu {
    /// Multiply-adds of f32 numbers, FLOP/s.
    pub f32_flops: f64,
    /// Matrix products of TF32 numbers, FLOP/s.
    pub tf32_flops: f64,
    /// Matrix products of bf16 numbers, FLOP/s.
    pub bf16_flops: f64,
    /// Device memory, read plus written, bytes/s.
    pub memory_bytes: f64,
    /// Second-level cache, bytes: what fits need not go to memory.
    pub cache_bytes: f64,
}

impl Gpu {
    /// An H200: copy bandwidth and bf16 rate measured (8192³ product, 8.6 GB copy), f32 by
    /// datasheet, TF32 about what cuBLAS reaches.
    pub const H200: Self = Self {
        f32_flops: 67e12,
        tf32_flops: 400e12,
        bf16_flops: 790e12,
        memory_bytes: 4.3e12,
        cache_bytes: 50e6,
    };

    fn flops(&self, precision: Precision) -> f64 {
        match precision {
            Precision::F32 => self.f32_flops,
            Precision::Tf32 => self.tf32_flops,
            Precision::Bf16 => self.bf16_flops,
        }
    }
}

/// The floor of contrastive divergence with one Gibbs step.
#[derive(Debug, Clone, Copy)]
pub struct RbmFloor {
    /// Weights of the layer in training.
    pub n_weights: usize,
    /// Weights of the layers below, which rows go up through in each step.
    pub n_below: usize,
    /// Rows of a minibatch.
    pub batch: usize,
    /// What the weights are.
    pub weights: WeightStorage,
}

impl RbmFloor {
    /// Of a layer on top of `below`.
    pub fn of(layer: &RbmConfig, below: &[RbmConfig], batch: usize) -> Self {
        let weights = |rbm: &RbmConfig| rbm.weight_shape().iter().product::<usize>();
        Self {
            n_weights: weights(layer),
            n_below: below.iter().map(weights).sum(),
            batch,
            weights: WeightStorage::F32,
        }
    }

    /// The same of weights that are stored so.
    pub fn stored(self, weights: WeightStorage) -> Self {
        Self { weights, ..self }
    }

    /// Seconds for 1 million examples: the larger of arithmetic and memory.
    pub fn seconds(&self, gpu: &Gpu, precision: Precision) -> f64 {
        self.arithmetic(gpu, precision).max(self.memory(gpu))
    }

    /// Three products forward and back and two for the gradient: 10 FLOP a weight and example; one
    /// product, 2 FLOP, in layers below.
    pub fn arithmetic(&self, gpu: &Gpu, precision: Precision) -> f64 {
        (10. * self.n_weights as f64 + 2. * self.n_below as f64) * 1e6 / gpu.flops(precision)
    }

    /// Each step reads bf16 weights three times, reads and writes their f32 masters, and reads and
    /// writes a bf16 velocity: 18 bytes a weight at the least, or 14 where the bf16 weights have no
    /// masters and are read and written themselves; nothing where they stay in the cache. Of layers
    /// below it reads bf16 weights once.
    pub fn memory(&self, gpu: &Gpu) -> f64 {
        let (own, below) = (self.n_weights as f64, self.n_below as f64);
        if 4. * own + 2. * below < gpu.cache_bytes {
            return 0.;
        }
        let bytes = match self.weights {
            WeightStorage::F32 => 18.,
            WeightStorage::Bf16Stochastic => 14.,
        };
        (bytes * own + 2. * below) * (1e6 / self.batch as f64) / gpu.memory_bytes
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use chandlery::patch_rbm::PatchGrid;

    #[test]
    fn floors_are_those_of_the_arithmetic_done_by_hand() {
        let floor = |n_visible, n_hidden, precision| {
            RbmFloor::of(&RbmConfig::new(n_visible, n_hidden), &[], 192).seconds(&Gpu::H200, precision)
        };
        // 10 · 576 · 1024 · 10⁶ / 67·10¹² = .088; the weights (2.4 MB) stay in the cache.
        assert!((floor(576, 1024, Precision::F32) - 0.088).abs() < 5e-4);
        assert!((floor(576, 1024, Precision::Tf32) - 0.0147).abs() < 5e-4);
        // 10 · 2304 · 16000 · 10⁶ / 67·10¹² = 5.50, memory 18 · 36.9·10⁶ · 5208 / 4.3·10¹² = .80.
        assert!((floor(2304, 16000, Precision::F32) - 5.50).abs() < 5e-3);
        assert!((floor(2304, 16000, Precision::Bf16) - 0.80).abs() < 5e-3);
    }

    #[test]
    fn floors_of_patches_count_the_weights_of_their_windows() {
        // 24x24 windows every 8 on 144x144 and 192x192 pixels, 192 hidden units each: 256 and 484
        // windows of 576 · 192 weights.
        for (side, f32, tf32, memory) in [(144, 4.23, 0.71, 0.617), (192, 7.99, 1.34, 1.167)] {
            let grid = PatchGrid::of_image([side, side, 1], 24, 8);
            let floor = RbmFloor::of(&RbmConfig::patches(grid, 192).unwrap(), &[], 192);
            assert!((floor.arithmetic(&Gpu::H200, Precision::F32) - f32).abs() < 5e-3);
            assert!((floor.arithmetic(&Gpu::H200, Precision::Tf32) - tf32).abs() < 5e-3);
            assert!((floor.memory(&Gpu::H200) - memory).abs() < 5e-4);
        }
    }

    #[test]
    fn layers_below_add_one_product_and_one_reading() {
        let (below, layer) = (RbmConfig::new(9000, 5000), RbmConfig::new(5000, 3000));
        let floor = RbmFloor::of(&layer, &[below], 100);
        // 10 · 15·10⁶ + 2 · 45·10⁶ = 240·10⁶ FLOP, 18 · 15·10⁶ + 2 · 45·10⁶ = 360·10⁶ bytes a step.
        assert!((floor.arithmetic(&Gpu::H200, Precision::F32) - 240e12 / 67e12).abs() < 1e-9);
        assert!((floor.memory(&Gpu::H200) - 360e10 / 4.3e12).abs() < 1e-9);
    }
}
