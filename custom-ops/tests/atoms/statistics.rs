//! Statistics of codes, and the descent of atoms by them.
use super::common::{CPU, SHAPES, difference, problem, repeated, unit_rows};
use candle::{DType, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::codes::{
    AtomLength, AtomUses, Bounds, FIGURE_PARTS, SparseCodes, StatisticsStep, code_figures_,
    codes_statistics_, descend_atoms_, descend_atoms_reference,
};
use chandlery_ops::core::normal;

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
    // 4,000 blocks are added to each sum: as many roundings of up to 2^-24 in either direction, of
    // which the most part cancel. One sum over all is off by 5e-4.
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
            for (n_fixed, length) in
                [0, 2].into_iter().flat_map(|f| [AtomLength::One, AtomLength::AtMostOne].map(|l| (f, l)))
            {
                let want = descend_atoms_reference(&d, &a, &b, n_fixed, length)?;
                let got = d.copy()?;
                descend_atoms_(&got, &a, &b, n_fixed, length)?;
                let off = difference(&got, &want)?;
                assert!(off < 300. * eps, "{shape:?} {dtype:?} {length:?}: differs by {off}");
                assert!(objective(&got)? <= objective(&d)? + 1e-9);
                assert_eq!(difference(&got.narrow(0, 0, n_fixed)?, &d.narrow(0, 0, n_fixed)?)?, 0.);
            }
        }
    }
    Ok(())
}

#[test]
fn descent_shortens_atoms_where_that_is_better_and_lengths_may_be_below_one() -> Result<()> {
    // A is diagonal: each atom moves to b_j / A_jj at once, of lengths ½ and 5; the last is unused,
    // the one before it has b = 0.
    let a = Tensor::new(&[[4f32, 0., 0., 0.], [0., 1., 0., 0.], [0., 0., 2., 0.], [0.; 4]], &CPU)?;
    let b = Tensor::new(&[[2f32, 0.], [3., 4.], [0., 0.], [0., 0.]], &CPU)?;
    let start = Tensor::new(&[[0f32, 1.], [1., 0.], [1., 0.], [0., 1.]], &CPU)?;
    for (length, want) in [
        (AtomLength::AtMostOne, [[0.5f32, 0.], [0.6, 0.8], [0., 0.], [0., 1.]]),
        (AtomLength::One, [[1., 0.], [0.6, 0.8], [1., 0.], [0., 1.]]),
    ] {
        let d = start.copy()?;
        descend_atoms_(&d, &a, &b, 0, length)?;
        assert!(difference(&d, &Tensor::new(&want, &CPU)?)? < 1e-6, "{length:?}: {d}");
    }
    Ok(())
}
