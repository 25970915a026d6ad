//! Updates of atoms and their coefficients.
use super::common::{CPU, SHAPES, difference, problem, repeated, unit_rows};
use candle::{DType, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::codes::{
    AtomUpdate, AtomUses, Pursuit, SparseCodes, bomp, row_squares, update_atoms, update_atoms_reference,
};
use chandlery_ops::core::normal;

#[test]
fn every_rule_and_group_is_the_equations_in_f64() -> Result<()> {
    for shape in SHAPES {
        let n = shape[1];
        for (group, power_steps, coherence_penalty, n_fixed) in [
            (1, 1, 0., 0),
            (1, 0, 0., 1),
            (3, 1, 0.5, 0),
            (n, 1, 0., 2),
            (n, 0, 2., 0),
            (1, 4, 0., 0),
            (5, 3, 0.1, 1),
        ] {
            // Without a tolerance, so that both make every step.
            let update = AtomUpdate { group, power_steps, tolerance: 0., n_fixed, coherence_penalty };
            for (dtype, eps) in [(DType::F32, 1e-6), (DType::F64, 1e-13)] {
                let (y, d, codes) = problem(shape, dtype)?;
                let uses = AtomUses::of(&codes)?;
                let error = codes.residual(&y, &d)?;
                let (got_d, got) = update_atoms(&d, &codes, &uses, &error, &update)?;
                let (want_d, want_x) = update_atoms_reference(&d, &codes, &error, &update)?;
                // Sums over thousands of rows and a chain over atoms: some hundred roundings of
                // numbers of size 1 to 10.
                let (off_d, off_x) = (difference(&got_d, &want_d)?, difference(&got.values, &want_x)?);
                assert!(off_d < 100. * eps, "{shape:?} {update:?} {dtype:?}: atoms differ by {off_d}");
                assert!(off_x < 500. * eps, "{shape:?} {update:?} {dtype:?}: coefficients differ by {off_x}");
                assert_eq!(
                    difference(&got_d.narrow(0, 0, n_fixed.min(n))?, &d.narrow(0, 0, n_fixed.min(n))?)?,
                    0.
                );
                if power_steps == 0 {
                    assert_eq!(difference(&got.values, &codes.values)?, 0.);
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_sequential_sweep_never_raises_the_error_and_more_steps_lower_it_further() -> Result<()> {
    for shape in [[301, 50, 20, 4], [600, 70, 65, 6]] {
        let (y, d, codes) = problem(shape, DType::F64)?;
        let uses = AtomUses::of(&codes)?;
        let squares = |d: &Tensor, codes: &SparseCodes| -> Result<f64> {
            row_squares(&codes.residual(&y, d)?)?.sum_all()?.to_scalar()
        };
        let start = squares(&d, &codes)?;
        let error = codes.residual(&y, &d)?;
        let after = |power_steps| -> Result<f64> {
            let update = AtomUpdate { power_steps, ..AtomUpdate::default() };
            let (d, codes) = update_atoms(&d, &codes, &uses, &error, &update)?;
            squares(&d, &codes)
        };
        let (sgk, aksvd, ksvd) = (after(0)?, after(1)?, after(100)?);
        assert!(
            sgk < start && aksvd < sgk && ksvd < aksvd,
            "{shape:?}: squared error {start}; after SGK {sgk}, AK-SVD {aksvd}, K-SVD {ksvd}: each must be lower"
        );
    }
    Ok(())
}

#[test]
fn a_converged_power_method_gives_the_best_rank_one_matrix() -> Result<()> {
    // One atom, used by all: F is Y itself, and the best atom is its first right singular vector.
    let (m, p) = (40, 6);
    let y = normal((m, p), &CPU, Philox::new(4, 0))?.to_dtype(DType::F64)?;
    let stretch = Tensor::new(&[3f64, 1., 1., 1., 1., 1.], &CPU)?;
    let y = y.broadcast_mul(&stretch)?;
    let d = unit_rows(1, p, 5, DType::F64)?;
    let codes = bomp(&y, &d, &Pursuit::new(1))?;
    let error = codes.residual(&y, &d)?;
    let update = AtomUpdate { power_steps: 1000, tolerance: 1e-13, ..AtomUpdate::default() };
    let (d, codes) = update_atoms(&d, &codes, &AtomUses::of(&codes)?, &error, &update)?;
    // An eigenvector: YᵀY d = λ d; x = Y d.
    let d = d.t()?;
    let (yd, x) = (y.matmul(&d)?, codes.values);
    let off = difference(&x, &yd)?;
    assert!(off < 1e-12, "coefficients differ from Y d by {off}");
    let yyd = y.t()?.matmul(&yd)?;
    let lambda = yyd.sqr()?.sum_all()?.sqrt()?.to_scalar::<f64>()?;
    let off = difference(&(yyd / lambda)?, &d.contiguous()?)?;
    assert!(off < 1e-10, "the atom is no eigenvector of YᵀY: YᵀY d / λ differs from it by {off}");
    // The largest one: above the mean of the squares by features, times the share that stretching
    // gave it.
    let share = lambda / y.sqr()?.sum_all()?.to_scalar::<f64>()?;
    assert!(share > 0.4, "λ is {share} of ‖Y‖², so not the largest");
    Ok(())
}

#[test]
fn the_penalty_makes_atoms_less_alike() -> Result<()> {
    let (y, d, codes) = problem([301, 50, 20, 4], DType::F64)?;
    let error = codes.residual(&y, &d)?;
    let uses = AtomUses::of(&codes)?;
    let likeness = |coherence_penalty| -> Result<f64> {
        let update = AtomUpdate { coherence_penalty, ..AtomUpdate::default() };
        let (d, _) = update_atoms(&d, &codes, &uses, &error, &update)?;
        d.matmul(&d.t()?)?.sqr()?.sum_all()?.to_scalar()
    };
    let (without, little, much) = (likeness(0.)?, likeness(1.)?, likeness(10.)?);
    assert!(
        little < without && much < little,
        "Σ (d_i·d_j)² is {without} without a penalty, {little} with a little and {much} with much: it must fall"
    );
    Ok(())
}

#[test]
fn a_nan_atom_or_error_does_not_spread_to_other_atoms() -> Result<()> {
    let (y, d, codes) = problem([40, 12, 16, 3], DType::F64)?;
    let uses = AtomUses::of(&codes)?;
    // The last is a number, but its square is none.
    for bad in [f64::NAN, f64::INFINITY, 1e200] {
        let error = codes.residual(&y, &d)?;
        error.slice_set(&Tensor::full(bad, (1, 16), &CPU)?, 0, 0)?;
        let update = AtomUpdate { group: 12, ..AtomUpdate::default() };
        let (got, values) = update_atoms(&d, &codes, &uses, &error, &update)?;
        let (want, want_values) = update_atoms_reference(&d, &codes, &error, &update)?;
        let (off, off_x) = (difference(&got, &want)?, difference(&values.values, &want_values)?);
        assert!(off < 1e-11 && off_x < 1e-11, "{bad}: atoms differ by {off}, coefficients by {off_x}");
        // Atoms of signal 0 stay, the others are updated.
        let of_0 = codes.indices.get(0)?.to_vec1::<u32>()?;
        for j in 0..12u32 {
            let moved = difference(&got.get(j as usize)?, &d.get(j as usize)?)?;
            let used = uses.counts()?[j as usize] > 0;
            assert_eq!(moved > 0., used && !of_0.contains(&j), "{bad}: atom {j} moved by {moved}");
        }
    }
    Ok(())
}

#[test]
fn an_update_takes_codes_that_name_an_atom_twice_entry_by_entry() -> Result<()> {
    // Lists so long that threads share them: none may part a signal.
    let (m, n, p, s) = (3000, 2, 64, 3);
    let codes = repeated(m, n, s, DType::F64)?;
    let (uses, d) = (AtomUses::of(&codes)?, unit_rows(n, p, 1, DType::F64)?);
    let error = normal((m, p), &CPU, Philox::new(11, 2))?.to_dtype(DType::F64)?;
    let update = AtomUpdate { power_steps: 0, ..AtomUpdate::default() };
    let (got, _) = update_atoms(&d, &codes, &uses, &error, &update)?;
    // The first atom: Σ x (E + x d) over its entries.
    let (indices, values) = (codes.indices.to_vec2::<u32>()?, codes.values.to_vec2::<f64>()?);
    let (error, d) = (error.to_vec2::<f64>()?, d.to_vec2::<f64>()?);
    let mut g = vec![0.; p];
    for ((indices, values), error) in indices.iter().zip(&values).zip(&error) {
        for (_, &x) in indices.iter().zip(values).filter(|&(&atom, _)| atom == 0) {
            g.iter_mut().zip(error).zip(&d[0]).for_each(|((g, e), d)| *g += x * (e + x * d));
        }
    }
    let norm = g.iter().map(|g| g * g).sum::<f64>().sqrt();
    let want: Vec<f64> = g.iter().map(|g| g / norm).collect();
    let off = difference(&got.get(0)?, &Tensor::new(want, &CPU)?)?;
    assert!(off < 1e-12, "the atom differs from Σ x (E + x d), normalised, by {off}");
    Ok(())
}
