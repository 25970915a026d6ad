//! The update of atoms, one at a time or in groups.
use super::sweep::{Change, Codes, Sweep, write_back};
use super::{AtomUpdate, check_codes, check_dictionary};
use crate::codes::AtomUses;
use crate::codes::SparseCodes;
use crate::core::check::expect;
use crate::core::fused::Fused;
use crate::core::op::{In, Io, Kernel, Out, not_recording, operands};
use candle::{CpuStorage, DType, Result, Tensor};
use rayon::prelude::*;

const OP: &str = "update_atoms";

/// One sweep over the atoms. Returns the new dictionary and the codes with their new coefficients;
/// supports do not change.
///
/// For each used atom `j`, where `F = E_I + x_j d_j` is the error without it:
///
/// ```text
/// g   = F·x_j − 2γ Σ_{l≠j} (d_l·d_j) d_l
/// d_j ← g / ‖g‖;   x_j ← F·d_j        power_steps times, or until d_j moves by at most `tolerance`;  x_j stays if 0 times
/// ```
///
/// All atoms of a group use the dictionary, the coefficients and the error from before the group;
/// `E` is updated after the group. With groups of one and `γ = 0` no step can raise `‖Y − X D‖`. An
/// atom does not change if no signal uses it, or if its `g` has a length of 1e-38 or less or is not
/// finite; so scale the signals to lengths within a few powers of ten of 1. If a code names an atom
/// twice, each entry is updated separately, as if it belonged to another signal.
///
/// `dictionary` is `[n, p]`, `error` is `Y − X D` of the same codes (or with another matrix in
/// place of `Y`), `[m, p]`, both contiguous; rows of the dictionary should have length 1.
///
/// Cost: `4Up` FLOP per power step for `U` uses in total, each of which reads a row of `error`
/// twice, and `4n²p` if `γ` is not 0.
///
/// # Errors
/// When shapes, types or devices do not fit, `group` is 0, `tolerance` or `coherence_penalty` is
/// negative or not finite, or a step is being recorded; on a GPU, when three rows of the dictionary
/// do not fit into a block's shared memory (`n_features` above 7,600 in f32 on the smallest GPUs).
pub fn update_atoms(
    dictionary: &Tensor,
    codes: &SparseCodes,
    uses: &AtomUses,
    error: &Tensor,
    update: &AtomUpdate,
) -> Result<(Tensor, SparseCodes)> {
    let (n, p) = check_dictionary(OP, dictionary)?;
    let dtype = dictionary.dtype();
    let (codes, [m, s]) = check_codes(OP, codes, dtype)?;
    expect(OP, "error", error, &[dtype], &[m, p])?;
    if n != codes.n_atoms {
        candle::bail!("{OP}: dictionary must have {} atoms as the codes do, got {n}", codes.n_atoms)
    }
    uses.check(OP, &codes)?;
    if update.group == 0 {
        candle::bail!("{OP}: group must be at least 1, got 0")
    }
    for (what, x) in [("tolerance", update.tolerance), ("coherence_penalty", update.coherence_penalty)] {
        if !x.is_finite() || x < 0. {
            candle::bail!("{OP}: {what} must be a finite number of at least 0, got {x}")
        }
    }
    not_recording(OP, dictionary.device())?;
    let (updated, values) = (dictionary.copy()?, codes.values.copy()?);
    let kernel = Update { m, s, n, p, dtype, update: *update };
    // Only where a group follows another does the error change.
    let changing = if kernel.groups().count() > 1 { Some(error.copy()?) } else { None };
    let mut io = operands(OP).write("the new dictionary", &updated).write("the new values", &values);
    if let Some(changing) = &changing {
        io = io.write("the changing error", changing);
    }
    let io = io.read("dictionary", dictionary).read("codes.values", &codes.values).read("error", error);
    let io = io.read("uses", &uses.offsets).read("uses", &uses.entries);
    io.read("codes.indices", &codes.indices).read("codes.count", &codes.count).run(&kernel)?;
    Ok((updated, SparseCodes { values, ..codes }))
}

/// Operands that were checked by [`update_atoms`].
struct Update {
    m: usize,
    s: usize,
    n: usize,
    p: usize,
    dtype: DType,
    update: AtomUpdate,
}

/// What is written: dictionary, values and, where groups follow each other, the error; and the
/// seven that are read.
type Parts<'a, S> = ([Out<'a, S>; 2], Option<Out<'a, S>>, [In<'a, S>; 7]);

impl Update {
    /// The groups, as ranges of atoms.
    fn groups(&self) -> impl Iterator<Item = std::ops::Range<usize>> {
        let (n, group) = (self.n, self.update.group);
        (self.update.n_fixed.min(n)..n)
            .step_by(group)
            .map(move |first| first..n.min(first.saturating_add(group)))
    }

    fn parts<'a, S>(&self, io: Io<'a, S>) -> Result<Parts<'a, S>> {
        Ok(match self.groups().count() > 1 {
            true => {
                let ([d, x, error], read) = io.parts()?;
                ([d, x], Some(error), read)
            }
            false => {
                let (written, read) = io.parts()?;
                (written, None, read)
            }
        })
    }
}

impl Kernel for Update {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        for_float!(self.dtype, |T| self.cpu::<T>(io))
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        for_float!(self.dtype, |T| {
            /// Of kernels/codes/atoms.cu: threads of both kernels, and signals of a block of
            /// `follow`, one a warp.
            const THREADS: u32 = 512;
            const FOLLOW_THREADS: u32 = 256;
            const FOLLOW: usize = 8;
            /// Times the mean number of uses from which on a list is long.
            const LONG: usize = 2;
            let &Self { m, s, n, p, .. } = self;
            let ([d_out, x_out], changing, [d_in, x_in, e_in, offsets, entries, indices, counts]) =
                self.parts(io)?;
            let (mut d_out, mut x_out) = (d_out.elements::<T>()?, x_out.elements::<T>()?);
            let (d_in, x_in, e_in) = (d_in.elements::<T>()?, x_in.elements::<T>()?, e_in.elements::<T>()?);
            let (offsets, entries) = (offsets.elements::<u32>()?, entries.elements::<u32>()?);
            let (indices, counts) = (indices.elements::<u32>()?, counts.elements::<u32>()?);
            let mut changing = changing.map(|error| error.elements::<T>()).transpose()?;
            let (update, follow) =
                (format!("update_atoms_{}", self.dtype.as_str()), format!("follow_{}", self.dtype.as_str()));
            let steps = u32::try_from(self.update.power_steps).unwrap_or(u32::MAX);
            // As many atoms at once as fill the GPU take a block each, but for those of long lists,
            // which would be the last to end.
            let limits = gpu.limits();
            let team = super::team(limits, m * s, n);
            let long = u32::try_from(LONG * (m * s / n)).unwrap_or(u32::MAX);
            let forms = |atoms: usize| match team > 1 && atoms * team > 2 * limits.multiprocessors {
                true => vec![(1, 0, long), (team, long, u32::MAX)],
                false => vec![(team, 0, u32::MAX)],
            };
            let (tolerance, gamma) = (self.update.tolerance.powi(2), self.update.coherence_penalty);
            for group in self.groups() {
                let error = changing.as_ref().map_or_else(|| e_in.slice(..), |error| error.slice(..));
                for (team, above, most) in forms(group.len()) {
                    let launch = gpu.launch(OP, "atoms", &update)?.write(&mut d_out).write(&mut x_out);
                    let launch = launch.read(&d_in).read(&x_in).read(&error).read(&offsets).read(&entries);
                    let launch = launch.count(group.start).count(n).count(s).count(p);
                    let launch = launch.num(steps).num(tolerance).num(gamma).num(above).num(most);
                    let launch = launch.blocks(group.len() * team, THREADS).clusters_of(team as u32);
                    // SAFETY: (2 × T*, 3 × const T*, 2 × const unsigned*, 5 × unsigned, 2 × double,
                    // 2 × unsigned) of the shapes that `update_atoms` checked; the lists are those
                    // of `AtomUses`, places below m · s; a cluster of `team` blocks for each atom
                    // of the group.
                    unsafe { launch.shared(shared_bytes(p, size_of::<T>())).go() }?;
                }
                if group.end < n
                    && let Some(error) = &mut changing
                {
                    let (d_new, x_new) = (d_out.slice(..), x_out.slice(..));
                    let launch = gpu.launch(OP, "atoms", &follow)?.write(error).read(&d_new).read(&x_new);
                    let launch = launch.read(&d_in).read(&x_in).read(&indices).read(&counts);
                    let launch = launch.count(group.start).count(group.end).num(m).count(s).count(p);
                    // SAFETY: (T*, 4 × const T*, 2 × const unsigned*, 2 × unsigned, size_t, 2 ×
                    // unsigned); `error` is a copy of [m, p]; a warp for each signal.
                    unsafe { launch.blocks(m.div_ceil(FOLLOW), FOLLOW_THREADS).go() }?;
                }
            }
            Ok(())
        })
    }
}

impl Update {
    fn cpu<T: Fused>(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let &Self { s, n, p, .. } = self;
        let ([d_out, x_out], changing, [d_in, x_in, e_in, offsets, entries, indices, count]) =
            self.parts(io)?;
        let (d_out, x_out) = (d_out.elements::<T>()?, x_out.elements::<T>()?);
        let (d_in, x_in, e_in) = (d_in.elements::<T>()?, x_in.elements::<T>()?, e_in.elements::<T>()?);
        let (offsets, entries) = (offsets.elements::<u32>()?, entries.elements::<u32>()?);
        let codes = Codes { s, indices: indices.elements()?, count: count.elements()? };
        let mut changing = changing.map(|error| error.elements::<T>()).transpose()?;
        let mut moved = Vec::new();
        for group in self.groups() {
            let starts = &offsets[group.start..=group.end];
            let (from, to) = (starts[0] as usize, starts[group.len()] as usize);
            let listed = &entries[from..to];
            moved.clear();
            moved.extend(listed.iter().map(|&e| x_in[e as usize]));
            let (done, rest) = d_out.split_at_mut(group.start * p);
            let error = changing.as_deref().unwrap_or(e_in);
            let sweep = Sweep { s, p, update: self.update, error, done, d_in };
            // Each atom with its row, its entries and their coefficients.
            let mut tasks = Vec::with_capacity(group.len());
            let mut x_rest = &mut moved[..];
            for ((j, row), start) in group.clone().zip(rest.chunks_mut(p)).zip(starts.windows(2)) {
                let (x, after) = x_rest.split_at_mut((start[1] - start[0]) as usize);
                tasks.push((j, row, &listed[start[0] as usize - from..start[1] as usize - from], x));
                x_rest = after;
            }
            match tasks.len() {
                1 => tasks.into_iter().for_each(|(j, row, list, x)| sweep.atom(j, row, list, x)),
                _ => tasks
                    .into_par_iter()
                    .with_max_len(1)
                    .for_each(|(j, row, list, x)| sweep.atom(j, row, list, x)),
            }
            if self.update.power_steps > 0 {
                let lists: Vec<_> =
                    starts.windows(2).map(|o| o[0] as usize - from..o[1] as usize - from).collect();
                write_back(x_out, s, listed, &moved, &lists);
            }
            if group.end < n
                && let Some(error) = &mut changing
            {
                let rows = |d: &[T]| -> Vec<T> { d[group.start * p..group.end * p].to_vec() };
                let change =
                    Change { first: group.start, p, old: &rows(d_in), new: &rows(d_out), x_in, x_out };
                match group.len() {
                    1 => change.follow_atom(error, 0, listed, s),
                    _ => change.follow_group(error, &codes),
                }
            }
        }
        Ok(())
    }
}

/// What a block of `update_atoms` shares: 16 doubles, then three rows, a sum of each of 16 warps
/// over 128 columns, and 16 more numbers.
fn shared_bytes(p: usize, size: usize) -> usize {
    super::WARPS * 8 + (3 * p + super::WARPS * super::COLUMNS + super::WARPS) * size
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::gpus;

    #[test]
    fn rows_of_any_usual_length_fit_into_the_shared_memory_of_every_gpu() {
        for gpu in gpus::ALL {
            for (p, size) in [(64, 4), (784, 4), (784, 8), (3072, 4), (3072, 8), (7600, 4)] {
                let asked = shared_bytes(p, size);
                assert!(asked <= gpu.shared_bytes, "{gpu:?} has too little for p {p}: {asked} bytes");
            }
        }
    }
}
