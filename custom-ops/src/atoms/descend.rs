//! Block coordinate descent on a dictionary, given the statistics of codes.
use super::{PRODUCTS, axpy, check_dictionary, check_matrix, normalize, slice_mut, weighted_sum};
use crate::host::contiguous;
use candle::{CpuStorage, InplaceOp3, Layout, Result, Tensor, WithDType};
use rayon::prelude::*;

const OP: &str = "descend_atoms_";
/// Atoms whose `b_j − a_j D` is formed at once; within these it follows each change.
pub(super) const GROUP: usize = 32;
/// `A_jj` at or below which an atom has not been used: far below any sum of squares of coefficients.
pub(super) const UNUSED: f64 = 1e-30;

/// One sweep of `d_j ← normalised(d_j + (b_j − a_j D) / A_jj)` over `j = n_fixed, n_fixed + 1, …`, each with the atoms before it
/// already updated.
///
/// It lowers `½ tr(DᵀAD) − tr(DᵀB)`, which for `A = XᵀX` and `B = XᵀY` is `½‖Y − X D‖²` but for a constant, over atoms
/// of length 1 (Mairal et al. 2010, algorithm 2, where lengths may also be below 1). Atoms with `A_jj` of 1e-30 or less, which no signal
/// has used, stay: let statistics be those of signals whose lengths are not many powers of ten from 1.
///
/// `dictionary` and `b` are `[n_atoms, n_features]`, `a` is `[n_atoms, n_atoms]` and symmetric; contiguous, all f32 or all f64.
/// Cost: `2n²p` FLOP and scratch for 32 rows.
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn descend_atoms_(dictionary: &Tensor, a: &Tensor, b: &Tensor, n_fixed: usize) -> Result<()> {
    let (n, p) = check_dictionary(OP, dictionary)?;
    check_matrix(OP, "a", a, [n, n], dictionary)?;
    check_matrix(OP, "b", b, [n, p], dictionary)?;
    dictionary.inplace_op3(a, b, &Descend { n, p, n_fixed: n_fixed.min(n) })
}

/// The same as written, in f64: the new dictionary, of the type of the old.
///
/// # Errors
/// When a tensor cannot be read.
pub fn descend_atoms_reference(
    dictionary: &Tensor,
    a: &Tensor,
    b: &Tensor,
    n_fixed: usize,
) -> Result<Tensor> {
    let read = |t: &Tensor| t.to_dtype(candle::DType::F64)?.to_vec2::<f64>();
    let (mut d, a, b) = (read(dictionary)?, read(a)?, read(b)?);
    for j in n_fixed..d.len() {
        if a[j][j] <= UNUSED {
            continue;
        }
        let mut row = d[j].clone();
        for (c, x) in row.iter_mut().enumerate() {
            let ad: f64 = a[j].iter().zip(&d).map(|(a, d)| a * d[c]).sum();
            *x += (b[j][c] - ad) / a[j][j];
        }
        if normalize(&mut row) {
            d[j] = row;
        }
    }
    Tensor::new(d, dictionary.device())?.to_dtype(dictionary.dtype())
}

pub(super) struct Descend {
    pub n: usize,
    pub p: usize,
    pub n_fixed: usize,
}

impl InplaceOp3 for Descend {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(
        &self,
        d: &mut CpuStorage,
        d_l: &Layout,
        a: &CpuStorage,
        a_l: &Layout,
        b: &CpuStorage,
        b_l: &Layout,
    ) -> Result<()> {
        match a {
            CpuStorage::F32(_) => {
                self.cpu::<f32>(slice_mut(d, d_l, OP)?, contiguous(a, a_l, OP)?, contiguous(b, b_l, OP)?);
            }
            _ => self.cpu::<f64>(slice_mut(d, d_l, OP)?, contiguous(a, a_l, OP)?, contiguous(b, b_l, OP)?),
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        d: &mut candle::CudaStorage,
        d_l: &Layout,
        a: &candle::CudaStorage,
        a_l: &Layout,
        b: &candle::CudaStorage,
        b_l: &Layout,
    ) -> Result<()> {
        use candle::backend::BackendStorage;
        match a.dtype() {
            candle::DType::F32 => self.cuda::<f32>("f32", (d, d_l), (a, a_l), (b, b_l)),
            _ => self.cuda::<f64>("f64", (d, d_l), (a, a_l), (b, b_l)),
        }
    }
}

impl Descend {
    fn cpu<T: WithDType>(&self, d: &mut [T], a: &[T], b: &[T]) {
        let Self { n, p, n_fixed } = *self;
        let atoms: Vec<u32> = (0..n as u32).collect();
        let mut u = vec![T::zero(); GROUP.min(n) * p];
        let mut step = vec![T::zero(); p];
        for first in (n_fixed..n).step_by(GROUP) {
            let last = n.min(first + GROUP);
            // u_j = b_j − a_j D
            let residual = |(u, j): (&mut [T], usize)| {
                weighted_sum(d, &atoms, &a[j * n..][..n], u);
                u.iter_mut().zip(&b[j * p..]).for_each(|(u, &b)| *u = b - *u);
            };
            match (last - first) * n * p < PRODUCTS {
                true => u.chunks_mut(p).zip(first..last).for_each(residual),
                false => {
                    u.par_chunks_mut(p).zip(first..last).with_min_len(4).for_each(residual);
                }
            }
            for j in first..last {
                let a_jj = a[j * n + j];
                // Not above, or not a number.
                if a_jj.to_f64().partial_cmp(&UNUSED) != Some(std::cmp::Ordering::Greater) {
                    continue;
                }
                let row = &mut d[j * p..][..p];
                for ((step, &u), &d) in step.iter_mut().zip(&u[(j - first) * p..]).zip(row.iter()) {
                    *step = d + u / a_jj;
                }
                if !normalize(&mut step) {
                    continue;
                }
                for (step, d) in step.iter_mut().zip(row) {
                    let new = *step;
                    *step = *d - new;
                    *d = new;
                }
                // `step` is what the atom lost: u_k ← u_k + a_kj (d_old − d_new)
                for k in j + 1..last {
                    axpy(a[k * n + j], &step, &mut u[(k - first) * p..][..p]);
                }
            }
        }
    }
}
