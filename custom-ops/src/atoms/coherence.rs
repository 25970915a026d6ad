//! How alike atoms are.
use super::{LANES, PRODUCTS, TILE, add_block, check_dictionary, squares_of};
use crate::host::contiguous;
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
            CpuStorage::F32(_) => coherence(contiguous::<f32>(d, layout, OP)?, p),
            _ => coherence(contiguous::<f64>(d, layout, OP)?, p),
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
    let n = d.len() / p;
    // Of length 1, features as rows: a row of the Gram matrix is a sum of those.
    // Padded to whole tiles with zeros.
    let line = n.next_multiple_of(TILE);
    let mut features = vec![T::zero(); line * p];
    for (j, atom) in d.chunks_exact(p).enumerate() {
        let length = squares_of(atom).sqrt();
        let scale = if length == 0. { 0. } else { 1. / length };
        for (c, x) in atom.iter().enumerate() {
            features[c * line + j] = T::from_f64(x.to_f64() * scale);
        }
    }
    let all: Vec<u32> = (0..p as u32).collect();
    let of_atom = |row: &mut Vec<T>, j: usize| {
        row.clear();
        row.resize(j.next_multiple_of(TILE), T::zero());
        let atom: Vec<T> = (0..p).map(|c| features[c * line + j]).collect();
        add_block(&features, line, &all, &atom, row);
        largest(&row[..j])
    };
    match n * d.len() / 2 < PRODUCTS {
        true => (0..n).scan(Vec::new(), |row, j| Some(of_atom(row, j))).collect(),
        false => (0..n).into_par_iter().with_max_len(16).map_init(Vec::new, of_atom).collect(),
    }
}

/// The largest `|x|`, NaN where one is not finite.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn largest<T: WithDType>(x: &[T]) -> f64 {
    let (mut most, mut odd) = ([T::zero(); LANES], [T::zero(); LANES]);
    let whole = x.chunks_exact(LANES);
    let mut rest = [T::zero(); LANES];
    rest[..whole.remainder().len()].copy_from_slice(whole.remainder());
    for x in whole.chain([&rest[..]]) {
        for l in 0..LANES {
            let size = if x[l] < T::zero() { T::zero() - x[l] } else { x[l] };
            most[l] = if size > most[l] { size } else { most[l] };
            odd[l] += x[l] * T::zero(); // NaN or 0
        }
    }
    most.iter().zip(odd).fold(0., |all, (most, odd)| {
        let most = most.to_f64() + odd.to_f64();
        if most > all || most.is_nan() { most } else { all }
    })
}
