//! The coherence of atoms: how similar they are to each other.
use super::{LANES, PRODUCTS, TILE, add_block, check_dictionary, squares_of};
use crate::core::check::expect;
use crate::core::fused::Fused;
use crate::core::op::{Io, Kernel, new_tensor, operands};
use candle::{CpuStorage, DType, Result, Tensor, WithDType};
use multiversion::multiversion;
use rayon::prelude::*;

const OP: &str = "atom_coherence";

/// `max_{i<j} |d_i·d_j| / (‖d_i‖ ‖d_j‖)` for each atom `j`: its largest |cosine| with an atom of
/// lower index. f64 `[n_atoms]`; the first entry is 0.
///
/// The largest entry is the dictionary's mutual coherence. An atom of length 0 has coherence 0 with
/// every other atom. `dictionary` is a contiguous f32 or f64 `[n_atoms, n_features]`. Cost: `n²p`
/// FLOP.
///
/// # Errors
/// When `dictionary` is not such a matrix, or a step is being recorded.
pub fn atom_coherence(dictionary: &Tensor) -> Result<Tensor> {
    let (n, _) = check_dictionary(OP, dictionary)?;
    let out = new_tensor(OP, n, DType::F64, dictionary.device())?;
    atom_coherence_(&out, dictionary)?;
    Ok(out)
}

/// [`atom_coherence`] written over `out`, a contiguous f64 `[n_atoms]`, which may be a view of a
/// longer tensor.
///
/// # Errors
/// When shapes, types or devices do not fit, or a step is being recorded.
pub fn atom_coherence_(out: &Tensor, dictionary: &Tensor) -> Result<()> {
    let (n, p) = check_dictionary(OP, dictionary)?;
    expect(OP, "out", out, &[DType::F64], &[n])?;
    let kernel = Coherence { n, p, dtype: dictionary.dtype() };
    operands(OP).write("out", out).read("dictionary", dictionary).run(&kernel)
}

/// The same computed with candle's own ops from the Gram matrix in f64.
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

struct Coherence {
    n: usize,
    p: usize,
    dtype: DType,
}

impl Kernel for Coherence {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([out], [d]) = io.parts()?;
        let like = for_float!(self.dtype, |T| coherence(d.elements::<T>()?, self.p));
        out.elements()?.copy_from_slice(&like);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        for_float!(self.dtype, |T| {
            /// Of kernels/codes/atom_coherence.cu: atoms of a tile, threads that have its cosines,
            /// and atoms of a block of the kernel that begins.
            const ATOMS: usize = 32;
            const THREADS: u32 = 64;
            const BEGUN: usize = 8;
            let &Self { n, p, .. } = self;
            let ([out], [d]) = io.parts()?;
            let (mut out, d) = (out.elements::<f64>()?, d.elements::<T>()?);
            let mut layout = crate::core::cuda::ScratchLayout::default();
            let scale = layout.part::<T>(n);
            let mut scratch = layout.alloc(OP, gpu)?;
            let name = self.dtype.as_str();
            {
                let mut scale = scratch.view_mut(scale);
                let launch = gpu.launch(OP, "atom_coherence", &format!("atom_coherence_begin_{name}"))?;
                let launch = launch.write(&mut out).write(&mut scale).read(&d).count(n).count(p);
                // SAFETY: (double*, T*, const T*, 2 × unsigned): n numbers of `out` and `scale`,
                // and d is [n, p], by `atom_coherence_` and the layout above; a warp for each atom.
                unsafe { launch.blocks(n.div_ceil(BEGUN), 32 * BEGUN as u32).go() }?;
            }
            let (scale, tiles) = (scratch.view(scale), n.div_ceil(ATOMS));
            let launch = gpu.launch(OP, "atom_coherence", &format!("atom_coherence_{name}"))?;
            let launch = launch.write(&mut out).read(&d).read(&scale).count(n).count(p);
            // SAFETY: (double*, 2 × const T*, 2 × unsigned), as above; a block for each pair of
            // tiles.
            unsafe { launch.grid([tiles, tiles, 1], (THREADS, 1, 1)).go() }
        })
    }
}

fn coherence<T: Fused>(d: &[T], p: usize) -> Vec<f64> {
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
