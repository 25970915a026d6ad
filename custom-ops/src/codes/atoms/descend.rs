//! Block coordinate descent on a dictionary, given the statistics of codes.
use super::{PRODUCTS, WARPS, axpy, check_dictionary, normalize, squares_of, weighted_sum};
use crate::core::check::expect;
use crate::core::fused::Fused;
use crate::core::limits::Limits;
use crate::core::op::{Io, Kernel, operands};
use candle::{CpuStorage, DType, Result, Tensor, WithDType};
use rayon::prelude::*;

const OP: &str = "descend_atoms_";
/// Atoms whose `b_j − a_j D` is formed at once; within these it follows each change.
const GROUP: usize = 32;
/// `A_jj` at or below which an atom has not been used: far below any sum of squares of
/// coefficients.
const UNUSED: f64 = 1e-30;

/// The lengths that [`descend_atoms_`] allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum AtomLength {
    /// Exactly 1: for codes with a limited number of nonzero coefficients of any size.
    #[default]
    One,
    /// At most 1: for codes with penalised coefficients.
    AtMostOne,
}

/// One sweep of `d_j ← P(d_j + (b_j − a_j D) / A_jj)` over `j = n_fixed, n_fixed + 1, …`, where `P`
/// is the closest row of an allowed length. Each update uses the atoms already updated before it.
///
/// The sweep lowers `½ tr(DᵀAD) − tr(DᵀB)` over atoms of these lengths; for `A = XᵀX` and `B = XᵀY`
/// this is `½‖Y − X D‖²` up to a constant (Mairal et al. 2010, algorithm 2, which has lengths of at
/// most 1). Atoms with `A_jj` of 1e-30 or less count as unused and do not change, so scale the
/// signals to lengths within a few powers of ten of 1.
///
/// `dictionary` and `b` are `[n_atoms, n_features]`, `a` is `[n_atoms, n_atoms]` and symmetric;
/// contiguous, all f32 or all f64. Cost: `2n²p` FLOP and scratch for 32 rows. On a GPU it is one
/// launch, whose blocks must all run at once. There the lengths of 32 atoms at a time are found
/// from their inner products, summed over all columns, so that the chain over the atoms is one of
/// numbers and not of rows; its latency limits the speed.
///
/// # Errors
/// When shapes, types or devices do not fit; on a GPU, when a step is being recorded.
pub fn descend_atoms_(
    dictionary: &Tensor,
    a: &Tensor,
    b: &Tensor,
    n_fixed: usize,
    length: AtomLength,
) -> Result<()> {
    let (n, p) = check_dictionary(OP, dictionary)?;
    let dtype = dictionary.dtype();
    expect(OP, "a", a, &[dtype], &[n, n])?;
    expect(OP, "b", b, &[dtype], &[n, p])?;
    let kernel = Descend { n, p, n_fixed: n_fixed.min(n), length, dtype };
    operands(OP).write("dictionary", dictionary).read("a", a).read("b", b).run(&kernel)
}

/// The same, computed directly from the formula in f64. Returns the new dictionary, of the type of
/// the old one.
///
/// # Errors
/// When a tensor cannot be read.
pub fn descend_atoms_reference(
    dictionary: &Tensor,
    a: &Tensor,
    b: &Tensor,
    n_fixed: usize,
    length: AtomLength,
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
        if to_length(&mut row, length) {
            d[j] = row;
        }
    }
    Tensor::new(d, dictionary.device())?.to_dtype(dictionary.dtype())
}

/// Moves a row to the closest one of an allowed length; a row without one (zero where the length is
/// 1, or not finite) is left and the answer is no.
fn to_length<T: WithDType>(row: &mut [T], length: AtomLength) -> bool {
    // A sum of squares that is NaN is not at most 1.
    (length == AtomLength::AtMostOne && squares_of(row) <= 1.) || normalize(row)
}

struct Descend {
    n: usize,
    p: usize,
    n_fixed: usize,
    length: AtomLength,
    dtype: DType,
}

impl Kernel for Descend {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        for_float!(self.dtype, |T| self.descend::<T>(io))
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        for_float!(self.dtype, |T| {
            /// Of kernels/codes/atom_descent.cu.
            const THREADS: u32 = 512;
            let Self { n, p, n_fixed, length, .. } = *self;
            if n_fixed == n {
                return Ok(());
            }
            let ([d], [a, b]) = io.parts()?;
            let (mut d, a, b) = (d.elements::<T>()?, a.elements::<T>()?, b.elements::<T>()?);
            let form = Form::of(gpu.limits(), n, p, size_of::<T>());
            let mut layout = crate::core::cuda::ScratchLayout::default();
            let far = layout.part::<T>(if form.is_near { 0 } else { form.blocks * form.slice });
            let sums = layout.part::<f64>((form.blocks + 1) * GROUP * GROUP);
            let mut scratch = layout.alloc(OP, gpu)?;
            let mut memory = scratch.all();
            let memory = gpu.to_write(&mut memory);
            let kernel =
                format!("descend_{}_{}", if form.is_near { "near" } else { "far" }, self.dtype.as_str());
            let launch = gpu.launch(OP, "atom_descent", &kernel)?.write(&mut d).read(&a).read(&b);
            let launch = launch.num(far.address(memory.at)).num(sums.address(memory.at));
            let launch = launch.count(n_fixed).count(n).count(p).count(form.columns).num(UNUSED);
            let launch = launch.count(usize::from(length == AtomLength::AtMostOne));
            let launch = launch.count(usize::from(form.is_cluster));
            let launch = launch.blocks(form.blocks, THREADS).shared(form.shared_bytes);
            let launch = match (form.blocks, form.is_cluster) {
                (1, _) => launch,
                (blocks, true) => launch.clusters_of(blocks as u32),
                (_, false) => launch.cooperative(),
            };
            // SAFETY: (T*, 2 × const T*, T*, double*, 4 × unsigned, double, 2 × unsigned) of the
            // shapes that `descend_atoms_` checked; `far` holds a slice for each block where shared
            // memory does not, `sums` a group's products for each block and their sums; n_fixed <
            // n; several blocks are one cluster, or as few as multiprocessors, so that all run at
            // once.
            unsafe { launch.go() }
        })
    }
}

impl Descend {
    fn descend<T: Fused>(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let Self { n, p, n_fixed, .. } = *self;
        let ([d], [a, b]) = io.parts()?;
        let (d, a, b) = (d.elements::<T>()?, a.elements::<T>()?, b.elements::<T>()?);
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
                if !to_length(&mut step, self.length) {
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
        Ok(())
    }
}

/// How the kernel shares the columns of the dictionary among blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Form {
    /// Columns of a block, a multiple of [`Self::TILE`].
    columns: usize,
    blocks: usize,
    /// Whether the blocks are one cluster.
    is_cluster: bool,
    /// Numbers that a block keeps of its columns.
    slice: usize,
    /// Whether they are in its shared memory.
    is_near: bool,
    shared_bytes: usize,
}

impl Form {
    /// Of kernels/codes/atom_descent.cu: columns that a lane sums at a time, and warps that look
    /// ahead.
    const TILE: usize = 8;
    const AHEAD: usize = WARPS - 4;
    /// Blocks of a cluster that every GPU with clusters runs.
    const CLUSTER: usize = 8;

    /// The one for a dictionary of `n` atoms of `p` numbers of `size` bytes. There are no more
    /// blocks than multiprocessors, so that all run at once.
    fn of(limits: Limits, n: usize, p: usize, size: usize) -> Self {
        let tiles = p.div_ceil(Self::TILE);
        let of_each = tiles.div_ceil(limits.multiprocessors);
        let (columns, blocks) = (of_each * Self::TILE, tiles.div_ceil(of_each));
        let slice = (n + 3 * GROUP) * columns;
        let room = Self::room(size);
        let is_near = room + slice * size <= limits.shared_bytes;
        Self {
            columns,
            blocks,
            is_cluster: limits.has_clusters() && (2..=Self::CLUSTER).contains(&blocks),
            slice,
            is_near,
            shared_bytes: if is_near { room + slice * size } else { room },
        }
    }

    /// `sizeof(Room<T>)`.
    fn room(size: usize) -> usize {
        let pairs = GROUP * GROUP;
        let wide = 2 * 3 * GROUP + 2 * pairs + WARPS * (GROUP + 1);
        let narrow = 3 * pairs + Self::AHEAD * Self::TILE * GROUP + 3 * GROUP;
        (8 * wide + size * narrow + 3 * 4).next_multiple_of(16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::gpus;

    #[test]
    fn every_gpu_runs_all_blocks_at_once_in_the_shared_memory_that_it_has() {
        for gpu in gpus::ALL {
            for n in [1, 7, 256, 2048, 100_000] {
                for (p, size) in
                    [(2, 4), (64, 4), (64, 8), (369, 4), (784, 4), (784, 8), (3072, 8), (100_000, 4)]
                {
                    let form = Form::of(gpu, n, p, size);
                    assert!(
                        form.shared_bytes <= gpu.shared_bytes,
                        "{gpu:?} has too little for {form:?}, p {p}"
                    );
                    assert!((1..=gpu.multiprocessors).contains(&form.blocks));
                    let columns = form.blocks * form.columns;
                    assert!(columns >= p && columns - p < form.columns, "{form:?} for p {p}");
                }
            }
        }
    }

    #[test]
    fn columns_are_near_only_where_there_is_room() {
        let near = |n, p| gpus::ALL.map(|gpu| Form::of(gpu, n, p, 4).is_near);
        assert_eq!(near(256, 64), [true; 7]);
        // 82 and 30 multiprocessors have blocks of 16 and of 40 columns, and 99 KB.
        assert_eq!(near(1024, 1024), [true, false, true, true, true, true, false]);
        assert_eq!(near(100_000, 64), [false; 7]);
    }
}
