//! Codes of at least 0, and signals with missing samples.
use super::{Rule, VALUE, eps, moved, problem, rows};
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::codes::{
    Pursuit, SparseCodes, bomp_masked, bomp_masked_reference, ols_masked, ols_masked_reference,
};
use chandlery_ops::core::uniform;
use chandlery_tests::{devices, sizes_here};

#[test]
fn nonnegative_codes_are_those_of_the_reference() -> Result<()> {
    for (m, n, p, s) in
        [(1, 1, 1, 1), (40, 60, 24, 8), (41, 300, 32, 12), (20, 900, 64, 40), (4, 1100, 30, 6)]
    {
        for dtype in [DType::F32, DType::F64] {
            let (signals, dictionary) = problem(m, n, p, dtype)?;
            // Atoms in one half of the space are coherent, and a new one turns coefficients of
            // others negative.
            let dictionary = dictionary.broadcast_add(&dictionary.abs()?.mean_keepdim(1)?)?;
            for device in devices()? {
                let (y, d) = (signals.to_device(&device)?, dictionary.to_device(&device)?);
                for rule in [Rule::Omp, Rule::Ols] {
                    let pursuit = Pursuit { nonnegative: true, ..Pursuit::new(s) };
                    let got = rule.run(&y, &d, &pursuit)?;
                    let want = rule.reference(&signals, &dictionary, &pursuit)?;
                    let what = format!("{rule:?} x >= 0 {n}x{p} s {s} {dtype:?} on {:?}", device.location());
                    assert_nonnegative(&what, &signals, &dictionary, &got, &want)?;
                }
            }
        }
    }
    Ok(())
}

/// The codes are at least 0 and reach the residual of the reference, with its atoms in nearly all
/// rows.
#[track_caller]
fn assert_nonnegative(
    what: &str,
    signals: &Tensor,
    dictionary: &Tensor,
    got: &SparseCodes,
    want: &SparseCodes,
) -> Result<()> {
    let dtype = got.values.dtype();
    let cpu = |codes: &SparseCodes| -> Result<SparseCodes> {
        let to = |x: &Tensor| x.to_device(&Device::Cpu);
        Ok(SparseCodes {
            indices: to(&codes.indices)?,
            values: to(&codes.values)?.to_dtype(DType::F64)?,
            count: to(&codes.count)?,
            n_atoms: codes.n_atoms,
        })
    };
    let (got, want) = (cpu(got)?, cpu(want)?);
    let (signals, dictionary) = (signals.to_dtype(DType::F64)?, dictionary.to_dtype(DType::F64)?);
    let left = |codes: &SparseCodes| codes.residual(&signals, &dictionary)?.sqr()?.sum(1)?.to_vec1::<f64>();
    let (size, got_left, want_left) = (signals.sqr()?.sum(1)?.to_vec1::<f64>()?, left(&got)?, left(&want)?);
    let (got, want) = (rows(&got)?, rows(&want)?);
    let mut others = 0;
    for row in 0..got.len() {
        assert!(got[row].iter().all(|e| e.1 > 0.), "{what}, row {row}: {:?}", got[row]);
        let atoms = |code: &[(usize, f64)]| code.iter().map(|e| e.0).collect::<Vec<_>>();
        if atoms(&got[row]) != atoms(&want[row]) {
            others += 1;
            continue;
        }
        let error = (got_left[row].sqrt() - want_left[row].sqrt()).abs() / (eps(dtype) * size[row].sqrt());
        assert!(error <= VALUE, "{what}, row {row}: the residuals' norms are {error:.1} roundings apart");
    }
    // Coefficients that are 0 but for rounding may be there or not.
    assert!(others <= 1 + got.len() / 20, "{what}: {others} of {} rows have other atoms", got.len());
    Ok(())
}

type Masked = fn(&Tensor, &Tensor, &Tensor, &Pursuit) -> Result<SparseCodes>;

#[test]
fn masked_pursuits_are_those_of_the_observed_samples() -> Result<()> {
    let sizes = [(1, 2, 3, 2), (40, 60, 24, 5), (33, 300, 64, 8), (20, 1100, 96, 48)];
    for (m, n, p, s) in sizes_here(&sizes, |(m, n, p, s)| m * n * p * s) {
        for dtype in [DType::F32, DType::F64] {
            let (signals, dictionary) = problem(m, n, p, dtype)?;
            let mask = uniform((m, p), &Device::Cpu, Philox::new(5, m as u64))?.lt(0.8)?;
            // What is missing must not be looked at; nor does a signal without any sample have a
            // code.
            let nothing = mask.zeros_like()?.narrow(0, 0, 1)?;
            let mask = if m > 1 { Tensor::cat(&[&nothing, &mask.narrow(0, 1, m - 1)?], 0)? } else { mask };
            let missing = Tensor::full(f64::NAN, (m, p), &Device::Cpu)?.to_dtype(dtype)?;
            let seen = mask.where_cond(&signals, &missing)?;
            let zeroed = mask.where_cond(&signals, &signals.zeros_like()?)?;
            for device in devices()? {
                let to = |x: &Tensor| moved(x, &device);
                for (rule, nonnegative) in [(Rule::Omp, false), (Rule::Omp, true), (Rule::Ols, false)] {
                    let pursuit = Pursuit { nonnegative, ..Pursuit::new(s) };
                    let (run, reference): (Masked, Masked) = match rule {
                        Rule::Omp => (bomp_masked, bomp_masked_reference),
                        Rule::Ols => (ols_masked, ols_masked_reference),
                    };
                    let got = run(&to(&seen)?, &to(&mask)?, &to(&dictionary)?, &pursuit)?;
                    let want = reference(&zeroed, &mask, &dictionary, &pursuit)?;
                    let what = format!("masked {rule:?} {n}x{p} s {s} {dtype:?} on {:?}", device.location());
                    let (got, want) = (rows(&got)?, rows(&want)?);
                    let mut others = 0;
                    for (got, want) in got.iter().zip(&want) {
                        let near = |(g, w): (&(usize, f64), &(usize, f64))| {
                            g.0 == w.0 && (g.1 - w.1).abs() <= 8. * VALUE * eps(dtype) * (p as f64).sqrt()
                        };
                        let same = got.len() == want.len() && got.iter().zip(want).all(near);
                        others += usize::from(!same);
                    }
                    assert!(others <= m / 20, "{what}: {others} of {m} codes differ");
                    assert!(m == 1 || got[0].is_empty(), "{what}: a code of nothing: {:?}", got[0]);
                }
            }
        }
    }
    Ok(())
}
