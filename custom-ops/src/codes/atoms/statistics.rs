//! Statistics of sparse codes from which a least-squares dictionary is computed.
use super::{BLOCK, COLUMNS, FIGURE_PARTS, WARPS, check_codes, figures_hold, weighted_sum};
use crate::codes::AtomUses;
use crate::codes::SparseCodes;
use crate::core::check::{expect, matrix};
use crate::core::fused::Fused;
use crate::core::op::{Io, Kernel, operands};
use candle::{CpuStorage, DType, Result, Tensor};
use rayon::prelude::*;

const OP: &str = "codes_statistics_";

/// Options of [`codes_statistics_`].
#[derive(Debug, Clone, Copy)]
pub struct StatisticsStep<'a> {
    /// `β`, the factor on the old statistics, finite. With 0, the default, they are not read.
    pub beta: f64,
    /// `c`, the factor on codes and signals, a power of two. Default 1.
    pub scale: f64,
    /// If these bounds do not hold, nothing is written. Default none.
    pub bounds: Option<Bounds<'a>>,
}

impl Default for StatisticsStep<'_> {
    fn default() -> Self {
        Self { beta: 0., scale: 1., bounds: None }
    }
}

/// Bounds on the figures of [`code_figures_`](crate::codes::code_figures_). Statistics are written
/// only if they hold; the device decides, so the host need not wait.
#[derive(Debug, Clone, Copy)]
pub struct Bounds<'a> {
    /// f64 `[2 · FIGURE_PARTS]`, contiguous: the first figures.
    pub figures: &'a Tensor,
    /// Upper bound on the squared error of each part.
    pub most_error: f64,
    /// Upper bound on the largest squared length of a signal in each part.
    pub most_square: f64,
}

impl Bounds<'_> {
    /// Whether figures that were read back are within the bounds; the device makes the same
    /// decision.
    pub fn hold(&self, figures: &[f64]) -> bool {
        figures_hold(figures, self.most_error, self.most_square)
    }
}

/// `a ← βa + c²XᵀX`, `[n_atoms, n_atoms]`, and `b ← βb + c²XᵀY`, `[n_atoms, n_features]`, computed
/// from the lists of the signals that use each atom.
///
/// `a`, `b` and `signals`, `[n_samples, n_features]`, are contiguous, f32 or f64 as the codes are.
/// Long lists are summed a few hundred entries at a time, so that rounding does not lose entries to
/// a large running sum. If a code names an atom more than once, its entries are added.
///
/// Cost: `2s + 2p` FLOP per use; one launch on a GPU.
///
/// # Errors
/// When shapes, types or devices do not fit, `beta` or `scale` is not finite or, on the CPU, an
/// index is not below `n_atoms` (a GPU skips such entries).
pub fn codes_statistics_(
    a: &Tensor,
    b: &Tensor,
    codes: &SparseCodes,
    uses: &AtomUses,
    signals: &Tensor,
    step: StatisticsStep<'_>,
) -> Result<()> {
    let dtype = codes.values.dtype();
    let (codes, [m, s]) = check_codes(OP, codes, dtype)?;
    let n = codes.n_atoms;
    let (_, p) = matrix(OP, "signals", "[n_samples, n_features]", signals, &[dtype])?;
    expect(OP, "signals", signals, &[dtype], &[m, p])?;
    expect(OP, "a", a, &[dtype], &[n, n])?;
    expect(OP, "b", b, &[dtype], &[n, p])?;
    uses.check(OP, &codes)?;
    for (what, x) in [("beta", step.beta), ("scale", step.scale)] {
        if !x.is_finite() {
            candle::bail!("{OP}: {what} must be finite, got {x}")
        }
    }
    if let Some(bounds) = step.bounds {
        expect(OP, "bounds.figures", bounds.figures, &[DType::F64], &[2 * FIGURE_PARTS])?;
    }
    if p == 0 {
        candle::bail!("{OP}: signals must have at least one feature, got shape {:?}", signals.dims())
    }
    let kernel = Statistics { m, s, n, p, dtype, step };
    let io = operands(OP).write("a", a).write("b", b);
    let io = io.read("codes.indices", &codes.indices).read("codes.values", &codes.values);
    let io = io.read("signals", signals).read("codes.count", &codes.count);
    let io = io.read("uses", &uses.offsets).read("uses", &uses.entries);
    io.maybe("bounds.figures", step.bounds.map(|bounds| bounds.figures)).run(&kernel)
}

/// Operands were checked.
struct Statistics<'a> {
    m: usize,
    s: usize,
    n: usize,
    p: usize,
    dtype: DType,
    step: StatisticsStep<'a>,
}

impl Kernel for Statistics<'_> {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        for_float!(self.dtype, |T| self.sum::<T>(io))
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        for_float!(self.dtype, |T| {
            /// Of kernels/codes/atom_statistics.cu.
            const THREADS: u32 = 512;
            let &Self { n, s, p, .. } = self;
            let ([a, b], [indices, values, signals, counts, offsets, entries, figures]) = io.parts()?;
            let (mut a, mut b) = (a.elements::<T>()?, b.elements::<T>()?);
            let (indices, values) = (indices.elements::<u32>()?, values.elements::<T>()?);
            let (signals, counts) = (signals.elements::<T>()?, counts.elements::<u32>()?);
            let (offsets, entries) = (offsets.elements::<u32>()?, entries.elements::<u32>()?);
            let figures = figures.maybe::<f64>()?;
            let (most_error, most_square) =
                self.step.bounds.map_or((0., 0.), |bounds| (bounds.most_error, bounds.most_square));
            let columns = gram_columns(n, size_of::<T>());
            let gram_tiles = n.div_ceil(columns);
            let kernel = format!("atom_statistics_{}", self.dtype.as_str());
            let launch = gpu.launch(OP, "atom_statistics", &kernel)?.write(&mut a).write(&mut b);
            let of = <T as candle::WithDType>::from_f64;
            let launch = launch.num(of(self.step.beta)).num(of(self.step.scale));
            let launch = launch.read(&indices).read(&values).read(&signals).read(&counts);
            let launch = launch.read(&offsets).read(&entries);
            let launch = launch.maybe(&figures).count(FIGURE_PARTS).num(most_error).num(most_square);
            let launch = launch.count(n).count(s).count(p).count(columns).count(gram_tiles);
            let team = super::team(gpu.limits(), self.m * s, n);
            let launch = launch.grid([n * team, gram_tiles + p.div_ceil(COLUMNS), 1], (THREADS, 1, 1));
            // SAFETY: (2 × T*, 2 × T, const unsigned*, 2 × const T*, 3 × const unsigned*, const
            // double* or null, unsigned, 2 × double, 5 × unsigned) of the shapes that
            // `codes_statistics_` checked; the lists are those of `AtomUses`, places below m · s; a
            // cluster of `team` blocks for each atom and tile.
            unsafe { launch.clusters_of(team as u32).shared(shared_bytes(n, size_of::<T>())).go() }
        })
    }
}

impl Statistics<'_> {
    fn sum<T: Fused>(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let &Self { n, s, p, .. } = self;
        let ([a, b], [indices, values, signals, count, offsets, entries, figures]) = io.parts()?;
        if let (Some(bounds), Some(figures)) = (self.step.bounds, figures.maybe::<f64>()?)
            && !bounds.hold(figures)
        {
            return Ok(());
        }
        let (indices, values) = (indices.elements::<u32>()?, values.elements::<T>()?);
        let (signals, count) = (signals.elements::<T>()?, count.elements::<u32>()?);
        let (offsets, entries) = (offsets.elements::<u32>()?, entries.elements::<u32>()?);
        if let Some(atom) = indices.iter().find(|&&atom| atom as usize >= n) {
            candle::bail!("{OP}: codes.indices must be below {n}, the number of atoms, got {atom}")
        }
        let (beta, scale) = (T::from_f64(self.step.beta), T::from_f64(self.step.scale));
        // In the unit of the statistics, which as a rule is their own.
        let in_unit = |x: &[T]| (self.step.scale != 1.).then(|| x.iter().map(|&x| x * scale).collect());
        let (scaled_values, scaled_signals): (Option<Vec<T>>, Option<Vec<T>>) =
            (in_unit(values), in_unit(signals));
        let values = scaled_values.as_deref().unwrap_or(values);
        let signals = scaled_signals.as_deref().unwrap_or(signals);
        let fade = |row: &mut [T]| match self.step.beta == 0. {
            true => row.fill(T::zero()),
            false => row.iter_mut().for_each(|sum| *sum *= beta),
        };
        let list_of = |j: usize| &entries[offsets[j] as usize..offsets[j + 1] as usize];

        let add = |list: &[u32], sums: &mut [T]| {
            for &e in list {
                let (x, code) = (values[e as usize], e as usize / s * s);
                let used = code..code + (count[code / s] as usize).min(s);
                for (&atom, &other) in indices[used.clone()].iter().zip(&values[used]) {
                    sums[atom as usize] += x * other;
                }
            }
        };
        let gram = |(j, row): (usize, &mut [T])| {
            fade(row);
            let list = list_of(j);
            if list.len() <= BLOCK {
                return add(list, row);
            }
            let mut sum = vec![T::zero(); row.len()];
            for list in list.chunks(BLOCK) {
                add(list, &mut sum);
                for (row, sum) in row.iter_mut().zip(&mut sum) {
                    *row += std::mem::replace(sum, T::zero());
                }
            }
        };
        a.elements::<T>()?.par_chunks_mut(n).enumerate().with_max_len(16).for_each(gram);

        let of_signals = |(j, row): (usize, &mut [T])| {
            fade(row);
            let rows: Vec<u32> = list_of(j).iter().map(|&e| e / s as u32).collect();
            let x: Vec<T> = list_of(j).iter().map(|&e| values[e as usize]).collect();
            let mut sum = vec![T::zero(); row.len()];
            weighted_sum(signals, &rows, &x, &mut sum);
            row.iter_mut().zip(sum).for_each(|(row, sum)| *row += sum);
        };
        b.elements::<T>()?.par_chunks_mut(p).enumerate().with_max_len(16).for_each(of_signals);
        Ok(())
    }
}

/// Warps of a block that sum rows of `a`, as many columns at a time as they have room for.
const GRAM_WARPS: usize = 8;
/// What they have: blocks of any GPU may have so much, two on a multiprocessor.
const GRAM_BYTES: usize = 48 * 1024;

/// Columns of `a` that a block sums.
fn gram_columns(n: usize, size: usize) -> usize {
    n.clamp(1, GRAM_BYTES / (GRAM_WARPS * size))
}

fn shared_bytes(n: usize, size: usize) -> usize {
    (GRAM_WARPS * gram_columns(n, size)).max(WARPS * COLUMNS) * size
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::gpus;

    #[test]
    fn blocks_of_every_gpu_have_room_for_any_number_of_atoms() {
        for gpu in gpus::ALL {
            for (n, size) in
                [(1, 4), (256, 4), (1536, 4), (1537, 4), (1_000_000, 4), (256, 8), (1_000_000, 8)]
            {
                let asked = shared_bytes(n, size);
                assert!(asked <= gpu.shared_bytes, "{gpu:?} has too little for {n} atoms: {asked} bytes");
                assert!((1..=n).contains(&gram_columns(n, size)));
            }
        }
    }
}
