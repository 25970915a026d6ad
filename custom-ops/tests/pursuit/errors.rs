//! What is refused, and in which words.
use super::common::*;
use candle::{DType, Device::Cpu, Result, Tensor};
use chandlery_ops::codes::{ErrorTarget, Pursuit, SparseCodes, bomp, bomp_masked, ols};

fn message<T>(r: Result<T>) -> String {
    r.err().map(|e| e.to_string().lines().next().unwrap_or_default().to_owned()).unwrap_or_default()
}

#[test]
fn errors_name_what_is_wrong() -> Result<()> {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Cpu);
    let (signals, dictionary, two) = (zeros(&[4, 3])?, zeros(&[5, 3])?, Pursuit::new(2));
    let with = |error| Pursuit { error: Some(error), ..two.clone() };
    let cases: Vec<(Result<SparseCodes>, &str)> = vec![
        (
            bomp(&zeros(&[3])?, &dictionary, &two),
            "bomp: signals must be [n_samples, n_features], got shape [3]",
        ),
        (
            ols(&signals, &zeros(&[5, 4])?, &two),
            "ols: dictionary must be [n_atoms, 3] to go with signals [4, 3], got [5, 4]",
        ),
        (bomp(&signals, &dictionary.to_dtype(DType::F64)?, &two), "bomp: dictionary must be f32, got F64"),
        (
            bomp(&signals, &dictionary, &Pursuit::new(0)),
            "bomp: n_nonzero must be in 1..=5, the number of atoms, got 0",
        ),
        (
            bomp(&signals, &dictionary, &Pursuit::new(6)),
            "bomp: n_nonzero must be in 1..=5, the number of atoms, got 6",
        ),
        (
            bomp(&signals, &dictionary, &with(ErrorTarget::Absolute(-1.))),
            "bomp: the error target must be a finite number of at least 0, got -1",
        ),
        (
            ols(&signals, &dictionary, &with(ErrorTarget::Relative(f64::NAN))),
            "ols: the error target must be a finite number of at least 0, got NaN",
        ),
        (
            bomp(&signals, &dictionary, &with(ErrorTarget::PerSignal(zeros(&[3])?))),
            "bomp: error targets must have shape [4], got [3]",
        ),
        (
            bomp(
                &signals,
                &dictionary,
                &with(ErrorTarget::PerSignal(Tensor::new(&[0f32, 0., -2., 0.], &Cpu)?)),
            ),
            "bomp: error targets must be finite numbers of at least 0, got -2 for row 2",
        ),
        (
            bomp(&zeros(&[4, 3])?.to_dtype(DType::BF16)?, &dictionary, &two),
            "bomp: signals must be f32 or f64, got BF16",
        ),
        (
            bomp_masked(&signals, &zeros(&[4, 2])?.to_dtype(DType::U8)?, &dictionary, &two),
            "bomp_masked: mask must have shape [4, 3], got [4, 2]",
        ),
        (bomp_masked(&signals, &zeros(&[4, 3])?, &dictionary, &two), "bomp_masked: mask must be u8, got F32"),
    ];
    for (result, want) in cases {
        assert_eq!(message(result), want);
    }
    let codes = bomp(&signals, &dictionary, &two)?;
    let cases = [
        (
            codes.reconstruct(&zeros(&[4, 3])?),
            "SparseCodes::reconstruct: dictionary must have shape [5, 3], got [4, 3]",
        ),
        (
            codes.reconstruct(&dictionary.to_dtype(DType::F64)?),
            "SparseCodes::reconstruct: dictionary must be f32, got F64",
        ),
        (
            codes.residual(&zeros(&[3, 3])?, &dictionary),
            "SparseCodes::residual: signals must have shape [4, 3], got [3, 3]",
        ),
    ];
    for (result, want) in cases {
        assert_eq!(message(result), want);
    }
    Ok(())
}

#[test]
fn numbers_that_are_not_finite_are_refused_by_their_row() -> Result<()> {
    for dtype in [DType::F32, DType::F64] {
        // Many signals and few: each way of computing looks.
        for (m, row) in [(200, 131), (3, 2)] {
            for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                let (signals, dictionary) = (gaussian(m, 21, 1)?, gaussian(40, 21, 2)?);
                let spoil = |x: &Tensor, row: usize| -> Result<Tensor> {
                    let mut rows = x.to_vec2::<f64>()?;
                    rows[row][20] = bad;
                    Tensor::from_vec(rows.concat(), x.shape(), &Cpu)?.to_dtype(dtype)
                };
                for (name, fast, _) in CODERS {
                    assert_eq!(
                        message(fast(&spoil(&signals, row)?, &dictionary.to_dtype(dtype)?, &Pursuit::new(3))),
                        format!("{name}: signals must be finite, got NaN or infinity in row {row}")
                    );
                    assert_eq!(
                        message(fast(&signals.to_dtype(dtype)?, &spoil(&dictionary, 7)?, &Pursuit::new(3))),
                        format!("{name}: dictionary must be finite, got NaN or infinity in atom 7")
                    );
                }
            }
        }
    }
    Ok(())
}
