//! The update of atoms, one after the other or many at once.
use super::{GRAIN, axpy, check_codes, check_dictionary, check_matrix, dot, dots, normalize, weighted_sum};
use crate::host::{Operand, contiguous};
use crate::{AtomUses, SparseCodes};
use candle::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor, WithDType};
use rayon::prelude::*;
use std::borrow::Cow;

pub(super) const OP: &str = "update_atoms";
/// Signals that one task takes when new coefficients are put back or errors brought up to date.
const SIGNALS: usize = 1024;

/// How [`update_atoms`] updates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AtomUpdate {
    /// Atoms that are updated at once, from one error matrix (ñ): 1 is the classic sequential sweep, `n_atoms` or more
    /// leaves no atom waiting. Default 1.
    pub group: usize,
    /// The most steps of the power method for an atom and its coefficients: 1 is AK-SVD, many are K-SVD; with 0 the
    /// coefficients stay and the atom is the best one for them (SGK). Default 1.
    pub power_steps: usize,
    /// A power method ends when a step moved the atom, of length 1, by at most this. Default 1e-5.
    pub tolerance: f64,
    /// The first atoms, which stay as they are. Default 0.
    pub n_fixed: usize,
    /// `γ` of the penalty `γ Σ_{i≠j} (d_i·d_j)²` that joins `‖Y − X D‖²`, at least 0, in squared units of the signals.
    /// Where it outweighs `x_j·x_j`, power steps need not converge; [`power_steps`](Self::power_steps) ends them. Default 0.
    pub coherence_penalty: f64,
}

impl Default for AtomUpdate {
    fn default() -> Self {
        Self { group: 1, power_steps: 1, tolerance: 1e-5, n_fixed: 0, coherence_penalty: 0. }
    }
}

/// One sweep over the atoms: the new dictionary, and the codes with coefficients to go with it; supports stay.
///
/// For each atom `j` that a signal uses, with `F = E_I + x_j d_j` the error without it:
///
/// ```text
/// g   = F·x_j − 2γ Σ_{l≠j} (d_l·d_j) d_l
/// d_j ← g / ‖g‖;   x_j ← F·d_j        power_steps times, or until d_j moves by at most `tolerance`;  x_j stays if 0 times
/// ```
///
/// Atoms of a group see the dictionary, the coefficients and the error of before the group; then `E` follows. With groups of one
/// and `γ = 0` no step can raise `‖Y − X D‖`. An atom without signals, or whose `g` has a length of 1e-38 or less, or is not finite,
/// stays: let the error be that of signals whose lengths are not many powers of ten from 1.
///
/// `dictionary` is `[n, p]`, `error` the `Y − X D` of these very codes (or another matrix in the place of `Y`), `[m, p]`,
/// both contiguous; rows of the dictionary should have length 1. Returned tensors share one new buffer.
///
/// Cost: `4Up` FLOP a step for `U` uses in all, each of which reads a row of `error` twice, and `4n²p` where `γ` is not 0.
///
/// # Errors
/// When shapes, types or devices do not fit, `group` is 0, or `tolerance` or `coherence_penalty` is negative or not finite.
pub fn update_atoms(
    dictionary: &Tensor,
    codes: &SparseCodes,
    uses: &AtomUses,
    error: &Tensor,
    update: &AtomUpdate,
) -> Result<(Tensor, SparseCodes)> {
    let (n, p) = check_dictionary(OP, dictionary)?;
    let (m, s) = check_codes(OP, codes, dictionary)?;
    check_matrix(OP, "error", error, [m, p], dictionary)?;
    if n != codes.n_atoms {
        candle::bail!(
            "{OP}: dictionary must have the {} atoms that the codes speak of, got {n}",
            codes.n_atoms
        )
    }
    uses.check(OP, codes)?;
    if update.group == 0 {
        candle::bail!("{OP}: group must be at least 1, got 0")
    }
    for (what, x) in [("tolerance", update.tolerance), ("coherence_penalty", update.coherence_penalty)] {
        if !x.is_finite() || x < 0. {
            candle::bail!("{OP}: {what} must be a finite number of at least 0, got {x}")
        }
    }
    let (offsets, entries) = (uses.offsets()?, uses.entries()?);
    let (indices, count) = (codes.indices.contiguous()?, codes.count.contiguous()?);
    let job = Update {
        offsets: &offsets,
        entries: &entries,
        indices: &indices,
        count: &count,
        sizes: Sizes { m, s, n, p },
        update: *update,
    };
    let packed = dictionary.apply_op3_no_bwd(&codes.values.contiguous()?, error, &job)?;
    let updated = packed.narrow(0, 0, n * p)?.reshape((n, p))?;
    let values = packed.narrow(0, n * p, m * s)?.reshape((m, s))?;
    Ok((updated, SparseCodes { values, ..codes.clone() }))
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub m: usize,
    pub s: usize,
    pub n: usize,
    pub p: usize,
}

/// Operands that were checked by [`update_atoms`].
pub(super) struct Update<'a> {
    pub offsets: &'a Tensor,
    pub entries: &'a Tensor,
    pub indices: &'a Tensor,
    pub count: &'a Tensor,
    pub sizes: Sizes,
    pub update: AtomUpdate,
}

impl CustomOp3 for Update<'_> {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(
        &self,
        d: &CpuStorage,
        d_l: &Layout,
        x: &CpuStorage,
        x_l: &Layout,
        e: &CpuStorage,
        e_l: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let Sizes { m, s, n, p } = self.sizes;
        let out = match d {
            CpuStorage::F32(_) => {
                let (d, x, e) =
                    (contiguous::<f32>(d, d_l, OP)?, contiguous(x, x_l, OP)?, contiguous(e, e_l, OP)?);
                CpuStorage::F32(self.cpu(d, x, e)?)
            }
            _ => {
                let (d, x, e) =
                    (contiguous::<f64>(d, d_l, OP)?, contiguous(x, x_l, OP)?, contiguous(e, e_l, OP)?);
                CpuStorage::F64(self.cpu(d, x, e)?)
            }
        };
        Ok((out, Shape::from(n * p + m * s)))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        d: &candle::CudaStorage,
        d_l: &Layout,
        x: &candle::CudaStorage,
        x_l: &Layout,
        e: &candle::CudaStorage,
        e_l: &Layout,
    ) -> Result<(candle::CudaStorage, Shape)> {
        use candle::backend::BackendStorage;
        match d.dtype() {
            candle::DType::F32 => self.cuda::<f32>("f32", (d, d_l), (x, x_l), (e, e_l)),
            _ => self.cuda::<f64>("f64", (d, d_l), (x, x_l), (e, e_l)),
        }
    }
}

impl Update<'_> {
    /// The groups, as ranges of atoms.
    pub(super) fn groups(&self) -> impl Iterator<Item = std::ops::Range<usize>> {
        let (n, group) = (self.sizes.n, self.update.group);
        (self.update.n_fixed.min(n)..n)
            .step_by(group)
            .map(move |first| first..n.min(first.saturating_add(group)))
    }

    fn cpu<T: WithDType>(&self, d_in: &[T], x_in: &[T], e_in: &[T]) -> Result<Vec<T>> {
        let Sizes { s, n, p, .. } = self.sizes;
        let operands = [self.offsets, self.entries, self.indices, self.count].map(Operand::new);
        let [offsets, entries, indices, count] = &operands;
        let (offsets, entries) = (offsets.elements::<u32>(OP)?, entries.elements::<u32>(OP)?);
        let codes = Codes { s, indices: indices.elements::<u32>(OP)?, count: count.elements::<u32>(OP)? };
        let mut out = [d_in, x_in].concat();
        let (d_out, x_out) = out.split_at_mut(n * p);
        let mut error = Cow::Borrowed(e_in);
        let mut moved = Vec::new();
        for group in self.groups() {
            let starts = &offsets[group.start..=group.end];
            let (from, to) = (starts[0] as usize, starts[group.len()] as usize);
            let listed = &entries[from..to];
            moved.clear();
            moved.extend(listed.iter().map(|&e| x_in[e as usize]));
            let (done, rest) = d_out.split_at_mut(group.start * p);
            let sweep = Sweep { sizes: self.sizes, update: self.update, error: &error, done, d_in };
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
                put_back(x_out, s, listed, &moved, &lists);
            }
            if group.end < n {
                let rows = |d: &[T]| -> Vec<T> { d[group.start * p..group.end * p].to_vec() };
                let change =
                    Change { first: group.start, p, old: &rows(d_in), new: &rows(d_out), x_in, x_out };
                let error = error.to_mut();
                match group.len() {
                    1 => change.follow_atom(error, 0, listed, s),
                    _ => change.follow_group(error, &codes),
                }
            }
        }
        Ok(out)
    }
}

/// Which atoms each signal uses.
struct Codes<'a> {
    s: usize,
    indices: &'a [u32],
    count: &'a [u32],
}

/// What the atoms of a group read.
struct Sweep<'a, T> {
    sizes: Sizes,
    update: AtomUpdate,
    error: &'a [T],
    /// Atoms before the group, updated.
    done: &'a [T],
    /// All atoms as they came.
    d_in: &'a [T],
}

impl<T: WithDType> Sweep<'_, T> {
    /// Updates atom `j`, whose row is still the old one; `x` are the coefficients of the entries `list`.
    fn atom(&self, j: usize, d: &mut [T], list: &[u32], x: &mut [T]) {
        if list.is_empty() {
            return;
        }
        let Sizes { s, p, .. } = self.sizes;
        let signals: Vec<u32> = list.iter().map(|&e| e / s as u32).collect();
        let (x_old, old) = (x.to_vec(), d.to_vec());
        let mut g = vec![T::zero(); p];
        for _ in 0..self.update.power_steps.max(1) {
            // F·x = E_I·x + (x_old·x) d_old
            weighted_sum(self.error, &signals, x, &mut g);
            axpy(dot(x, &x_old), &old, &mut g);
            self.penalize(j, d, &mut g);
            if !normalize(&mut g) {
                return;
            }
            let change: f64 = d.iter().zip(&g).map(|(d, g)| (g.to_f64() - d.to_f64()).powi(2)).sum();
            d.copy_from_slice(&g);
            if self.update.power_steps == 0 {
                return;
            }
            all_dots(self.error, &signals, d, x);
            axpy(dot(&old, d), &x_old, x);
            if change <= self.update.tolerance * self.update.tolerance {
                return;
            }
        }
    }

    /// `g ← g − 2γ Σ_{l≠j} (d_l·d) d_l`.
    fn penalize(&self, j: usize, d: &[T], g: &mut [T]) {
        let (p, gamma) = (self.sizes.p, self.update.coherence_penalty);
        if gamma == 0. {
            return;
        }
        let others = self.done.chunks(p).chain(self.d_in.chunks(p).skip(self.done.len() / p));
        for (l, other) in others.enumerate() {
            if l != j {
                axpy(T::from_f64(-2. * gamma) * dot(other, d), other, g);
            }
        }
    }
}

/// [`dots`] on several threads where that is worth it.
fn all_dots<T: WithDType>(rows: &[T], list: &[u32], d: &[T], out: &mut [T]) {
    const STEP: usize = 512;
    if list.len() > STEP && list.len() * d.len() >= 2 * GRAIN {
        list.par_chunks(STEP).zip(out.par_chunks_mut(STEP)).for_each(|(list, out)| dots(rows, list, d, out));
    } else {
        dots(rows, list, d, out);
    }
}

/// `x_out[listed[k]] ← moved[k]`, where each of `lists` is a range of ascending entries.
fn put_back<T: WithDType>(
    x_out: &mut [T],
    s: usize,
    listed: &[u32],
    moved: &[T],
    lists: &[std::ops::Range<usize>],
) {
    if listed.len() < GRAIN {
        for (&e, &x) in listed.iter().zip(moved) {
            x_out[e as usize] = x;
        }
        return;
    }
    // Some signals at a time: in every list they are one stretch.
    x_out.par_chunks_mut(SIGNALS * s).enumerate().for_each(|(c, x_out)| {
        let (first, end) = (c * SIGNALS * s, c * SIGNALS * s + x_out.len());
        for list in lists {
            let (entries, moved) = (&listed[list.clone()], &moved[list.clone()]);
            let start = entries.partition_point(|&e| (e as usize) < first);
            let here = entries[start..].iter().zip(&moved[start..]);
            for (&e, &x) in here.take_while(|&(&e, _)| (e as usize) < end) {
                x_out[e as usize - first] = x;
            }
        }
    });
}

/// What a group changed: `E ← E + x_old d_old − x_new d_new` brings the error up to date.
struct Change<'a, T> {
    first: usize,
    p: usize,
    /// Rows of the group.
    old: &'a [T],
    new: &'a [T],
    x_in: &'a [T],
    x_out: &'a [T],
}

impl<T: WithDType> Change<'_, T> {
    #[inline(always)]
    fn entry(&self, e: usize, row: usize, error: &mut [T]) {
        let atom = row * self.p..(row + 1) * self.p;
        axpy(self.x_in[e], &self.old[atom.clone()], error);
        axpy(T::zero() - self.x_out[e], &self.new[atom], error);
    }

    /// A group of one atom: its entries are different signals. `error` begins at signal `first`.
    fn follow_atom(&self, error: &mut [T], first: usize, list: &[u32], s: usize) {
        if list.len() * self.p >= 2 * GRAIN {
            let (low, high) = list.split_at(list.len() / 2);
            let middle = high[0] as usize / s;
            let (low_error, high_error) = error.split_at_mut((middle - first) * self.p);
            rayon::join(
                || self.follow_atom(low_error, first, low, s),
                || self.follow_atom(high_error, middle, high, s),
            );
            return;
        }
        for &e in list {
            let at = (e as usize / s - first) * self.p;
            self.entry(e as usize, 0, &mut error[at..at + self.p]);
        }
    }

    /// A group of many: signal by signal, in the order of its code.
    fn follow_group(&self, error: &mut [T], codes: &Codes) {
        let (p, s) = (self.p, codes.s);
        let group = self.first..self.first + self.old.len() / p;
        error.par_chunks_mut(SIGNALS * p).enumerate().for_each(|(c, error)| {
            for (i, error) in error.chunks_exact_mut(p).enumerate() {
                let i = c * SIGNALS + i;
                for e in i * s..i * s + (codes.count[i] as usize).min(s) {
                    let atom = codes.indices[e] as usize;
                    if group.contains(&atom) {
                        self.entry(e, atom - group.start, error);
                    }
                }
            }
        });
    }
}
