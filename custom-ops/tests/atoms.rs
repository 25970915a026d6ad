//! Lists, decoding, statistics and updates of atoms against plain loops.
#![allow(clippy::expect_used)]
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::{
    AtomUpdate, AtomUses, Bounds, FIGURE_PARTS, Philox, Pursuit, SparseCodes, StatisticsStep, atom_coherence,
    atom_coherence_, atom_coherence_reference, bomp, code_figures_, codes_statistics_, descend_atoms_,
    descend_atoms_reference, normal, row_squares, update_atoms, update_atoms_reference,
};

const CPU: Device = Device::Cpu;

fn unit_rows(n: usize, p: usize, seed: u64, dtype: DType) -> Result<Tensor> {
    let d = normal((n, p), &CPU, Philox::new(seed, 0))?.to_dtype(DType::F64)?;
    d.broadcast_div(&d.sqr()?.sum_keepdim(1)?.sqrt()?)?.to_dtype(dtype)
}

/// Signals, dictionary and codes by orthogonal matching pursuit; some signals are zero and have empty codes.
fn problem([m, n, p, s]: [usize; 4], dtype: DType) -> Result<(Tensor, Tensor, SparseCodes)> {
    let d = unit_rows(n, p, 1, dtype)?;
    let y = normal((m, p), &CPU, Philox::new(2, 0))?;
    let zero = Tensor::from_vec((0..m).map(|i| (i % 7 != 3) as u8 as f32).collect::<Vec<_>>(), (m, 1), &CPU)?;
    let y = y.broadcast_mul(&zero)?.to_dtype(dtype)?;
    let codes = bomp(&y, &d, &Pursuit::new(s))?;
    Ok((y, d, codes))
}

fn difference(got: &Tensor, want: &Tensor) -> Result<f64> {
    assert_eq!(got.dims(), want.dims());
    assert_eq!(got.dtype(), want.dtype());
    let d = (got.to_dtype(DType::F64)? - want.to_dtype(DType::F64)?)?.abs()?;
    let worst = d
        .flatten_all()?
        .to_vec1::<f64>()?
        .into_iter()
        .fold(0., |a: f64, b| if b > a || b.is_nan() { b } else { a });
    Ok(worst)
}

/// Below, at and above tiles (64 features, 16 lanes), blocks (256 rows) and the sizes at which threads join; pairwise different.
const SHAPES: [[usize; 4]; 6] =
    [[5, 3, 2, 1], [40, 12, 16, 3], [301, 50, 20, 4], [1000, 33, 64, 5], [600, 70, 65, 6], [2500, 9, 130, 3]];

#[test]
fn lists_are_the_places_of_each_atom_in_ascending_order() -> Result<()> {
    // The last has several parts of 64 Ki entries.
    for [m, n, s] in [[1, 1, 1], [6, 4, 3], [500, 17, 5], [70_001, 40, 3]] {
        let words = |stream| (0..(m * s) as u64).map(move |e| Philox::new(3, stream).bits(e));
        let indices: Vec<u32> = words(0).map(|w| w % n as u32).collect();
        let count: Vec<u32> = words(1).take(m).map(|w| w % (s as u32 + 1)).collect();
        let codes = SparseCodes {
            indices: Tensor::from_vec(indices.clone(), (m, s), &CPU)?,
            values: Tensor::zeros((m, s), DType::F32, &CPU)?,
            count: Tensor::from_vec(count.clone(), m, &CPU)?,
            n_atoms: n,
        };
        let uses = AtomUses::of(&codes)?;
        let (offsets, entries) = (uses.offsets().to_vec1::<u32>()?, uses.entries().to_vec1::<u32>()?);
        let mut want = Vec::new();
        for (j, &start) in offsets[..n].iter().enumerate() {
            assert_eq!(start as usize, want.len(), "start of atom {j}, m {m}");
            let used = |&e: &usize| indices[e] as usize == j && e % s < count[e / s] as usize;
            want.extend((0..m * s).filter(used).map(|e| e as u32));
        }
        assert_eq!(offsets[n] as usize, want.len());
        assert_eq!(uses.counts()?.iter().sum::<u32>() as usize, want.len());
        assert!(entries[..want.len()] == want, "m {m}, n {n}, s {s}");
        assert!(entries[want.len()..].iter().all(|&e| e == 0));
    }
    Ok(())
}

#[test]
fn decoded_codes_are_the_dense_product() -> Result<()> {
    for shape in SHAPES {
        for (dtype, eps) in [(DType::F32, 1e-6), (DType::F64, 1e-14)] {
            let (y, d, codes) = problem(shape, dtype)?;
            let got = codes.residual(&y, &d)?;
            let want = (&y - codes.to_dense()?.matmul(&d)?)?;
            // A dozen products of numbers up to about 5.
            let off = difference(&got, &want)?;
            assert!(off < 30. * eps, "{shape:?} {dtype:?}: {off}");
            let want = got.to_dtype(DType::F64)?.sqr()?.sum(1)?;
            let off = difference(&row_squares(&got)?, &want)?;
            assert!(off < 1e-12 * 500., "{shape:?} {dtype:?}: squares differ by {off}");
        }
    }
    Ok(())
}

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
                // Sums over thousands of rows and a chain over atoms: some hundred roundings of numbers of size 1 to 10.
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
        assert!(sgk < start && aksvd < sgk && ksvd < aksvd, "{start} {sgk} {aksvd} {ksvd}");
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
    assert!(difference(&x, &yd)? < 1e-12);
    let yyd = y.t()?.matmul(&yd)?;
    let lambda = yyd.sqr()?.sum_all()?.sqrt()?.to_scalar::<f64>()?;
    assert!(difference(&(yyd / lambda)?, &d.contiguous()?)? < 1e-10);
    // The largest one: above the mean of the squares by features, times the share that stretching gave it.
    assert!(lambda > 0.4 * y.sqr()?.sum_all()?.to_scalar::<f64>()?);
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
    assert!(little < without && much < little, "{without} {little} {much}");
    Ok(())
}

#[test]
fn statistics_are_the_dense_products_and_forget() -> Result<()> {
    for shape in SHAPES {
        let [_, n, p, _] = shape;
        for (dtype, eps) in [(DType::F32, 1e-6), (DType::F64, 1e-14)] {
            let (y, _, codes) = problem(shape, dtype)?;
            let (x, uses) = (codes.to_dense()?.to_dtype(DType::F64)?, AtomUses::of(&codes)?);
            let (a, b) = (unit_rows(n, n, 6, dtype)?, unit_rows(n, p, 7, dtype)?);
            let y64 = y.to_dtype(DType::F64)?;
            let mut want_a = x.t()?.matmul(&x)?;
            let mut want_b = x.t()?.matmul(&y64)?;
            let nan = Tensor::full(f32::NAN, (n, n), &CPU)?.to_dtype(dtype)?;
            for (a, beta) in [(&nan, 0.), (&a, 0.25)] {
                if beta > 0. {
                    want_a = (want_a + (a.to_dtype(DType::F64)? * beta)?)?;
                    want_b = (want_b + (b.to_dtype(DType::F64)? * beta)?)?;
                }
                let step = StatisticsStep { beta, ..StatisticsStep::default() };
                codes_statistics_(a, &b, &codes, &uses, &y, step)?;
                let scale = want_a.abs()?.flatten_all()?.max(0)?.to_scalar::<f64>()?
                    + want_b.abs()?.flatten_all()?.max(0)?.to_scalar::<f64>()?;
                let off = difference(a, &want_a.to_dtype(dtype)?)?;
                assert!(off < 10. * eps * scale, "{shape:?} {dtype:?}: A differs by {off} of {scale}");
                let off = difference(&b, &want_b.to_dtype(dtype)?)?;
                assert!(off < 10. * eps * scale, "{shape:?} {dtype:?}: B differs by {off} of {scale}");
                // In another unit: a power of two, so that every bit is the same but for it.
                let other = [a.zeros_like()?, b.zeros_like()?];
                let one = [a.zeros_like()?, b.zeros_like()?];
                let step = StatisticsStep { scale: 0.125, ..StatisticsStep::default() };
                codes_statistics_(&other[0], &other[1], &codes, &uses, &y, step)?;
                codes_statistics_(&one[0], &one[1], &codes, &uses, &y, StatisticsStep::default())?;
                for (other, one) in other.iter().zip(&one) {
                    assert_eq!(difference(&(other * 64.)?, one)?, 0.);
                }
                (want_a, want_b) = (x.t()?.matmul(&x)?, x.t()?.matmul(&y64)?);
                b.slice_set(&unit_rows(n, p, 7, dtype)?, 0, 0)?;
            }
        }
    }
    Ok(())
}

#[test]
fn statistics_of_a_million_signals_are_as_good_as_those_of_few() -> Result<()> {
    let (m, n) = (1_000_000, 3);
    // Each signal uses the first atom and one of the others, by coefficients from 0 to 1.
    let indices: Vec<u32> = (0..m as u32).flat_map(|i| [0, 1 + i % 2]).collect();
    let words = (0..2 * m as u64).map(|e| Philox::new(9, 0).bits(e));
    let values: Vec<f32> = words.map(|word| (word >> 8) as f32 / (1 << 24) as f32).collect();
    let mut want = [[0f64; 3]; 3];
    for (atoms, x) in indices.chunks(2).zip(values.chunks(2)) {
        for (&i, &x) in atoms.iter().zip(x) {
            want[i as usize][i as usize] += f64::from(x) * f64::from(x);
        }
        let both = f64::from(x[0]) * f64::from(x[1]);
        want[0][atoms[1] as usize] += both;
        want[atoms[1] as usize][0] += both;
    }
    let codes = SparseCodes {
        indices: Tensor::from_vec(indices, (m, 2), &CPU)?,
        values: Tensor::from_vec(values, (m, 2), &CPU)?,
        count: Tensor::full(2u32, m, &CPU)?,
        n_atoms: n,
    };
    let (a, b) = (Tensor::zeros((n, n), DType::F32, &CPU)?, Tensor::zeros((n, 1), DType::F32, &CPU)?);
    let uses = AtomUses::of(&codes)?;
    let signals = codes.values.narrow(1, 0, 1)?.contiguous()?;
    codes_statistics_(&a, &b, &codes, &uses, &signals, StatisticsStep::default())?;
    // 4,000 blocks are added to each sum: as many roundings of up to 2^-24 in either direction, of which the most part cancel.
    // One sum over all is off by 5e-4.
    for (got, want) in a.to_vec2::<f32>()?.iter().flatten().zip(want.iter().flatten()) {
        let off = if *want == 0. { f64::from(*got) } else { f64::from(*got) / want - 1. };
        assert!(off.abs() < 2e-5, "A: {got} for {want}, off by {off}");
    }
    let got = b.to_vec2::<f32>()?[0][0];
    let off = f64::from(got) / want[0][0] - 1.;
    assert!(off.abs() < 2e-5, "B: {got} for {}, off by {off}", want[0][0]);
    Ok(())
}

#[test]
fn descent_is_the_equation_and_lowers_its_objective() -> Result<()> {
    for shape in SHAPES {
        let [_, n, p, _] = shape;
        for (dtype, eps) in [(DType::F32, 1e-6), (DType::F64, 1e-14)] {
            let (y, d, codes) = problem(shape, dtype)?;
            let uses = AtomUses::of(&codes)?;
            let (a, b) = (Tensor::zeros((n, n), dtype, &CPU)?, Tensor::zeros((n, p), dtype, &CPU)?);
            codes_statistics_(&a, &b, &codes, &uses, &y, StatisticsStep::default())?;
            let objective = |d: &Tensor| -> Result<f64> {
                let d = d.to_dtype(DType::F64)?;
                let quadratic = (d.t()?.contiguous()?.matmul(&a.to_dtype(DType::F64)?)?.matmul(&d)? * 0.5)?;
                let trace = |t: &Tensor| -> Result<f64> {
                    let rows = t.to_vec2::<f64>()?;
                    Ok((0..rows.len()).map(|i| rows[i][i]).sum())
                };
                Ok(trace(&quadratic)? - trace(&d.t()?.contiguous()?.matmul(&b.to_dtype(DType::F64)?)?)?)
            };
            for n_fixed in [0, 2] {
                let want = descend_atoms_reference(&d, &a, &b, n_fixed)?;
                let got = d.copy()?;
                descend_atoms_(&got, &a, &b, n_fixed)?;
                let off = difference(&got, &want)?;
                assert!(off < 300. * eps, "{shape:?} {dtype:?}: differs by {off}");
                assert!(objective(&got)? <= objective(&d)? + 1e-9);
                assert_eq!(difference(&got.narrow(0, 0, n_fixed)?, &d.narrow(0, 0, n_fixed)?)?, 0.);
            }
        }
    }
    Ok(())
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() -> Result<()> {
    // Lists longer than 512, sums over several blocks, groups that follow each other; several parts of the sort.
    let run = |threads, group| -> Result<Vec<Vec<u32>>> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        pool.install(|| {
            let (y, d, codes) = problem([30_000, 9, 64, 3], DType::F32)?;
            let uses = AtomUses::of(&codes)?;
            let error = codes.residual(&y, &d)?;
            let update = AtomUpdate { group, power_steps: 2, tolerance: 0., ..AtomUpdate::default() };
            let (updated, codes) = update_atoms(&d, &codes, &uses, &error, &update)?;
            let (a, b) =
                (Tensor::zeros((9, 9), DType::F32, &CPU)?, Tensor::zeros((9, 64), DType::F32, &CPU)?);
            codes_statistics_(&a, &b, &codes, &uses, &y, StatisticsStep::default())?;
            let moved = updated.copy()?;
            descend_atoms_(&moved, &a, &b, 0)?;
            let squares = row_squares(&error)?.to_dtype(DType::F32)?;
            [updated, codes.values, a, b, moved, squares]
                .iter()
                .map(|t| Ok(t.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect()))
                .collect()
        })
    };
    for group in [1, 4, 9] {
        let one = run(1, group)?;
        for threads in [2, 5] {
            assert!(run(threads, group)? == one, "group {group}: {threads} threads give other bits than one");
        }
    }
    Ok(())
}

#[test]
fn coherence_is_that_with_the_atoms_before() -> Result<()> {
    for (n, p) in [(1, 3), (7, 2), (90, 20), (300, 64)] {
        let d = (unit_rows(n, p, 8, DType::F32)? * 3.)?;
        let off = difference(&atom_coherence(&d)?, &atom_coherence_reference(&d)?)?;
        assert!(off < 1e-6, "n {n}: {off}");
    }
    // The third is the first with another sign; the fourth is zero.
    let d = Tensor::new(&[[1f32, 0.], [0., 2.], [-3., 0.], [0., 0.]], &CPU)?;
    assert_eq!(atom_coherence(&d)?.to_vec1::<f64>()?, [0., 0., 1., 0.]);
    let d = Tensor::new(&[[1f32, 0.], [f32::NAN, 2.], [0., 1.]], &CPU)?;
    let like = atom_coherence(&d)?.to_vec1::<f64>()?;
    assert!(like[0] == 0. && like[1].is_nan() && like[2].is_nan(), "a NaN shows: {like:?}");
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
fn what_does_not_fit_is_refused_with_the_reason() -> Result<()> {
    let (y, d, codes) = problem([5, 3, 2, 1], DType::F32)?;
    let uses = AtomUses::of(&codes)?;
    let error = codes.residual(&y, &d)?;
    let says = |got: Result<()>, want: &str| {
        let message = got.expect_err("accepted").to_string();
        assert_eq!(message.lines().next(), Some(want));
    };
    let run = |update: AtomUpdate| update_atoms(&d, &codes, &uses, &error, &update).map(|_| ());
    says(
        run(AtomUpdate { group: 0, ..AtomUpdate::default() }),
        "update_atoms: group must be at least 1, got 0",
    );
    says(
        run(AtomUpdate { coherence_penalty: -1., ..AtomUpdate::default() }),
        "update_atoms: coherence_penalty must be a finite number of at least 0, got -1",
    );
    says(
        update_atoms(&d, &codes, &uses, &error.narrow(0, 0, 4)?, &AtomUpdate::default()).map(|_| ()),
        "update_atoms: error must have shape [5, 2], got [4, 2]",
    );
    says(
        update_atoms(&d, &codes, &uses, &error.to_dtype(DType::F64)?, &AtomUpdate::default()).map(|_| ()),
        "update_atoms: error must be f32, got F64",
    );
    let far = SparseCodes { indices: (&codes.indices + 3.)?, ..codes.clone() };
    says(
        AtomUses::of(&far).map(|_| ()),
        &format!(
            "AtomUses::of: indices must be below n_atoms 3, got {} for signal 0",
            3 + codes.indices.get(0)?.to_vec1::<u32>()?[0]
        ),
    );
    let (other, _, few) = problem([4, 3, 2, 1], DType::F32)?;
    let a = Tensor::zeros((3, 3), DType::F32, &CPU)?;
    says(
        codes_statistics_(&a, &d, &few, &uses, &other, StatisticsStep::default()),
        "codes_statistics_: uses must be those of the codes, of shape [5, 1] over 3 atoms, got codes [4, 1] over 3",
    );
    Ok(())
}

/// Codes in which most signals name an atom twice or more, and one as often as a code has entries.
fn repeated(m: usize, n: usize, s: usize, dtype: DType) -> Result<SparseCodes> {
    let words = (0..(m * s) as u64).map(|e| Philox::new(11, 0).bits(e));
    let indices: Vec<u32> =
        words.enumerate().map(|(e, word)| if e / s == 1 { 0 } else { word % n as u32 }).collect();
    Ok(SparseCodes {
        indices: Tensor::from_vec(indices, (m, s), &CPU)?,
        values: normal((m, s), &CPU, Philox::new(11, 1))?.to_dtype(dtype)?,
        count: Tensor::full(s as u32, m, &CPU)?,
        n_atoms: n,
    })
}

#[test]
fn entries_of_a_code_that_name_one_atom_are_added() -> Result<()> {
    for (m, n, s) in [(5, 3, 4), (70, 6, 40), (3000, 2, 3)] {
        let codes = repeated(m, n, s, DType::F64)?;
        let y = normal((m, 7), &CPU, Philox::new(11, 2))?.to_dtype(DType::F64)?;
        let uses = AtomUses::of(&codes)?;
        let (a, b) = (Tensor::zeros((n, n), DType::F64, &CPU)?, Tensor::zeros((n, 7), DType::F64, &CPU)?);
        codes_statistics_(&a, &b, &codes, &uses, &y, StatisticsStep::default())?;
        let x = codes.to_dense()?;
        // Sums of up to 9,000 numbers up to 20.
        assert!(difference(&a, &x.t()?.matmul(&x)?)? < 1e-9);
        assert!(difference(&b, &x.t()?.matmul(&y)?)? < 1e-9);
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
    assert!(difference(&got.get(0)?, &Tensor::new(want, &CPU)?)? < 1e-12);
    Ok(())
}

#[test]
fn figures_are_the_sums_and_the_largest_squares_of_their_parts() -> Result<()> {
    for shape in [[5, 3, 2, 1], [301, 50, 20, 4], [2500, 9, 130, 3]] {
        let (y, d, codes) = problem(shape, DType::F32)?;
        let n = shape[1];
        let (uses, error) = (AtomUses::of(&codes)?, codes.residual(&y, &d)?);
        let figures = Tensor::full(f64::NAN, 2 * FIGURE_PARTS + n + 1, &CPU)?;
        let squares = code_figures_(&figures, &error, &y, &uses)?;
        assert_eq!(difference(&squares, &row_squares(&error)?)?, 0.);
        let (figures, squares) = (figures.to_vec1::<f64>()?, squares.to_vec1::<f64>()?);
        let sum: f64 = figures[..FIGURE_PARTS].iter().sum();
        assert!((sum / squares.iter().sum::<f64>() - 1.).abs() < 1e-12, "{shape:?}");
        let largest = row_squares(&y)?.max(0)?.to_scalar::<f64>()?;
        let of_parts = figures[FIGURE_PARTS..2 * FIGURE_PARTS].iter().fold(0., |a: f64, &b| a.max(b));
        assert_eq!(of_parts, largest, "{shape:?}");
        let offsets: Vec<f64> = uses.offsets().to_vec1::<u32>()?.into_iter().map(f64::from).collect();
        assert_eq!(figures[2 * FIGURE_PARTS..], offsets, "{shape:?}");
    }
    Ok(())
}

#[test]
fn statistics_beyond_their_bounds_are_not_written() -> Result<()> {
    let (y, d, codes) = problem([40, 12, 16, 3], DType::F64)?;
    let (uses, error) = (AtomUses::of(&codes)?, codes.residual(&y, &d)?);
    let all = Tensor::zeros(2 * FIGURE_PARTS + 13, DType::F64, &CPU)?;
    for (signals, most_square, written) in
        [(y.clone(), 1e9, true), (y.clone(), 1., false), ((&y * f64::NAN)?, 1e9, false)]
    {
        code_figures_(&all, &error, &signals, &uses)?;
        let figures = all.narrow(0, 0, 2 * FIGURE_PARTS)?;
        let bounds = Bounds { figures: &figures, most_error: f64::MAX, most_square };
        assert_eq!(bounds.hold(&all.to_vec1()?), written);
        let (a, b) = (unit_rows(12, 12, 6, DType::F64)?, unit_rows(12, 16, 7, DType::F64)?);
        let before = [a.copy()?, b.copy()?];
        let step = StatisticsStep { beta: 0.5, bounds: Some(bounds), ..StatisticsStep::default() };
        codes_statistics_(&a, &b, &codes, &uses, &y, step)?;
        for (before, now) in before.iter().zip([&a, &b]) {
            assert_eq!(difference(now, before)? > 0., written, "most square {most_square}");
        }
    }
    Ok(())
}

#[test]
fn coherence_may_be_written_into_a_longer_tensor() -> Result<()> {
    let d = unit_rows(7, 3, 8, DType::F32)?;
    let all = Tensor::full(-1f64, 12, &CPU)?;
    atom_coherence_(&all.narrow(0, 3, 7)?, &d)?;
    let (all, want) = (all.to_vec1::<f64>()?, atom_coherence(&d)?.to_vec1::<f64>()?);
    assert_eq!((&all[..3], &all[3..10], &all[10..]), (&[-1.; 3][..], &want[..], &[-1.; 2][..]));
    Ok(())
}
