//! The dictionary in the layout of the inner loops, and the matrix products that they start from.
use super::lanes::{Real, scale_and_energy};
use candle::Result;
use gemm::Parallelism;

/// Atoms of norm 1, side by side.
pub(super) struct Atoms<T> {
    /// Features of an atom.
    pub p: usize,
    /// Atoms with those of padding, which are zero.
    pub padded: usize,
    /// `D̂ᵀ`, `[p, padded]`
    pub unit: Vec<T>,
    /// `‖dⱼ‖`, `[n]`; where it is 0 the atom in `unit` is zero too.
    pub norm: Vec<f64>,
}

impl<T: Real> Atoms<T> {
    /// `dictionary` is `[n, p]`; `n` is padded to blocks of `width`.
    pub(super) fn new(op: &str, dictionary: &[T], n: usize, p: usize, width: usize) -> Result<Self> {
        let padded = n.next_multiple_of(width);
        let mut unit = vec![T::zero(); p * padded];
        let mut norm = Vec::with_capacity(n);
        for j in 0..n {
            let atom = &dictionary[j * p..][..p];
            let Some((scale, energy)) = scale_and_energy(atom) else {
                candle::bail!("{op}: dictionary must be finite, got NaN or infinity in atom {j}")
            };
            let length = energy.sqrt();
            norm.push(length / scale);
            if length > 0. {
                for (t, d) in atom.iter().enumerate() {
                    unit[t * padded + j] = T::from_f64(d.to_f64() * scale / length);
                }
            }
        }
        Ok(Self { p, padded, unit, norm })
    }

    /// Atom `j` as a row.
    pub(super) fn unit_atom(&self, j: usize) -> impl Iterator<Item = T> {
        self.unit.iter().skip(j).step_by(self.padded).copied()
    }

    /// `G = D̂ D̂ᵀ`, `[n, padded]`, by all threads.
    pub(super) fn gram(&self) -> Vec<T> {
        let n = self.norm.len();
        let mut gram = vec![T::zero(); n * self.padded];
        let atoms = Rows { x: &self.unit, rows: n, row: 1, entry: self.padded };
        multiply(&mut gram, atoms, &self.unit, self.padded, Parallelism::Rayon(rayon::current_num_threads()));
        gram
    }

    /// `out ← rows · D̂ᵀ` of contiguous rows `[_, p]`, by this thread.
    pub(super) fn correlate(&self, out: &mut [T], rows: &[T]) {
        self.multiply(out, rows, &self.unit);
    }

    /// `out ← rows · b` of contiguous rows `[_, p]` with `b` of the shape of `unit`, by this
    /// thread.
    pub(super) fn multiply(&self, out: &mut [T], rows: &[T], b: &[T]) {
        let rows = Rows { x: rows, rows: out.len() / self.padded, row: self.p, entry: 1 };
        multiply(out, rows, b, self.padded, Parallelism::None);
    }
}

/// A matrix of `rows` by its strides.
#[derive(Clone, Copy)]
struct Rows<'a, T> {
    x: &'a [T],
    rows: usize,
    row: usize,
    entry: usize,
}

/// `out ← a b`, with `b` of contiguous rows `[_, columns]`.
fn multiply<T: Real>(out: &mut [T], a: Rows<T>, b: &[T], columns: usize, threads: Parallelism) {
    let inner = b.len() / columns;
    if a.rows == 0 || inner == 0 {
        return out.fill(T::zero());
    }
    assert!(out.len() == a.rows * columns && b.len() == inner * columns);
    assert!((a.rows - 1) * a.row + (inner - 1) * a.entry < a.x.len());
    // SAFETY: `out` is the `rows × columns` matrix that is written and nothing else borrows it; the
    // asserts above bound what the strides of the two operands reach.
    unsafe {
        gemm::gemm(
            columns,
            a.rows,
            inner,
            out.as_mut_ptr(),
            columns as isize,
            1,
            false,
            b.as_ptr(),
            columns as isize,
            1,
            a.x.as_ptr(),
            a.row as isize,
            a.entry as isize,
            T::zero(),
            T::one(),
            false,
            false,
            false,
            threads,
        )
    }
}
