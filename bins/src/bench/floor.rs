//! What the hardware allows: operations over the peak of the unit that does them, bytes over the memory's peak.
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
    /// An H200: copy bandwidth and bf16 rate measured (8192³ product, 8.6 GB copy), f32 by datasheet, TF32 about what
    /// cuBLAS reaches.
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
    /// Visible units.
    pub n_visible: usize,
    /// Hidden units.
    pub n_hidden: usize,
    /// Rows of a minibatch.
    pub batch: usize,
}

impl RbmFloor {
    /// Seconds for 1 million examples: the larger of arithmetic and memory.
    pub fn seconds(&self, gpu: &Gpu, precision: Precision) -> f64 {
        self.arithmetic(gpu, precision).max(self.memory(gpu))
    }

    /// Three products forward and back and two for the gradient: 10 FLOP a weight and example.
    fn arithmetic(&self, gpu: &Gpu, precision: Precision) -> f64 {
        10. * self.weights() * 1e6 / gpu.flops(precision)
    }

    /// Each step reads bf16 weights three times, reads and writes their f32 masters, and reads and writes a bf16
    /// velocity: 18 bytes a weight at the least, unless they stay in the cache.
    fn memory(&self, gpu: &Gpu) -> f64 {
        if 4. * self.weights() < gpu.cache_bytes {
            return 0.;
        }
        18. * self.weights() * (1e6 / self.batch as f64) / gpu.memory_bytes
    }

    fn weights(&self) -> f64 {
        (self.n_visible * self.n_hidden) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floors_are_those_of_the_arithmetic_done_by_hand() {
        let floor = |n_visible, n_hidden, precision| {
            RbmFloor { n_visible, n_hidden, batch: 192 }.seconds(&Gpu::H200, precision)
        };
        // 10 · 576 · 1024 · 10⁶ / 67·10¹² = .088; the weights (2.4 MB) stay in the cache.
        assert!((floor(576, 1024, Precision::F32) - 0.088).abs() < 5e-4);
        assert!((floor(576, 1024, Precision::Tf32) - 0.0147).abs() < 5e-4);
        // 10 · 2304 · 16000 · 10⁶ / 67·10¹² = 5.50, memory 18 · 36.9·10⁶ · 5208 / 4.3·10¹² = .80.
        assert!((floor(2304, 16000, Precision::F32) - 5.50).abs() < 5e-3);
        assert!((floor(2304, 16000, Precision::Bf16) - 0.80).abs() < 5e-3);
    }
}
