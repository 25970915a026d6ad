//! Atoms of numbers of at least 0.
//!
//! ```text
//! g_j = (b_j − a_j D) / A_jj + d_j              A = XᵀX,  B = XᵀY
//! d_j ← max(g_j, 0) / ‖max(g_j, 0)‖             j = n_fixed, n_fixed + 1, …, in groups
//! ```
//!
//! The closest allowed row to `g_j` is the best one for `½‖Y − X D‖²` when all else stays: the
//! others are projected on the atoms of at least 0, and their length is made 1. With nonnegative
//! codes this is hierarchical alternating least squares for `Y ≈ X D`, `X, D ≥ 0`, with sparse rows
//! of `X`.
//!
//! Source: Cichocki and Phan, "Fast local algorithms for large scale nonnegative matrix and tensor
//! factorizations", IEICE Trans. Fundamentals E92-A(3), 2009; atoms have length 1, which the codes
//! make up for.
use super::scaling::unit_rows;
use super::{Dictionary, UpdateRule};
use candle::{D, Result, Tensor};

/// `A_jj` at or below which an atom has not been used: far below any sum of squares of
/// coefficients.
const UNUSED: f64 = 1e-30;

/// Refuses rules that do not keep atoms at least 0.
pub(super) fn check_rule(op: &str, rule: UpdateRule) -> Result<()> {
    match rule {
        UpdateRule::Sgk | UpdateRule::Nsgk => Ok(()),
        UpdateRule::Ksvd | UpdateRule::AkSvd | UpdateRule::Mod => candle::bail!(
            "{op}: rule must be sgk or nsgk for nonnegative atoms, got {}, which does not keep them at least 0",
            rule.name()
        ),
    }
}

/// The atoms that training starts from, of length 1: what is below 0 becomes 0, but fixed atoms
/// must be at least 0 already.
pub(super) fn start(op: &str, dictionary: &Dictionary, n_fixed: usize) -> Result<Tensor> {
    let atoms = &dictionary.atoms;
    if !dictionary.config.nonnegative_atoms {
        return unit_rows(atoms);
    }
    let fixed = atoms.narrow(0, 0, n_fixed.min(atoms.dim(0)?))?;
    if fixed.elem_count() > 0 {
        let least = fixed.min_all()?.to_dtype(candle::DType::F64)?.to_scalar::<f64>()?;
        if least < 0. {
            candle::bail!("{op}: the {n_fixed} fixed atoms must be at least 0, got {least}")
        }
    }
    unit_rows(&atoms.relu()?)
}

/// One sweep over the atoms from `n_fixed` on, `group` at a time from the same other atoms, which
/// are `project`ed or, where not, may be below 0. Returns new atoms.
///
/// `atoms` and `b` are `[n_atoms, n_features]`, `a` is `[n_atoms, n_atoms]`; `penalty` is `γ` of `γ
/// Σ_{i≠j} (d_i·d_j)²`. An atom stays if no signal uses it, or if nothing of its `g` is above 0.
/// With groups of one and no penalty no step raises `½‖Y − X D‖²`.
///
/// Cost: `2n²p` FLOP, `4n²p` with a penalty, and some ten operations of the device for a group;
/// nothing waits for the device.
pub(super) fn sweep(
    atoms: &Tensor,
    a: &Tensor,
    b: &Tensor,
    n_fixed: usize,
    group: usize,
    penalty: f64,
    project: bool,
) -> Result<Tensor> {
    let n = atoms.dim(0)?;
    let identity = Tensor::eye(n, a.dtype(), a.device())?;
    let diagonal = (a * &identity)?.sum_keepdim(D::Minus1)?;
    let used = diagonal.gt(UNUSED)?;
    let divisor = diagonal.maximum(UNUSED)?;
    let atoms = atoms.copy()?;
    let mut first = n_fixed.min(n);
    while first < n {
        let size = group.min(n - first);
        let of_group = |t: &Tensor| t.narrow(0, first, size);
        let old = of_group(&atoms)?.copy()?;
        let mut gradient = (of_group(b)? - of_group(a)?.contiguous()?.matmul(&atoms)?)?;
        if penalty > 0. {
            let others = (1. - of_group(&identity)?)?;
            let like = (old.matmul(&atoms.t()?)? * others)?;
            gradient = (gradient - (like.matmul(&atoms)? * (2. * penalty))?)?;
        }
        let step = (gradient.broadcast_div(&of_group(&divisor)?)? + &old)?;
        let step = if project { step.relu()? } else { step };
        let lengths = step.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?;
        let is_good = (lengths.gt(f64::from(f32::MIN_POSITIVE))? * of_group(&used)?)?;
        let unit = step.broadcast_div(&lengths.maximum(f64::from(f32::MIN_POSITIVE))?)?;
        let new = is_good.broadcast_as(old.shape())?.where_cond(&unit, &old)?;
        atoms.slice_set(&new.contiguous()?, 0, first)?;
        first += size;
    }
    Ok(atoms)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use candle::{DType, Device::Cpu};
    use chandlery_ops::Philox;
    use chandlery_ops::core::normal;

    fn random(rows: usize, columns: usize, stream: u64) -> Tensor {
        normal((rows, columns), &Cpu, Philox::new(5, stream)).unwrap().to_dtype(DType::F64).unwrap()
    }

    /// `‖Y − X D‖²`
    fn objective(y: &Tensor, x: &Tensor, d: &Tensor) -> f64 {
        (y - x.matmul(d).unwrap()).unwrap().sqr().unwrap().sum_all().unwrap().to_scalar().unwrap()
    }

    #[test]
    fn a_sweep_of_single_atoms_never_raises_the_error_and_each_atom_is_best() {
        let (m, n, p) = (40, 6, 9);
        let (y, x) = (random(m, p, 1), random(m, n, 2));
        let (a, b) = (x.t().unwrap().matmul(&x).unwrap(), x.t().unwrap().matmul(&y).unwrap());
        let mut d = unit_rows(&random(n, p, 3).relu().unwrap()).unwrap();
        let mut before = objective(&y, &x, &d);
        for _ in 0..20 {
            d = sweep(&d, &a, &b, 1, 1, 0., true).unwrap();
            let after = objective(&y, &x, &d);
            assert!(after <= before * (1. + 1e-12), "{after} after {before}");
            before = after;
        }
        let rows = d.to_vec2::<f64>().unwrap();
        for row in &rows {
            assert!(row.iter().all(|&v| v >= 0.));
            assert!((row.iter().map(|v| v * v).sum::<f64>() - 1.).abs() < 1e-12);
        }
        // No other direction of at least 0 does better in the place of the last atom.
        let last = n - 1;
        for stream in 10..60 {
            let other = unit_rows(&random(1, p, stream).relu().unwrap()).unwrap();
            let near = unit_rows(&(d.narrow(0, last, 1).unwrap() + other * 0.05).unwrap()).unwrap();
            let changed = Tensor::cat(&[d.narrow(0, 0, last).unwrap(), near], 0).unwrap();
            assert!(objective(&y, &x, &changed) >= before - 1e-9);
        }
    }

    #[test]
    fn atoms_that_nothing_uses_or_that_have_no_direction_stay() {
        let d = Tensor::new(&[[0.6f32, 0.8], [1., 0.], [0., 1.]], &Cpu).unwrap();
        // The first is not used; the second is pulled below 0 in both directions; the third is
        // pulled to the first axis.
        let a = Tensor::new(&[[0f32, 0., 0.], [0., 1., 0.], [0., 0., 1.]], &Cpu).unwrap();
        let b = Tensor::new(&[[5f32, 5.], [-3., -2.], [4., -1.]], &Cpu).unwrap();
        let new = sweep(&d, &a, &b, 0, 3, 0., true).unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(new, [[0.6, 0.8], [1., 0.], [1., 0.]]);
    }
}
