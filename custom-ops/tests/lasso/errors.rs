//! What is refused, and in which words.
use super::common::*;
use candle::{DType, Device::Cpu, Result, Tensor};
use chandlery_ops::codes::{LassoOptions, LassoReport, lasso_};

fn message(result: Result<LassoReport>) -> String {
    result.err().map(|e| e.to_string().lines().next().unwrap_or_default().to_owned()).unwrap_or_default()
}

/// Operands of a problem of 4 signals and 3 atoms: activations, gram, correlations, energies,
/// penalties.
fn operands(dtype: DType) -> Result<[Tensor; 5]> {
    let dictionary = gaussian(3, 5, 1)?;
    let signals = gaussian(4, 5, 2)?;
    let correlations = signals.matmul(&dictionary.t()?)?;
    let gram = dictionary.matmul(&dictionary.t()?)?;
    let all = [
        correlations.zeros_like()?,
        gram,
        correlations,
        signals.sqr()?.sum(1)?,
        Tensor::ones(3, DType::F64, &Cpu)?,
    ];
    let all = all.iter().map(|x| x.to_dtype(dtype)).collect::<Result<Vec<_>>>()?;
    Ok(all.try_into().unwrap())
}

fn call([a, gram, c, energies, penalties]: &[Tensor; 5], options: &LassoOptions) -> String {
    message(lasso_(a, gram, c, energies, penalties, options))
}

#[test]
fn errors_name_what_is_wrong() -> Result<()> {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Cpu);
    let options = LassoOptions::default();
    let cases = [
        (0, zeros(&[4])?, "lasso_: activations must be [n_samples, n_atoms], got shape [4]"),
        (0, zeros(&[4, 3])?.to_dtype(DType::U8)?, "lasso_: activations must be f32 or f64, got U8"),
        (1, zeros(&[3, 2])?, "lasso_: gram must have shape [3, 3], got [3, 2]"),
        (1, zeros(&[3, 3])?.to_dtype(DType::F64)?, "lasso_: gram must be f32, got F64"),
        (1, zeros(&[2, 3, 3])?, "lasso_: gram must have shape [4, 3, 3], got [2, 3, 3]"),
        (2, zeros(&[5, 3])?, "lasso_: correlations must have shape [4, 3], got [5, 3]"),
        (3, zeros(&[3])?, "lasso_: energies must have shape [4], got [3]"),
        (4, zeros(&[4])?, "lasso_: penalties must have shape [3], got [4]"),
    ];
    for (at, wrong, want) in cases {
        let mut operands = operands(DType::F32)?;
        operands[at] = wrong;
        assert_eq!(call(&operands, &options), want);
    }
    let right = operands(DType::F32)?;
    assert_eq!(call(&right, &options), "");
    let cases = [
        (
            LassoOptions { tolerance: -1., ..options },
            "lasso_: tolerance must be a finite number of at least 0, got -1",
        ),
        (
            LassoOptions { tolerance: f64::NAN, ..options },
            "lasso_: tolerance must be a finite number of at least 0, got NaN",
        ),
        (LassoOptions { max_updates: 0, ..options }, "lasso_: max_updates must be at least 1, got 0"),
    ];
    for (options, want) in cases {
        assert_eq!(call(&right, &options), want);
    }
    let [a, _, c, energies, _] = right;
    let (a, c) = (a.narrow(1, 0, 0)?.contiguous()?, c.narrow(1, 0, 0)?.contiguous()?);
    let none = [a, zeros(&[0, 0])?, c, energies, zeros(&[0])?];
    assert_eq!(call(&none, &options), "lasso_: gram must have at least one atom, got shape [0, 0]");
    Ok(())
}

#[test]
fn numbers_out_of_range_are_refused_by_their_place() -> Result<()> {
    let range = "must be finite numbers of at least 0, got";
    for dtype in TYPES {
        for (bad, name) in [(f64::NAN, "NaN"), (f64::INFINITY, "inf"), (-1., "-1")] {
            let spoil = |x: &Tensor, at: usize| -> Result<Tensor> {
                let mut entries = x.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>()?;
                entries[at] = bad;
                Tensor::from_vec(entries, x.shape(), &Cpu)?.to_dtype(dtype)
            };
            let mut cases = vec![
                (3, 2, format!("lasso_: energies {range} {name} for row 2")),
                (4, 1, format!("lasso_: penalties {range} {name} for atom 1")),
            ];
            if bad != -1. {
                cases.extend([
                    (0, 7, "lasso_: activations must be finite, got NaN or infinity in row 2".to_owned()),
                    (1, 5, "lasso_: gram must be finite, got NaN or infinity in row 1".to_owned()),
                    (2, 10, "lasso_: correlations must be finite, got NaN or infinity in row 3".to_owned()),
                ]);
            }
            for (which, at, want) in cases {
                let mut operands = operands(dtype)?;
                operands[which] = spoil(&operands[which], at)?;
                assert_eq!(call(&operands, &LassoOptions::default()), want);
            }
        }
    }
    Ok(())
}

#[test]
fn a_gram_matrix_of_one_signal_that_is_not_finite_is_named() -> Result<()> {
    let [a, gram, c, energies, penalties] = operands(DType::F64)?;
    let mut all = gram.flatten_all()?.to_vec1::<f64>()?.repeat(4);
    all[2 * 9 + 4] = f64::NAN;
    let all = [a, Tensor::from_vec(all, (4, 3, 3), &Cpu)?, c, energies, penalties];
    let want = "lasso_: gram must be finite, got NaN or infinity in row 1 of the matrix of signal 2";
    assert_eq!(call(&all, &LassoOptions::default()), want);
    Ok(())
}
