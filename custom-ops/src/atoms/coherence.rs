//! How alike atoms are.
use super::{check_dictionary, dot, dot_lanes, slice};
use candle::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor, WithDType};
use multiversion::multiversion;
use rayon::prelude::*;

const OP: &str = "atom_coherence";

/// `max_{i<j} |d_i·d_j| / (‖d_i‖ ‖d_j‖)` for each atom `j`: how much it is like one before it. f64 `[n_atoms]`, the first 0.
///
/// The largest of them is the dictionary's mutual coherence. An atom of length 0 is like no other. `dictionary` is a contiguous
/// f32 or f64 `[n_atoms, n_features]`. Cost: `n²p` FLOP.
///
/// # Errors
/// When `dictionary` is not such a matrix.
pub fn atom_coherence(dictionary: &Tensor) -> Result<Tensor> {
    check_dictionary(OP, dictionary)?;
    dictionary.apply_op1_no_bwd(&AtomCoherence)
}

/// The same from candle's own ops, by way of the Gram matrix in f64.
///
/// # Errors
/// When memory is short.
pub fn atom_coherence_reference(dictionary: &Tensor) -> Result<Tensor> {
    let d = dictionary.to_dtype(DType::F64)?;
    let norms = (d.sqr()?.sum_keepdim(1)?.sqrt()? + f64::MIN_POSITIVE)?;
    let unit = d.broadcast_div(&norms)?;
    let gram = unit.matmul(&unit.t()?)?.abs()?;
    let n = d.dim(0)?;
    let below = (0..n * n).map(|e| if e % n < e / n { 1. } else { 0. }).collect::<Vec<f64>>();
    (gram * Tensor::from_vec(below, (n, n), d.device())?)?.max(1)
}

struct AtomCoherence;

impl CustomOp1 for AtomCoherence {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(&self, d: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (n, p) = layout.shape().dims2()?;
        let out = match d {
            CpuStorage::F32(_) => coherence(slice::<f32>(d, layout, OP)?, p),
            _ => coherence(slice::<f64>(d, layout, OP)?, p),
        };
        Ok((CpuStorage::F64(out), Shape::from(n)))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, d: &candle::CudaStorage, layout: &Layout) -> Result<(candle::CudaStorage, Shape)> {
        use candle::backend::BackendStorage;
        use candle::cuda::cudarc::driver::{LaunchConfig, PushKernelArg};
        use candle::cuda::{CudaStorage, WrapErr};

        let device = d.device();
        let (n, p) = layout.shape().dims2()?;
        // SAFETY: uninitialised, but each block writes its atom's number.
        let mut out = unsafe { device.alloc::<f64>(n)? };
        let (blocks, features) = (crate::cuda::count(OP, n)?, crate::cuda::count(OP, p)?);
        let config = LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 };
        let name = if d.dtype() == DType::F32 { "atom_coherence_f32" } else { "atom_coherence_f64" };
        let function = crate::cuda::function(device, "atom_coherence", name)?;
        let mut launch = function.builder();
        let (f32_view, f64_view);
        launch.arg(&mut out);
        if d.dtype() == DType::F32 {
            f32_view = crate::cuda::view::<f32>(d, layout, OP)?;
            launch.arg(&f32_view);
        } else {
            f64_view = crate::cuda::view::<f64>(d, layout, OP)?;
            launch.arg(&f64_view);
        }
        launch.arg(&features);
        // SAFETY: (double*, const T*, unsigned): `out` holds one number a block, d [n, p] of the type that names the kernel.
        unsafe { launch.launch(config) }.w()?;
        Ok((CudaStorage::wrap_cuda_slice(out, device.clone()), Shape::from(n)))
    }
}

fn coherence<T: WithDType>(d: &[T], p: usize) -> Vec<f64> {
    let norms: Vec<f64> = d.chunks(p).map(|d| dot(d, d).to_f64().sqrt()).collect();
    match d.len() < super::GRAIN / 4 {
        true => (0..norms.len()).map(|j| most_alike(d, &norms, j)).collect(),
        false => {
            (0..norms.len()).into_par_iter().with_max_len(16).map(|j| most_alike(d, &norms, j)).collect()
        }
    }
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn most_alike<T: WithDType>(d: &[T], norms: &[f64], j: usize) -> f64 {
    let p = d.len() / norms.len();
    let atom = &d[j * p..][..p];
    let mut most = 0f64;
    for (other, norm) in d.chunks_exact(p).zip(norms).take(j) {
        let norms = norm * norms[j];
        if norms != 0. {
            // A NaN is kept, so that it shows.
            let like = dot_lanes(other, atom).to_f64().abs() / norms;
            most = if like > most || like.is_nan() { like } else { most };
        }
    }
    most
}
